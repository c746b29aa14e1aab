"""Significance of differences: intervals over seeds, paired tests on the same images, ANOVA.

A paired test over images compares two trained networks. Whether one *method* is better than another must be tested over
seeds: `mean_interval` and `anova` over several runs of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pocketbayes.base.errors import UserError

CONFIDENCE = 0.95
LEVEL = 0.05
MEASURES = {"accuracy": "correct", "nll": "nll", "brier": "brier"}
"""Measures with a value per image, and the names of these values."""
OVER_SEEDS = ("accuracy", "nll", "ece", "brier")


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
    from scipy import stats

    x = _numbers(values)
    if not len(x):
        raise UserError("a mean needs at least one value")
    mean, half = float(x.mean()), math.nan
    if len(x) > 1:
        half = float(stats.t.ppf((1 + confidence) / 2, len(x) - 1)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(mean, mean - half, mean + half, len(x))


def paired_t(first: Any, second: Any) -> PairedTest:
    """Compute `t = mean(d) / (s_d / sqrt(n))` with d the difference per image, such as of NLL or Brier score."""
    from scipy import stats

    d = _differences(first, second)
    if d.std() == 0:  # the same difference everywhere
        return _paired("paired t", d, 1.0 if d[0] == 0 else 0.0)
    return _paired("paired t", d, float(stats.ttest_1samp(d, 0.0).pvalue))


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
    return _paired("McNemar", d, float(stats.binomtest(alone[0], sum(alone), 0.5).pvalue) if sum(alone) else 1.0)


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


def _paired(name: str, differences: NDArray[np.float64], p: float) -> PairedTest:
    interval = mean_interval(differences)
    return PairedTest(name, interval.mean, interval.low, interval.high, p, interval.count)


def compare(documents: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Any]]:
    """Compare every pair of networks measured on the same images, by each measure with a value per image.

    Accuracy is compared by McNemar's exact test, NLL and Brier score by the paired t test. `p` has Holm's correction
    for the number of pairs, and `better` is the network's index in `documents` if p is below 0.05, else None.

    Args:
        documents: Evaluations.
        values: The values per image of each.
    """
    labels = [value.get("label") for value in values]
    pairs = [
        (i, j)
        for i, j in combinations(range(len(documents)), 2)
        if _same_images(documents[i], documents[j], labels[i], labels[j])
    ]
    rows = []
    for measure, name in MEASURES.items():
        known = [(i, j) for i, j in pairs if name in values[i] and name in values[j]]
        test = mcnemar if measure == "accuracy" else paired_t
        found = [test(values[i][name], values[j][name]) for i, j in known]
        for (i, j), result, p in zip(known, found, holm([result.p for result in found])):
            first_wins = (result.difference > 0) == (measure == "accuracy")
            better = (i if first_wins else j) if p < LEVEL else None
            row = {"measure": measure, "first": i, "second": j, **asdict(result), "p": p, "pairs": len(known)}
            rows.append({**row, "test": row.pop("name"), "better": better})
    return rows


def over_seeds(documents: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Group networks that differ only in the seed, with 95 % intervals, and compare groups by one-way ANOVA.

    Returns:
        Groups `{"networks": [indices], "measures": {name: interval}}`, and tests `{"measure", "f", "p", ...}`.
    """
    places: dict[str, list[int]] = {}
    for place, document in enumerate(documents):
        if isinstance(document.get("recipe"), dict):
            places.setdefault(_recipe_and_data(document), []).append(place)
    several = [group for group in places.values() if len({documents[i]["recipe"].get("seed", 0) for i in group}) > 1]
    groups = [{"networks": group, "measures": _intervals([documents[i] for i in group])} for group in several]
    tests = []
    for measure in OVER_SEEDS if len(groups) > 1 else ():
        found = {str(i): [documents[i]["measures"].get(measure) for i in group] for i, group in enumerate(several)}
        if not any(None in group for group in found.values()):
            tests.append({"measure": measure, **asdict(anova(found))})
    return groups, tests


def _intervals(documents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    values = {measure: [document["measures"].get(measure) for document in documents] for measure in OVER_SEEDS}
    return {measure: asdict(mean_interval(found)) for measure, found in values.items() if None not in found}


def _same_images(
    first: Mapping[str, Any], second: Mapping[str, Any], labels: Tensor | None, others: Tensor | None
) -> bool:
    """Return whether both are the same images in the same order, whatever their normalisation."""
    a, b = (
        (document["data"].get("name"), document["data"].get("path"), document.get("split"))
        for document in (first, second)
    )
    return a == b and a[0] is not None and labels is not None and others is not None and torch.equal(labels, others)


def _recipe_and_data(document: Mapping[str, Any]) -> str:
    recipe = {key: value for key, value in document["recipe"].items() if key != "seed"}
    settings = [document.get(key) for key in ("data", "split", "samples", "propagation")]
    return json.dumps([recipe, settings], sort_keys=True)
