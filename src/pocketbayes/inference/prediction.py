"""Predictions with their uncertainty, in memory that grows with neither samples nor images in flight."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pocketbayes.base.calibrated import Calibration
from pocketbayes.base.errors import UserError
from pocketbayes.base.randomness import pass_seed
from pocketbayes.data import Info
from pocketbayes.data.model_inputs import ModelInput, as_input, tensors_of
from pocketbayes.inference.answer import Prediction
from pocketbayes.likelihoods import Likelihood, match_target, task_of
from pocketbayes.network import MODEL_LOCK, Net, Network, members, shares
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.posteriors.layout import evaluating
from pocketbayes.propagation import Ask, Propagation, find_propagation
from pocketbayes.propagation.readout import Readout, read_out


@dataclass(frozen=True)
class Passed:
    """The output of one network for a batch.

    Attributes:
        output: Outputs (s, n, ...) of s passes, or the distribution (n, ...) of one that needs no sampling.
        weight: What each of these passes counts.
        likelihood: The network's own.
    """

    output: Tensor
    weight: float = 1.0
    likelihood: nn.Module | None = None


class Passes(ABC):
    """The running summary of a batch's outputs over passes: moments, never the passes themselves."""

    def __init__(self) -> None:
        self.count = 0
        self.weight = 0.0

    @abstractmethod
    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Takes in the outputs (s, n, ...) of s passes, or the distribution (n, ...) of one that needs no sampling."""

    def _count(self, passed: Passed) -> None:
        count = 1 if isinstance(passed.output, Gaussian) else len(passed.output)
        self.count += count
        self.weight += passed.weight * count

    @abstractmethod
    def summary(self) -> Prediction:
        """The prediction so far."""


def _added(total: Tensor | None, value: Tensor, weight: float) -> Tensor:
    return value * weight if total is None else total + value * weight


class _RunningMoments:
    """Welford's mean and variance, in Chan's form for many values: no cancellation however small the variance."""

    def __init__(self) -> None:
        self.mean: Tensor | None = None
        self.squares: Tensor | None = None

    def add(self, values: Tensor, weight: float, total: float) -> None:
        """Takes in values (s, ...) of this weight each, with which the weights sum to `total`."""
        if len(values) == 1:
            mean, squares = values[0], torch.zeros_like(values[0])
        else:
            squares, mean = torch.var_mean(values, 0, correction=0)
            squares *= len(values) * weight
        if self.mean is None or self.squares is None:
            self.mean, self.squares = mean.clone(), squares
            return
        own = len(values) * weight
        change, share = mean - self.mean, own / total
        self.mean += change * share
        self.squares += squares.addcmul_(change, change, value=(1 - share) * own)

    def read(self, total: float) -> tuple[Tensor, Tensor]:
        assert self.mean is not None
        assert self.squares is not None
        return self.mean, self.squares / total


class ClassPasses(Passes):
    """Passes of a classifier, per example or per pixel."""

    def __init__(self, readout: Readout = "sample", seed: int = 0) -> None:
        """Takes how Gaussian logits become probabilities, see `read_out`."""
        super().__init__()
        self.readout, self.seed = readout, seed
        self.probs, self.entropy = _RunningMoments(), _RunningMoments()
        self.within: Tensor | None = None

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Takes in logits (s, n, classes, ...), or their distribution."""
        self._count(passed)
        output, weight = passed.output, passed.weight
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

    def summary(self) -> Prediction:
        """Mean probabilities; total entropy = aleatoric + epistemic."""
        mean, var = self.probs.read(self.weight)
        var = var if self.within is None else var + self.within / self.weight
        entropy = torch.special.entr(mean).sum(1)
        aleatoric = self.entropy.read(self.weight)[0]
        return Prediction(mean, var.sqrt(), entropy, (entropy - aleatoric).clamp(min=0), aleatoric, probs=mean)


class RealPasses(Passes):
    """Passes of a regression with Gaussian noise, which each network has learned for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.noise_var = _RunningMoments(), _RunningMoments()
        self.within: Tensor | None = None
        self.log_density: Tensor | None = None

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Takes in outputs, or their distribution, and the targets where the log density over passes is wanted."""
        self._count(passed)
        output, weight = passed.output, passed.weight
        values = output.loc[None] if isinstance(output, Gaussian) else output
        assert isinstance(passed.likelihood, Likelihood)
        mean, noise = passed.likelihood.moments(values.float())
        self.mean.add(mean, weight, self.weight)
        self.noise_var.add(noise.square(), weight, self.weight)
        if isinstance(output, Gaussian):
            var = output.variance.float()[..., : mean.shape[-1]]  # what follows may be predicted noise
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
        """Mean; variance = that of the mean over passes + the mean noise variance."""
        mean, var = self.mean.read(self.weight)
        var = var if self.within is None else var + self.within / self.weight
        noise = self.noise_var.read(self.weight)[0]
        std = (var + noise).sqrt()
        return Prediction(mean, std, std.log() + 0.5 * math.log(2 * math.pi * math.e), var.sqrt(), noise.sqrt())


def predict(
    net: Net,
    x: Any,
    samples: int = 30,
    propagation: str | None = None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    readout: Readout = "sample",
    classes: str = "predicted",
    variance_scale: float = 1.0,
) -> Prediction:
    """p(y | x) averaged over the posterior.

    Pass s draws the same weights for every batch and whatever the batch size: a prediction by weight samples depends on
    the seed only. Local noise and flipout draw by example, and so by its place in the batch.

    Args:
        net: A network or mixture.
        x: Inputs (n, ...); a mapping of names to tensors, as tokenizers return it, or a tuple where the model takes
            several.
        samples: Passes; a network without randomness takes one, a mixture shares them out.
        propagation: How randomness goes through the network; None: as weight samples, or as it was trained where that
            needs no sampling. "mean" is one pass at the posterior mean. "moments" and "linear" need no sampling: one
            pass gives the distribution of the outputs.
        batch_size: Inputs in flight.
        seed: Of the draws.
        readout: How Gaussian logits become probabilities: by draws of the logits ("sample"), or in closed form
            ("probit", "taylor"), see `readout.read_out`.
        classes: For "linear": the logits whose variance is computed, see `linear.linearise`; the other logits take the
            mean variance of those.
        variance_scale: A calibration factor for the variance of Gaussian outputs, which `fit_variance_scale` finds on
            validation data; a prediction with one is no longer the posterior's own.
    """
    ask = Ask(samples, propagation, seed, batch_size, readout, classes, variance_scale).checked()
    info = members(net)[0].info
    x = as_inputs(x, info)
    try:
        prediction = Prediction.cat([run_passes(net, batch, ask).summary() for batch in x.split(ask.batch_size)])
    except RuntimeError as error:
        if info is None or (tuple(x.shape[1:]) == tuple(info.input_shape) and x.is_floating_point()):
            raise
        raise UserError(
            f"x has inputs of shape {tuple(x.shape[1:])} and type {x.dtype}; the network was trained on "
            f"{tuple(info.input_shape)}, real numbers normalised as its data ({str(error).splitlines()[0]})"
        ) from error
    _warn_if_not_finite(prediction, x)
    names = info.class_names if info is not None else None
    return replace(prediction, conformal=members(net)[0].conformal, class_names=names)


def _warn_if_not_finite(prediction: Prediction, x: ModelInput) -> None:
    finite = prediction.entropy.isfinite().reshape(len(x), -1).all(1)
    rows = finite.logical_not_().nonzero().flatten().tolist()
    if rows:
        cause = "its weights are too large" if _is_finite(x[rows[0]]) else "its input is not finite either"
        message = f"the answers to {len(rows)} of {len(x)} inputs are not finite, first that to x[{rows[0]}]: {cause}"
        warnings.warn(message, stacklevel=3)


def _is_finite(x: ModelInput) -> bool:
    return all(bool(values.isfinite().all()) for values in tensors_of(x))


def as_inputs(x: Any, info: Info | None = None) -> ModelInput:
    """Return inputs (n, ...) as dense tensors: one, or several by name.

    Raises:
        UserError: If they are not numbers, not a batch, empty, or without values.
    """
    if isinstance(x, (str, Path)):
        raise UserError(f"x is the name {str(x)!r}, not inputs: pb.data.read_inputs(path, net.info) reads a file")
    try:
        inputs = as_input(_contiguous(x))
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"x must hold numbers (n, ...), but torch cannot read this {type(x).__name__}: {reason}"
        ) from error
    for values in tensors_of(inputs):
        if values.layout != torch.strided:
            raise UserError("x is a sparse tensor: give x.to_dense()")
        if values.is_meta:
            raise UserError("x is on the meta device and has no values")
        if values.is_complex():
            raise UserError("x has complex numbers: give real ones, such as x.abs() or torch.view_as_real(x)")
        if values.ndim == 0:
            raise UserError("x is a single number, not a batch (n, ...)")
    if info is not None and tuple(inputs.shape) == tuple(info.input_shape):
        raise UserError(f"x is one input {tuple(inputs.shape)}, not a batch (n, ...): give x[None]")
    if not len(inputs):
        raise UserError("nothing to predict: x is empty")
    return inputs


def _contiguous(x: Any) -> Any:
    """Copy numpy arrays with negative strides, which torch cannot read."""
    if isinstance(x, Mapping):
        return {name: _contiguous(value) for name, value in x.items()}
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x


def run_passes(
    net: Net, x: ModelInput, ask: Ask, *, target: Tensor | None = None, on_pass: Callable[[], object] | None = None
) -> Passes:
    """Summarise all passes over one batch; `on_pass` is called after each of them, for progress."""
    passes = passes_for(members(net)[0], ask)
    for passed in outputs_of(net, x, ask):
        before = passes.count
        passes.add(calibrated(passed, ask.variance_scale, members(net)[0].calibration), target)
        if on_pass is not None:
            for _ in range(passes.count - before):
                on_pass()
    return passes


def passes_for(network: Network, ask: Ask) -> Passes:
    """An empty summary for the network's kind of output."""
    task = task_of(network.likelihood)
    if task == "classification":
        return ClassPasses(ask.readout, ask.seed)
    if task == "regression":
        return RealPasses()
    from pocketbayes.inference.other_passes import OtherPasses

    return OtherPasses(ask.seed)


def propagation_of(network: Network, name: str | None = None) -> Propagation:
    """Return the propagation of a name; without one, that which predicts best for a network trained as this one."""
    if name is not None:
        return find_propagation(name)
    trained = find_propagation(network.propagation)
    return trained if trained.predicts_by is None else find_propagation(trained.predicts_by)


def calibrated(passed: Passed, variance_scale: float, calibration: Calibration | None) -> Passed:
    """Apply a variance scale that is asked for, else the network's own calibration."""
    if variance_scale != 1 or calibration is None:
        return scaled(passed, variance_scale)
    if isinstance(passed.output, Gaussian):
        return scaled(passed, calibration.variance_scale)
    if calibration.temperature == 1 or task_of(passed.likelihood) != "classification":
        return passed
    return replace(passed, output=passed.output / calibration.temperature)


def scaled(passed: Passed, factor: float) -> Passed:
    """The output with its variance multiplied."""
    output = passed.output
    if factor == 1:
        return passed
    if isinstance(output, Correlated):
        return replace(passed, output=Correlated(output.loc, factor * output.blocks))
    if isinstance(output, Gaussian):
        return replace(passed, output=Gaussian(output.loc, factor * output.variance))
    raise UserError("variance_scale is for outputs with a variance: use it with propagation='moments' or 'linear'")


def outputs_of(net: Net, x: ModelInput, ask: Ask) -> Iterator[Passed]:
    """Yield what `Passes.add` takes: as many passes of each network, or one that counts as many; one if none draws."""
    networks = members(net)
    share = math.ceil(ask.samples / len(networks))
    with MODEL_LOCK, torch.no_grad(), ExitStack() as stack:
        ways = [propagation_of(network, ask.propagation) for network in networks]
        for network in networks:
            stack.enter_context(network.posterior.frozen())
            stack.enter_context(evaluating(network))
        random = [way.draws and network.posterior.noise_size > 0 for way, network in zip(ways, networks)]
        count = share if any(random) else 1
        for number, (network, way, weight) in enumerate(zip(networks, ways, shares(net))):
            if weight == 0:
                continue
            draws = count if random[number] else 1
            seeds = [pass_seed(ask.seed, number * share + index) for index in range(draws)]
            # Numbers that are no classes have a variance each.
            classes = ask.classes if task_of(network.likelihood) == "classification" else "all"
            own = replace(ask, propagation=way.name, classes=classes)
            for output in way.passes(network, _fitting(x, network), own, seeds):
                yield Passed(output, weight * count / draws, network.likelihood)


def _fitting(x: ModelInput, network: Network) -> ModelInput:
    """The inputs where the network is, and real numbers in its own type: arrays are often float64."""
    if not x.is_floating_point():
        return x.to(network.device)
    point = next(network.model.parameters(), None)
    return x.to(network.device, network.posterior.moments()[0].dtype if point is None else point.dtype)


def likelihood_of(net: Net) -> Likelihood | None:
    """The likelihood that the network, or every network of a mixture, was trained with."""
    likelihood = members(net)[0].likelihood
    assert likelihood is None or isinstance(likelihood, Likelihood)
    return likelihood
