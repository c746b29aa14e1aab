"""Masks and Cityscapes: labels, joint augmentation, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.data.segmentation import CITYSCAPES_IDS


def picture_of(mask: np.ndarray, step: int) -> Image.Image:
    """Return an image whose grey values equal the mask."""
    return Image.fromarray(np.repeat((mask * step).astype(np.uint8)[..., None], 3, axis=2))


def write_masks(folder: Path, n: int = 10) -> None:
    random = np.random.default_rng(0)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(n):
        blocks = random.integers(0, 12, (3, 4), dtype=np.uint8)
        mask = np.kron(blocks, np.ones((20, 20), dtype=np.uint8))
        picture_of(mask, 20).save(folder / "images" / f"{i:02}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{i:02}.png")


def test_masks_are_read_unchanged(tmp_path: Path) -> None:
    write_masks(tmp_path)
    dataset = data.load("masks", "train", tmp_path, val_fraction=0, test_fraction=0, mean="none")
    assert dataset.info == data.Info("masks", "segmentation", 11, None, (3, 60, 80), (0.0,) * 3, (1.0,) * 3, 11)
    x, y = dataset.__getitems__(range(10))
    assert y.dtype == torch.int64
    torch.testing.assert_close(x * 255, (y * 20.0)[:, None].expand(10, 3, 60, 80))
    assert 11 in y.unique()
    data.validate_batch(x, y, dataset.info)


def test_masks_follow_split_and_flat_folders(tmp_path: Path) -> None:
    for split, n in (("train", 5), ("val", 3), ("test", 2)):
        write_masks(tmp_path / "camvid" / split, n)
    write_masks(tmp_path / "flat", 20)
    splits = ("train", "val", "test")
    assert [len(data.load("masks", split, tmp_path)) for split in splits] == [5, 3, 2]  # type: ignore[arg-type]
    flat = [len(data.load("masks", split, tmp_path, path="flat", test_fraction=0.2)) for split in splits]  # type: ignore[arg-type]
    assert flat == [14, 2, 4]


def test_masks_are_augmented_with_their_images(tmp_path: Path) -> None:
    write_masks(tmp_path)
    plain, augmented = (
        data.load("masks", "train", tmp_path, val_fraction=0, test_fraction=0, mean="none", augment=augment)
        for augment in (False, True)
    )
    torch.manual_seed(0)
    x, y = augmented.__getitems__(range(10))
    # Away from the edges of the blocks, where the image is interpolated and the mask is not, they must agree.
    agree = ((x[:, 0] * 255 - y * 20).abs() < 1).float().mean(dim=(1, 2))
    assert agree.min() > 0.85
    assert not torch.equal(y, plain.__getitems__(range(10))[1])
    assert set(y.unique().tolist()) <= set(range(12))
    torch.manual_seed(0)
    assert torch.equal(augmented.__getitems__(range(10))[1], y)


def test_masks_are_flipped_at_random(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    mask = np.zeros((20, 40), dtype=np.uint8)
    mask[:, 20:] = 1
    picture_of(mask, 200).save(tmp_path / "images/a.png")
    Image.fromarray(mask).save(tmp_path / "masks/a.png")
    dataset = data.load("masks", "train", tmp_path, augment=True, val_fraction=0, test_fraction=0)
    rising = [bool(y[:, -1].sum() >= y[:, 0].sum()) for _, y in (dataset[0] for _ in range(40))]
    assert 8 < sum(rising) < 32


def test_masks_are_resized(tmp_path: Path) -> None:
    write_masks(tmp_path)
    x, y = data.load("masks", "train", tmp_path, size=(32, 48))[0]
    assert x.shape == (3, 32, 48)
    assert y.shape == (32, 48)


def test_palette_masks_keep_their_indices(tmp_path: Path) -> None:
    write_masks(tmp_path, 1)
    path = tmp_path / "masks/00.png"
    with Image.open(path) as grey:
        indices = np.array(grey)
        palette = Image.fromarray(indices).convert("P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    palette.putdata(indices.reshape(-1).tolist())
    palette.save(path)
    dataset = data.load("masks", "train", tmp_path, val_fraction=0, test_fraction=0)
    assert torch.equal(dataset[0][1], torch.from_numpy(indices).long())


def test_masks_refuse_mistakes(tmp_path: Path) -> None:
    write_masks(tmp_path, 1)
    everything = {"val_fraction": 0.0, "test_fraction": 0.0}
    with pytest.raises(UserError, match=r"00\.png: label \d, but with classes=2 labels are 0 to 1, or 2 for void"):
        data.load("masks", "train", tmp_path, classes=2, **everything)[0]  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected a height and a width"):
        data.load("masks", "train", tmp_path, size=(3,), **everything)  # type: ignore[arg-type]
    path = tmp_path / "masks/00.png"
    Image.new("L", (5, 5)).save(path)
    with pytest.raises(UserError, match=r"\(5, 5\) pixels, but its image has \(80, 60\)"):
        data.load("masks", "train", tmp_path, **everything)[0]  # type: ignore[arg-type]
    Image.new("RGB", (80, 60)).save(path)
    with pytest.raises(UserError, match="one integer per pixel, not mode RGB"):
        data.load("masks", "train", tmp_path, **everything)[0]  # type: ignore[arg-type]
    path.write_bytes(b"rubbish")
    with pytest.raises(UserError, match="not a readable mask"):
        data.load("masks", "train", tmp_path, **everything)[0]  # type: ignore[arg-type]
    path.unlink()
    with pytest.raises(UserError, match=r"00\.png: no mask"):
        data.load("masks", "train", tmp_path)
    (tmp_path / "images/00.png").unlink()
    with pytest.raises(UserError, match="no images"):
        data.load("masks", "train", tmp_path)


def write_cityscapes(root: Path) -> np.ndarray:
    ids = (np.arange(16 * 32) % 34).reshape(16, 32).astype(np.uint8)
    for part, n in (("train", 4), ("val", 2)):
        for city in ("aachen", "ulm"):
            for tree in ("leftImg8bit", "gtFine"):
                (root / tree / part / city).mkdir(parents=True)
            for i in range(n):
                stem = f"{city}_{i:06}_000019"
                picture_of(ids, 7).save(root / "leftImg8bit" / part / city / f"{stem}_leftImg8bit.png")
                Image.fromarray(ids).save(root / "gtFine" / part / city / f"{stem}_gtFine_labelIds.png")
    return ids


def test_cityscapes_is_read(tmp_path: Path) -> None:
    ids = write_cityscapes(tmp_path / "cityscapes")
    splits = ("train", "val", "test")
    lengths = [len(data.load("cityscapes", split, tmp_path, val_fraction=0.25)) for split in splits]  # type: ignore[arg-type]
    assert lengths == [6, 2, 4]
    ignored = data.load("cityscapes", "test", tmp_path, size=(16, 32))
    as_class = data.load("cityscapes", "test", tmp_path, size=(16, 32), void="class")
    for dataset, classes, void in ((ignored, 19, 255), (as_class, 20, 19)):
        x, y = dataset[0]
        expected = [[CITYSCAPES_IDS.index(i) if i in CITYSCAPES_IDS else void for i in row] for row in ids.tolist()]
        assert y.tolist() == expected
        assert dataset.info.classes == classes == len(dataset.info.class_names or ())
        data.validate_batch(x[None], y[None], dataset.info)
    assert (ignored.info.ignore_index, as_class.info.ignore_index) == (255, None)
    assert data.load("cityscapes", "train", tmp_path, augment=True)[0][0].shape == (3, 256, 512)


def test_cityscapes_refuses_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*leftImg8bit/train; .*--data-dir"):
        data.load("cityscapes", "train", tmp_path)
    write_cityscapes(tmp_path)
    with pytest.raises(UserError, match="void='drop', choose"):
        data.load("cityscapes", "train", tmp_path, void="drop")


def test_class_weights_ignore_void_pixels(tmp_path: Path) -> None:
    write_masks(tmp_path)
    dataset = data.load("masks", "train", tmp_path, val_fraction=0, test_fraction=0)
    labels = dataset.__getitems__(range(10))[1]
    share = torch.tensor([(labels[labels != 11] == k).float().mean() for k in range(11)])
    torch.testing.assert_close(data.class_frequencies(dataset), share)
    torch.testing.assert_close(data.class_weights(dataset), 1 / torch.log(1.02 + share))


def test_class_weights_refuse_a_regression() -> None:
    with pytest.raises(UserError, match="no classes to count"):
        data.class_weights(data.load("toy-cubic"))
