"""Image folders, lazily decoded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from pocketbayes import data
from pocketbayes.base.errors import UserError
from pocketbayes.data import folders

CLASSES = ("cat", "dog", "emu")


def write_tree(root: Path, parts: tuple[str, ...], each: int = 10, size: tuple[int, int] = (24, 20)) -> Path:
    random = np.random.default_rng(0)
    for part in parts:
        for label, name in enumerate(CLASSES):
            # Nested as Tiny ImageNet is, and with a file that is no image.
            folder = root / part / name / "images"
            folder.mkdir(parents=True)
            (folder / "boxes.txt").write_text("1 2 3 4")
            for i in range(each):
                pixels = random.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
                pixels[..., 0] = 40 * label
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def test_image_folder_takes_one_held_out_folder_as_test(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train", "val"))
    parts = {split: data.load("imagefolder", split, tmp_path, size=16) for split in ("train", "val", "test")}  # type: ignore[arg-type]
    assert {split: len(part) for split, part in parts.items()} == {"train": 27, "val": 3, "test": 30}
    paths = [set(part.paths.tolist()) for part in parts.values()]  # type: ignore[attr-defined]
    assert len(paths[0] | paths[1]) == 30
    assert all(path.startswith(b"val/") for path in paths[2])
    assert parts["test"].info.class_names == CLASSES
    assert parts["test"].info.input_shape == (3, 16, 16)


def test_image_folder_warns_when_it_enlarges_images(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train", "val"), each=2)
    with pytest.warns(UserWarning, match=r"0\.png.* enlarged from 20 to 224 pixels: size=20"):
        assert data.load("imagefolder", "train", tmp_path).info.input_shape == (3, 224, 224)
    assert data.load("imagefolder", "train", tmp_path, size=224).info.input_shape == (3, 224, 224)


def test_image_folder_without_classes_has_no_labels(tmp_path: Path) -> None:
    write_tree(tmp_path / "nested", ("train",), each=2)
    for file in (tmp_path / "nested").rglob("*.png"):
        file.rename(tmp_path / f"{file.parent.parent.name}-{file.name}")
    part = data.load("imagefolder", "test", tmp_path, size=16, test_fraction=1.0, labelled=False)
    assert len(part) == 6
    assert part[:][1].tolist() == [0] * 6


def test_image_folder_ignores_images_outside_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "train" / "flat.png")
    with pytest.raises(UserError, match=r"train: no images; expected a folder for each class"):
        data.load("imagefolder", "train", tmp_path, size=8)


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (24, 24)])
def test_image_file_is_preprocessed_like_its_data_set(tmp_path: Path, size: tuple[int, int]) -> None:
    write_tree(tmp_path, ("train", "val"), each=1, size=size)
    part = data.load("imagefolder", "test", tmp_path, size=16, crop_fraction=0.8)
    for i, path in enumerate(part.paths):  # type: ignore[attr-defined]
        torch.testing.assert_close(data.read_inputs(tmp_path / os.fsdecode(path), part.info)[0], part[i][0])


def test_image_folder_reads_three_splits(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train", "val", "test"), each=2)
    for split in ("train", "val", "test"):
        part = data.load("imagefolder", split, tmp_path, size=16)  # type: ignore[arg-type]
        assert len(part) == 6
        assert all(path.startswith(split.encode()) for path in part.paths.tolist())  # type: ignore[attr-defined]


def test_image_folder_sorts_nested_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, ("train",), each=2)
    one = tmp_path / "train" / CLASSES[0]
    image = next(path for path in one.rglob("*") if path.is_file())
    for name in ("b", "a"):
        (one / name).mkdir()
        (one / name / image.name).write_bytes(image.read_bytes())

    def orders() -> list[bytes]:
        return data.load("imagefolder", "train", tmp_path, size=16, val_fraction=0).paths.tolist()  # type: ignore[attr-defined,no-any-return]

    first, walk = orders(), os.walk
    monkeypatch.setattr(os, "walk", lambda top: reversed(list(walk(top))))
    assert orders() == first
    assert first[:4] == sorted(first[:4])


def test_image_folder_splits_a_flat_tree(tmp_path: Path) -> None:
    write_tree(tmp_path / "flat", ("",))
    lengths = [
        len(data.load("imagefolder", split, tmp_path, path="flat", size=16, test_fraction=0.2, val_fraction=0.25))  # type: ignore[arg-type]
        for split in ("train", "val", "test")
    ]
    assert lengths == [18, 6, 6]


def test_image_folder_labels_and_normalises(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train", "val"))
    dataset = data.load("imagefolder", "test", tmp_path, size=16, mean="none")
    x, y = dataset.__getitems__(range(30))
    assert x.shape == (30, 3, 16, 16)
    assert y.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    torch.testing.assert_close(x[:, 0], (y * 40 / 255.0)[:, None, None].expand(30, 16, 16))
    usual = data.load("imagefolder", "test", tmp_path, size=16)
    torch.testing.assert_close(usual[3][0][1], (x[3, 1] - 0.456) / 0.224)


def test_image_folder_crops_the_centre_without_augmentation(tmp_path: Path) -> None:
    (tmp_path / "train/a").mkdir(parents=True)
    pixels = np.zeros((16, 32, 3), dtype=np.uint8)
    pixels[:, 8:24] = 255
    Image.fromarray(pixels).save(tmp_path / "train/a/wide.png")
    assert data.load("imagefolder", "train", tmp_path, size=16, mean="none", val_fraction=0)[0][0].min() == 1


def test_image_folder_augments_by_the_generator(tmp_path: Path) -> None:
    write_tree(tmp_path / "imagenet", ("train", "val"))
    dataset = data.load("imagenet", "train", tmp_path, augment=True, size=16, mean="none")
    torch.manual_seed(1)
    first, second = dataset[0][0], dataset[0][0]
    torch.manual_seed(1)
    assert torch.equal(first, dataset[0][0])
    assert not torch.equal(first, second)
    assert 0 <= float(first.min()) < float(first.max()) <= 1
    # Colour jitter: without it the first channel would keep its one value per class.
    assert len(torch.stack([dataset[0][0][0] for _ in range(3)]).unique()) > 1
    plain = data.load("imagefolder", "train", tmp_path / "imagenet", augment=True, size=16, mean="none")
    assert len(torch.stack([plain[0][0][0] for _ in range(3)]).unique()) == 1
    test = data.load("imagenet", "test", tmp_path, augment=True)
    assert test[0][0].shape == (3, 224, 224)
    assert torch.equal(test[0][0], test[0][0])


def test_image_folder_workers_receive_whole_batches(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train",), each=4)
    dataset = data.load("imagefolder", "train", tmp_path, size=8, val_fraction=0)
    batches = list(DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=data.collate))
    assert [len(y) for _, y in batches] == [5, 5, 2]
    assert torch.equal(torch.cat([x for x, _ in batches]), dataset.__getitems__(range(12))[0])


def test_image_folder_names_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*/nowhere; .*--data-dir"):
        data.load("imagefolder", "train", tmp_path, path="nowhere")
    with pytest.raises(UserError, match="holds nothing; expected one folder of images per class"):
        data.load("imagefolder", "train", tmp_path)
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="is laid out otherwise; expected one folder of images per class"):
        data.load("imagefolder", "train", tmp_path)
    (tmp_path / "train/cat").mkdir(parents=True)
    with pytest.raises(UserError, match="no images; expected a folder for each class"):
        data.load("imagefolder", "train", tmp_path)
    (tmp_path / "train/cat/a.jpg").write_bytes(b"\xff\xd8 no more")
    with pytest.raises(UserError, match=r"a\.jpg: not a readable image"):
        data.load("imagefolder", "train", tmp_path, val_fraction=0)[0]
    with pytest.raises(UserError, match=r"no folder .*/test;"):
        data.load("imagefolder", "test", tmp_path)
    (tmp_path / "val/cow").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cow: this class is not in .*train"):
        data.load("imagefolder", "test", tmp_path)
    with pytest.raises(UserError, match="crop_fraction=2"):
        data.load("imagefolder", "test", tmp_path, crop_fraction=2)


def test_imagenet_needs_its_training_folder(tmp_path: Path) -> None:
    # Any folder with subfolders would pass for a flat tree of classes.
    write_tree(tmp_path, ("",), each=1)
    with pytest.raises(UserError, match=r"'imagenet': no folder .*/train;"):
        data.load("imagenet", "train", tmp_path)


def test_image_folder_names_a_truncated_image(tmp_path: Path) -> None:
    write_tree(tmp_path, ("train",), each=1)
    file = tmp_path / "train/cat/images/0.png"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match=r"0\.png: not a readable image"):
        data.load("imagefolder", "train", tmp_path, val_fraction=0)[0]


def test_image_folder_says_how_to_install_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, ("train",), each=1)
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(UserError, match=r"needs torchvision: pip install 'pocketbayes\[vision\]'"):
        data.load("imagefolder", "train", tmp_path, val_fraction=0)


def test_image_folder_keeps_one_square_size(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(6):
            Image.new("RGB", (48, 48)).save(tmp_path / label / f"{number}.png")
    assert data.load("imagefolder", "train", tmp_path).info.input_shape == (3, 48, 48)
    Image.new("RGB", (48, 30)).save(tmp_path / "a" / "9.png")
    with pytest.warns(UserWarning, match="enlarged"):
        assert data.load("imagefolder", "train", tmp_path).info.input_shape == (3, 224, 224)


def test_require_explains_a_torchvision_that_does_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(UserError, match=r"torchvision does not work with this torch .* from the same index"):
        folders.require("torchvision.transforms.v2")


def test_require_names_the_index_of_cpu_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setattr("torch.__version__", "2.13.0+cpu")
    with pytest.raises(UserError, match=r"torchvision --index-url \S+/cpu, then pip install 'pocketbayes\[vision\]'"):
        folders.require("torchvision")
