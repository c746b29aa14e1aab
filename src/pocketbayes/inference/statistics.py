"""Significance of differences: intervals over seeds, paired tests on the same images, ANOVA.

A paired test over images compares two trained networks. Whether one *method* is better than another must be tested over
seeds: `mean_interval` and `anova` over several runs of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pocketbayes.base.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; `low` and `high` are NaN for a single value."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class PairedTest:
    """Two networks on the same images.

    Attributes:
        name: The test.
        difference: Mean of the first minus mean of the second.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p: Probability of a difference at least as large if there were none.
        count: Images.
    """

    name: str
    difference: float
    low: float
    high: float
    p: float
    count: int


@dataclass(frozen=True)
class Anova:
    """One-way analysis of variance: `f` = variance between groups over variance within."""

    f: float
    p: float
    between: int
    within: int


def mean_interval(values: Any, confidence: float = CONFIDENCE) -> Interval:
    """Compute `mean +- t_(n-1) s / sqrt(n)`, Student's interval for the mean of a few seeds."""
    x = _numbers(values)
    if not len(x):
        raise UserError("a mean needs at least one value")
    mean = float(x.mean())
    if len(x) == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = _quantile(len(x), confidence) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(mean, mean - half, mean + half, len(x))


def paired_t(first: Any, second: Any) -> PairedTest:
    """Compute `t = mean(d) / (s_d / sqrt(n))` with d the difference per image, such as of NLL or Brier score."""
    from scipy import stats

    d = _differences(first, second)
    interval = mean_interval(d)
    if d.std() == 0:  # the same difference everywhere
        p = 1.0 if interval.mean == 0 else 0.0
    else:
        p = float(stats.ttest_1samp(d, 0.0).pvalue)
    return PairedTest("paired t", interval.mean, interval.low, interval.high, p, len(d))


def mcnemar(first: Any, second: Any) -> PairedTest:
    """Return McNemar's exact test of two accuracies.

    The null hypothesis: each network wins half of the images that only one of them classifies correctly.

    Args:
        first: Whether the first network is right, per image.
        second: Whether the second is, on the same images.
    """
    from scipy import stats

    d = _differences(first, second)
    if not np.isin(d, (-1, 0, 1)).all():
        raise UserError("McNemar's test takes 1 (correct) or 0 (wrong) per image; for other numbers use paired_t")
    alone = int((d == 1).sum()), int((d == -1).sum())
    p = float(stats.binomtest(alone[0], sum(alone), 0.5).pvalue) if sum(alone) else 1.0
    interval = mean_interval(d)
    return PairedTest("McNemar", interval.mean, interval.low, interval.high, p, len(d))


def anova(groups: Mapping[str, Sequence[float]]) -> Anova:
    """Compute `F = (sum_g n_g (m_g - m)^2 / (k - 1)) / (sum_g sum_i (x_gi - m_g)^2 / (n - k))`.

    There are k groups with n values in total.

    Args:
        groups: For each method the measure of each of its seeds.
    """
    from scipy import stats

    values = [_numbers(group) for group in groups.values()]
    count, total = len(values), sum(len(group) for group in values)
    if count < 2 or not all(len(group) for group in values) or total <= count:
        sizes = {name: len(group) for name, group in zip(groups, values)}
        raise UserError(f"ANOVA needs two groups or more, and more values than groups: it has {sizes}")
    if all(np.ptp(group) == 0 for group in values):  # no variance within: scipy gives NaN or warns
        differ = np.ptp(np.concatenate(values)) > 0
        return Anova(math.inf if differ else 0.0, 0.0 if differ else 1.0, count - 1, total - count)
    found = stats.f_oneway(*values)
    return Anova(float(found.statistic), float(found.pvalue), count - 1, total - count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction, which bounds the probability of any false positive among m tests.

    The k-th smallest p becomes `max over j <= k of (m - j + 1) p_(j)`, at most 1.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _numbers(values: Any) -> NDArray[np.float64]:
    x: NDArray[np.float64] = torch.as_tensor(values).detach().cpu().double().flatten().numpy()
    if not np.isfinite(x).all():
        raise UserError("statistics need finite numbers: some values are NaN or infinite")
    return x


def _differences(first: Any, second: Any) -> NDArray[np.float64]:
    a, b = _numbers(first), _numbers(second)
    if len(a) != len(b) or len(a) < 2:
        raise UserError(f"a paired test needs the same two or more images, got {len(a)} and {len(b)} values")
    return a - b


def _quantile(count: int, confidence: float) -> float:
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, count - 1))
