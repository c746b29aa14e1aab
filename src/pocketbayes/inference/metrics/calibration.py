"""Calibration errors from sums by bin, and temperature scaling.

A binning has one table `(..., bins, 3)` with the columns count, sum of confidence, and sum of correctness. Tables of
shards are added, and every calibration error is a function of the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pocketbayes.base.errors import UserError

# Cells of the fine grid for the adaptive error: uniform in log(p / (1 - p)), because the confidences of a trained
# network are close to 1. The range covers 1/20000 to the last float64 below 1, with a width of 1/512.
_LOGIT_LOW, _LOGIT_HIGH, _CELLS_PER_UNIT = -10, 40, 512
FINE_CELLS = (_LOGIT_HIGH - _LOGIT_LOW) * _CELLS_PER_UNIT

_COLDEST, _HOTTEST = 1e-2, 1e2


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram. Empty bins have `confidence` and `accuracy` NaN."""

    edges: Tensor
    """(bins + 1,), from 0 to 1; a bin is open below and closed above."""
    count: Tensor
    """(bins,) examples in each bin."""
    confidence: Tensor
    """(bins,) mean confidence."""
    accuracy: Tensor
    """(bins,) fraction of correct answers."""


def equal_width_cells(confidence: Tensor, bins: int) -> Tensor:
    """Return the cell b of p with `b/bins < p <= (b+1)/bins` (Guo et al. 2017); p = 0 belongs to the first."""
    return (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)


def fine_cells(confidence: Tensor) -> Tensor:
    """Return the cell of p on the grid that is uniform in log(p / (1 - p))."""
    logit = torch.logit(confidence).clamp(_LOGIT_LOW, _LOGIT_HIGH)
    return ((logit - _LOGIT_LOW) * _CELLS_PER_UNIT).long().clamp(max=FINE_CELLS - 1)


def table(cells: Tensor, confidence: Tensor, correct: Tensor, size: int) -> Tensor:
    """Return count, sum of confidence and sum of correctness in each of `size` cells: (size, 3)."""
    rows = torch.stack([torch.ones_like(confidence), confidence, correct.to(confidence.dtype)], dim=-1)
    return rows.new_zeros(size, 3).index_add_(0, cells, rows)


def calibration_error(table: Tensor) -> Tensor:
    """Compute `sum_b (n_b / n) |accuracy_b - confidence_b|` for a table (..., bins, 3): (...)."""
    count, confidence, correct = table.unbind(-1)
    return (confidence - correct).abs().sum(-1) / count.sum(-1)


def adaptive_error(fine: Tensor, bins: int) -> float:
    """Return the calibration error over bins of equal mass, from a fine table (cells, 3) ordered by confidence.

    Each bin holds exactly n / bins examples; a cell that straddles an edge is split in proportion, so that the order of
    ties and shards does not matter.
    """
    seen = fine[fine[:, 0] > 0].cpu().numpy()
    cumulative = np.concatenate([np.zeros((1, 3)), seen.cumsum(0)])
    mass = cumulative[:, 0]
    edges = np.linspace(0.0, mass[-1], bins + 1)
    gaps = np.diff([np.interp(edges, mass, cumulative[:, column]) for column in (1, 2)])
    return float(np.abs(gaps[0] - gaps[1]).sum() / mass[-1])


def reliability(table: Tensor) -> Reliability:
    """Return the diagram of an equal-width table (bins, 3)."""
    count, confidence, correct = table.unbind(-1)
    edges = torch.linspace(0, 1, len(table) + 1, dtype=table.dtype)
    return Reliability(edges, count, confidence / count, correct / count)


def reliability_bins(confidence: Tensor, correct: Tensor, bins: int = 15) -> Reliability:
    """Return mean confidence and accuracy in equal-width bins, for a diagram.

    Args:
        confidence: probability of the predicted class, any shape.
        correct: whether the prediction was correct, the same shape.
        bins: number of bins between 0 and 1.
    """
    if confidence.shape != correct.shape:
        raise UserError(f"confidence has shape {tuple(confidence.shape)} but correct has {tuple(correct.shape)}")
    p = confidence.detach().double().flatten()
    return reliability(table(equal_width_cells(p, bins), p, correct.flatten(), bins).cpu())


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Compute `argmin_T  -mean log softmax(logits / T)[label]`  (Guo et al. 2017).

    The NLL is convex in 1/T, so the root of its derivative is the only minimum. Log-probabilities work like logits,
    since softmax ignores a constant. If no finite T is optimal (for example, if every prediction is correct), the end
    of the range 0.01 to 100 is returned. Fit it on validation data, never on test data.

    Args:
        logits: (n, classes) logits or log-probabilities.
        labels: (n,) integer labels.
    """
    from scipy.optimize import brentq

    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise UserError(
            "temperature takes logits (n, classes) and labels (n,), "
            f"not {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    z = logits.detach().double()
    z = (z - z.amax(1, keepdim=True)).clamp(min=torch.finfo(torch.float32).min)  # log 0 would give 0 * inf
    chosen = z.gather(1, labels.long()[:, None]).mean()

    def slope(log_inverse: float) -> float:
        """Return the derivative of the NLL with respect to 1/T, which is increasing."""
        return float(((math.exp(log_inverse) * z).softmax(1) * z).sum(1).mean() - chosen)

    hottest, coldest = -math.log(_HOTTEST), -math.log(_COLDEST)
    if slope(coldest) <= 0:
        return _COLDEST
    if slope(hottest) >= 0:
        return _HOTTEST
    return math.exp(-float(brentq(slope, hottest, coldest, xtol=1e-10)))
