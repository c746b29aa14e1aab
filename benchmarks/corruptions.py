"""Measure the pretrained ResNet-20 under 19 corruptions of CIFAR-10 at 5 severities, 1000 test images each.

python benchmarks/corruptions.py --data-dir DATA --weights DATA/weights/resnet20-12fca82f.th

Finished corruptions are kept in the evaluation in --work, so the script can be interrupted and restarted.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pocketbayes as pb
from measure import write_result
from networks import classifier, pretrained_resnet20
from pocketbayes.inference.suite import evaluate_suite

KEPT = ("measures", "reliability", "risk_coverage", "temperature", "shift")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pocketbayes-corruptions")
    parser.add_argument("--images", type=int, default=1000)
    arguments = parser.parse_args()
    net = classifier(pretrained_resnet20(arguments.weights), pb.Deterministic())
    test = pb.data.load("cifar10", "test", arguments.data_dir, mean="imagenet", subset=arguments.images)
    document = evaluate_suite(
        net, test, shift=["corruptions"], batch_size=500, out=arguments.work / "evaluation.json", progress=True
    )
    write_result("corruptions", {"model": "resnet20", "images": arguments.images, **{k: document[k] for k in KEPT}})
    print(document["measures"]["accuracy"], document["shift"]["corruptions_mean"])


if __name__ == "__main__":
    main()
