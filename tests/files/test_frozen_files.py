"""Files of earlier releases: equal networks give equal bytes, and old files load with the same moments.

`python tests/files/test_frozen_files.py` rewrites frozen/, which only a new format justifies.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import pocketbayes as pb
from pocketbayes.files import container, network_file, pocket
from pocketbayes.network import members
from pocketbayes.posteriors import POSTERIORS
from storages import networks, tables

FROZEN = Path(__file__).parent / "frozen"
RECORD = FROZEN / "record.json"
PRECISIONS = ("lossless", "bfloat16", "int8")
NAMES = [*tables(), "trellis", "mixture"]


def record() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(RECORD.read_text())
    return known


def probe() -> str:
    """Return the digest of a known text compressed by zlib, whose releases differ."""
    text = json.dumps([[number % 7, f"layer.{number}.weight"] for number in range(200)]).encode()
    return hashlib.sha256(zlib.compress(text, 9)).hexdigest()


def moments(net: pb.Network | pb.Mixture) -> list[float]:
    """Return the means and stds of all weights, each as one sensitive number."""
    with torch.no_grad():
        both = [torch.cat(each).double() for each in zip(*(network.posterior.moments() for network in members(net)))]
    place = torch.arange(1, len(both[0]) + 1, dtype=torch.float64)
    return [float(each @ place) for each in both]


def contents(path: Path) -> tuple[Any, Any, dict[str, bytes]]:
    """Return the text, the tree and the coded tensors of a file."""
    text, parts = pocket.read(path)
    tree = json.loads(zlib.decompress(parts["tree"]))
    return text, tree, {name: bytes(part) for name, part in parts.items() if name != "tree"}


@pytest.mark.parametrize("name", NAMES)
def test_save_writes_the_frozen_contents(tmp_path, name):
    pb.save(networks()[name], tmp_path / "now.pocket")
    assert contents(tmp_path / "now.pocket") == contents(FROZEN / f"{name}.pocket")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_save_writes_the_frozen_bytes(tmp_path, name, precision):
    if probe() != record()["zlib"]:
        pytest.skip("another zlib compresses the tree differently")
    pb.save(networks()[name], tmp_path / "now.pocket", precision=precision)
    assert hashlib.sha256((tmp_path / "now.pocket").read_bytes()).hexdigest() == record()["sha256"][name][precision]


@pytest.mark.parametrize("name", NAMES)
def test_load_reads_frozen_files(name):
    assert moments(pb.load(FROZEN / f"{name}.pocket")) == pytest.approx(record()["moments"][name], rel=1e-5)


def test_load_reads_a_file_of_the_first_format():
    assert moments(pb.load(FROZEN / "first-format.pocket")) == pytest.approx(record()["moments"]["partial"], rel=1e-5)


def test_frozen_files_cover_every_storage():
    assert set(tables()) == {n for n, kind in POSTERIORS.items() if kind.__module__.startswith("pocketbayes.")}


def freeze() -> None:
    """Write the files and the record of this release."""
    digests: dict[str, dict[str, str]] = {}
    for name, net in networks().items():
        for precision in PRECISIONS:
            path = FROZEN / f"{name}.pocket"
            pb.save(net, path, precision=precision)
            digests.setdefault(name, {})[precision] = hashlib.sha256(path.read_bytes()).hexdigest()
        pb.save(net, FROZEN / f"{name}.pocket")
    container.write(FROZEN / "first-format.pocket", network_file.describe(networks()["partial"]), network_file.KIND)
    known = {name: moments(net) for name, net in networks().items()}
    RECORD.write_text(json.dumps({"zlib": probe(), "sha256": digests, "moments": known}, indent=1) + "\n")


if __name__ == "__main__":
    freeze()
