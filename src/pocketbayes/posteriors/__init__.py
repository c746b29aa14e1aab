"""Storages: what a posterior keeps, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pocketbayes.base.errors import UnknownNameError
from pocketbayes.posteriors.base import Census, Posterior
from pocketbayes.posteriors.dropped import Dropped
from pocketbayes.posteriors.kronecker import Kronecker
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.meanfield import MeanField
from pocketbayes.posteriors.partial import Partial
from pocketbayes.posteriors.point import Point
from pocketbayes.posteriors.quantized import Quantized
from pocketbayes.posteriors.rows import RowStds
from pocketbayes.posteriors.shared import Shared
from pocketbayes.posteriors.sparse import Sparse
from pocketbayes.posteriors.trajectory import Trajectory

POSTERIORS: dict[str, type[Posterior]] = {
    cls.name: cls
    for cls in (Point, MeanField, RowStds, Partial, Shared, Sparse, Dropped, LowRank, Kronecker, Trajectory, Quantized)
}

__all__ = [
    "POSTERIORS",
    "Census",
    "Dropped",
    "Kronecker",
    "LowRank",
    "MeanField",
    "Partial",
    "Point",
    "Posterior",
    "Quantized",
    "RowStds",
    "Shared",
    "Sparse",
    "Trajectory",
    "restore",
]


def restore(name: str, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Posterior:
    """The posterior that its name, layout, tensors and config describe."""
    if name not in POSTERIORS:
        raise UnknownNameError("storage", name, POSTERIORS)
    return POSTERIORS[name].restore(layout, tensors, config)
