"""The deep ensemble equivalent (Ashukha et al. 2020)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.inference.metrics.tempered import Tempered


def calibrated_nll(probs: Tensor, labels: Tensor) -> float:
    """Compute the NLL after temperature scaling, fitted on every second example and measured on the others, both ways.

    Args:
        probs: (n, classes).
        labels: (n,) integer labels.
    """
    if len(labels) < 2:
        raise UserError("a calibrated NLL needs two examples: one half to fit a temperature, the other to measure")
    tempered = Tempered(probs.shape[1])
    tempered.update(probs, labels)
    return tempered.compute()["calibrated_nll"]


def dee(calibrated_nll: float, curve: Sequence[float]) -> float:
    """Compute how many independent networks must be averaged to reach a calibrated NLL.

    It is linear between the points of the curve, 1 for a method no better than one network, as in the paper, and
    infinite for a method better than every ensemble of the curve.

    Args:
        calibrated_nll: The method's calibrated NLL.
        curve: The calibrated NLL of 1, 2, ... independent networks.
    """
    if not len(curve) or not all(map(math.isfinite, (*curve, calibrated_nll))):
        raise UserError("a deep ensemble equivalent needs finite figures: a calibrated NLL, and one or more to compare")
    best = list(itertools.accumulate(map(float, curve), min))  # noise may make a curve rise
    if calibrated_nll >= best[0]:
        return 1.0
    for count, (before, after) in enumerate(itertools.pairwise(best), 1):
        if calibrated_nll >= after:
            return count + (before - calibrated_nll) / (before - after)
    return math.inf
