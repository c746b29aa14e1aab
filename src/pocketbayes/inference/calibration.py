"""Calibration on held-out data: a temperature or variance scale, and scores that give sets and intervals coverage."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.calibration import Calibration, Conformal
from pocketbayes.base.errors import UserError, warn
from pocketbayes.base.progress import Display, Show, display
from pocketbayes.data.batches import Data, as_source, batch_size_for, batches, size_of
from pocketbayes.inference.metrics.tempered import TEMPERATURES, chosen_labels, fit_temperature
from pocketbayes.inference.passes import ClassPasses, Passed, RealPasses
from pocketbayes.inference.prediction import closing_after, likelihood_of, outputs_of, passes_for, scaled, summarise
from pocketbayes.likelihoods import check_target, match_target, task_of
from pocketbayes.network import Net, members
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation import Ask
from pocketbayes.propagation.readout import Readout

FACTORS = (1e-3, 1e3)
MAX_KEPT_VALUES = 1 << 26
"""Largest number of output values kept between the fits of a temperature and of prediction sets."""


def calibrate(
    net: Net,
    val: Data,
    *,
    samples: int = 30,
    propagation: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
    progress: Show = None,
) -> Net:
    """Return a copy of the network with calibrated probabilities.

    For draws of a classifier, a temperature divides the logits of every pass; for moments and linear, a factor scales
    the variance of the outputs. Both minimise the NLL on `val`, and `predict`, `evaluate`, files and ONNX graphs apply
    them. If `val` is too small to determine a temperature, the value nearest to 1 in its interval is used, with a
    warning. It also calls `fit_conformal`, so that `Prediction.sets(level)` and `interval(level)` cover `level`; a
    network that predicts pixels gets a temperature only, from evenly spaced pixels.

    Args:
        net: A network or mixture, for classification or regression.
        val: Held-out data, used neither for training nor for testing.
        samples: As in `predict`.
        propagation: As in `predict`; it decides which of the two numbers is fitted.
        batch_size: Examples per batch.
        seed: Seed of the draws.
        progress: As in `fit`.
    """
    with display(progress) as bar:
        return _calibrate(net, val, samples, propagation, batch_size, seed, bar)


def _calibrate(
    net: Net, val: Data, samples: int, propagation: str | None, batch_size: int, seed: int, bar: Display
) -> Net:
    first = members(net)[0]
    ask = Ask(samples=samples, propagation=propagation, batch_size=batch_size, seed=seed).checked()
    plain = copy.deepcopy(net)
    before = first.calibration or Calibration()
    for network in members(plain):
        network.calibration = None
    x, _ = next(iter(batches(as_source(val), 2)))
    ask = replace(ask, batch_size=batch_size_for(x.shape[1:], batch_size))
    passed = next(iter(outputs_of(plain, x, ask)))
    passes_for(first, ask).add(passed)  # rejects outputs of a wrong shape
    output = passed.output
    gaussian, held_out = isinstance(output, Gaussian), _HeldOut(plain, val, ask)
    if gaussian:
        used = propagation or first.propagation
        factor = fit_variance_scale(plain, val, propagation=used, samples=samples, batch_size=ask.batch_size, seed=seed)
        count = sum(len(y) for _, y in batches(as_source(val), ask.batch_size))
        calibration: Calibration | None = replace(before, variance_scale=factor, examples=count)
    elif task_of(first.likelihood) == "classification":
        calibration = _fit_temperature(held_out, before, bar)
    elif task_of(first.likelihood) == "regression":
        calibration = first.calibration  # for draws of real numbers, only the intervals are corrected
    else:
        raise UserError("calibrate is for classes and real numbers: this likelihood predicts something else")
    for network in members(plain):
        network.calibration, network.conformal = calibration, None
    if output.ndim > (2 if gaussian else 3):  # predictions per pixel have no sets
        return plain
    bar.begin("prediction sets" if calibration else "intervals", size_of(as_source(val)))
    return _fit_conformal(held_out, samples, propagation)


class _HeldOut:
    """Held-out data with the network's outputs, which are kept for the next iteration if they are few."""

    def __init__(self, net: Net, val: Data, ask: Ask) -> None:
        self.net, self.val, self.ask = net, val, ask
        self.device = members(net)[0].device
        self.kept: list[tuple[list[Passed], Tensor]] = []
        self.complete, self.values = False, 0

    def __iter__(self) -> Iterator[tuple[Iterable[Passed], Tensor]]:
        if self.complete:
            yield from self.kept
            return
        self.kept, self.values = [], 0
        for x, y in batches(as_source(self.val), self.ask.batch_size):
            self.kept.append(([], y))
            yield self._outputs(x), y
        self.complete = self.values <= MAX_KEPT_VALUES

    def _outputs(self, x: Any) -> Iterator[Passed]:
        for passed in outputs_of(self.net, x, self.ask):
            output = passed.output.variance if isinstance(passed.output, Gaussian) else passed.output
            self.values += output.numel()
            if self.values <= MAX_KEPT_VALUES:
                self.kept[-1][0].append(passed)
            else:
                self.kept = []
            yield passed


def _fit_temperature(held_out: _HeldOut, before: Calibration, bar: Display) -> Calibration:
    likelihood = likelihood_of(held_out.net)
    ignore = None if likelihood is None else likelihood.ignore_index
    curves, labels, classes = [], [], 0
    bar.begin("temperature", size_of(as_source(held_out.val)))
    for outputs, y in held_out:
        places = chosen_labels(y, ignore)
        curve, classes = _nll_by_temperature(outputs, y.to(held_out.device), places.to(held_out.device))
        labels.append(y.flatten()[places])
        curves.append(curve)
        bar.advance(len(y))
    nll, seen = torch.cat(curves, 1).cpu(), torch.cat(labels).unique()
    if len(seen) < 2:
        raise UserError(f"calibration needs examples of two classes or more, not {nll.shape[1]} of {len(seen)}")
    if len(seen) < classes:
        warn(
            f"{classes - len(seen)} of {classes} classes are missing from the calibration data: the temperature may "
            "not hold for them"
        )
    fit, count = fit_temperature(nll.sum(1)), nll.shape[1]
    if fit.cautious:
        warn(
            f"{count} examples leave the temperature between {fit.low:.2f} and {fit.high:.2f} (95 %): {fit.value:.2f} "
            f"is used instead of {fit.best:.2f}; give more calibration data"
        )
    return replace(before, temperature=fit.value, temperature_interval=(fit.low, fit.high), examples=count)


def _nll_by_temperature(outputs: Iterable[Passed], y: Tensor, places: Tensor) -> tuple[Tensor, int]:
    """Return `-log mean_s softmax(logits_s / T)[y]` per temperature and chosen place, and the number of classes."""
    total, weights, classes = torch.zeros(()), 0.0, 0
    for passed in closing_after(outputs):
        output = passed.output
        assert not isinstance(output, Gaussian)
        classes = output.shape[2]
        check_target(passed.likelihood, output.shape[1:], y)
        logits = output.movedim(2, -1).flatten(1, -2)[:, places].double()
        chosen = y.flatten()[places]
        for_label = logits.gather(2, chosen.expand(len(logits), -1)[..., None])[..., 0]
        scores = [(for_label / t - (logits / t).logsumexp(2)).exp().sum(0) for t in TEMPERATURES.tolist()]
        total = total.to(logits) + passed.weight * torch.stack(scores)
        weights += passed.weight * len(logits)
    return -(total / weights).clamp(min=torch.finfo(torch.float64).tiny).log(), classes


def fit_conformal(
    net: Net, val: Data, *, samples: int = 30, propagation: str | None = None, batch_size: int = 256, seed: int = 0
) -> Net:
    """Give `Prediction.sets(level)` and `Prediction.interval(level)` guaranteed coverage.

    Split conformal prediction: for any network, the true class lies in the set, and the true value in the interval,
    with probability `level` or more, for new examples exchangeable with those in `val`. The guarantee holds on average
    over examples, not for each group of them, and for predictions with the same `samples` and `propagation`.

    Args:
        net: A network or mixture, which is changed; `pb.save` stores the scores.
        val: Held-out data, at least 1 / (1 - level) examples, better a few hundred.
        samples: As in `predict`.
        propagation: As in `predict`.
        batch_size: Examples per batch.
        seed: Seed of the draws.

    Returns:
        The same network.
    """
    ask = Ask(samples, propagation, seed, batch_size).checked()
    x, _ = next(iter(batches(as_source(val), 1)))
    ask = replace(ask, batch_size=batch_size_for(x.shape[1:], batch_size))
    return _fit_conformal(_HeldOut(net, val, ask), samples, propagation)


def _fit_conformal(held_out: _HeldOut, samples: int, propagation: str | None) -> Net:
    net, scores, kind = held_out.net, list[Tensor](), "classes"
    for outputs, y in held_out:
        y = y.to(held_out.device)
        answer = summarise(net, outputs, held_out.ask).summary()
        if answer.probs is None or answer.probs.ndim == 2:
            check_target(likelihood_of(net), answer.mean.shape, y)
        if answer.probs is None:
            kind = "real"
            score = (match_target(answer.mean, y) - answer.mean).abs() / answer.std
            scores.append(score.reshape(len(y), -1).amax(1))  # the worst of several targets, so that the box covers all
        elif answer.probs.ndim > 2:
            raise UserError("the network predicts every pixel: prediction sets are for one prediction per example")
        else:
            known = (y >= 0) & (y < answer.probs.shape[1])  # the others are `ignore_index`
            scores.append(1 - answer.probs[known].gather(1, y[known, None]).squeeze(1))
    found = Conformal.of(kind, torch.cat(scores).double().tolist(), samples, propagation)
    for network in members(net):
        network.conformal = found
    return net


def fit_variance_scale(
    net: Net,
    val: Data,
    *,
    propagation: str = "moments",
    readout: Readout = "sample",
    classes: str = "predicted",
    samples: int = 30,
    batch_size: int = 256,
    seed: int = 0,
) -> float:
    """Return the factor on output variances with the lowest validation NLL.

    The network runs once over the data. Pass the factor as `variance_scale=` to `predict` or `evaluate`, with the same
    settings.

    Args:
        net: A network or mixture.
        val: Held-out data, used neither for training nor for testing.
        propagation: One with Gaussian outputs: moments, moments-exact, moments-full or linear.
        readout: As in `predict`.
        classes: As in `predict`.
        samples: As in `predict`; for "linear", the draws for the variance of outputs per pixel.
        batch_size: Examples per batch.
        seed: Seed of the readout's draws.
    """
    from scipy.optimize import minimize_scalar

    ask = Ask(samples, propagation, seed, batch_size, readout, classes).checked()
    parts: list[tuple[list[Passed], Tensor]] = []
    for x, y in batches(as_source(val), ask.batch_size):
        outputs, target = list(outputs_of(net, x, ask)), y.to(members(net)[0].device)
        if isinstance(outputs[0].output, Gaussian):
            check_target(outputs[0].likelihood, outputs[0].output.shape, target)
        parts.append((outputs, target))
    if not any(float(_variance(outputs).max()) > 0 for outputs, _ in parts):
        raise UserError(f"{propagation} propagation gives this network no output variance to scale")

    def nll(log_factor: float) -> float:
        total = 0.0
        for outputs, y in parts:
            passes = passes_for(members(net)[0], ask)
            for passed in outputs:
                passes.add(scaled(passed, math.exp(log_factor)), y if y.is_floating_point() else None)
            total += _nll(passes, y)
        return total

    grid = torch.linspace(math.log(FACTORS[0]), math.log(FACTORS[1]), 13).tolist()
    best = min(range(len(grid)), key=[nll(point) for point in grid].__getitem__)  # the NLL may have several minima
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(nll, bounds=around, method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.x))


def _variance(outputs: list[Passed]) -> Tensor:
    spread = [passed.output.variance.max() for passed in outputs if isinstance(passed.output, Gaussian)]
    return torch.stack(spread).max() if spread else torch.zeros(())


def _nll(passes: Any, y: Tensor) -> float:
    """Compute -log p(y), summed over the batch."""
    if isinstance(passes, RealPasses):
        return -float(passes.log_likelihood().sum())
    assert isinstance(passes, ClassPasses)
    probs = passes.summary().mean
    counted = (y >= 0) & (y < probs.shape[1])
    chosen = probs.gather(1, torch.where(counted, y, 0).unsqueeze(1)).squeeze(1)
    return -float((chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log() * counted).sum())
