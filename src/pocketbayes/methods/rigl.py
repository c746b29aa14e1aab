"""RigL (Evci et al. 2020): sparse training of point values, the deterministic counterpart of SSVI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pocketbayes.methods.base import Start
from pocketbayes.methods.sparse_training import SparseTraining
from pocketbayes.methods.sparsity import Distribution
from pocketbayes.network import Network
from pocketbayes.posteriors.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class RigL(SparseTraining):
    """Sparse training without stds (Evci et al. 2020).

    It minimises the NLL over s values and their positions: weights with the smallest |value| are removed, those
    with the largest |gradient| are added with value 0.

    The paper's "erdos-renyi" distribution is the default, since with "uniform" a small last layer would use only a few
    of its features.
    """

    name = "rigl"
    distribution: Distribution = "erdos-renyi"

    def first_std(self, mean: Tensor, counts: Sequence[int]) -> None:
        """Return None: point values have no stds."""
        return None

    def scores(self, posterior: Sparse) -> Tensor:
        """Compute |value|."""
        return posterior.mean.detach().abs()

    def added_std(self, posterior: Sparse, kept: Tensor, added: Tensor) -> None:
        """Return None: point values have no stds."""
        return None

    def make_network(self, start: Start, posterior: Sparse) -> Network:
        """Return a deterministic network."""
        return start.network(posterior, propagation="mean")
