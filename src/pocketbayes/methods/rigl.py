"""RigL (Evci et al. 2020): sparse training of point values, the deterministic twin of SSVI."""

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

    min NLL over s values and their places: the smallest |values| leave, the largest |gradients| come in with 0.
    The paper's "erdos-renyi" distribution is the default: a small last layer that keeps a tenth of its weights uses a
    tenth of its features, and a regression then hangs on which these are.
    """

    name = "rigl"
    distribution: Distribution = "erdos-renyi"

    def first_std(self, mean: Tensor, counts: Sequence[int]) -> None:
        """Point values have none."""
        return None

    def scores(self, posterior: Sparse) -> Tensor:
        """Compute |value|."""
        return posterior.mean.detach().abs()

    def added_std(self, posterior: Sparse, kept: Tensor, added: Tensor) -> None:
        """Point values have none."""
        return None

    def make_network(self, start: Start, posterior: Sparse) -> Network:
        """Return a deterministic network."""
        return Network(start.model, posterior, likelihood=start.likelihood, propagation="mean")
