"""Running summaries over the passes of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.metrics.accumulators import Sums
from pocketbayes.likelihoods import Likelihood, match_target
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.propagation.readout import Readout, read_out

GAUSSIAN_DRAWS = 30
"""Number of draws from Gaussian outputs, since a likelihood takes one output at a time."""


@dataclass(frozen=True)
class Passed:
    """The output of one network for a batch.

    Attributes:
        output: Outputs (s, n, ...) of s passes, or a Gaussian (n, ...).
        weight: The weight of each pass.
        likelihood: The network's likelihood.
    """

    output: Tensor
    weight: float = 1.0
    likelihood: Likelihood | None = None


class Passes(ABC):
    """A running summary of a batch's outputs, which stores moments but no passes."""

    def __init__(self) -> None:
        self.count = 0
        self.weight = 0.0

    @abstractmethod
    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Add the outputs (s, n, ...) of s passes, or a Gaussian (n, ...)."""

    def _count(self, passed: Passed) -> None:
        count = 1 if isinstance(passed.output, Gaussian) else len(passed.output)
        self.count += count
        self.weight += passed.weight * count

    @abstractmethod
    def summary(self) -> Prediction:
        """Return the prediction so far."""

    def _passes(self, values: Tensor) -> Tensor:
        """Return the number of passes of each input."""
        return torch.full((len(values),), self.count, device=values.device)


def _added(total: Tensor | None, value: Tensor, weight: float) -> Tensor:
    return value * weight if total is None else total + value * weight


class _RunningMoments:
    """Welford's mean and variance in Chan's form for many values, without cancellation for small variances."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, values: Tensor, weight: float, total: float) -> None:
        """Add values (s, ...) of one weight each, after which the weights sum to `total`."""
        squares: Tensor | None = None
        if len(values) == 1:
            mean = values[0]
        else:
            squares, mean = torch.var_mean(values, 0, correction=0)
            squares *= len(values) * weight
        if self.mean is None or self.squares is None:
            self.mean, self.squares = mean.clone(), torch.zeros_like(mean) if squares is None else squares
            return
        if mean.shape != self.mean.shape:  # or they would broadcast
            one, two = (" x ".join(map(str, each.shape[1:])) for each in (self.mean, mean))
            raise UserError(f"members have {one} and {two} outputs: a mixture needs the same classes or targets")
        added = len(values) * weight
        change, share = mean - self.mean, added / total
        self.mean.add_(change, alpha=share)
        self.squares.addcmul_(change, change, value=(1 - share) * added)
        if squares is not None:
            self.squares += squares

    def keep(self, rows: Tensor) -> None:
        """Keep the inputs of these rows."""
        assert self.mean is not None
        assert self.squares is not None
        self.mean, self.squares = self.mean[rows], self.squares[rows]

    def read(self, total: float) -> tuple[Tensor, Tensor]:
        assert self.mean is not None
        assert self.squares is not None
        return self.mean, self.squares / total


class ClassPasses(Passes):
    """Passes of a classifier, per example or per pixel."""

    def __init__(self, readout: Readout = "sample", seed: int = 0) -> None:
        """Take the readout of Gaussian logits (see `read_out`)."""
        super().__init__()
        self.readout, self.seed = readout, seed
        self.probs, self.entropy = _RunningMoments(), _RunningMoments()
        self.within: Tensor | None = None

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Add logits (s, n, classes, ...), or their distribution."""
        self._count(passed)
        output, weight = passed.output, passed.weight
        if output.ndim < (2 if isinstance(output, Gaussian) else 3):
            raise UserError(
                "the model returns one number per example, not logits (batch, classes, ...): for real numbers set "
                "net.likelihood = pb.GaussianNoise()"
            )
        if not isinstance(output, Gaussian):
            probs = output.float().softmax(2)
            self._take(probs, torch.special.entr(probs).sum(2), weight)
            return
        mean, var = output.loc.float(), output.variance.float()
        covariance = output.covariance.float() if isinstance(output, Correlated) else None
        read = read_out(mean, var, covariance, how=self.readout, seed=self.seed)
        self._take(read.probs[None], (torch.special.entr(read.probs).sum(1) - read.information)[None], weight)
        self.within = _added(self.within, read.var, weight)

    def _take(self, probs: Tensor, aleatoric: Tensor, weight: float) -> None:
        self.probs.add(probs, weight, self.weight)
        self.entropy.add(aleatoric, weight, self.weight)

    def keep(self, rows: Tensor) -> None:
        """Keep these rows of the inputs."""
        self.probs.keep(rows)
        self.entropy.keep(rows)
        self.within = None if self.within is None else self.within[rows]

    def summary(self) -> Prediction:
        """Return mean probabilities; total entropy = aleatoric + epistemic."""
        mean, var = self.probs.read(self.weight)
        var = var if self.within is None else var + self.within / self.weight
        entropy = torch.special.entr(mean).sum(1)
        aleatoric = self.entropy.read(self.weight)[0]
        epistemic = (entropy - aleatoric).clamp(min=0)
        return Prediction(mean, var.sqrt(), entropy, epistemic, aleatoric, probs=mean, passes=self._passes(mean))


class RealPasses(Passes):
    """Passes of a regression with Gaussian noise, which may differ between networks."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.noise_var = _RunningMoments(), _RunningMoments()
        self.within: Tensor | None = None
        self.log_density: Tensor | None = None

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Add outputs or Gaussians, and targets if the log density over passes is needed."""
        self._count(passed)
        output, weight = passed.output, passed.weight
        values = output.loc[None] if isinstance(output, Gaussian) else output
        assert isinstance(passed.likelihood, Likelihood)
        mean, noise = passed.likelihood.moments(values.float())
        self.mean.add(mean, weight, self.weight)
        self.noise_var.add(noise.square(), weight, self.weight)
        if isinstance(output, Gaussian):
            var = output.variance.float()[..., : mean.shape[-1]]  # the rest may be predicted noise
            self.within = _added(self.within, var, weight)
            noise = (var + noise.square()).sqrt()
        if target is not None:
            score = (match_target(mean[0], target) - mean) / noise
            each = (-0.5 * score.square() - noise.log() - 0.5 * math.log(2 * math.pi)).logsumexp(0)
            each = each if weight == 1 else each + math.log(weight)
            self.log_density = each if self.log_density is None else torch.logaddexp(self.log_density, each)

    def log_likelihood(self) -> Tensor:
        """Return the log density of the targets under the mixture over passes."""
        assert self.log_density is not None
        return self.log_density - math.log(self.weight)

    def summary(self) -> Prediction:
        """Return the mean, with the variance over passes plus the mean noise variance."""
        mean, var = self.mean.read(self.weight)
        var = var if self.within is None else var + self.within / self.weight
        noise = self.noise_var.read(self.weight)[0]
        std = (var + noise).sqrt()
        entropy = std.log() + 0.5 * math.log(2 * math.pi * math.e)
        return Prediction(mean, std, entropy, var.sqrt(), noise.sqrt(), passes=self._passes(mean))


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
            output, weight = _draw(output, self.seed), weight / GAUSSIAN_DRAWS
        each = torch.stack([passed.likelihood.log_density(values, target) for values in output]).logsumexp(0)
        each = each + math.log(weight)
        self.log_density = each if self.log_density is None else torch.logaddexp(self.log_density, each)

    def summary(self) -> Prediction:
        """Summarise as for real numbers; the entropy of a std of 0 is bounded below."""
        prediction = super().summary()
        least = torch.finfo(prediction.std.dtype).tiny
        entropy = prediction.std.clamp(min=least).log() + 0.5 * math.log(2 * math.pi * math.e)
        return replace(prediction, entropy=entropy)


def _draw(output: Gaussian, seed: int, draws: int = GAUSSIAN_DRAWS) -> Tensor:
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
