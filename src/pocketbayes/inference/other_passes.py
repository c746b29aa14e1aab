"""Summary of passes under a user's likelihood."""

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
"""Number of draws from Gaussian outputs, since a likelihood takes one output at a time."""


class OtherPasses(RealPasses):
    """Passes under a likelihood that defines `nll` and possibly `moments`."""

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
        """Summarise as for real numbers; the entropy of a std of 0 is bounded below."""
        prediction = super().summary()
        least = torch.finfo(prediction.std.dtype).tiny
        entropy = prediction.std.clamp(min=least).log() + 0.5 * math.log(2 * math.pi * math.e)
        return replace(prediction, entropy=entropy)


def _draw(output: Gaussian, seed: int, draws: int = DRAWS) -> Tensor:
    """Draw outputs (s, n, ...) independently from their distribution."""
    mean, var = output.loc, output.variance
    generator = torch.Generator(mean.device).manual_seed(seed)
    noise = torch.randn(draws, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return torch.addcmul(mean, var.sqrt(), noise)


class Density(Sums):
    """The mean NLL of the targets under the mixture over passes, and the likelihood's measures."""

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
