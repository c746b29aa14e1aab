"""Real data files, compared with torchvision's reader and known facts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbayes import data
from pocketbayes.data.pixels import NORMALISATIONS

pytestmark = pytest.mark.data


def need(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"no {path} in the data folder")


@pytest.mark.parametrize(
    ("name", "place", "torchvision_name"),
    [
        ("mnist", "MNIST/raw", "MNIST"),
        ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
        ("cifar10", "cifar-10-batches-py", "CIFAR10"),
    ],
)
def test_cifar_has_the_bytes_of_torchvision(name: str, place: str, torchvision_name: str, data_dir: Path) -> None:
    import torchvision

    need(data_dir / place)
    for train in (True, False):
        theirs = getattr(torchvision.datasets, torchvision_name)(data_dir, train=train)
        ours = data.load(name, "train" if train else "test", data_dir, val_fraction=0)
        images = torch.as_tensor(theirs.data)
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        assert torch.equal(ours.images, images)  # type: ignore[attr-defined]
        assert torch.equal(ours.labels, torch.as_tensor(theirs.targets))  # type: ignore[attr-defined]
        assert ours.info.class_names is not None
        assert [c.split(" - ")[0] for c in theirs.classes] == list(ours.info.class_names)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_normalisation_constants_match_the_training_images(name: str, data_dir: Path) -> None:
    need(data_dir / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "cifar-10-batches-py"}[name])
    images = data.load(name, "train", data_dir, val_fraction=0).images.numpy()  # type: ignore[attr-defined]
    mean, std = NORMALISATIONS[name]
    np.testing.assert_allclose(images.mean(axis=(0, 2, 3)) / 255, mean, atol=2e-4)
    np.testing.assert_allclose(images.std(axis=(0, 2, 3)) / 255, std, atol=2e-4)


@pytest.mark.parametrize(("name", "classes"), [("cifar100", 100), ("svhn", 10)])
def test_real_data_have_their_test_splits(name: str, classes: int, data_dir: Path) -> None:
    need(data_dir / f"{name}-test.npz")
    dataset = data.load(name, "test", data_dir)
    x, y = dataset.__getitems__(range(len(dataset)))
    data.validate_batch(x, y, dataset.info)
    assert len(y.unique()) == classes == dataset.info.classes
    # Test images, SVHN's even cropped anew: near the training images' statistics, not at them.
    assert abs(float(x.mean())) < 0.2
    assert abs(float(x.std()) - 1) < 0.2


def test_camvid_is_read(data_dir: Path) -> None:
    need(data_dir / "camvid")
    for split, n in (("train", 120), ("val", 40), ("test", 60)):
        dataset = data.load("masks", split, data_dir)  # type: ignore[arg-type]
        assert len(dataset) == n
        x, y = dataset.__getitems__(range(4))
        data.validate_batch(x, y, dataset.info)
        assert x.shape == (4, 3, 180, 240)


def test_tiny_imagenet_is_read(data_dir: Path) -> None:
    need(data_dir / "tiny-imagenet")
    train = data.load("imagefolder", "train", data_dir, path="tiny-imagenet", size=64, augment=True)
    test = data.load("imagefolder", "test", data_dir, path="tiny-imagenet", size=64)
    assert (len(train), len(test), test.info.classes) == (1800, 1000, 20)
    data.validate_batch(*train.__getitems__(range(0, 1800, 90)), train.info)


def test_uci_is_read(data_dir: Path) -> None:
    base = data_dir / "uci/UCI_Datasets"
    need(base)
    sizes = {}
    for folder in sorted(base.iterdir()):
        parts = [data.load("uci", split, data_dir, set=folder.name) for split in ("train", "val", "test")]  # type: ignore[arg-type]
        for part in parts:
            data.validate_batch(*part.__getitems__(range(len(part))), part.info)
        sizes[folder.name] = sum(len(part) for part in parts)
    assert sizes["bostonHousing"] == 506
    assert sizes["naval-propulsion-plant"] == 11_934
    assert len(sizes) == 9
