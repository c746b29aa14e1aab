"""`calibrate`: a temperature or variance scale fitted on held-out data and stored in the network."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.calibrated import Calibration
from pocketbayes.base.errors import UserError, warn
from pocketbayes.data.batches import as_source, batches
from pocketbayes.inference.calibration import fit_variance_scale
from pocketbayes.inference.conformal import fit_conformal
from pocketbayes.inference.metrics.tempered import TEMPERATURES, fit_temperature
from pocketbayes.inference.prediction import outputs_of
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Net, members
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation import Ask


def calibrate(
    net: Net, val: Any, *, samples: int = 30, propagation: str | None = None, batch_size: int = 256, seed: int = 0
) -> Net:
    """Return a copy of the network with calibrated probabilities.

    For draws of a classifier, a temperature divides the logits of every pass; for moments and linear, a factor scales
    the variance of the outputs. Both minimise the NLL on `val`, and `predict`, `evaluate`, files and ONNX graphs apply
    them. If `val` is too small to determine a temperature, the value nearest to 1 in its interval is used, with a
    warning. It also calls `fit_conformal`, so that `Prediction.sets(level)` and `interval(level)` cover `level`.

    Args:
        net: A network or mixture, for classification or regression.
        val: Held-out data, used neither for training nor for testing.
        samples: As in `predict`.
        propagation: As in `predict`; it decides which of the two numbers is fitted.
        batch_size: Examples per batch.
        seed: Seed of the draws.
    """
    first = members(net)[0]
    ask = Ask(samples=samples, propagation=propagation, batch_size=batch_size, seed=seed).checked()
    plain = copy.deepcopy(net)
    before = first.calibration or Calibration()
    for network in members(plain):
        network.calibration = None
    x, _ = next(iter(batches(as_source(val), 2)))
    output = next(iter(outputs_of(plain, x, ask))).output
    gaussian = isinstance(output, Gaussian)
    if gaussian:
        used = propagation or first.propagation
        factor = fit_variance_scale(plain, val, propagation=used, samples=samples, batch_size=batch_size, seed=seed)
        count = sum(len(y) for _, y in batches(as_source(val), batch_size))
        calibration: Calibration | None = replace(before, variance_scale=factor, examples=count)
    elif task_of(first.likelihood) == "classification":
        calibration = _fit_temperature(plain, val, ask, before)
    elif task_of(first.likelihood) == "regression":
        calibration = first.calibration  # for draws of real numbers, only the intervals are corrected
    else:
        raise UserError("calibrate is for classes and real numbers: this likelihood predicts something else")
    for network in members(plain):
        network.calibration, network.conformal = calibration, None
    if output.ndim > (2 if gaussian else 3):  # predictions per pixel have no sets
        return plain
    return fit_conformal(plain, val, samples=samples, propagation=propagation, batch_size=batch_size, seed=seed)


def _fit_temperature(net: Net, val: Any, ask: Ask, before: Calibration) -> Calibration:
    curves, labels = [], []
    classes = 0
    for x, y in batches(as_source(val), ask.batch_size):
        target = y.to(members(net)[0].device).long()
        curve, classes = _nll_by_temperature(net, x, target, ask)
        curves.append(curve)
        labels.append(y.flatten())
    nll, seen = torch.cat(curves, 1).cpu(), torch.cat(labels).unique()
    if nll.shape[1] < 2 or len(seen) < 2:
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


def _nll_by_temperature(net: Net, x: Any, y: Tensor, ask: Ask) -> tuple[Tensor, int]:
    """Return `-log mean_s softmax(logits_s / T)[y]` per temperature and example, and the number of classes."""
    total, weights, classes = torch.zeros(()), 0.0, 0
    for passed in outputs_of(net, x, ask):
        output = passed.output
        assert not isinstance(output, Gaussian)
        if output.ndim != 3:
            raise UserError("a temperature is fitted for one prediction per example, not per pixel")
        classes = output.shape[2]
        logits = output.double()
        for_label = logits.gather(2, y.expand(len(logits), -1)[..., None])[..., 0]
        scores = [(for_label / t - (logits / t).logsumexp(2)).exp().sum(0) for t in TEMPERATURES.tolist()]
        total = total.to(logits) + passed.weight * torch.stack(scores)
        weights += passed.weight * len(logits)
    return -(total / weights).clamp(min=torch.finfo(torch.float64).tiny).log(), classes
