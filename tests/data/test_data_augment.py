"""Normalisation and augmentation against plain loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.data.pixels import NORMALISATIONS, CropFlip, normalisation, random_crop, random_flip


def images(n: int = 8, channels: int = 3, height: int = 6, width: int = 5) -> Tensor:
    return torch.randint(1, 256, (n, channels, height, width), dtype=torch.uint8)


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_crop_is_a_window_of_the_padded_image(mode: str) -> None:
    pad, x = 3, images(200)
    cropped = random_crop(x, pad, mode)  # type: ignore[arg-type]
    padded = F.pad(x.float(), (pad,) * 4, mode="constant" if mode == "zero" else "reflect").to(torch.uint8)
    seen = set()
    for image, whole in zip(cropped, padded):
        places = [
            (top, left)
            for top in range(2 * pad + 1)
            for left in range(2 * pad + 1)
            if torch.equal(image, whole[:, top : top + 6, left : left + 5])
        ]
        assert len(places) == 1
        seen.add(places[0])
    # 200 draws over 49 places leave each of them out with probability 0.016: most of them must turn up.
    assert len(seen) > 40


def test_flip_changes_half_of_the_images() -> None:
    x = images(1000)
    y = random_flip(x)
    same = torch.tensor([torch.equal(a, b) for a, b in zip(x, y)])
    assert all(torch.equal(a.flip(-1), b) for a, b in zip(x[~same], y[~same]))
    assert 400 < int(same.sum()) < 600


@given(
    n=st.integers(1, 5),
    channels=st.sampled_from([1, 3]),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    pad=st.integers(0, 4),
    mode=st.sampled_from(["zero", "reflect"]),
)
def test_augmentation_keeps_shape_type_and_range(
    n: int, channels: int, height: int, width: int, pad: int, mode: str
) -> None:
    x = images(n, channels, height, width)
    y = CropFlip(pad, mode, flip=True)(x)  # type: ignore[arg-type]
    assert y.shape == x.shape
    assert y.dtype == torch.uint8
    assert set(y.unique().tolist()) <= {0, *x.unique().tolist()}


def test_augmentation_follows_the_global_generator() -> None:
    dataset = data.load("digits", augment=True, pad=2, flip=True)
    batches = []
    for _ in range(2):
        torch.manual_seed(3)
        batches.append(dataset.__getitems__(range(50))[0])
    assert torch.equal(*batches)
    assert not torch.equal(batches[0], dataset.__getitems__(range(50))[0])


def test_augmentation_changes_training_data_only() -> None:
    for split in ("val", "test"):
        plain, augmented = (data.load("digits", split, augment=a, pad=2, flip=True) for a in (False, True))  # type: ignore[arg-type]
        rows = range(len(plain))
        assert torch.equal(plain.__getitems__(rows)[0], augmented.__getitems__(rows)[0])
    plain, augmented = (data.load("digits", augment=a, pad=2) for a in (False, True))
    assert not torch.equal(plain.__getitems__(range(50))[0], augmented.__getitems__(range(50))[0])


def test_augmentation_of_digits_is_off_by_default() -> None:
    plain, augmented = (data.load("digits", augment=a) for a in (False, True))
    assert torch.equal(plain.__getitems__(range(50))[0], augmented.__getitems__(range(50))[0])


def test_normalisation_follows_the_formula() -> None:
    x = images()
    mean, std = NORMALISATIONS["imagenet"]
    expected = (x.double() / 255 - torch.tensor(mean).double()[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(normalisation("cifar10", 3, "imagenet")(x), expected.float(), rtol=1e-5, atol=1e-5)


def test_normalisation_takes_its_options() -> None:
    assert normalisation("cifar10", 3).std == NORMALISATIONS["cifar10"][1]
    assert normalisation("cifar10", 3, std="imagenet").mean == NORMALISATIONS["imagenet"][0]
    assert normalisation("mnist", 1, mean=0.5).std == NORMALISATIONS["mnist"][1]
    assert normalisation("cifar10", 3, mean=0.5, std=[1, 2, 3]).mean == (0.5,) * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": "imagnet"}, "did you mean 'imagenet'"),
        ({"mean": (0.1, 0.2)}, "2 values for 3 channels"),
        ({"std": 0}, "must be positive"),
    ],
)
def test_normalisation_refuses_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        normalisation("cifar10", 3, **options)  # type: ignore[arg-type]


def test_normalisation_standardises_embedded_digits() -> None:
    dataset = data.load("digits", val_fraction=0)
    x, _ = dataset.__getitems__(range(len(dataset)))
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": -1}, "pad=-1"),
        ({"pad_mode": "mirror"}, "unknown padding"),
        ({"pad": 8, "pad_mode": "reflect"}, "pad=8"),
    ],
)
def test_augmentation_refuses_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        data.load("digits", augment=True, **options)[0]  # type: ignore[arg-type]
