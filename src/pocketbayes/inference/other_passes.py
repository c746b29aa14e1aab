"""The summary of passes under a likelihood of the user's own."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.metrics.accumulators import Sums
from pocketbayes.inference.passes import Passed, RealPasses
from pocketbayes.likelihoods import Likelihood
from pocketbayes.posteriors.gaussian import Gaussian

DRAWS = 30
"""Outputs that stand for a distribution, of which a likelihood takes one at a time."""


class OtherPasses(RealPasses):
    """Passes whose likelihood is known by its `nll` alone, and by `moments` where it says more."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Add outputs, or draws from their distribution, and targets of any kind."""
        super().add(passed)
        if target is None:
            return
        assert isinstance(passed.likelihood, Likelihood)
        output, weight = passed.output, passed.weight
        if isinstance(output, Gaussian):
            output, weight = _draw(output, self.seed), weight / DRAWS
        each = torch.stack([passed.likelihood.log_density(values, target) for values in output]).logsumexp(0)
        each = each + math.log(weight)
        self.log_density = each if self.log_density is None else torch.logaddexp(self.log_density, each)

    def summary(self) -> Prediction:
        """Summarise as for real numbers; a certain network without noise has the least entropy there is."""
        prediction = super().summary()
        least = torch.finfo(prediction.std.dtype).tiny
        entropy = prediction.std.clamp(min=least).log() + 0.5 * math.log(2 * math.pi * math.e)
        return replace(prediction, entropy=entropy)


def _draw(output: Gaussian, seed: int, draws: int = DRAWS) -> Tensor:
    """Return outputs (s, n, ...) drawn from their distribution, each number for itself."""
    mean, var = output.loc, output.variance
    generator = torch.Generator(mean.device).manual_seed(seed)
    noise = torch.randn(draws, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return torch.addcmul(mean, var.sqrt(), noise)


class Density(Sums):
    """The mean NLL of the targets under the mixture over passes, and the likelihood's own measures."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    def update(self, passes: OtherPasses, target: Tensor) -> None:
        """Add a batch."""
        density = passes.log_likelihood()
        self._add(count=torch.tensor(density.numel()), nll=-density.sum())
        for name, values in self.likelihood.measures(passes.summary().mean, target).items():
            self._add(**{name: values.sum(), f"count of {name}": torch.tensor(values.numel())})

    def compute(self) -> dict[str, float]:
        """Return the measures so far, means over every example."""
        self._require_examples()
        own = [name for name in self.sums if f"count of {name}" in self.sums]
        measures = {"count": float(self.sums["count"]), "nll": self._mean("nll")}
        return measures | {name: self._mean(name, f"count of {name}") for name in own}
