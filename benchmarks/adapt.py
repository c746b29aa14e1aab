"""Measure the CPU time of `pocketbayes adapt` on networks built by name, with 300 generated images.

python benchmarks/adapt.py [NAME ...]

Writes results/adapt.json after each network. Weights are random and images are coloured noise: neither changes the
arithmetic. Uses one thread, so CPU seconds are those of one idle core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import pocketbayes as pb

RESULTS = Path(__file__).parent / "results" / "adapt.json"
FOLDERS, IMAGES_PER_FOLDER, SIDE = 10, 30, 64
NETWORKS = {
    "timm:mobilenetv3_small_050": 1000,
    "timm:tf_efficientnet_lite0": 1000,
    "timm:resnet18": 1000,
}
"""Models and their numbers of classes; the folders contain images of the first ten classes."""


def write_images(folder: Path, generator: torch.Generator) -> None:
    """Write the same number of images to each folder."""
    for label in range(FOLDERS):
        (folder / f"class{label:04}").mkdir(parents=True)
        for i in range(IMAGES_PER_FOLDER):
            coarse = torch.rand(1, 3, 8, 8, generator=generator)
            pixels = torch.nn.functional.interpolate(coarse, (SIDE, SIDE), mode="bilinear")[0]
            array = (255 * pixels).to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(array).save(folder / f"class{label:04}" / f"{i}.png")


def measure(name: str, classes: int) -> dict[str, Any]:
    """Run the command once in a separate process and return its result with its CPU seconds."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_images(folder / "photos", generator)
        (folder / "classes.txt").write_text("\n".join(f"class{label:04}" for label in range(classes)))
        model = pb.models.build(name, classes=classes)
        torch.save(model.state_dict(), folder / "weights.pt")
        command = [sys.executable, "-m", "pocketbayes", "adapt", name, "--weights", "weights.pt", "--data", "photos"]
        command += ["--classes", "classes.txt", "--out", "small.pocket", "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # the use of this process alone
    if status:
        raise SystemExit(f"{name}: the command failed")
    found = json.loads(text)
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "classes": classes,
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "images": sum(found["images"].values()),
        "cpu_seconds": cpu,
        "wall_shares": {step: wall / sum(found["seconds"].values()) for step, wall in found["seconds"].items()},
        "bytes": found["bytes"],
        "plain_bytes": found["plain_bytes"],
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),  # KiB but on macOS
        "torch": torch.__version__,
        "processor": platform.machine(),
    }


def main() -> None:
    """Measure the named networks, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    for name in parser.parse_args().names:
        measured = measure(name, NETWORKS[name])
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results[name] = measured
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(name, f"{results[name]['cpu_seconds']:.0f} CPU seconds")


if __name__ == "__main__":
    main()
