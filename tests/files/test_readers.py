"""All file readers on damaged files: they read or reject, execute nothing, and stay in their folder."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pocketbayes as pb
from pocketbayes import recipes as config
from pocketbayes.base.errors import UserError
from pocketbayes.base.run_folder import CHECKPOINT_FILE
from pocketbayes.data.folders import read_image
from pocketbayes.data.formats import matlab_arrays, read_cifar, read_npy, read_npz, read_svhn
from pocketbayes.recipes.files import parse_yaml
from pocketbayes.training import checkpoint

fuzz = __import__("fuzz")
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=list(fuzz.READERS))
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[bytes], Path]:
    reader = fuzz.READERS[request.param]
    return (reader, *fuzz.prepare(reader, tmp_path_factory.mktemp("readers")))


def test_readers_accept_valid_files(prepared: tuple[Any, list[bytes], Path]) -> None:
    reader, files, path = prepared
    assert "read" in {fuzz.outcome(reader, data, path) for data in files}


@FEW
@given(seed=st.integers(0, 2**63))
def test_readers_accept_or_refuse_damaged_files(seed: int, prepared: tuple[Any, list[bytes], Path]) -> None:
    reader, files, path = prepared
    assert fuzz.outcome(reader, fuzz.spoil(reader, files, str(seed)), path) in ("read", "refused")


@FEW
@given(data=st.binary(max_size=300), keep=st.integers(0, 64))
@example(data=b"", keep=0)
def test_readers_accept_or_refuse_any_bytes_after_a_header(
    data: bytes, keep: int, prepared: tuple[Any, list[bytes], Path]
) -> None:
    reader, files, path = prepared
    assert fuzz.outcome(reader, files[0][:keep] + data, path) in ("read", "refused")


# -- recipes ----------------------------------------------------------------------------------------------------------

LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: &a {x: 1}\nb: {<<: [*a, *a]}",
        "a: &a [*a]",
        "!!bool x",
        "!!timestamp x",
        "!!int ''",
        "!!python/object/apply:os.system [id]",
        "[" * 50_000,
        "a: !!binary xNM=",
        "a: !!set {b}",
        "a: 0x" + "f" * 9000,
        "a: 9223372036854775808",
        "? [a]\n: b",
    ],
)
def test_yaml_reader_refuses_expanding_or_broken_files(text: str) -> None:
    with pytest.raises(UserError, match="is not YAML"):
        parse_yaml(text, "it")


def test_yaml_reader_returns_plain_values_only() -> None:
    text = "{a: 2020-01-01, b: 1e-3, c: [null, true, 7, x], d: {e: .inf}}"
    assert parse_yaml(text, "it") == {"a": "2020-01-01", "b": 1e-3, "c": [None, True, 7, "x"], "d": {"e": float("inf")}}


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd.recipe", "digits-map/../digits-map", "\0", "a" * 5000])
def test_data_names_cannot_leave_the_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    (tmp_path / "secret.yaml").write_text("method: map")
    with pytest.raises(UserError):
        config.read(name)
    with pytest.raises(UserError):
        pb.models.build(name)
    with pytest.raises(UserError):
        pb.data.load(name)


def test_uci_refuses_names_outside_its_folder(tmp_path: Path) -> None:
    fuzz.READERS["table"].corpus(tmp_path)
    with pytest.raises(UserError, match="unknown set"):
        pb.data.load("uci", "test", tmp_path, set="../UCI_Datasets/yacht")


# -- arrays -----------------------------------------------------------------------------------------------------------


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def test_zip_reader_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    with zipfile.ZipFile(tmp_path / "inside" / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy(np.zeros((4, 2))))
        archive.writestr("y.npy", npy(np.zeros(4)))
        archive.writestr("../evil.npy", npy(np.ones(3)))
        archive.writestr("/evil.npy", npy(np.ones(3)))
    before = sorted(tmp_path.rglob("*"))
    data = pb.data.load("npz", "test", tmp_path / "inside", path="a.npz", test_fraction=1.0)
    assert len(data) == 4
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/evil.npy").exists()


@pytest.mark.parametrize(
    ("members", "method", "message"),
    [
        ({"x": npy(np.zeros(9))}, zipfile.ZIP_BZIP2, "uses a compression"),
        ({"x": npy(np.array([{}], dtype=object), allow_pickle=True)}, zipfile.ZIP_STORED, "Python objects"),
        ({"x": npy(np.zeros(9))[:-3]}, zipfile.ZIP_DEFLATED, "says 72 bytes of data, but there are 69"),
        ({"x": b"\x93NUMPY\x09\x09"}, zipfile.ZIP_DEFLATED, "not a readable npz file"),
    ],
)
def test_npy_reader_refuses_a_false_shape(members: dict[str, bytes], method: int, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    with pytest.raises(UserError, match=message):
        read_npz(tmp_path / "a.npz", ["x"])


def test_zip_reader_refuses_oversized_members_early(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", npy(np.zeros(4)))
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    place = whole.rindex(b"PK\x01\x02") + 24  # the unpacked size in the directory at the end
    whole[place : place + 4] = (2**31).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(whole)
    with pytest.raises(UserError, match="more data than its compressed bytes can hold"):
        read_npz(tmp_path / "a.npz", ["x"])


def test_npy_reader_refuses_anything_but_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy(np.array(["text"])))
    with pytest.raises(UserError, match="only numbers are supported"):
        read_npy(tmp_path / "a.npy")


def nested_tuples(levels: int) -> bytes:
    """Return a dictionary with a nested tuple as its key, whose hash would take 2^levels steps."""
    inner = b"".join(b"h%c" % (n,) + b"h%c" % (n,) + b"\x86q%c" % (n + 1,) for n in range(levels))
    return b"\x80\x02}(K\x01q\x00" + inner + b"K\x00u."


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({b"data": Evil()}), "system, which is not allowed"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "in place 2147483647"),
        (nested_tuples(60), "repeats values too often"),
        (b"\x80\x02}(U\x04dataK\x01U\x06labels]u.", "AttributeError"),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b"x.", "not a file of CIFAR images"),
    ],
)
def test_pickle_reader_refuses_calls_and_growth(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_cifar(tmp_path / "batch", "labels")
    assert not (tmp_path / "evil").exists()


def test_labels_reader_refuses_what_are_not_numbers(tmp_path: Path) -> None:
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [[0]]}
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, 4))
    with pytest.raises(UserError, match="not an integer"):
        read_cifar(tmp_path / "batch", "labels")


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    dtype=st.sampled_from(["u1", "i2", "u4", "f4", "f8", "i8"]),
    packed=st.booleans(),
    name=st.sampled_from(["X", "y", "long_name"]),
)
@settings(max_examples=40)
def test_matlab_reader_agrees_with_scipy(shape: list[int], dtype: str, packed: bool, name: str) -> None:
    from scipy.io import savemat

    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    out = io.BytesIO()
    savemat(out, {name: values, "other": values[:1]}, do_compression=packed)
    found = dict(matlab_arrays(out.getvalue()))
    assert found.keys() == {name, "other"}
    assert found[name].dtype == values.dtype
    np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("value", [{"a": 1}, np.array([[1]], dtype=object), "text", np.eye(2) * 1j])
def test_matlab_reader_refuses_other_values(value: Any, tmp_path: Path) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "test_32x32.mat", {"X": value, "y": np.ones(1)})
    with pytest.raises(UserError, match="not SVHN's Matlab file"):
        read_svhn(tmp_path / "test_32x32.mat")


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_image_reader_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    program = tmp_path / "gs"  # what Pillow hands PostScript to
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(UserError, match="not a readable image"):
        read_image(tmp_path / "a.png")
    assert not (tmp_path / "ran").exists()


def test_image_reader_refuses_a_huge_picture_early(tmp_path: Path) -> None:
    (tmp_path / "a.ppm").write_bytes(b"P6\n8000 8000\n255\n" + bytes(300))
    with pytest.raises(UserError, match="8000 x 8000 pixels, but a file of its size may have"):
        read_image(tmp_path / "a.ppm")


@pytest.mark.parametrize(("name", "classes"), [("masks", {"classes": 3}), ("cityscapes", {})])
def test_labels_outside_the_classes_are_named(name: str, classes: dict[str, int], tmp_path: Path) -> None:
    from PIL import Image

    image, mask = tmp_path / "images/a.png", tmp_path / "masks/a.png"
    if name == "cityscapes":
        image = tmp_path / "leftImg8bit/val/a/b_leftImg8bit.png"
        mask = tmp_path / "gtFine/val/a/b_gtFine_labelIds.png"
    for file in (image, mask):
        file.parent.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(image)
    Image.fromarray(np.full((4, 4), -5, np.int32)).save(mask, "TIFF")
    more = {"test_fraction": 1.0} if name == "masks" else {}
    data = pb.data.load(name, "test", tmp_path, path=".", size=(4, 4), **classes, **more)
    with pytest.raises(UserError, match="label -5"):
        data[0]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_ignore_other_files_beside_them(tmp_path: Path) -> None:
    tree: dict[str, Any] = dict.fromkeys(("net", "optimizer", "random", "best"))
    checkpoint.write(tmp_path, checkpoint.Progress(epoch=2), tree)
    (tmp_path / "checkpoint-copy.safetensors").write_bytes(b"")
    assert checkpoint.files(tmp_path) == [tmp_path / CHECKPOINT_FILE]
    found = checkpoint.read(tmp_path)
    assert found is not None
    assert found[0].epoch == 2


def test_checkpoint_without_a_network_is_refused(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, checkpoint.Progress(), {"optimizer": None})
    with pytest.raises(UserError, match="it has no 'best'"):
        checkpoint.read(tmp_path)


def test_load_weights_needs_names_for_foreign_weights(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    torch.save({0: torch.zeros(1)}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="a dictionary of tensors is expected"):
        pb.models.load_weights(model, tmp_path / "a.pt")
