"""Data sets with corruptions applied on access, and the published CIFAR-C files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.data import shift
from pocketbayes.data.batches import batches
from pocketbayes.data.dataset import Pictures
from pocketbayes.data.request import choose
from pocketbayes.data.shift import Shifted, corrupted, noisy, rotated


@pytest.fixture(scope="module")
def digits() -> Pictures:
    found = data.load("digits", "test", subset=20)
    assert isinstance(found, Pictures)
    return found


def bytes_of(pictures: Pictures) -> np.ndarray:
    return np.ascontiguousarray(pictures.pixels(range(len(pictures)))[0].permute(0, 2, 3, 1).numpy())


def normalised(pictures: Pictures, images: np.ndarray) -> torch.Tensor:
    return pictures.normalise(torch.from_numpy(images).permute(0, 3, 1, 2))


def test_shifted_data_change_before_normalisation(digits: Pictures) -> None:
    images = bytes_of(digits)
    every = range(len(digits))
    x, y = corrupted(digits, "impulse_noise", 3, seed=2).__getitems__(every)
    torch.testing.assert_close(x, normalised(digits, shift.corrupt(images, "impulse_noise", 3, 2)))
    assert torch.equal(y, digits.pixels(every)[1])
    torch.testing.assert_close(rotated(digits, 30).__getitems__(every)[0], normalised(digits, shift.rotate(images, 30)))
    torch.testing.assert_close(
        noisy(digits, 0).__getitems__(every)[0], normalised(digits, 255 * shift.noise_db(images, 0))
    )


def test_shifted_data_change_each_image_independently(digits: Pictures) -> None:
    shifted = corrupted(digits, "gaussian_noise", 5)
    whole, _ = shifted.__getitems__(range(len(digits)))
    assert torch.equal(torch.cat([x for x, _ in batches(shifted, 7)]), whole)
    chosen = [9, 3, 4, 5, 0]
    assert torch.equal(shifted.__getitems__(chosen)[0], whole[chosen])
    taken = shifted.take(torch.tensor(chosen))
    assert isinstance(taken, Shifted)
    assert len(taken) == 5
    assert torch.equal(taken.__getitems__([1, 2, 4])[0], whole[[3, 4, 0]])
    assert torch.equal(shifted[6][0], whole[6])


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    images = np.repeat(np.arange(40, dtype=np.uint8), 32 * 32 * 3).reshape(40, 32, 32, 3)
    images[..., 0] = 7
    np.save(folder / "fog.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(8), 5).astype(np.uint8))
    return tmp_path


def test_published_files_form_a_data_set(published: Path) -> None:
    options = {"corruption": "fog", "severity": 4, "mean": 0.0, "std": 1 / 255}
    found = data.load("cifar10-c", "test", published, **options)  # type: ignore[arg-type]
    assert len(found) == 8
    assert found.info.class_names is not None
    assert found.info.class_names[1] == "automobile"
    x, y = found[2]
    torch.testing.assert_close(x[:, 5, 5], torch.tensor([7.0, 26.0, 26.0]))
    assert y == 2
    subset = data.load("cifar10-c", "test", published, subset=3, seed=5, **options)  # type: ignore[arg-type]
    chosen = subset.__getitems__(range(3))[1]
    assert chosen.tolist() == choose(8, 3, 5).tolist()


def test_shifted_data_name_mistakes(published: Path, tmp_path: Path) -> None:
    options = {"corruption": "fog", "severity": 4}
    with pytest.raises(UserError, match="'test' split only"):
        data.load("cifar10-c", "train", published, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="CIFAR-100-C"):
        data.load("cifar100-c", "test", published, **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs the option corruption"):
        data.load("cifar10-c", "test", published)
    with pytest.raises(UserError, match=r"no file .*snow\.npy"):
        data.load("cifar10-c", "test", published, corruption="snow", severity=1)
