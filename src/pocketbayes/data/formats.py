"""Readers of the files that image sets come in. Sizes are checked before anything is allocated; no code is run.

Each reader raises a `UserError` that names the file where its contents are not what they should be.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pocketbayes.errors import UserError

Bytes = npt.NDArray[np.uint8]

# No set that is meant to fit into memory comes near it; a file that claims more is broken or hostile.
MAX_BYTES = 16 * 2**30


def read_idx(path: Path) -> Bytes:
    """An idx file of bytes (MNIST): two zeros, type 8, number of dimensions, each dimension big-endian, the bytes."""
    with path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08":
            raise UserError(f"{path}: not an idx file of bytes")
        sizes = file.read(4 * head[3])
        if len(sizes) < 4 * head[3]:
            raise UserError(f"{path}: ends inside its header")
        shape = struct.unpack(f">{head[3]}I", sizes)
        expected, actual = _product(shape), path.stat().st_size - file.tell()
        if expected != actual:
            raise UserError(f"{path}: promises {expected} bytes of data but holds {actual}; fetch it again")
        return np.fromfile(file, dtype=np.uint8).reshape(shape)


def read_cifar(path: Path, label_key: str) -> tuple[Bytes, Bytes]:
    """One of CIFAR's pickles: images `(n, 3, 32, 32)` and labels."""
    try:
        with path.open("rb") as file:
            batch = _CifarUnpickler(file, encoding="bytes").load()
        images: Bytes = batch[b"data"].pixels.reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[label_key.encode()], dtype=np.uint8)
    # A pickle that is not CIFAR's can fail in as many ways as there are programs.
    except Exception as error:
        raise UserError(f"{path}: not a file of CIFAR images ({type(error).__name__}: {error})") from None
    return images, labels


class _Pixels:
    """Stands in for a pickled array: keeps its bytes and nothing else of it."""

    pixels: Bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, _, raw = state
        self.pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _Ignored:
    """Stands in for a pickled dtype; CIFAR has no other than bytes."""

    def __setstate__(self, state: object) -> None:
        pass


class _CifarUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, numbers, strings and one array of bytes; refuses everything else by name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: _Pixels()
        if (module, name) == ("numpy", "dtype"):
            return lambda *_: _Ignored()
        if (module, name) == ("numpy", "ndarray"):
            return None
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")


def read_npz(path: Path, keys: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays `keys` of an npz file, as far as they are there."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = [key for key in keys if f"{key}.npy" in archive.namelist()]
            for key in found:
                _check_npy(archive, f"{key}.npy", path)
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in found}
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not a readable npz file ({error})") from None


def _check_npy(archive: zipfile.ZipFile, member: str, path: Path) -> None:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise UserError(f"{path}: {member} holds Python objects, only plain numbers are read")
        expected, actual = _product(shape) * dtype.itemsize, archive.getinfo(member).file_size - file.tell()
        if expected != actual:
            raise UserError(f"{path}: {member} promises {expected} bytes of data but holds {actual}")
        if expected > MAX_BYTES:
            raise UserError(f"{path}: {member} would take {expected} bytes of memory, the limit is {MAX_BYTES}")


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """SVHN's Matlab file: `X` is (32, 32, 3, n), `y` counts the digit 0 as 10."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        contents = loadmat(path, variable_names=("X", "y"))
        images, labels = contents["X"].transpose(3, 2, 0, 1), contents["y"].reshape(-1) % 10
    except (MatReadError, OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise UserError(f"{path}: not SVHN's Matlab file ({error})") from None
    return np.ascontiguousarray(images, dtype=np.uint8), labels.astype(np.uint8)


def _product(shape: Iterable[int]) -> int:
    # In Python's whole numbers, which do not overflow.
    product = 1
    for size in shape:
        product *= int(size)
    return product
