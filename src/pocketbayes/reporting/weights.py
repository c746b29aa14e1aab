"""The weights in a network's file: layers, stds of the first layer, the plane of shared Gaussians."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pocketbayes.files import network_file as artifact
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.health import Health
from pocketbayes.posteriors.shared_plane import SharedPlane

if TYPE_CHECKING:
    from pathlib import Path

MOST_GAUSSIANS, MOST_OUTLIERS = 3000, 3000
"""Largest numbers of Gaussians and outliers that a page draws."""
MOST_CELLS = 120 * 120
FEW_CHANNELS = 4
GAP, POINT, FIRST = 0, 1, 2
"""Codes in a map of stds: the gap between tiles, a std of 0, and the smallest positive std."""


def weights_of(file: Path) -> dict[str, Any]:
    """Return storage, census, layers, std map and plane as JSON values, for a mixture of its first network."""
    tree = artifact.read(file)
    networks = tree.get("networks", [tree])
    first = networks[0]
    posterior = artifact.posterior_in(first)
    info = first.get("data") or {}
    model = first["model"]
    with torch.no_grad():
        mean, std = posterior.moments()
        found = {
            "networks": len(networks),
            "model": model["name"] if model else first["model_class"],
            "storage": posterior.name,
            "prior": first["prior"]["name"],
            "class_names": list(info.get("class_names") or ()),
            "stored": {str(kind): int(count) for kind, count in posterior.census().stored.items()},
            "points": sum(tensor.numel() for tensor in first["state"].values()),
            "notes": [*_health(first.get("health")), *posterior.census().notes],
            "learned": (first.get("health") or {}).get("learned"),
            "layers": layers_of(posterior, mean, std),
        }
        sigma = sigma_of(posterior, std, tuple(info.get("input_shape") or ()))
        if sigma is not None:
            found["sigma"] = sigma
        if (view := posterior.plane()) is not None:
            found["plane"] = plane_of(view, [slot.name for slot in posterior.layout.slots])
    # All networks of a mixture store the same number of values.
    found["values"] = len(networks) * (sum(found["stored"].values()) + found["points"])
    return found


def _health(recorded: Mapping[str, Any] | None) -> list[str]:
    """Describe how much the stds changed in training; empty without stds."""
    found = Health(**recorded) if recorded else Health()
    return [] if found.snr is None else [str(found)]


def posterior_of(file: Path) -> Posterior:
    """Read the posterior in a network's file, of a mixture the first, without building the model."""
    tree = artifact.read(file)
    return artifact.posterior_in(tree.get("networks", [tree])[0])


def layers_of(posterior: Posterior, mean: Tensor, std: Tensor) -> list[dict[str, Any]]:
    """Return shape, present and random fractions, and mean std of each weight tensor."""
    views = zip(posterior.layout.slots, posterior.layout.views(mean), posterior.layout.views(std))
    layers = []
    for slot, m, s in views:
        random = s > 0
        layers.append(
            {
                "name": slot.name,
                "shape": list(slot.shape),
                "size": slot.size,
                "present": float((random | (m != 0)).double().mean()),
                "random": float(random.double().mean()),
                "std": float(s[random].double().mean()) if bool(random.any()) else None,
            }
        )
    return layers


def sigma_of(posterior: Posterior, std: Tensor, input_shape: tuple[int, ...]) -> dict[str, Any] | None:
    """Return the stds of the first weight tensor as a picture; None if none is random."""
    slot = posterior.layout.slots[0]
    stds = posterior.layout.views(std)[0].double().cpu().numpy()
    if not (stds > 0).any():
        return None
    picture, shown = tiled(stds, input_shape)
    return {"name": slot.name, "shape": list(slot.shape), "units": slot.shape[0], "shown": shown, "picture": picture}


def tiled(stds: np.ndarray, input_shape: tuple[int, ...] = ()) -> tuple[np.ndarray, int]:
    """Return a picture (rows, columns) of a weight tensor (units, ...): a tile per unit in a grid, NaN between them.

    A convolution's tile is its kernel; that of a linear layer over images is the image, with channels side by side.
    Other matrices are one tile with a row per unit. Units that would make the picture too large are omitted.
    """
    units = len(stds)
    if stds.ndim == 2 and len(input_shape) == 3 and stds.shape[1] == math.prod(input_shape):
        stds = stds.reshape(units, *input_shape)
    if stds.ndim != 4 or stds.shape[1] > FEW_CHANNELS:
        side = math.isqrt(MOST_CELLS)
        matrix = stds.reshape(units, -1)[:side, :side]
        return matrix, len(matrix)
    shown = max(min(units, MOST_CELLS // math.prod(stds.shape[1:])), 1)
    tiles = np.concatenate(list(stds[:shown].swapaxes(0, 1)), axis=2)  # (units, height, channels x width)
    height, width = tiles.shape[1:]
    columns = max(min(shown, math.ceil(math.sqrt(1.6 * shown * (height + 1) / (width + 1)))), 1)
    rows = math.ceil(shown / columns)
    picture = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
    for place, tile in enumerate(tiles):
        top, left = place // columns * (height + 1), place % columns * (width + 1)
        picture[top : top + height, left : left + width] = tile
    return picture, shown


def codes_of(picture: np.ndarray) -> tuple[bytes, float, float]:
    """Return one byte per cell, and the stds of the first and last code."""
    known = np.nan_to_num(picture)
    random = known[known > 0]
    low, high = float(random.min()), float(random.max())
    span = high - low or 1.0
    codes = np.where(known > 0, FIRST + np.rint((known - low) / span * (255 - FIRST)), POINT)
    return np.where(np.isnan(picture), GAP, codes).astype(np.uint8).tobytes(), low, high


def plane_of(view: SharedPlane, layers: Sequence[str]) -> dict[str, Any]:
    """Return the largest Gaussians, with their members by layer, and the outliers as JSON values."""
    order = view.members.sum(1).argsort(descending=True)[:MOST_GAUSSIANS]
    columns = torch.cat([view.centres, view.factors], 1)[order]
    step = math.ceil(len(view.outliers) / MOST_OUTLIERS) or 1
    return {
        "draw": view.draw,
        "layers": [*layers],
        "gaussians": _rounded(columns),
        "drawn_stds": [row[0] for row in _rounded(view.drawn_stds[order, None])],
        "members": [[round(count, 1) for count in row] for row in view.members[order].tolist()],
        "outliers": _rounded(view.outliers[::step]),
        "counts": {"gaussians": len(view.centres), "outliers": len(view.outliers), "blends": len(view.blends)},
    }


def _rounded(values: Tensor) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values.double().tolist()]


def picture_json(sigma: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map of stds in the format of the page."""
    codes, low, high = codes_of(sigma["picture"])
    rows, columns = sigma["picture"].shape
    plain = {key: value for key, value in sigma.items() if key != "picture"}
    coded = base64.b64encode(codes).decode()
    return {**plain, "rows": rows, "columns": columns, "low": low, "high": high, "codes": coded}
