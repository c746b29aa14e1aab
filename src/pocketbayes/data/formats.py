"""Readers of image data files. Sizes are checked before memory is allocated, and no code is run.

Each reader raises a `UserError` that names the file if its contents are invalid.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pocketbayes.base.errors import UserError, refusing

Bytes = npt.NDArray[np.uint8]

# Far more than any data set meant for memory; a file that claims more is broken or malicious.
MAX_BYTES = 16 * 2**30
# The maximum compression ratio of deflate; a member that claims more is invalid.
MOST_PACKED = 1032
# CIFAR's pickles reuse no values. Reused values can be nested to exhaust memory or time.
MOST_REUSED = 16
MATLAB_HEAD, MATLAB_COMPRESSED, MATLAB_MATRIX = 128, 15, 14
MATLAB_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""Storage types of elements."""
MATLAB_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Value types of arrays by class."""


def read_idx(path: Path) -> Bytes:
    """Read an idx file of bytes (MNIST).

    The format: two zeros, type 8, the number of dimensions, each dimension big-endian, the bytes.
    """
    with refusing(path, "a readable idx file"), path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08":
            raise UserError(f"{path}: not an idx file of bytes")
        sizes = file.read(4 * head[3])
        if len(sizes) < 4 * head[3]:
            raise UserError(f"{path}: ends inside its header")
        shape = struct.unpack(f">{head[3]}I", sizes)
        expected, actual = math.prod(shape), path.stat().st_size - file.tell()
        if expected != actual:
            raise UserError(
                f"{path}: the header says {expected} bytes of data, but there are {actual}; download it again"
            )
        return np.fromfile(file, dtype=np.uint8).reshape(shape)


def read_cifar(path: Path, label_key: str) -> tuple[Bytes, Bytes]:
    """Read one of CIFAR's pickles: images `(n, 3, 32, 32)` and labels."""
    with refusing(path, "a file of CIFAR images"):
        data = path.read_bytes()
        _check_operations(data)
        batch = _CifarUnpickler(io.BytesIO(data), encoding="bytes").load()
        images: Bytes = batch[b"data"].pixels.reshape(-1, 3, 32, 32)
        labels = batch[label_key.encode()]
        if not all(type(label) is int for label in labels):
            raise ValueError("a label is not an integer")
        return images, np.array(labels, dtype=np.uint8)


def _check_operations(data: bytes) -> None:
    """Reject a pickle that could exhaust memory or time."""
    reused = 0
    for operation, argument, _ in pickletools.genops(data):
        if (
            "PUT" in operation.name and argument is not None and int(argument) > len(data)
        ):  # the unpickler allocates an array of this length
            raise ValueError(f"it stores something in place {argument}")
        reused += "GET" in operation.name or operation.name == "DUP"
        if reused > MOST_REUSED:
            raise ValueError("it repeats values too often")


class _Pixels:
    """Replacement for a pickled array that keeps only its bytes."""

    pixels: Bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, _, _, raw = state
        self.pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shape)


class _Ignored:
    """Replacement for a pickled dtype, which is always bytes in CIFAR."""

    def __setstate__(self, state: object) -> None:
        pass


class _CifarUnpickler(pickle.Unpickler):
    """An unpickler for dictionaries, lists, numbers, strings and one byte array; others raise an error."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: _Pixels()
        if (module, name) == ("numpy", "dtype"):
            return lambda *_: _Ignored()
        if (module, name) == ("numpy", "ndarray"):
            return None
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")


def read_npz(path: Path, keys: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return those of the arrays `keys` that an npz file contains."""
    with refusing(path, "a readable npz file"), zipfile.ZipFile(path) as archive:
        present = [key for key in keys if f"{key}.npy" in archive.namelist()]
        for key in present:
            member = archive.getinfo(f"{key}.npy")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{path}: {member.filename} uses a compression that numpy does not write")
            if member.file_size > MOST_PACKED * member.compress_size + 64:
                raise UserError(f"{path}: {member.filename} claims more data than its compressed bytes can hold")
            with archive.open(member) as file:
                _check_npy(file, member.file_size, f"{path}: {member.filename}")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in present}


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Return the numbers of an npy file."""
    with refusing(path, "a readable npy file"):
        with path.open("rb") as file:
            _check_npy(file, path.stat().st_size, str(path))
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{path}: contains {array.dtype}, but only numbers are supported")
        return array


def _check_npy(file: IO[bytes], size: int, where: str) -> None:
    """Check that the array in a file matches its header and the file's size."""
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise UserError(f"{where} contains Python objects, but only numbers are supported")
    expected, actual = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected != actual:
        raise UserError(f"{where}: the header says {expected} bytes of data, but there are {actual}")
    if expected > MAX_BYTES:
        raise UserError(f"{where} would take {expected} bytes of memory, the limit is {MAX_BYTES}")


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """Read SVHN's Matlab file: `X` is (32, 32, 3, n), and `y` is 10 for the digit 0."""
    with refusing(path, "SVHN's Matlab file"):
        contents = dict(matlab_arrays(path.read_bytes()))
        images, labels = contents["X"].transpose(3, 2, 0, 1), contents["y"].reshape(-1) % 10
        return np.ascontiguousarray(images, dtype=np.uint8), labels.astype(np.uint8)


def matlab_arrays(data: bytes) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Yield the names and arrays of a file; reject anything but numeric arrays."""
    if len(data) < MATLAB_HEAD or data[MATLAB_HEAD - 4 : MATLAB_HEAD] != b"\0\x01IM":
        raise ValueError("not a little-endian MAT-file of level 5")
    for kind, body in _elements(memoryview(data)[MATLAB_HEAD:]):
        if kind == MATLAB_COMPRESSED:
            engine = zlib.decompressobj()
            inside = memoryview(engine.decompress(body, MAX_BYTES))
            if not engine.eof:
                raise ValueError("a compressed array is truncated or too large")
            kind, body = next(_elements(inside), (0, inside))
        if kind != MATLAB_MATRIX:
            raise ValueError(f"an element of type {kind}")
        yield _array(body)


def _array(body: memoryview) -> tuple[str, npt.NDArray[np.generic]]:
    (_, flags), (_, sizes), (_, name), (kept, values) = (element for element, _ in zip(_elements(body), range(4)))
    if flags[0] not in MATLAB_CLASSES or flags[1] & 8 or kept not in MATLAB_TYPES:
        raise ValueError(f"an array of class {flags[0]}, kept as type {kept}")
    shape = np.frombuffer(sizes, dtype="<i4").tolist()
    numbers = np.frombuffer(values, dtype=MATLAB_TYPES[kept])
    if len(shape) > 8 or min(shape, default=-1) < 0 or math.prod(shape) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers for an array of shape {shape}")
    return bytes(name).decode("ascii"), numbers.reshape(shape, order="F").astype(MATLAB_CLASSES[flags[0]])


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield type and contents of each element: a tag of 8 bytes, or one of 4 that contains up to 4 bytes."""
    place = 0
    while place < len(data):
        first = int.from_bytes(data[place : place + 4], "little")
        if first >> 16:
            kind, start, size, following = first & 0xFFFF, place + 4, first >> 16, place + 8
        else:
            kind, start, size = first, place + 8, int.from_bytes(data[place + 4 : place + 8], "little")
            following = start + size + (0 if kind == MATLAB_COMPRESSED else -size % 8)
        if start + size > len(data) or (first >> 16 and size > 4):
            raise ValueError("an element is truncated")
        yield kind, data[start : start + size]
        place = following
