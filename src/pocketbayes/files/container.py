"""Nested tensors, numbers and text in one safetensors file, without pickle and written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.digests import new_digest, take_in
from pocketbayes.base.errors import UserError

FORMAT = "pocketbayes-1"
METADATA = "pocketbayes"
MAX_DEPTH = 64


def write(path: str | Path, tree: Any, kind: str) -> int:
    """Write a tree of dicts, lists, tuples, numbers, text and tensors; return the file's size in bytes."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    skeleton = _dismantle(tree, tensors, 0)
    head = {"format": FORMAT, "kind": kind, "checksum": _checksum(kind, skeleton, tensors), "tree": skeleton}
    # One text for all, since safetensors writes several in any order and equal values must give equal files.
    data = save(tensors, {METADATA: json.dumps(head)})
    write_atomically(path, data)
    return len(data)


def read(path: str | Path, kind: str) -> Any:
    """Read what `write` wrote."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if METADATA not in metadata:
                raise UserError(f"{str(path)!r} is not a pocketbayes file: it has no {METADATA!r} in its metadata")
            head = json.loads(metadata[METADATA])
            if head["format"] != FORMAT:
                raise UserError(f"{str(path)!r} has format {head['format']!r}; this version reads {FORMAT!r}")
            if head["kind"] != kind:
                raise UserError(f"{str(path)!r} is a {head['kind']!r} file where a {kind!r} file is expected")
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        if _checksum(kind, head["tree"], tensors) != head["checksum"]:
            raise UserError(f"{str(path)!r} is damaged: its checksum does not match; get another copy")
        return _assemble(head["tree"], tensors, 0)
    except UserError:
        raise
    except (SafetensorError, ValueError, KeyError, IndexError, TypeError, RecursionError, OSError) as error:
        raise UserError(f"{str(path)!r} is not a readable pocketbayes file: {error}") from error


def _checksum(kind: str, tree: Any, tensors: Mapping[str, Tensor]) -> str:
    digest = new_digest(f"{FORMAT}\n{kind}\n{json.dumps(tree)}\n".encode())
    for name in sorted(tensors, key=int):
        take_in(digest, tensors[name])
    return digest.hexdigest()


def _dismantle(node: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    """Convert a node to JSON.

    ["t", n] is tensor n, ["i", n] an int64 one, then ["d", pairs], ["l", items], ["u", items], ["v", plain value].
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"values nested deeper than {MAX_DEPTH}")
    if isinstance(node, Tensor):
        small = narrowed(node.detach())
        tensors[name := str(len(tensors))] = small.contiguous().clone()
        return ["t", name] if small.dtype == node.dtype else ["i", name]
    if isinstance(node, Mapping):
        return ["d", [[_plain(key), _dismantle(value, tensors, depth + 1)] for key, value in node.items()]]
    if isinstance(node, (list, tuple)):
        return ["u" if isinstance(node, tuple) else "l", [_dismantle(item, tensors, depth + 1) for item in node]]
    return ["v", _plain(node)]


def _assemble(node: Any, tensors: Mapping[str, Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"values nested deeper than {MAX_DEPTH}")
    tag, value = node
    if tag == "t":
        return tensors[value]
    if tag == "i":
        return tensors[value].long()
    if tag == "d":
        return {key: _assemble(item, tensors, depth + 1) for key, item in value}
    if tag in ("l", "u"):
        items = [_assemble(item, tensors, depth + 1) for item in value]
        return tuple(items) if tag == "u" else items
    if tag == "v":
        return value
    raise ValueError(f"unknown mark {tag!r}")


def narrowed(tensor: Tensor) -> Tensor:
    """Convert an int64 tensor to the smallest integer type for its values; other tensors are unchanged."""
    if tensor.dtype != torch.int64 or tensor.numel() == 0:
        return tensor
    low, high = int(tensor.min()), int(tensor.max())
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max:
            return tensor.to(dtype)
    return tensor


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"cannot write a {type(value).__name__} to a file")
