"""Watches a folder: for each new image a line of JSON, the answer or a request to ask a human.

python watch.py net.pocket inbox --abstain-above 0.5 >> answers.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pocketbayes as pb
from pocketbayes.base.errors import collecting_warnings
from pocketbayes.data.folders import SUFFIXES
from pocketbayes.network import Net, members


def arrivals(folder: Path, seconds: float | None) -> Iterator[Path]:
    """Images as they arrive, each once; a file that grew since the last look is still being written."""
    done, sizes = set(), {}
    while True:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path not in done)
        for path in found:
            size = path.stat().st_size
            if seconds is None or sizes.get(path) == size:
                done.add(path)
                yield path
            sizes[path] = size
        if seconds is None:
            return
        time.sleep(seconds)


def answer(net: Net, path: Path, threshold: float) -> dict[str, object]:
    """What the network makes of an image, and whether someone should look at it."""
    info = members(net)[0].info
    try:
        with collecting_warnings() as problems:
            x = pb.data.read_inputs(path, info)
            said = pb.predict(net, x)
    except pb.UserError as error:
        return {"file": path.name, "ask": True, "why": str(error)}
    names = info.class_names or range(info.classes)
    doubt = {part: round(getattr(said, part).item(), 4) for part in ("entropy", "epistemic", "aleatoric")}
    best = int(said.probs.argmax())
    problems += [f"more than {threshold:g} nats of doubt"] if doubt["entropy"] > threshold else []
    why = {"why": "; ".join(problems)} if problems else {}
    found = {"class": names[best], "probability": round(said.probs.max().item(), 4)}
    return {"file": path.name, "ask": bool(why), **found, **doubt, **why}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=Path, help="a .pocket file")
    parser.add_argument("folder", type=Path, help="where images arrive")
    parser.add_argument("--abstain-above", type=float, default=0.5, help="nats of entropy above which a human is asked")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks at the folder")
    parser.add_argument("--once", action="store_true", help="answer for what is there, and stop")
    arguments = parser.parse_args()
    net = pb.load(arguments.net)
    for path in arrivals(arguments.folder, None if arguments.once else arguments.every):
        print(json.dumps(answer(net, path, arguments.abstain_above)), flush=True)


if __name__ == "__main__":
    main()
