"""Generated image data sets in torchvision's layout."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from torch.utils.data import DataLoader

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.data.formats import read_idx, read_npz
from pocketbayes.data.vision import CIFAR100, IMAGE_SETS

random = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def pixels(*shape: int) -> np.ndarray:
    return random.integers(0, 256, shape, dtype=np.uint8)


def write_mnist(folder: Path, n: int = 20, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    x, y = pixels(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
    for file, array in zip((IMAGE_SETS["mnist"].train if part == "train" else IMAGE_SETS["mnist"].test), (x, y)):
        write_idx(folder / file, array)
    return x, y


def write_cifar(path: Path, n: int, key: bytes, classes: int) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = pixels(n, 3072)
    path.write_bytes(pickle.dumps({b"data": x, key: [i % classes for i in range(n)]}, protocol=3))
    return x


def test_mnist_is_read(tmp_path: Path) -> None:
    x, y = write_mnist(tmp_path)
    dataset = data.load("mnist", "train", tmp_path, val_fraction=0)
    images, labels = dataset.__getitems__(range(20))
    assert images.shape == (20, 1, 28, 28)
    assert labels.dtype == torch.int64
    torch.testing.assert_close(
        images[:, 0], torch.from_numpy((x / 255 - 0.1307) / 0.3081).float(), rtol=1e-4, atol=1e-5
    )
    assert labels.tolist() == y.tolist()
    assert dataset.info == data.Info(
        "mnist", "classification", 10, tuple("0123456789"), (1, 28, 28), (0.1307,), (0.3081,)
    )


def test_data_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    monkeypatch.setenv("POCKETBAYES_DATA", str(tmp_path))
    assert len(data.load("mnist", val_fraction=0)) == 20


def test_loader_fetches_whole_batches(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    dataset = data.load("mnist", "train", tmp_path)
    batches = list(DataLoader(dataset, batch_size=7, collate_fn=data.collate))
    assert [len(x) for x, _ in batches] == [7, 7, 4]
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.stack([x for x, _ in dataset]))
    assert torch.equal(torch.cat([y for _, y in batches]), torch.stack([y for _, y in dataset]))


def test_collate_stacks_rows() -> None:
    x, y = data.collate([(torch.zeros(2), torch.tensor(1)), (torch.ones(2), torch.tensor(0))])
    assert x.shape == (2, 2)
    assert y.tolist() == [1, 0]


def test_cifar10_is_read(tmp_path: Path) -> None:
    x = [write_cifar(tmp_path / file, 4, b"labels", 10) for file in IMAGE_SETS["cifar10"].train]
    dataset = data.load("cifar10", "train", tmp_path, val_fraction=0, mean="none")
    images, labels = dataset.__getitems__(range(20))
    torch.testing.assert_close(images * 255, torch.from_numpy(np.concatenate(x)).reshape(20, 3, 32, 32).float())
    assert labels.tolist() == [0, 1, 2, 3] * 5
    assert dataset.info.class_names is not None
    assert dataset.info.class_names[0] == "airplane"


def test_cifar100_is_read(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-100-python/train", 200, b"fine_labels", 100)
    dataset = data.load("cifar100", "train", tmp_path, augment=True)
    assert (len(dataset), dataset.info.classes) == (180, 100)
    assert dataset.info.mean == (0.5071, 0.4865, 0.4409)
    x, _ = dataset.__getitems__(range(180))
    raw = dataset.normalise(dataset.images)  # type: ignore[attr-defined]
    changed = (x != raw).flatten(1).any(dim=1)
    assert changed.float().mean() > 0.9
    # Reflected, so no pixel is there that was not in the image before.
    assert all(set(a.unique().tolist()) <= set(b.unique().tolist()) for a, b in zip(x[:5], raw[:5]))


def test_cifar100_has_class_names() -> None:
    assert len(set(CIFAR100)) == 100
    assert list(CIFAR100) == sorted(CIFAR100)


@pytest.mark.parametrize("name", ["cifar100", "svhn"])
def test_cifar_test_files_replace_missing_training_data(name: str, tmp_path: Path) -> None:
    x = pixels(5, 32, 32, 3)
    np.savez(tmp_path / f"{name}-test.npz", x=x, y=np.arange(5, dtype=np.uint8))
    images, labels = data.load(name, "test", tmp_path, mean="none").__getitems__(range(5))
    torch.testing.assert_close(images * 255, torch.from_numpy(x).permute(0, 3, 1, 2).float())
    assert labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="download=True"):
        data.load(name, "train", tmp_path)


@pytest.mark.parametrize("arrays", [{"x": pixels(2, 32, 32, 3)}, {"x": pixels(2, 32, 32), "y": np.zeros(2, int)}])
def test_cifar_replacement_needs_its_arrays(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "svhn-test.npz", **arrays)
    with pytest.raises(UserError, match=r"svhn-test\.npz: needs the arrays"):
        data.load("svhn", "test", tmp_path)


def test_svhn_is_read(tmp_path: Path) -> None:
    x = pixels(32, 32, 3, 6)
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": np.array([[10], [1], [2], [3], [4], [9]], dtype=np.uint8)})
    images, labels = data.load("svhn", "train", tmp_path, val_fraction=0, mean="none").__getitems__(range(6))
    assert labels.tolist() == [0, 1, 2, 3, 4, 9]
    torch.testing.assert_close(images[2] * 255, torch.from_numpy(x[..., 2].transpose(2, 0, 1)).float())
    (tmp_path / "test_32x32.mat").write_bytes(b"not a matlab file" * 20)
    with pytest.raises(UserError, match="not SVHN's Matlab file"):
        data.load("svhn", "test", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_files_report_folder_and_remedies(name: str, split: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        data.load(name, split, tmp_path)
    for part in (name, str(tmp_path), "--data-dir", "download=True"):
        assert part in str(caught.value)


def test_download_calls_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    calls = []

    def fetch(root: Path, *, train: bool, download: bool) -> None:
        calls.append((train, download))
        write_mnist(Path(root), part="train" if train else "t10k")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetch)
    for _ in range(2):
        assert len(data.load("mnist", "test", tmp_path, download=True)) == 20
    assert calls == [(False, True)]


def test_download_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision

    def fetch(root: Path, *, split: str, download: bool) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "SVHN", fetch)
    with pytest.raises(UserError, match=r"'svhn': could not be downloaded into .* \(no network\)"):
        data.load("svhn", "train", tmp_path, download=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(0, 6), min_size=1, max_size=4), cut=st.integers(1, 40))
def test_idx_reader_returns_the_data_or_reports_truncation(tmp_path: Path, shape: list[int], cut: int) -> None:
    array, path = pixels(*shape), tmp_path / "file"
    write_idx(path, array)
    assert np.array_equal(read_idx(path), array)
    whole = path.read_bytes()
    for broken in (whole[:-cut], whole + bytes(cut)):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="file: "):
            read_idx(path)


def test_idx_reader_refuses_a_huge_size_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, *(2**32 - 1,) * 3) + b"abc")
    with pytest.raises(UserError, match=r"says .* bytes of data, but there are 3"):
        read_idx(path)


def test_labels_out_of_range_or_missing_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = tmp_path / IMAGE_SETS["mnist"].train[1]
    write_idx(labels, np.full(20, 11, dtype=np.uint8))
    with pytest.raises(UserError, match="label 11, but it has 10 classes"):
        data.load("mnist", "train", tmp_path)
    write_idx(labels, np.zeros(19, dtype=np.uint8))
    with pytest.raises(UserError, match="20 images but 19 labels"):
        data.load("mnist", "train", tmp_path)
    write_idx(labels, np.zeros((20, 1), dtype=np.uint8))
    with pytest.raises(UserError, match=r"expected images \(n, height, width\)"):
        data.load("mnist", "train", tmp_path)


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_pickle_reader_runs_no_code(tmp_path: Path) -> None:
    path, mark = tmp_path / "cifar-10-batches-py/test_batch", tmp_path / "mark"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({b"data": Payload(mark), b"labels": []}, protocol=3))
    with pytest.raises(UserError, match=r"test_batch: .*mkdir, which is not allowed"):
        data.load("cifar10", "test", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"rubbish", pickle.dumps({b"data": pixels(2, 3072)}), pickle.dumps({b"data": 3, b"labels": [1]}, protocol=3)],
)
def test_pickle_reader_names_a_broken_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError, match="test_batch: not a file of CIFAR images"):
        data.load("cifar10", "test", tmp_path)


def test_npz_refuses_objects_false_sizes_and_excess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="Python objects"):
        read_npz(path, ["x"])
    path.write_bytes(b"not a zip")
    with pytest.raises(UserError, match="not a readable npz"):
        read_npz(path, ["x"])
    np.savez(path, x=np.zeros(1000, dtype=np.uint8))
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        member = archive.read("x.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member.replace(b"(1000,)", b"(9000,)"))
    with pytest.raises(UserError, match="says 9000 bytes of data, but there are 1000"):
        read_npz(path, ["x"])
    path.write_bytes(raw)
    assert read_npz(path, ["x", "z"]).keys() == {"x"}
    monkeypatch.setattr("pocketbayes.data.formats.MAX_BYTES", 999)
    with pytest.raises(UserError, match="1000 bytes of memory"):
        read_npz(path, ["x"])
