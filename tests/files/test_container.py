"""The container: exact round trips, errors for damaged and foreign files, atomic writes."""

from __future__ import annotations

import math
import os
import pickle
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import pocketbayes as pb
from cases import tiny_model
from pocketbayes.base import atomic
from pocketbayes.base.errors import UserError
from pocketbayes.files import container, network_file

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 10
    tensor = values.to(draw(st.sampled_from(DTYPES)))
    return tensor.mT if tensor.ndim >= 2 and draw(st.booleans()) else tensor


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


def same(one: Any, two: Any) -> bool:
    """Return whether two trees are equal in value, type and order, including NaN."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bytes_of(one) == bytes_of(two)
    if isinstance(one, Mapping):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(two)) or (one == two and math.copysign(1, one) == math.copysign(1, two))
    return bool(one == two)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_container_restores_any_tree(tmp_path: Path, tree: Any) -> None:
    size = container.write(tmp_path / "file", tree, "test")
    assert size == (tmp_path / "file").stat().st_size
    assert same(container.read(tmp_path / "file", "test"), tree)


def test_container_restores_a_shared_tensor_in_both_places(tmp_path: Path) -> None:
    tensor = torch.randn(3, requires_grad=True)
    container.write(tmp_path / "file", [tensor, {"again": tensor}], "test")
    one, other = container.read(tmp_path / "file", "test")
    assert torch.equal(one, tensor)
    assert torch.equal(other["again"], tensor)


def test_container_restores_deep_trees_to_a_limit(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(container.MAX_DEPTH):
        tree = [tree]
    container.write(tmp_path / "file", tree, "test")
    assert container.read(tmp_path / "file", "test") == tree
    with pytest.raises(ValueError, match="nested deeper than 64"):
        container.write(tmp_path / "file", [tree], "test")


def test_container_refuses_to_write_other_objects(tmp_path: Path) -> None:
    for value in ({1, 2}, object(), b"bytes", {(1, 2): 3}):
        with pytest.raises(TypeError, match="cannot write a"):
            container.write(tmp_path / "file", [value], "test")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.pocket"
    pb.save(pb.bayesianize(tiny_model(), pb.MeanFieldVI()), path)
    return path


def test_container_rejects_every_truncation(file: Path) -> None:
    whole = file.read_bytes()
    for length in sorted({*range(12), *range(12, len(whole), 97), len(whole) - 1}):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"net\.pocket"):
            pb.load(file, tiny_model())


def test_container_rejects_every_flipped_bit(file: Path) -> None:
    """Flips every byte of the header and some of the tensors; nothing may load with changed values."""
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    chooser = random.Random(0)
    for position in [
        *range(8),
        *chooser.sample(range(8, header), 400),
        *chooser.sample(range(header, len(whole)), 100),
    ]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << chooser.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"net\.pocket"):
            pb.load(file, tiny_model())


def test_container_rejects_added_or_removed_bytes(file: Path) -> None:
    whole = file.read_bytes()
    for damaged in (whole + b"\0", b"\0" + whole, whole[:100] + whole[101:], whole * 2):
        file.write_bytes(damaged)
        with pytest.raises(UserError):
            pb.load(file, tiny_model())


class Trap:
    """An object that creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_container_rejects_foreign_files_without_unpickling(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    trap = tmp_path / "sprung"
    torch.save({"weight": torch.zeros(2)}, tmp_path / "torch.pt")
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    save_file({"0": torch.zeros(2)}, tmp_path / "half.safetensors", {"format": container.FORMAT, "kind": "network"})
    (tmp_path / "pickle").write_bytes(pickle.dumps(Trap(trap)))
    torch.save(Trap(trap), tmp_path / "trap.pt")
    (tmp_path / "text").write_text("not a network\n" * 50)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "huge header").write_bytes(b"\xff" * 64)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(UserError, match=r"not a (readable )?pocketbayes file"):
            pb.load(path)
    assert not trap.exists()
    with pytest.raises(UserError, match="no file"):
        pb.load(tmp_path / "absent")
    with pytest.raises(UserError, match="no file"):
        pb.load(tmp_path)


def test_container_rejects_a_file_of_another_kind(tmp_path: Path) -> None:
    container.write(tmp_path / "file", {}, "checkpoint")
    with pytest.raises(UserError, match="is a 'checkpoint' file where a 'network' file is expected"):
        pb.load(tmp_path / "file")


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("layout"),
        lambda tree: tree["posterior"].update(name="unknown"),
        lambda tree: tree["posterior"].update(tensors={}),
        lambda tree: tree["posterior"]["tensors"].update(mean=torch.zeros(3)),
        lambda tree: tree["layout"]["slots"][0].update(shape=["three"]),
        lambda tree: tree.update(layout=None),
        lambda tree: tree["layout"]["slots"].pop(),
        lambda tree: tree.update(propagation="unknown"),
        lambda tree: tree["prior"]["config"].update(colour="red"),
        lambda tree: tree.update(state={}),
        lambda tree: tree.update(state=None),
    ],
)
def test_container_rejects_a_file_without_a_network(tmp_path: Path, change: Any) -> None:
    tree = network_file.describe(pb.bayesianize(tiny_model(), pb.MeanFieldVI()))
    change(tree)
    container.write(tmp_path / "file", tree, "network")
    with pytest.raises(UserError):
        pb.load(tmp_path / "file", tiny_model())


@pytest.mark.parametrize("step", ["fill", "fsync", "replace"])
def test_container_keeps_the_old_file_after_a_failed_write(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = file.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif step == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*net\.pocket.*No space left"):
        atomic.write_atomically(file, fail if step == "fill" else lambda handle: handle.write(b"new"))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_container_keeps_the_old_file_after_an_interrupt(file: Path) -> None:
    before = file.read_bytes()

    def interrupt(handle: Any) -> None:
        handle.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic.write_atomically(file, interrupt)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_container_reports_unwritable_places(file: Path) -> None:
    for path in (file / "inside a file", file.parent):
        with pytest.raises(UserError, match="cannot write"):
            container.write(path, {}, "test")
    assert list(file.parent.iterdir()) == [file]


def test_container_sets_permissions_and_makes_folders(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(b"")
    container.write(tmp_path / "new" / "folder" / "file", {}, "test")
    assert (tmp_path / "new" / "folder" / "file").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), st.sampled_from([8, 15, 16, 31, 32, 63]))
def test_container_narrows_integers_on_disk_only(values: list[int], bits: int) -> None:
    tensor = torch.tensor(
        [value % 2**bits - (2 ** (bits - 1) if bits < 63 else 0) for value in values], dtype=torch.int64
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        container.write(path, {"x": tensor}, "test")
        again = container.read(path, "test")["x"]
    assert again.dtype == torch.int64
    assert torch.equal(again, tensor)


def test_container_chooses_narrow_types_by_their_limits() -> None:
    for values, dtype in (
        ([0, 255], torch.uint8),
        ([0, 256], torch.int16),
        ([-1, 5], torch.int16),
        ([0, 2**15], torch.int32),
        ([0, 2**31], torch.int64),
    ):
        assert container.narrowed(torch.tensor(values)).dtype == dtype


def test_container_writes_equal_files_for_equal_values(tmp_path: Path) -> None:
    tree = {"b": torch.arange(3), "a": [1.5, "x", (torch.zeros(2), None)]}
    for name in ("one", "two"):
        container.write(tmp_path / name, tree, "test")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
