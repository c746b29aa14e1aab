"""Sparse subspace variational inference: a Bayesian network that is sparse throughout training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import EMPIRICAL_BETA, Annealing, Start, VariationalMethod
from pocketbayes.methods.sparse_training import SparseTraining
from pocketbayes.network import Network
from pocketbayes.posteriors.sparse import SCORES, Score, Sparse, removal_score
from pocketbayes.propagation import find_propagation

AUTHORS = {"beta": 0.01, "std_init": 6e-4, "std_spread": 5e-4}
"""Settings of Li et al., used if a prior is given."""
RELATIVE_STD = 0.2
"""The initial std in units of the present weights' root mean square."""


@dataclass(frozen=True, kw_only=True)
class SSVI(SparseTraining, VariationalMethod):
    """Sparse subspace variational inference: few weights with mean and std, swapped during training.

    It minimises `NLL + beta KL(q || prior) / N` over `q = prod N(mean_j, std_j^2)` of s weights and over their choice.

    Li et al. 2024. The authors train by SGD with momentum 0.9, rate 0.01, weight decay 5e-4 and a cosine schedule, keep
    the first layer dense, and set mean_init=0.01, prior_std=0.005, and thus std_init=6e-4 and beta=0.01. The pull of
    the KL grows with beta / (N prior_std^2): with their prior a hundred examples hold every mean at 0, and stds that
    small never learn, so the default is the empirical prior with stds on the scale of the weights.

    Attributes:
        removal: The score for removing weights (see `removal_score`).
        removal_scale: l of the scores exp-mean and exp-snr.
        std_init: The initial stds are |N(std_init, std_spread^2)|; or "relative", 0.2 of the root mean square of a
            layer's present weights. None for "relative" with the empirical prior, else for the authors' 6e-4.
        std_spread: See `std_init`; None for the authors' 5e-4, or for a tenth of relative stds.
        added_std_init: The std of a new weight; or "layer", the mean std of its layer's present weights. At 0 local
            noise would never reach its gradient.
        propagation: "local" (one noise per example and output), "sample" or "flipout".
    """

    name = "ssvi"
    removal: Score = "abs-snr"
    removal_scale: float = 1.0
    std_init: float | Literal["relative"] | None = None
    std_spread: float | None = None
    added_std_init: float | Literal["layer"] = "layer"
    propagation: Literal["local", "sample", "flipout"] = "local"
    annealing: Annealing = "warm-up"

    def __post_init__(self) -> None:
        beta = self.beta
        super().__post_init__()
        empirical = self.prior == "empirical"
        defaults: dict[str, Any] = {
            "beta": beta if beta is not None else EMPIRICAL_BETA if empirical else AUTHORS["beta"],
            "std_init": ("relative" if empirical else AUTHORS["std_init"]) if self.std_init is None else self.std_init,
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)
        find_propagation(self.propagation)
        check_choice("removal score", self.removal, SCORES)
        if self.prior == "pretrained":
            raise UserError("prior='pretrained' keeps a value for every weight, which a sparse network does not have")
        if self.antithetic and self.propagation != "sample":
            raise UserError(f"antithetic noise needs propagation='sample', not {self.propagation!r}")
        first = self.std_init if isinstance(self.std_init, (int, float)) else 1.0
        if not (first > 0 and (self.std_spread or 0.0) >= 0 and self.removal_scale > 0):
            raise UserError("std_init and removal_scale must be positive, std_spread not negative")
        if self.added_std_init != "layer" and not float(self.added_std_init) > 0:
            raise UserError(f"added_std_init must be a positive number or 'layer', not {self.added_std_init!r}")

    def first_std(self, mean: Tensor, counts: Sequence[int]) -> Tensor:
        """Compute |N(std_init, std_spread^2)|, kept above 0, for the weights of each layer."""
        first = [self._centre_and_spread(layer) for layer in mean.split(list(counts))]
        each = torch.tensor(counts, device=mean.device)
        centre, spread = (mean.new_tensor(values).repeat_interleave(each) for values in zip(*first))
        return (centre + spread * torch.randn_like(mean)).abs().clamp(min=1e-8)

    def _centre_and_spread(self, mean: Tensor) -> tuple[float, float]:
        if self.std_init == "relative":
            scale = float(mean.detach().square().mean().sqrt()) if len(mean) else 0.0
            centre = RELATIVE_STD * scale or AUTHORS["std_init"]
            return centre, 0.1 * centre if self.std_spread is None else self.std_spread
        assert isinstance(self.std_init, (int, float))
        return float(self.std_init), AUTHORS["std_spread"] if self.std_spread is None else self.std_spread

    def scores(self, posterior: Sparse) -> Tensor:
        """Return the log of the removal score in double precision, which keeps the order of close or large scores."""
        with torch.no_grad():
            std = posterior.present_std()
            assert std is not None
            mean = posterior.mean.detach()
            return removal_score(self.removal, mean.double(), std.double(), self.removal_scale, log=True)

    def added_std(self, posterior: Sparse, kept: Tensor, added: Tensor) -> Tensor:
        """Return the mean std of each new weight's layer; `std_init` for a layer that has none left."""
        if self.added_std_init != "layer":
            return torch.full(added.shape, float(self.added_std_init), dtype=posterior.mean.dtype, device=added.device)
        starts = torch.tensor([slot.start for slot in posterior.layout.slots], device=added.device)
        with torch.no_grad():
            std = posterior.present_std()
            assert std is not None
            layer = torch.bucketize(posterior.index[kept].long(), starts, right=True) - 1
            sums = torch.zeros(len(starts), dtype=torch.float64, device=std.device)
            sums.index_add_(0, layer, std[kept].double())
            counts = torch.bincount(layer, minlength=len(starts))
            first = self._centre_and_spread(posterior.mean)[0]
            means = torch.where(counts > 0, sums / counts, first).to(std.dtype)
        return means[torch.bucketize(added, starts, right=True) - 1]

    def make_network(self, start: Start, posterior: Sparse) -> Network:
        """Return a network with local noise."""
        return self.network(start, posterior, propagation=self.propagation)
