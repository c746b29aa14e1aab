"""Segmentation: images with masks on disk, including Cityscapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Dataset, Info
from pocketbayes.data.folders import SUFFIXES, find_part, read_image, require
from pocketbayes.data.pixels import Normalise, StatsOption, normalisation
from pocketbayes.data.request import Request

if TYPE_CHECKING:
    from PIL import Image

# Cityscapes' own ids of the 19 classes that are scored, in the order of their training ids.
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
CITYSCAPES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The files of an image and its mask."""

    image: Path
    mask: Path


class MaskFiles(Dataset):
    """Pairs of image and mask files, resized (and augmented) together when fetched."""

    per_row = ("pairs",)

    def __init__(
        self, pairs: list[Pair], info: Info, relabel: Tensor | None, normalise: Normalise, augment: bool
    ) -> None:
        self.pairs, self.info, self.relabel = np.array(pairs, dtype=object), info, relabel
        self.normalise, self.augment = normalise, augment

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a batch of images `(n, 3, height, width)` and masks `(n, height, width)`."""
        images, masks = zip(*(self._read(self.pairs[index]) for index in indices))
        return self.normalise(torch.stack(images)), torch.stack(masks)

    def _read(self, pair: Pair) -> tuple[Tensor, Tensor]:
        pillow = require("PIL.Image")
        image, mask = read_image(pair.image), _read_mask(pair.mask)
        if image.size != mask.size:
            raise UserError(f"{pair.mask}: {mask.size} pixels, but its image has {image.size}")
        _, height, width = self.info.input_shape
        box, flip = (0.0, 0.0, float(image.width), float(image.height)), False
        if self.augment:
            box, flip = _random_box(image.width, image.height)
        image = image.resize((width, height), pillow.Resampling.BILINEAR, box)
        mask = mask.resize((width, height), pillow.Resampling.NEAREST, box)
        if flip:
            image, mask = (picture.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) for picture in (image, mask))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels, self._labels(torch.from_numpy(np.array(mask, dtype=np.int64)), pair.mask)

    def _labels(self, mask: Tensor, path: Path) -> Tensor:
        if self.relabel is not None:
            if len(wrong := mask[(mask < 0) | (mask >= len(self.relabel))]):
                raise UserError(f"{path}: label {int(wrong[0])}, but labels are 0 to {len(self.relabel) - 1}")
            return self.relabel[mask]
        assert self.info.classes is not None, "segmentation has classes"
        wrong = mask[((mask < 0) | (mask >= self.info.classes)) & (mask != self.info.ignore_index)]
        if len(wrong):
            raise UserError(
                f"{path}: label {int(wrong[0])}, but with classes={self.info.classes} labels are 0 to "
                f"{self.info.classes - 1}, or {self.info.ignore_index} for void; set classes= and ignore_index="
            )
        return mask


def cityscapes(
    request: Request,
    *,
    path: str | Path | None = None,
    size: Sequence[int] = (256, 512),
    void: str = "ignore",
    mean: StatsOption = None,
    std: StatsOption = None,
) -> Dataset:
    """Load Cityscapes' `leftImg8bit` and `gtFine`; its published `val` is the test split (`test` has no labels).

    Args:
        request: The common settings. Augmentation: a random crop of half to full size, resized, and a flip.
        path: The folder with both, inside the data folder or anywhere; by default `cityscapes` or the data folder.
        size: Height and width of images and masks; the paper's by default.
        void: "ignore" (label 255, ignored everywhere) or "class" (a 20th class).
        mean: A number per channel, or the name of a known data set; ImageNet's by default.
        std: Likewise.
    """
    if void not in ("ignore", "class"):
        raise UserError(f"data set 'cityscapes': void={void!r}, choose 'ignore' or 'class'")
    root = request.root(path, "cityscapes")
    part = "val" if request.split == "test" else "train"
    images, masks = root / "leftImg8bit" / part, root / "gtFine" / part
    if not images.is_dir():
        raise request.missing("folder", images)
    pairs = []
    for image in sorted(images.glob("*/*_leftImg8bit.png")):
        name = image.name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
        pairs.append(Pair(image, masks / image.parent.name / name))
    ignore_index = 255 if void == "ignore" else None
    relabel = torch.full((256,), len(CITYSCAPES_IDS) if ignore_index is None else ignore_index)
    relabel[list(CITYSCAPES_IDS)] = torch.arange(len(CITYSCAPES_IDS))
    names = CITYSCAPES + (("void",) if ignore_index is None else ())
    normalise = normalisation("imagenet", 3, mean, std)
    info = _info(request, pairs, images, size, len(names), names, ignore_index, normalise)
    return request.carve(MaskFiles(pairs, info, relabel, normalise, request.augmented))


def masks(
    request: Request,
    *,
    path: str | Path | None = None,
    classes: int = 11,
    ignore_index: int | None = None,
    size: Sequence[int] | None = None,
    test_fraction: float = 0.1,
    mean: StatsOption = None,
    std: StatsOption = None,
) -> Dataset:
    """Load a tree `{train,val,test}/images/*.jpg` and `.../masks/*.png` with one grey value per class, or `images/`.

    Args:
        request: The common settings. Augmentation: a random crop of half to full size, resized, and a flip.
        path: The tree, inside the data folder or anywhere; by default `camvid` or the data folder.
        classes: The number of classes, 11 for CamVid.
        ignore_index: The void label; by default the one after the last class, as in CamVid.
        size: Height and width of images and masks; by default those of the first image.
        test_fraction: For a folder without splits, the fraction of test images, the same files for every seed.
        mean: A number per channel, or the name of a known data set; ImageNet's by default.
        std: Likewise.
    """
    root = request.root(path, "camvid")
    part, own = find_part(request, root, lambda folder: (folder / "images").is_dir(), "folders images and masks")
    files = sorted(file for file in (part / "images").glob("*") if file.suffix.lower() in SUFFIXES)
    pairs = [Pair(file, part / "masks" / f"{file.stem}.png") for file in files]
    normalise = normalisation("imagenet", 3, mean, std)
    ignore_index = classes if ignore_index is None else ignore_index
    info = _info(request, pairs, part / "images", size, classes, None, ignore_index, normalise)
    dataset = MaskFiles(pairs, info, None, normalise, request.augmented)
    return dataset if own else request.carve(dataset, test_fraction if part == root else None, is_file=True)


def _info(
    request: Request,
    pairs: list[Pair],
    folder: Path,
    size: Sequence[int] | None,
    classes: int,
    names: tuple[str, ...] | None,
    ignore_index: int | None,
    normalise: Normalise,
) -> Info:
    if not pairs:
        raise UserError(f"{folder}: no images")
    for pair in pairs:
        if not pair.mask.is_file():
            raise UserError(f"{pair.image}: no mask {pair.mask}")
    if size is None:
        width, height = read_image(pairs[0].image).size
        size = (height, width)
    if len(size) != 2 or min(size) < 1:
        raise UserError(f"data set {request.name!r}: size={size}, expected a height and a width")
    return Info(
        name=request.name,
        task="segmentation",
        classes=classes,
        class_names=names,
        input_shape=(3, int(size[0]), int(size[1])),
        mean=normalise.mean,
        std=normalise.std,
        ignore_index=ignore_index,
    )


def _read_mask(path: Path) -> Image.Image:
    mask = read_image(path, None, "a readable mask")
    if mask.mode not in ("L", "P", "I;16", "I"):
        raise UserError(f"{path}: a mask must have one integer per pixel, not mode {mask.mode}")
    return mask


def _random_box(width: int, height: int) -> tuple[tuple[float, float, float, float], bool]:
    """Return a random window of half to full size with the image's aspect ratio, and whether to flip."""
    scale, across, down, coin = torch.rand(4).tolist()
    window_width, window_height = width * (1 + scale) / 2, height * (1 + scale) / 2
    left, top = across * (width - window_width), down * (height - window_height)
    return (left, top, left + window_width, top + window_height), coin < 0.5
