"""Small image data sets in memory: the embedded digits, and MNIST, CIFAR and SVHN from torchvision's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Dataset, Images, Info
from pocketbayes.data.formats import Bytes, read_cifar, read_idx, read_npz, read_svhn
from pocketbayes.data.pixels import CropFlip, PadMode, StatsOption, normalisation
from pocketbayes.data.request import Request

UNCHANGED = CropFlip()
DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl",
    "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair",
    "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
    "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp",
    "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck",
    "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel",
    "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip


@dataclass(frozen=True)
class ImageSet:
    """The files of a data set, their reader and the papers' augmentation.

    Attributes:
        read: Returns the images `(n, channels, height, width)` and labels of the given files.
        class_names: One per class.
        train: The files of the training split, inside the data folder.
        test: The files of the test split.
        stand_in: A single npz file (`x` uint8 (n, H, W, 3), `y`) accepted instead of the test files.
        torchvision: The class that can download the files.
        test_fraction: For a data set without a test split.
        augment: The papers' augmentation; none for digits.
    """

    read: Callable[[list[Path]], tuple[Bytes, Bytes]]
    class_names: tuple[str, ...]
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    stand_in: str | None = None
    torchvision: str | None = None
    test_fraction: float | None = None
    augment: CropFlip = UNCHANGED


def image_set(
    spec: ImageSet,
    request: Request,
    *,
    mean: StatsOption = None,
    std: StatsOption = None,
    pad: int | None = None,
    pad_mode: PadMode | None = None,
    flip: bool | None = None,
) -> Dataset:
    """Load an image data set into memory.

    Args:
        spec: The data set.
        request: The common settings.
        mean: A number per channel, or the name of another data set, such as "imagenet", instead of the usual.
        std: Likewise.
        pad: Padding of random crops instead of the papers' augmentation.
        pad_mode: "zero" or "reflect".
        flip: Random flips.
    """
    images, labels = _read(spec, request)
    if len(images) != len(labels):
        raise UserError(f"data set {request.name!r}: {len(images)} images but {len(labels)} labels")
    strange = labels[(labels < 0) | (labels >= len(spec.class_names))]
    if len(strange):
        raise UserError(f"data set {request.name!r}: label {strange[0]}, but it has {len(spec.class_names)} classes")
    normalise = normalisation(request.name, images.shape[1], mean, std)
    info = Info(
        name=request.name,
        task="classification",
        classes=len(spec.class_names),
        class_names=spec.class_names,
        input_shape=images.shape[1:],
        mean=normalise.mean,
        std=normalise.std,
    )
    usual = spec.augment
    augment = CropFlip(
        usual.pad if pad is None else pad,
        usual.pad_mode if pad_mode is None else pad_mode,
        usual.flip if flip is None else flip,
    )
    pool = Images(
        torch.from_numpy(images),
        torch.from_numpy(labels.astype(np.int64)),
        info,
        normalise,
        augment if request.augmented else None,
    )
    return request.carve(pool, spec.test_fraction)


def _read(spec: ImageSet, request: Request) -> tuple[Bytes, Bytes]:
    paths = [request.folder / file for file in (spec.test if request.split == "test" else spec.train)]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is None:
        return spec.read(paths)
    if request.split == "test" and spec.stand_in and (request.folder / spec.stand_in).is_file():
        return _read_stand_in(request.folder / spec.stand_in)
    if not request.download:
        raise request.missing("file", missing, "or download it with download=True (--set data.download=true)")
    _fetch(spec, request)
    return spec.read(paths)


def _read_stand_in(path: Path) -> tuple[Bytes, Bytes]:
    arrays = read_npz(path, ("x", "y"))
    x, y = arrays.get("x"), arrays.get("y")
    if x is None or y is None or x.ndim != 4 or y.ndim != 1 or x.dtype != np.uint8 or y.dtype.kind not in "iu":
        raise UserError(f"{path}: needs the arrays x, uint8 of shape (n, height, width, channels), and y, integers")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y


def _fetch(spec: ImageSet, request: Request) -> None:
    from torchvision import datasets

    assert spec.torchvision is not None, "a set with files has a class in torchvision"
    train = request.split != "test"
    part = {"split": "train" if train else "test"} if spec.torchvision == "SVHN" else {"train": train}
    try:
        getattr(datasets, spec.torchvision)(request.folder, download=True, **part)
    # No network, no server, no space or a wrong checksum.
    except (OSError, RuntimeError) as error:
        raise UserError(f"data set {request.name!r}: could not be downloaded into {request.folder} ({error})") from None


def _read_digits(_: list[Path]) -> tuple[Bytes, Bytes]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # Their grey values 0..16 are scaled to bytes.
    return np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.uint8)


def _read_idx_pair(paths: list[Path]) -> tuple[Bytes, Bytes]:
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != 3 or labels.ndim != 1:
        raise UserError(f"{paths[0]}: expected images (n, height, width) and labels (n,)")
    return images[:, None], labels


def _read_cifar_files(label_key: str) -> Callable[[list[Path]], tuple[Bytes, Bytes]]:
    def read(paths: list[Path]) -> tuple[Bytes, Bytes]:
        images, labels = zip(*(read_cifar(path, label_key) for path in paths))
        return np.concatenate(images), np.concatenate(labels)

    return read


def _idx_files(folder: str, part: str) -> tuple[str, str]:
    return f"{folder}/raw/{part}-images-idx3-ubyte", f"{folder}/raw/{part}-labels-idx1-ubyte"


IMAGE_SETS: dict[str, ImageSet] = {
    "digits": ImageSet(_read_digits, DIGITS, test_fraction=0.2),
    "mnist": ImageSet(
        _read_idx_pair,
        DIGITS,
        _idx_files("MNIST", "train"),
        _idx_files("MNIST", "t10k"),
        torchvision="MNIST",
    ),
    "fashion-mnist": ImageSet(
        _read_idx_pair,
        FASHION,
        _idx_files("FashionMNIST", "train"),
        _idx_files("FashionMNIST", "t10k"),
        torchvision="FashionMNIST",
    ),
    "cifar10": ImageSet(
        _read_cifar_files("labels"),
        CIFAR10,
        tuple(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        ("cifar-10-batches-py/test_batch",),
        torchvision="CIFAR10",
        augment=CropFlip(4, "zero", flip=True),
    ),
    "cifar100": ImageSet(
        _read_cifar_files("fine_labels"),
        CIFAR100,
        ("cifar-100-python/train",),
        ("cifar-100-python/test",),
        stand_in="cifar100-test.npz",
        torchvision="CIFAR100",
        augment=CropFlip(4, "reflect", flip=True),
    ),
    "svhn": ImageSet(
        lambda paths: read_svhn(paths[0]),
        DIGITS,
        ("train_32x32.mat",),
        ("test_32x32.mat",),
        stand_in="svhn-test.npz",
        torchvision="SVHN",
    ),
}
