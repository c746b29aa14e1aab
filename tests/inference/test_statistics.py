"""Statistics compared with scipy and known cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from pocketbayes.base.errors import UserError
from pocketbayes.inference.statistics import anova, holm, mcnemar, mean_interval, paired_t

RNG = np.random.default_rng(0)


def test_interval_is_that_of_student() -> None:
    x = RNG.normal(3, 2, 7)
    found = mean_interval(x)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 6, x.mean(), stats.sem(x)))
    assert mean_interval([1.0, 1.0, 1.0]).high == 1
    one = mean_interval([2.0])
    assert one.mean == 2
    assert math.isnan(one.low)


def test_interval_covers_as_often_as_stated() -> None:
    draws = np.random.default_rng(1).normal(size=(2000, 5))
    covered = np.mean([mean_interval(row).low < 0 < mean_interval(row).high for row in draws])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_paired_t_agrees_with_scipy() -> None:
    a, b = RNG.normal(size=(2, 50))
    b = b + 0.3
    theirs, ours = stats.ttest_rel(a, b), paired_t(a, b)
    assert ours.p == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval()
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    assert paired_t(a, a).p == 1
    assert paired_t(np.array([1, 2]), np.array([0, 1])).p == 0


def test_paired_t_sees_a_difference_that_images_hide() -> None:
    """The values vary far more between images than between networks."""
    difficulty = RNG.exponential(2, 400)
    a, b = difficulty, difficulty + RNG.normal(0.05, 0.2, 400)
    assert paired_t(a, b).p < 1e-3
    assert stats.ttest_ind(a, b).pvalue > 0.1


@pytest.mark.parametrize(("alone", "expected"), [((5, 0), 2 / 32), ((1, 1), 1.0), ((0, 0), 1.0), ((2, 8), 112 / 1024)])
def test_mcnemar_agrees_with_a_hand_calculation(alone: tuple[int, int], expected: float) -> None:
    first = np.array([1] * alone[0] + [0] * alone[1] + [1, 0])
    second = np.array([0] * alone[0] + [1] * alone[1] + [1, 0])
    found = mcnemar(first.astype(bool), second.astype(bool))
    assert found.p == pytest.approx(expected)
    assert found.difference == pytest.approx((alone[0] - alone[1]) / len(first))


def test_anova_agrees_with_scipy() -> None:
    groups = {name: RNG.normal(shift, 1, size) for name, shift, size in (("a", 0, 5), ("b", 1, 4), ("c", 0.5, 6))}
    theirs, ours = stats.f_oneway(*groups.values()), anova(groups)
    assert (ours.f, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert (ours.between, ours.within) == (2, 12)


def test_anova_of_constant_groups() -> None:
    assert anova({"a": [1.0, 1.0], "b": [1.0, 1.0]}).p == 1
    assert anova({"a": [1.0, 1.0], "b": [2.0, 2.0]}).p == 0


def test_holm_agrees_with_a_hand_calculation_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        p, expected = [0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]
        assert holm([p[i] for i in order]) == pytest.approx([expected[i] for i in order])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_statistics_name_mistakes() -> None:
    with pytest.raises(UserError, match="same two or more images, got 3 and 2"):
        paired_t([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(UserError, match="paired_t"):
        mcnemar([0.3, 1.0], [0.0, 0.0])
    with pytest.raises(UserError, match="two groups"):
        anova({"a": [1.0, 2.0]})
    with pytest.raises(UserError, match="NaN"):
        mean_interval([1.0, math.nan])
    with pytest.raises(UserError, match="at least one"):
        mean_interval([])
