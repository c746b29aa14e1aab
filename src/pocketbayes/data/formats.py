"""Readers of the files that image sets come in. Sizes are checked before anything is allocated; no code is run.

Each reader raises a `UserError` that names the file where its contents are not what they should be.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pocketbayes.base.errors import UserError, refusing
from pocketbayes.data.matlab import matlab_arrays

Bytes = npt.NDArray[np.uint8]

# No set that is meant to fit into memory comes near it; a file that claims more is broken or hostile.
MAX_BYTES = 16 * 2**30
# Deflate packs zeros no better than this; a member that promises more is a lie.
MOST_PACKED = 1032
# CIFAR's pickles use nothing twice. Values that are used often can nest to more than any memory or time.
MOST_REUSED = 16


def read_idx(path: Path) -> Bytes:
    """Return an idx file of bytes (MNIST).

    Two zeros, type 8, number of dimensions, each dimension big-endian, the bytes.
    """
    with refusing(path, "a readable idx file"), path.open("rb") as file:
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
    """Return one of CIFAR's pickles: images `(n, 3, 32, 32)` and labels."""
    with refusing(path, "a file of CIFAR images"):
        data = path.read_bytes()
        _check_operations(data)
        batch = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
        images: Bytes = batch[b"data"].pixels.reshape(-1, 3, 32, 32)
        labels = batch[label_key.encode()]
        if not all(type(label) is int for label in labels):
            raise ValueError("a label that is no whole number")
        return images, np.array(labels, dtype=np.uint8)


def _check_operations(data: bytes) -> None:
    """Reject a pickle that would take more memory or time than its size allows for."""
    reused = 0
    for operation, argument, _ in pickletools.genops(data):
        if (
            "PUT" in operation.name and argument is not None and int(argument) > len(data)
        ):  # its memory is an array of so many places
            raise ValueError(f"it stores something in place {argument}")
        reused += "GET" in operation.name or operation.name == "DUP"
        if reused > MOST_REUSED:
            raise ValueError("it repeats values too often")


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
    """Return the arrays `keys` of an npz file, as far as they are there."""
    with refusing(path, "a readable npz file"), zipfile.ZipFile(path) as archive:
        found = [key for key in keys if f"{key}.npy" in archive.namelist()]
        for key in found:
            member = archive.getinfo(f"{key}.npy")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{path}: {member.filename} is packed in a way that numpy does not write")
            if member.file_size > MOST_PACKED * member.compress_size + 64:
                raise UserError(f"{path}: {member.filename} promises more than its packed bytes can hold")
            with archive.open(member) as file:
                _check_npy(file, member.file_size, f"{path}: {member.filename}")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in found}


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Return the numbers of an npy file."""
    with refusing(path, "a readable npy file"):
        with path.open("rb") as file:
            _check_npy(file, path.stat().st_size, str(path))
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{path}: holds {array.dtype}, only numbers are read")
        return array


def _check_npy(file: IO[bytes], size: int, where: str) -> None:
    """Return whether the array in a file of a size is what its header says."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise UserError(f"{where} holds Python objects, only plain numbers are read")
    expected, actual = _product(shape) * dtype.itemsize, size - file.tell()
    if expected != actual:
        raise UserError(f"{where} promises {expected} bytes of data but holds {actual}")
    if expected > MAX_BYTES:
        raise UserError(f"{where} would take {expected} bytes of memory, the limit is {MAX_BYTES}")


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """Return SVHN's Matlab file: `X` is (32, 32, 3, n), `y` counts the digit 0 as 10."""
    with refusing(path, "SVHN's Matlab file"):
        contents = dict(matlab_arrays(path.read_bytes()))
        images, labels = contents["X"].transpose(3, 2, 0, 1), contents["y"].reshape(-1) % 10
        return np.ascontiguousarray(images, dtype=np.uint8), labels.astype(np.uint8)


def _product(shape: Iterable[int]) -> int:
    # In Python's whole numbers, which do not overflow.
    product = 1
    for size in shape:
        product *= int(size)
    return product
