"""Rank-1 Bayesian networks: random factors per unit around one value per weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Start, VariationalMethod
from pocketbayes.network import Network
from pocketbayes.posteriors.rank1 import Rank1, count_factors


@dataclass(frozen=True, kw_only=True)
class Rank1VI(VariationalMethod):
    """Weights are values times random factors per input and output unit (Dusenberry et al. 2020).

    `W ∘ (s r^T)` with Gaussian s and r minimises `NLL + beta KL(q(s, r) || N(1, prior_std^2)) / N`. A layer of a x b
    weights has only a + b stds.

    Departures: one mixture component (`Ensemble(method="rank1")` gives several), and one draw of the factors per batch,
    in the paper per example.

    Attributes:
        std_init: The initial std of every factor.
        sign_init: Whether factors start at random signs, as in the paper; otherwise at 1, which preserves a trained
            network.
    """

    name = "rank1"
    std_init: float = 0.1
    sign_init: bool = False
    prior: str | None = "normal"
    prior_std: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.std_init > 0:
            raise UserError(f"std_init must be positive, not {self.std_init}")
        if self.prior != "normal":
            raise UserError(f"the factors of rank1 have a normal prior around 1, not {self.prior!r}")

    def init(self, model: nn.Module) -> Network:
        """Return a network whose values are the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        factor = torch.ones(count_factors(start.layout), dtype=start.mean.dtype, device=start.mean.device)
        if self.sign_init:
            factor = torch.where(torch.rand_like(factor) < 0.5, -factor, factor)
        posterior = Rank1(start.layout, start.mean, factor, self.std_init * torch.ones_like(factor))
        return self.network(start, posterior)
