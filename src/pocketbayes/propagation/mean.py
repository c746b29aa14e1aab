"""The network at its posterior mean: one pass, no epistemic uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ask, WeightPropagation
from pocketbayes.propagation.local import LOCAL

if TYPE_CHECKING:
    from pocketbayes.network import Network


class Mean(WeightPropagation):
    """One pass with the mean of every weight."""

    name = "mean"

    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table of linear operations, which accept sparse matrices."""
        return LOCAL

    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return the means."""
        return net.posterior.mean_slots(self.matrices(net, x))
