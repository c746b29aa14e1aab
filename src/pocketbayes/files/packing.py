"""Packing of a network's tree into a short text and coded bytes, at a given precision, and back."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.files import codec
from pocketbayes.files.pocket import MIXTURE_SETTINGS, Buffer, member_checksums, mixture_settings
from pocketbayes.files.slots import (
    MOST_LAYERS,
    checked_shape,
    checked_size,
    edges_of,
    layout_size,
    long_slots,
    short_slots,
)
from pocketbayes.plane.trellis import drop_sides, restore_sides
from pocketbayes.posteriors import POSTERIORS
from pocketbayes.posteriors.coding import PLACES, UNDECLARED, size_of_codebook

LEVELS = ("lossless", "float32", "bfloat16", *(f"int{bits}" for bits in range(8, 1, -1)))
"""Precisions of floats, finest first; intN is 2^N steps between a layer's smallest and largest value."""
INLINE = 4
"""Largest number of values of a tensor stored in the text."""
FREE_VALUES = 1 << 22
VALUES_A_BYTE = 256
"""A file of b bytes holds at most FREE_VALUES + VALUES_A_BYTE b values, if necessary by padding, so that a reader can
reject false sizes before it allocates memory."""
DEFLATED_VALUES = 1 << 22
"""Number of floats from which deflate is used, which reads ten times as fast, so that large networks load quickly."""
LARGEST_TREE = 1 << 22
LONGEST_PLAIN_LAYOUT = 1200
"""Characters; a longer layout goes into the compressed tree."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


@dataclass(frozen=True)
class Precision:
    """The precision of floats in a file.

    Attributes:
        means: Precision of means, point values, centres and outliers.
        stds: Precision of stds, which may be coarser, since errors change only the width of draws.
        points: Precision of parameters and buffers outside the posterior: biases, normalisation.
    """

    means: str = "lossless"
    stds: str = "lossless"
    points: str = "lossless"

    def __post_init__(self) -> None:
        for level in (self.means, self.stds, self.points):
            check_choice("precision", level, LEVELS)

    @classmethod
    def of(cls, value: str | Precision) -> Precision:
        """Return a precision by the name of the means' precision, with matching stds and points."""
        if isinstance(value, Precision):
            return value
        return PRECISIONS[value] if value in PRECISIONS else cls(value, value, value)


PRECISIONS = {
    "lossless": Precision(),
    "bfloat16": Precision("bfloat16", "int8", "bfloat16"),
    "int8": Precision("int8", "int4", "bfloat16"),
}


def pack(tree: Mapping[str, Any], precision: str | Precision) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Pack a network's tree into the text and the parts of a file."""
    networks = tree.get("networks", [tree])
    packer = _Packer(Precision.of(precision))
    heads, bodies = [], []
    for number, network in enumerate(networks):
        packer.prefix = f"{number}." if "networks" in tree else ""
        layout = network["layout"]
        heads.append({"model": network["model"], "layout": short_slots(layout["slots"])})
        bodies.append({**packer.network(network), "points": layout["points"]})
    for head in heads[1:]:
        if head["layout"] == heads[0]["layout"]:
            head["layout"] = None
    for head, entry in zip(heads, bodies):
        if len(json.dumps(head["layout"])) > LONGEST_PLAIN_LAYOUT:
            entry["layout"] = head.pop("layout")
    text: dict[str, Any] = {
        "kind": "mixture" if "networks" in tree else "network",
        "precision": asdict(packer.precision),
    }
    text |= {name: tree[name] for name in MIXTURE_SETTINGS if name in tree}
    body = json.dumps(bodies, separators=(",", ":")).encode()
    if len(body) > LARGEST_TREE:
        raise UserError(f"too many networks or layers for one file: their description takes {len(body)} bytes")
    body = zlib.compress(body, 9)
    parts = {"tree": body, **packer.parts}
    need = sum(layout_size(network["layout"]["slots"]) for network in networks) + packer.values - FREE_VALUES
    missing = -(-need // VALUES_A_BYTE) - sum(map(len, parts.values()))
    parts |= {"padding": bytes(missing)} if missing > 0 else {}
    if "networks" in tree and (checksums := member_checksums(parts, len(networks))) is not None:
        text["checksums"] = checksums
    return {**text, "networks": heads}, parts


def first_networks(
    text: Mapping[str, Any], parts: Mapping[str, bytes], count: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the text and the parts of the first networks of a packed mixture."""
    bodies = json.loads(zlib.decompress(parts["tree"]))[:count]
    others = {name: data for name, data in parts.items() if name != "tree"}
    kept = {name: data for name, data in others.items() if not name[0].isdecimal() or int(name.split(".")[0]) < count}
    kept = {"tree": zlib.compress(json.dumps(bodies, separators=(",", ":")).encode(), 9), **kept}
    plain = {name: value for name, value in text.items() if name not in (*MIXTURE_SETTINGS, "checksums")}
    changed = {**plain, **mixture_settings(text, range(count)), "networks": text["networks"][:count]}
    checksums = member_checksums(kept, count)
    return changed if checksums is None else {**changed, "checksums": checksums}, kept


def unpack(
    text: Mapping[str, Any], parts: MutableMapping[str, Buffer], skipped: Collection[int] = ()
) -> dict[str, Any]:
    """Invert `pack` up to the precision, without the networks in `skipped`.

    Each part is removed from `parts` when read, so that file and network are not both in memory.

    Raises:
        UserError: If the contents are invalid; KeyError, TypeError and ValueError are also possible.
    """
    engine = zlib.decompressobj()
    body = engine.decompress(parts["tree"], LARGEST_TREE)
    if not engine.eof:
        raise UserError("the tree is cut off or too large")
    bodies, heads = json.loads(body), text["networks"]
    if len(bodies) != len(heads) or not bodies:
        raise UserError(f"the text names {len(heads)} networks, but the tree describes {len(bodies)}")
    layouts = [(head if "layout" in head else entry)["layout"] for head, entry in zip(heads, bodies)]
    slots = [long_slots(layouts[0] if layout is None else layout) for layout in layouts]
    claimed = sum(map(layout_size, slots)) + sum(math.prod(checked_shape(node["shape"])) for node in _nodes(bodies))
    if claimed > FREE_VALUES + VALUES_A_BYTE * sum(map(len, parts.values())):
        raise UserError("it claims to hold more numbers than a file of its size can")
    unpacker = _Unpacker(parts)
    networks = [
        {
            **unpacker.network(body, own),
            "model": head["model"],
            "layout": {"slots": own, "points": body["points"]},
        }
        for number, (head, body, own) in enumerate(zip(heads, bodies, slots))
        if number not in skipped
    ]
    if text["kind"] != "mixture":
        return networks[0]
    kept = [number for number in range(len(heads)) if number not in skipped]
    return {"networks": networks, **mixture_settings(text, kept)}


class _Packer:
    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.prefix = ""
        self.parts: dict[str, bytes] = {}
        self.values = 0

    def network(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        posterior = tree["posterior"]
        return {
            **{key: value for key, value in tree.items() if key not in ("model", "layout", "state", "posterior")},
            "state": self.state(tree["state"]),
            "posterior": {**posterior, "tensors": self.posterior(posterior, tree["layout"]["slots"])},
            "prior": self.module("prior", tree["prior"]),
            "likelihood": tree["likelihood"] and self.module("likelihood", tree["likelihood"]),
        }

    def module(self, name: str, tree: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {key: self.tensor(f"{name}.{key}", tensor, "lossless") for key, tensor in tree["tensors"].items()}
        return {**tree, "tensors": tensors}

    def state(self, state: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Pack all tensors of a type as one, since names and shapes cost less than parts of the file."""
        groups: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            groups.setdefault(tensor.dtype, {})[name] = tensor
        packed = []
        for dtype, group in groups.items():
            flat = torch.cat([tensor.detach().cpu().reshape(-1) for tensor in group.values()])
            sizes = [tensor.numel() for tensor in group.values()]
            name = f"points.{str(dtype).removeprefix('torch.')}"
            node = self.tensor(name, flat, self.precision.points, sizes)
            packed.append({"names": [[key, list(tensor.shape)] for key, tensor in group.items()], "values": node})
        return packed

    def posterior(self, tree: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        edges = edges_of(slots)
        kind, tensors = POSTERIORS[tree["name"]], tree["tensors"]
        codings = {name: kind.tensors.get(name, UNDECLARED) for name in tensors}
        nodes: dict[str, Any] = {}
        spans: list[int] | None = None
        for name in (name for name, coding in codings.items() if coding.role in PLACES):
            nodes[name], found = self.index(name, tensors[name], kind.runs(tensors), edges)
            spans = spans or found
        for name in (name for name, coding in codings.items() if coding.role == "codes"):
            entries = size_of_codebook(name, tensors, codings)
            nodes[name] = self.codes(f"posterior.{name}", tensors[name], [slot["shape"] for slot in slots], entries)
        for name, tensor in tensors.items():
            if name not in nodes:
                level = self.precision.stds if codings[name].role == "std" else self.precision.means
                per_weight = tensor.numel() == edges[-1]
                by = "layers" if per_weight else "spans" if spans and tensor.numel() == sum(spans) else None
                segments = {"layers": np.diff(edges).tolist(), "spans": spans, None: None}[by]
                nodes[name] = self.tensor(f"posterior.{name}", tensor, level, segments, by)
        return {name: nodes[name] for name in tensors}

    def index(
        self, name: str, index: Tensor, runs: Sequence[tuple[int, int]], edges: Sequence[int]
    ) -> tuple[dict[str, Any], list[int] | None]:
        """Pack positions of weights with their counts per layer, or table entries if they do not ascend."""
        values = index.detach().cpu().reshape(-1).numpy().astype(np.int64)
        if _ascends(index, edges[-1]):
            node = self.node(f"posterior.{name}", index, "positions", codec.pack_positions(values, edges))
            return node, np.diff(np.searchsorted(values, edges)).tolist()
        by = "layers" if len(values) == edges[-1] else None
        segments = np.diff(edges).tolist() if by else None
        folded = codec.fold(values, runs)  # one symbol per range of values used once each
        kept = {} if folded is None else {"runs": [list(run) for run in runs]}
        data = codec.pack_ints(values if folded is None else folded, segments)
        return self.node(f"posterior.{name}", index, "ints", data, by=by, **kept), None

    def codes(self, name: str, tensor: Tensor, shapes: Sequence[Sequence[int]], entries: int) -> dict[str, Any]:
        """Code under models by context or by layer, whichever is smaller; omit the sides of codes on a trellis."""
        values = tensor.detach().cpu().reshape(-1).numpy().astype(np.int64)
        values, half = drop_sides(values, entries, shapes)
        by_layer = codec.pack_ints(values, [math.prod(shape) for shape in shapes])
        by_context = codec.pack_codes(values, shapes)
        layered = len(by_layer) <= len(by_context)
        data, by = (by_layer, "layers") if layered else (by_context, None)
        how = "trellis" if half else "ints" if layered else "codes"
        return self.node(name, tensor, how, data, by=by, half=half)

    def tensor(
        self, name: str, tensor: Tensor, level: str, segments: Sequence[int] | None = None, by: str | None = None
    ) -> dict[str, Any]:
        """Pack a tensor into the text if it is tiny, otherwise as a part."""
        tensor = tensor.detach().cpu()
        if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
            raise UserError(f"a file cannot store {name} of type {tensor.dtype}")
        if tensor.numel() <= INLINE:
            self.values += tensor.numel()
            dtype_name, plain = str(tensor.dtype).removeprefix("torch."), tensor.reshape(-1).tolist()
            return {"dtype": dtype_name, "shape": list(tensor.shape), "values": plain}
        if not tensor.is_floating_point():
            whole = tensor.reshape(-1).to(torch.int64).numpy()
            return self.node(name, tensor, "ints", codec.pack_ints(whole, segments), by=by)
        bits = int(level[3:]) if level.startswith("int") else 0
        if bits and bool(tensor.isfinite().all()):
            floats = tensor.reshape(-1).to(torch.float32).numpy()
            return self.node(name, tensor, "steps", codec.pack_in_steps(floats, bits, segments), by=by)
        dtype = tensor.dtype if level == "lossless" else torch.float32 if level == "float32" else torch.bfloat16
        if dtype.itemsize > tensor.dtype.itemsize:
            dtype = tensor.dtype
        coder = "deflate" if tensor.numel() >= DEFLATED_VALUES else None
        data = codec.pack_exactly(_rows(tensor.to(dtype)), segments if by else None, deflate=coder is not None)
        return self.node(name, tensor, str(dtype).removeprefix("torch."), data, by=by, coder=coder)

    def node(self, name: str, tensor: Tensor, how: str, data: bytes, **more: Any) -> dict[str, Any]:
        self.parts[self.prefix + name] = data
        self.values += tensor.numel()
        dtype = str(tensor.dtype).removeprefix("torch.")
        kept = {key: value for key, value in more.items() if value is not None}
        return {"part": self.prefix + name, "dtype": dtype, "shape": list(tensor.shape), "as": how, **kept}


class _Unpacker:
    def __init__(self, parts: MutableMapping[str, Buffer]) -> None:
        self.parts = parts

    def network(self, body: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        posterior = body["posterior"]
        return {
            **{key: value for key, value in body.items() if key != "points"},
            "state": self.state(body["state"]),
            "posterior": {**posterior, "tensors": self.posterior(posterior["tensors"], slots)},
            "prior": self.module(body["prior"]),
            "likelihood": body["likelihood"] and self.module(body["likelihood"]),
        }

    def module(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        return {**tree, "tensors": {key: self.tensor(node) for key, node in tree["tensors"].items()}}

    def state(self, groups: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        if sum(len(group["names"]) for group in groups) > 4 * MOST_LAYERS:
            raise UserError("it claims to have too many points")
        for group in groups:
            shapes = [checked_shape(shape) for _, shape in group["names"]]
            sizes = [math.prod(shape) for shape in shapes]
            flat = self.tensor(group["values"], sizes)
            for (name, _), shape, part in zip(group["names"], shapes, flat.split(sizes)):
                state[name] = part.view(shape).clone()
        return state

    def posterior(self, nodes: Mapping[str, Any], slots: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        edges = edges_of(slots)
        tensors: dict[str, Tensor] = {}
        spans: list[int] | None = None
        for name in sorted(nodes, key=lambda name: nodes[name].get("as") != "positions"):  # spans follow from positions
            node = nodes[name]
            segments = {"layers": np.diff(edges).tolist(), "spans": spans, None: None}[node.get("by")]
            tensors[name] = self.tensor(node, segments, slots)
            if node.get("as") == "positions":
                spans = spans or np.diff(np.searchsorted(tensors[name].numpy(), edges)).tolist()
        return {name: tensors[name] for name in nodes}

    def tensor(
        self, node: Mapping[str, Any], segments: Sequence[int] | None = None, slots: Sequence[Mapping[str, Any]] = ()
    ) -> Tensor:
        dtype, shape = DTYPES[node["dtype"]], checked_shape(node["shape"])
        count = math.prod(shape)
        if "values" in node:
            return torch.tensor(node["values"], dtype=dtype).view(shape)
        data, how = self.parts.pop(node["part"]), node["as"]
        values: Any
        if how == "positions":
            values = codec.unpack_positions(data, count, edges_of(slots))
        elif how == "codes" or (how == "trellis" and segments is None):
            values = codec.unpack_codes(data, count, [slot["shape"] for slot in slots])
        elif how in ("ints", "trellis"):
            values = codec.unpack_ints(data, count, segments)
            if runs := [(checked_size(first), checked_size(number)) for first, number in node.get("runs", ())]:
                values = codec.unfold(values, runs)
        elif how == "steps":
            values = codec.unpack_in_steps(data, count, segments)
        else:
            kept, own = DTYPES[how], segments if node.get("by") else None
            rows = codec.unpack_exactly(data, count, kept.itemsize, own, deflate=node.get("coder") == "deflate")
            return torch.from_numpy(rows).view(-1).view(kept).to(dtype).view(shape)
        if how == "trellis":
            values = restore_sides(values, checked_size(node["half"]), [slot["shape"] for slot in slots])
        return torch.from_numpy(values).to(dtype).view(shape)


def _nodes(bodies: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield all tensors that a tree describes."""
    for body in bodies:
        for module in (body["posterior"], body["prior"], body["likelihood"] or {"tensors": {}}):
            yield from module["tensors"].values()
        for group in body["state"]:
            yield group["values"]


def _rows(tensor: Tensor) -> codec.Bytes:
    flat = tensor.contiguous().reshape(-1)
    rows: codec.Bytes = flat.view(torch.uint8).view(len(flat), tensor.dtype.itemsize).numpy()
    return rows


def _ascends(index: Tensor, size: int) -> bool:
    if index.ndim != 1 or not len(index):
        return False
    return int(index[0]) >= 0 and int(index[-1]) < size and bool((index.diff() > 0).all())
