"""Mutated pocket files: each must load or be refused with a UserError, in little time and memory.

python benchmarks/fuzz.py [--files 100000]

Half of the mutations have their checksum set right again, as somebody would who means harm: they reach the decoder.
Writes results/fuzz.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from measure import write_result
from pocketbayes import pocket
from pocketbayes.container import METADATA
from pocketbayes.packing import Precision

METHODS: dict[str, tuple[pb.Method, str | Precision]] = {
    "shared": (pb.WeightSharing(k=4, n_min=2, tau_w=0.3), "lossless"),
    "sparse": (pb.SSVI(density=0.2), "int8"),
    "partial": (pb.PBN(rate=0.2, pretrain_epochs=0), "bfloat16"),
    "mean-field": (pb.MeanFieldVI(), "int8"),
    "quantized": (pb.Int8(sigma_bits=4), "lossless"),
    "ensemble": (pb.Ensemble(members=2), "lossless"),
}
LIES = (0, 1, -1, 2, 7, 255, 2**31, 2**40, 2**63, -(2**63), 1e308, "", "x", None, True, [], {}, [[]], [0], {"a": 0})


def corpus(folder: Path) -> list[bytes]:
    """A small file for every storage."""
    files = []
    for name, (method, precision) in METHODS.items():
        torch.manual_seed(0)
        model = pb.models.build("mlp", in_features=12, out_features=3, hidden=[10])
        pb.save(pb.bayesianize(model, method), folder / name, precision=precision)
        files.append((folder / name).read_bytes())
    return files


def mutate(whole: bytes, chooser: random.Random) -> bytes:
    """The file with something changed, one time in two with a checksum that is right."""
    kind = chooser.randrange(4)
    if kind == 0:
        return damage(whole, chooser)
    text, parts = take_apart(whole)
    if kind == 1:
        name = chooser.choice(sorted(parts))
        parts[name] = damage(parts[name], chooser)
    elif kind == 2:
        lie(text, chooser)
    else:
        import zlib

        tree = json.loads(zlib.decompress(parts["tree"]))
        lie(tree, chooser)
        parts["tree"] = zlib.compress(json.dumps(tree).encode())
    return pocket.assemble(text, parts)


def take_apart(whole: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The text and the parts of a file that is sound."""
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    text = json.loads(header.pop("__metadata__")[METADATA])
    parts = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        parts[name] = whole[8 + length + begin : 8 + length + end]
    return text, parts


def damage(data: bytes, chooser: random.Random) -> bytes:
    """Bits flipped, bytes overwritten, a piece cut out, doubled or added."""
    changed = bytearray(data)
    for _ in range(chooser.choice((1, 1, 2, 8))):
        place = chooser.randrange(len(changed) + 1)
        how = chooser.randrange(5)
        if how == 0 and place < len(changed):
            changed[place] ^= 1 << chooser.randrange(8)
        elif how == 1 and place < len(changed):
            changed[place] = chooser.choice((0, 1, 127, 128, 255))
        elif how == 2:
            del changed[place : place + chooser.choice((1, 4, 64, 4096))]
        elif how == 3:
            changed[place:place] = changed[place : place + chooser.choice((1, 4, 64))]
        else:
            changed[place:place] = chooser.randbytes(chooser.choice((1, 8)))
    return bytes(changed)


def lie(tree: Any, chooser: random.Random) -> None:
    """Another value somewhere in a tree of dicts and lists."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in entries:
            places.append((node, key))
            walk(value)

    walk(tree)
    node, key = chooser.choice(places)
    if chooser.random() < 0.2:
        del node[key]
    else:
        node[key] = chooser.choice(LIES)


def outcome(data: bytes, path: Path) -> str:
    """What loading these bytes comes to: "loaded", "refused", or the name of what went wrong."""
    path.write_bytes(data)
    try:
        pb.load(path)
    except pb.UserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), arguments.files, arguments.seed)


def run(folder: Path, count: int, seed: int) -> None:
    """Loads so many mutated files, and writes what came of them after every few thousand."""
    outcomes: Counter[str] = Counter()
    slowest, files = 0.0, corpus(folder)
    outcome(b"", folder / "mutated")
    with contextlib.suppress(pb.UserError):
        pb.models.build("unknown")  # looks into torchvision and timm, whose import is not a file's cost
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        chooser = random.Random(f"{seed} {number}")
        data = mutate(chooser.choice(files), chooser)
        start = time.process_time()
        found = outcome(data, folder / "mutated")
        slowest = max(slowest, time.process_time() - start)
        outcomes[found] += 1
        if found not in ("loaded", "refused"):
            print(number, found, flush=True)
        if (number + 1) % 5000 == 0 or number + 1 == count:
            growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            result = {
                "files": number + 1,
                "outcomes": dict(outcomes),
                "slowest cpu seconds": round(slowest, 4),
                "memory growth in MB": round(growth, 1),
            }
            write_result("fuzz", result)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
