"""Sparse variational dropout: a log-uniform prior that removes weights without signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Annealing, Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.network import Net, Network
from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import LogUniform, Prior
from pocketbayes.posteriors.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class VariationalDropout(VariationalMethod):
    """Variational dropout with a learned rate per weight; noisy weights are removed (Molchanov et al. 2017).

    With `alpha = std^2 / mean^2`, it minimises `NLL + beta KL(q || log-uniform) / N` by local reparameterisation. After
    training, weights with log alpha above `threshold` are removed, and the rest is stored sparsely with its stds.

    Attributes:
        std_init: The initial std of every weight, exp(-5) in the paper.
        threshold: The largest log alpha of a kept weight.
    """

    name = "sparse-vd"
    std_init: float = 0.0067
    threshold: float = 3.0
    beta: float | None = 1.0
    annealing: Annealing | None = "warm-up"

    def __post_init__(self) -> None:
        if self.prior is not None or self.prior_std is not None:
            raise UserError("sparse-vd always has a log-uniform prior: omit prior and prior_std")
        super().__post_init__()
        if not self.std_init > 0:
            raise UserError(f"std_init must be positive, not {self.std_init}")

    def make_prior(self, mean: Tensor, layout: Layout) -> Prior:
        """Return the log-uniform prior."""
        return LogUniform()

    def init(self, model: nn.Module) -> Network:
        """Return a mean-field network around the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        std = start.std if start.std is not None else torch.full_like(start.mean, self.std_init)
        return self.network(start, MeanField(start.layout, start.mean, std), propagation="local")

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return one stage of training, followed by the removal of weights."""
        return (Stage("train", end=self._prune),)

    def _prune(self, net: Net, run: TrainingContext) -> Network:
        """Keep the weights whose log alpha is at most the threshold, at least one per layer."""
        assert isinstance(net, Network)
        with torch.no_grad():
            mean, std = net.posterior.moments()
            log_alpha = 2 * (std.log() - mean.abs().clamp(min=torch.finfo(mean.dtype).tiny).log())
            kept = log_alpha <= self.threshold
            for slot in net.layout.slots:
                kept[slot.start + int(log_alpha[slot.start : slot.stop].argmin())] = True
            index = kept.nonzero().flatten()
            run.note(kept_weights=len(index), density=round(len(index) / len(mean), 6))
            posterior = Sparse(net.layout, index, mean[index], std[index])
        return net.with_posterior(posterior)
