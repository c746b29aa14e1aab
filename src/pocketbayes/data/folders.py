"""Images on disk, one folder per class, decoded on access."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pocketbayes.base.errors import NoSplitError, UserError, refusing, warn
from pocketbayes.data.dataset import Dataset, Info, Pictures
from pocketbayes.data.pixels import Normalise, StatsOption, normalisation
from pocketbayes.data.request import Request

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# The formats that Pillow may read; some others start programs (PostScript).
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS, FREE_PIXELS, PIXELS_A_BYTE = 1 << 26, 1 << 22, 1 << 13

CPU_INDEX = "https://download.pytorch.org/whl/cpu"

USUAL_SIZE = 224
LOOKED_AT = 50
"""Number of images whose size is read before all are assumed to have it."""

# Brightness, contrast, saturation and hue, as in the weight-sharing paper.
IMAGENET_JITTER = (0.4, 0.4, 0.4, 0.1)


class ImageFiles(Pictures):
    """Image files and their labels; only the paths are kept in memory."""

    per_row = ("paths", "labels")

    def __init__(
        self,
        root: Path,
        paths: npt.NDArray[np.bytes_],
        labels: Tensor,
        info: Info,
        transform: Callable[[Image.Image], Tensor],
        normalise: Normalise,
    ) -> None:
        # Store paths as one byte array, since a list of strings would be copied into every worker.
        self.root, self.paths, self.labels, self.info = root, paths, labels, info
        self.transform, self.normalise = transform, normalise

    def pixels(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Decode, and resize or augment."""
        rows = np.asarray(indices, dtype=np.int64)
        images = [self.transform(read_image(self.root / os.fsdecode(path))) for path in self.paths[rows]]
        return torch.stack(images), self.labels[torch.from_numpy(rows)]


def image_folder(
    request: Request,
    *,
    path: str | Path | None = None,
    size: int | None = None,
    crop_fraction: float = 1.0,
    jitter: Sequence[float] | None = None,
    test_fraction: float = 0.1,
    labelled: bool = True,
    mean: StatsOption = None,
    std: StatsOption = None,
) -> Dataset:
    """Load a tree `{train,val,test}/<class>/*.jpg`, or `<class>/*.jpg`.

    With both `val` and `test` folders each is its split. With only one of them, it is the test split (like ImageNet's
    `val` in the papers), and validation images are taken from `train`.

    Args:
        request: The common settings. Augmentation: random resized crop, flip, and `jitter`.
        path: The tree, inside the data folder or anywhere; by default the data folder itself.
        size: Images are scaled to `size` x `size`. None keeps square images of one common size up to 224; others are
            scaled to 224 x 224, with a warning if they are much smaller.
        crop_fraction: Without augmentation the shorter side is scaled to `size / crop_fraction`, then the centre is
            cropped.
        jitter: Strengths of brightness, contrast, saturation and hue in augmentation.
        test_fraction: For a tree without `train`, the fraction of test images, the same files for every seed.
        labelled: False reads every image in the tree with label 0, for out-of-distribution data.
        mean: A number per channel, or the name of a known data set; ImageNet's by default.
        std: Likewise.
    """
    if (size is not None and size < 1) or not 0 < crop_fraction <= 1:
        raise UserError(f"size={size}, crop_fraction={crop_fraction}: a size of at least 1, a fraction up to 1")
    root = request.root(path, "")
    class_names: tuple[str, ...] = ()
    if labelled:
        part, own = find_part(request, root, lambda folder: bool(_subfolders(folder)), "one folder of images per class")
        class_names = _subfolders(root / "train" if (root / "train").is_dir() else root)
        _refuse_other_classes(root, part, class_names)
    else:
        part, own = root, False
    paths, labels = _list_images(root, part, [part / name for name in class_names] if labelled else [part])
    enlarged = None
    if size is None:
        own_size = _common_size([root / os.fsdecode(path) for path in paths[:: max(1, len(paths) // LOOKED_AT)]])
        enlarged = None if own_size else root / os.fsdecode(paths[0])
        size = own_size or USUAL_SIZE
    normalise = normalisation("imagenet", 3, mean, std)
    info = Info(
        name=request.name,
        task="classification",
        classes=len(class_names) or 1,
        class_names=class_names or None,
        input_shape=(3, size, size),
        mean=normalise.mean,
        std=normalise.std,
        crop_fraction=crop_fraction,
    )
    transform = _augmentation(size, jitter) if request.augmented else centre_crop(size, crop_fraction)
    if enlarged is not None:
        _warn_of_enlarging(enlarged)
    files = ImageFiles(root, paths, labels, info, transform, normalise)
    return files if own else request.carve(files, test_fraction if part == root else None, is_file=True)


def _common_size(paths: Sequence[Path]) -> int | None:
    """Return the common side of square images from their headers; None if they differ or are larger than usual."""
    pillow = require("PIL.Image")
    sizes = set()
    for path in paths:
        with refusing(path, "a readable image", "; mend or remove it"), pillow.open(path, formats=FORMATS) as image:
            sizes.add(image.size)
    width, height = next(iter(sizes))
    return width if len(sizes) == 1 and width == height <= USUAL_SIZE else None


def _warn_of_enlarging(path: Path) -> None:
    """Warn if images are much smaller than usual: training at 224 x 224 costs 49 times as much as at 32 x 32."""
    shorter = min(read_image(path, None).size)
    if 2 * shorter < USUAL_SIZE:
        warn(
            f"{path} and perhaps other images are enlarged from {shorter} to {USUAL_SIZE} pixels: size={shorter} "
            f"(--set data.size={shorter}) keeps their size, size={USUAL_SIZE} confirms the enlargement"
        )


def imagenet(
    request: Request,
    *,
    path: str | Path | None = None,
    size: int = 224,
    crop_fraction: float = 0.875,
    jitter: Sequence[float] | None = IMAGENET_JITTER,
    mean: StatsOption = None,
    std: StatsOption = None,
) -> Dataset:
    """Load `imagenet/{train,val}/<class>/*.JPEG`: `image_folder` with the papers' augmentation and evaluation crop."""
    root = request.root(path, "imagenet").resolve()
    if not (root / "train").is_dir():
        raise request.missing("folder", root / "train")
    return image_folder(request, path=root, size=size, crop_fraction=crop_fraction, jitter=jitter, mean=mean, std=std)


def find_part(request: Request, root: Path, holds_data: Callable[[Path], bool], layout: str) -> tuple[Path, bool]:
    """Return the folder of a split in a tree, and whether the folder is exactly the split.

    Args:
        request: The common settings.
        root: The tree.
        holds_data: Returns whether a folder contains data.
        layout: The expected contents of such a folder, for error messages.
    """
    if not (root / "train").is_dir():
        if not holds_data(root):
            what = "holds nothing" if not any(root.iterdir()) else "is laid out otherwise"
            raise UserError(
                f"data set {request.name!r}: {root} {what}; expected {layout}, in it or in its folder train"
            )
        return root, False
    held_out = [name for name in ("val", "test") if (root / name).is_dir() and holds_data(root / name)]
    if len(held_out) == 2:
        return root / request.split, True
    if request.split == "test":
        if not held_out:
            raise NoSplitError(str(request.missing("folder", root / "test")))
        return root / held_out[0], True
    return root / "train", False


def read_image(path: Path, mode: str | None = "RGB", kind: str = "a readable image") -> Image.Image:
    """Decode a file to one of Pillow's modes; None keeps the file's mode."""
    pillow = require("PIL.Image")
    with refusing(path, kind, "; mend or remove it"), pillow.open(path, formats=FORMATS) as image:
        most = min(MOST_PIXELS, FREE_PIXELS + PIXELS_A_BYTE * path.stat().st_size)
        if image.width * image.height > most:  # before memory is allocated
            raise UserError(
                f"{path}: {image.width} x {image.height} pixels, but a file of its size may have {most}; shrink it"
            )
        image.load()
        decoded: Image.Image = image.copy() if mode is None else image.convert(mode)
        return decoded


def require(module: str) -> ModuleType:
    """Import an optional module, or raise an error that says how to install it."""
    name, _, _ = module.partition(".")
    try:
        return importlib.import_module(module)
    except ImportError:
        # The torchvision of PyPI does not work with a CPU build of torch.
        before = f"pip install torchvision --index-url {CPU_INDEX}, then " if "+cpu" in torch.__version__ else ""
        raise UserError(f"this needs {name}: {before}pip install 'pocketbayes[vision]'") from None
    except RuntimeError as error:  # torchvision's for a build that does not match torch's
        raise UserError(
            f"{name} does not work with this torch ({error}): install torch and torchvision from the same index, such "
            f"as {CPU_INDEX}"
        ) from None


def _subfolders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))


def _refuse_other_classes(root: Path, part: Path, class_names: tuple[str, ...]) -> None:
    unknown = sorted(set(_subfolders(part)) - set(class_names))
    if unknown:
        raise UserError(f"{part / unknown[0]}: this class is not in {root / 'train'}")


def _list_images(root: Path, part: Path, folders: Sequence[Path]) -> tuple[npt.NDArray[np.bytes_], Tensor]:
    """Return the images in each folder and its subfolders as paths relative to `root`, and the folders' numbers."""
    paths: list[bytes] = []
    labels: list[int] = []
    for label, top in enumerate(folders):
        before = len(paths)
        files = (Path(folder, file) for folder, _, names in os.walk(top) for file in names)
        paths += sorted(os.fsencode(path.relative_to(root)) for path in files if path.name.lower().endswith(SUFFIXES))
        labels += [label] * (len(paths) - before)
    if not paths:
        raise UserError(f"{part}: no images; expected a folder for each class with {', '.join(SUFFIXES)} files in it")
    return np.array(paths, dtype=np.bytes_), torch.tensor(labels)


def _augmentation(size: int, jitter: Sequence[float] | None) -> Callable[[Image.Image], Tensor]:
    v2 = require("torchvision.transforms.v2")
    steps: list[Any] = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    if jitter is not None:
        steps.append(v2.ColorJitter(*jitter))
    transform: Callable[[Image.Image], Tensor] = v2.Compose([*steps, v2.PILToTensor()])
    return transform


def centre_crop(
    size: int | tuple[int, int], crop_fraction: float, interpolation: str = "bilinear"
) -> Callable[[Image.Image], Tensor]:
    """Return a transform that scales the shorter side to `size / crop_fraction` and crops the centre, as bytes."""
    v2 = require("torchvision.transforms.v2")
    mode = v2.InterpolationMode(interpolation)
    shorter = size if isinstance(size, int) else min(size)
    steps = [v2.Resize(round(shorter / crop_fraction), mode), v2.CenterCrop(size), v2.PILToTensor()]
    transform: Callable[[Image.Image], Tensor] = v2.Compose(steps)
    return transform
