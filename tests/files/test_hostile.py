"""Hostile files: truncated, flipped, foreign or malicious ones are rejected with a UserError at little cost."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pocketbayes as pb
from pocketbayes.base.errors import UserError
from pocketbayes.files import packing, pocket

fuzz = __import__("fuzz")
take_apart = __import__("fuzz_pocket").take_apart


def fuzzed(folder: Path, files: int, seed: int) -> Counter[str]:
    reader = fuzz.READERS["network"]
    whole, path = fuzz.prepare(reader, folder)
    return Counter(fuzz.outcome(reader, fuzz.spoil(reader, whole, f"{seed} {number}"), path) for number in range(files))


def test_load_refuses_or_reads_mutated_files(tmp_path: Path) -> None:
    outcomes = fuzzed(tmp_path, 500, seed=1)
    assert outcomes.keys() <= {"read", "refused"}, outcomes
    assert outcomes["refused"] > 300


@pytest.mark.slow
def test_load_refuses_or_reads_a_hundred_thousand_mutated_files(tmp_path: Path) -> None:
    assert fuzzed(tmp_path, 100_000, seed=2).keys() <= {"read", "refused"}


Part = dict[str, bytes]


@pytest.fixture
def sound(tmp_path: Path) -> tuple[Path, dict[str, Any], Part]:
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=12, out_features=3, hidden=[10])
    pb.save(pb.bayesianize(model, pb.SSVI(density=0.3)), tmp_path / "net.pocket")
    text, parts = take_apart((tmp_path / "net.pocket").read_bytes())
    return tmp_path / "net.pocket", text, parts


def change_tree(parts: Part, change: Callable[[Any], None]) -> None:
    tree = json.loads(zlib.decompress(parts["tree"]))
    change(tree[0])
    parts["tree"] = zlib.compress(json.dumps(tree).encode())


def set_shape(shape: list[int], name: str = "mean") -> Callable[[dict[str, Any], Part], None]:
    return lambda text, parts: change_tree(parts, lambda tree: tree["posterior"]["tensors"][name].update(shape=shape))


def set_model(**model: Any) -> Callable[[dict[str, Any], Part], None]:
    return lambda text, parts: text["networks"][0].update(model=model)


HOSTILE: dict[str, Callable[[dict[str, Any], Part], Any]] = {
    "a size that lies": set_shape([2**39]),
    "a negative size": set_shape([-5]),
    "sizes that overflow": set_shape([2**39, 2**39, 2**39]),
    "many dimensions": set_shape([1] * 100),
    "a size that is no integer": set_shape([4.5]),  # type: ignore[list-item]
    "a layer of a trillion weights": lambda text, parts: text["networks"][0]["layout"][0].__setitem__(1, [2**39, 2]),
    "a negative layer": lambda text, parts: text["networks"][0]["layout"][0].__setitem__(1, [-1, 12]),
    "a hundred thousand layers": lambda text, parts: text["networks"][0]["layout"].extend(
        [f"l{i}", [1]] for i in range(100_000)
    ),
    "a hundred thousand networks": lambda text, parts: text.update(networks=text["networks"] * 100_000),
    "a deep tree": lambda text, parts: parts.update(tree=zlib.compress(b"[" * 1_000_000)),
    "a tree that inflates": lambda text, parts: parts.update(tree=zlib.compress(b" " * (1 << 27))),
    "a tree that is cut off": lambda text, parts: parts.update(tree=parts["tree"][:-4]),
    "a part that is missing": lambda text, parts: parts.pop("posterior.mean"),
    "a part in place of another": lambda text, parts: parts.update({"posterior.mean": parts["posterior.index"]}),
    "an unknown storage": lambda text, parts: change_tree(parts, lambda tree: tree["posterior"].update(name="x")),
    "a model of a million units": set_model(
        name="mlp", args={"in_features": 12, "out_features": 3, "hidden": [10**6, 10**6]}
    ),
    "a model of a million layers": set_model(
        name="mlp", args={"in_features": 12, "out_features": 3, "hidden": [1] * 10**6}
    ),
    "a model that is too deep": set_model(name="resnet56", args={"depth": 6 * 10**6 + 2}),
    "a model of huge images": set_model(name="vit-ti", args={"image_size": 40_000}),
    "torchvision's model of huge images": set_model(name="torchvision:vit_b_16", args={"image_size": 16_000}),
    "timm's model that is too deep": set_model(name="timm:vit_tiny_patch16_224", args={"depth": 30_000_000}),
    "timm's model of a huge window": set_model(name="timm:swin_tiny_patch4_window7_224", args={"window_size": 1000}),
    "a model of a width that is no number": set_model(
        name="mlp", args={"in_features": float("nan"), "out_features": 3}
    ),
    "a model that would be fetched": set_model(name="timm:resnet10t", args={"pretrained": True}),
    "a model that would read a file": set_model(name="timm:resnet10t", args={"checkpoint_path": "/etc/passwd"}),
    "a model whose backbone would be fetched": set_model(
        name="torchvision:fcn_resnet50", args={"pretrained_backbone": True}
    ),
    "a model from the Hub": set_model(name="timm:hf-hub:someone/something", args={}),
    "a model from a folder": set_model(name="timm:local-dir:/tmp", args={}),
    "a model outside": set_model(name="../../model", args={}),
    "a model of another name": set_model(name="__import__", args={}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_load_refuses_a_sealed_file_with_false_values(name: str, sound: tuple[Path, dict[str, Any], Part]) -> None:
    path, text, parts = sound
    HOSTILE[name](text, parts)
    path.write_bytes(seal(text, parts))
    with contextlib.suppress(UserError):
        pb.models.build("unknown")  # imports torchvision and timm, which is not the file's cost
    seconds, peak = time.process_time(), peak_memory()
    with pytest.raises(UserError):
        pb.load(path)
    assert peak_memory() - peak < 200 << 20
    assert time.process_time() - seconds < 10  # these used to take 20 s and more


def peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB elsewhere
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_load_ignores_models_of_other_threads(sound: tuple[Path, dict[str, Any], Part]) -> None:
    """The hooks that count a loaded model's modules are torch's, and see every thread."""
    path, _, _ = sound
    stop = threading.Event()

    def build_large_models() -> None:
        while not stop.is_set():
            pb.models.build("resnet56")

    thread = threading.Thread(target=build_large_models)
    thread.start()
    try:
        for _ in range(20):
            pb.load(path)
    finally:
        stop.set()
        thread.join()


def seal(text: dict[str, Any], parts: Part) -> bytes:
    """Return the file with a correct checksum, for any size of header."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pocket, "LARGEST_HEADER", 1 << 40)
        return pocket.assemble(text, parts)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"data_offsets":[0,', b'"data_offsets":[-9,'),
        (b'"data_offsets":[0,', b'"data_offsets":[8,'),
        (b'"dtype":"U8"', b'"dtype":"F4"'),
        (b'"__metadata__"', b'"__nothing___"'),
    ],
)
def test_load_refuses_a_header_with_wrong_offsets(
    old: bytes, new: bytes, sound: tuple[Path, dict[str, Any], Part]
) -> None:
    path, _, _ = sound
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + length].replace(old, new, 1)
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + length :])
    with pytest.raises(UserError, match=r"net\.pocket"):
        pb.load(path)


def test_load_refuses_a_huge_foreign_file_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file of a terabyte
    with pytest.raises(UserError, match="not a readable pocketbayes file"):
        pb.load(path)


def test_load_checks_sizes_before_decoding(
    sound: tuple[Path, dict[str, Any], Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text, parts = sound
    set_shape([packing.FREE_VALUES * 4])(text, parts)
    path.write_bytes(pocket.assemble(text, parts))
    for name in ("unpack_ints", "unpack_exactly", "unpack_in_steps"):
        monkeypatch.setattr(packing.codec, name, lambda *args: pytest.fail("decoded"))
    with pytest.raises(UserError, match="more numbers than a file of its size can"):
        pb.load(path)


def test_load_predicts_in_double_precision(tmp_path: Path) -> None:
    model = pb.models.build("mlp", in_features=12, out_features=3, hidden=[10]).double()
    net = pb.bayesianize(model, "bbb")
    pb.save(net, tmp_path / "net.pocket")
    x = torch.randn(4, 12, dtype=torch.float64)
    assert torch.allclose(pb.predict(pb.load(tmp_path / "net.pocket"), x).mean, pb.predict(net, x).mean)


@pytest.mark.parametrize("units", [[[0, 0], [255, 10]], [[0, 0], [1, 2**31]], [[0, 0]], [[0, 0], [-1, 10]]])
def test_load_refuses_dropped_units_that_do_not_fit(units: list[list[int]], tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("mlp", in_features=12, out_features=3, hidden=[10]), "mc-dropout")
    pb.save(net, tmp_path / "net.pocket")
    text, parts = take_apart((tmp_path / "net.pocket").read_bytes())
    change_tree(parts, lambda tree: tree["posterior"]["config"].update(units=units))
    (tmp_path / "net.pocket").write_bytes(seal(text, parts))
    with pytest.raises(UserError, match=r"units"):
        pb.load(tmp_path / "net.pocket")
