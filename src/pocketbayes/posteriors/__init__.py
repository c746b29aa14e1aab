"""Storages of posteriors, one per file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from pocketbayes.posteriors.base import POSTERIORS, Census, Posterior
from pocketbayes.posteriors.coded import Coded
from pocketbayes.posteriors.coding import Coding
from pocketbayes.posteriors.dropped import Dropped
from pocketbayes.posteriors.kronecker import Kronecker
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.meanfield import MeanField
from pocketbayes.posteriors.partial import Partial
from pocketbayes.posteriors.point import Point
from pocketbayes.posteriors.quantized import Quantized
from pocketbayes.posteriors.rank1 import Rank1
from pocketbayes.posteriors.rows import RowStds
from pocketbayes.posteriors.shared import Shared
from pocketbayes.posteriors.sparse import Sparse
from pocketbayes.posteriors.trajectory import Trajectory

__all__ = [
    "POSTERIORS",
    "Census",
    "Coded",
    "Coding",
    "Dropped",
    "Kronecker",
    "LowRank",
    "MeanField",
    "Partial",
    "Point",
    "Posterior",
    "Quantized",
    "Rank1",
    "RowStds",
    "Shared",
    "Sparse",
    "Trajectory",
    "from_codes",
    "from_moments",
    "restore",
]


def from_moments(layout: Layout, mean: Tensor, std: Tensor | None = None) -> Posterior:
    """Build independent Gaussians from mean and std of every weight, each (n,); without stds, point values."""
    return Point(layout, mean) if std is None else MeanField(layout, mean, std)


from_codes: Callable[..., Posterior] = Coded
"""How other rooms build weights from their codes: the arguments are those of `Coded`."""


def restore(name: str, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Posterior:
    """Rebuild the posterior that its name, layout, tensors and config describe."""
    kind = POSTERIORS[name]
    kind.check_file(layout, tensors, config)
    return kind.restore(layout, tensors, config)
