"""Measures that depend on the order of scores: out-of-distribution detection and selective prediction.

Ties are exact: equal scores cross a threshold together, or count as if broken at random. Scores are compared without
conversion to probabilities, which would merge large ones into ties (as in torchmetrics outside [0, 1]).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Selective prediction: the error rate among the most confident fraction."""

    coverage: Tensor
    """(n,) fractions answered, 1/n to 1."""
    risk: Tensor
    """(n,) fraction of wrong answers among those answered."""
    area: float
    """AURC, the mean risk over all coverages."""


@dataclass(frozen=True)
class Abstention:
    """Predict if the uncertainty is at most `threshold`, otherwise abstain."""

    threshold: float
    coverage: float
    """The fraction of predicted examples among those used to choose the threshold."""
    risk: float
    """The fraction of wrong answers among them."""
    count: int
    """The number of examples used to choose the threshold."""


def _groups(scores: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of each of `values` over equal scores, from the largest score down."""
    distinct, group = scores.unique(return_inverse=True)
    size = len(distinct)
    return tuple(v.double().new_zeros(size).index_add_(0, group, v.double()).flip(0) for v in values)


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    """Compute `sum_t (recall_t - recall_(t-1)) precision_t` over thresholds, from grouped counts."""
    hits = positive.cumsum(0)
    precision = hits / (hits + negative.cumsum(0))
    return float((positive * precision).sum() / hits[-1])


def _false_alarm(positive: Tensor, negative: Tensor, percent: int) -> float:
    """Return the false positive rate at the first threshold whose true positive rate is `percent` or more."""
    hits, alarms = positive.cumsum(0), negative.cumsum(0)
    reached = (100 * hits >= percent * hits[-1]).nonzero()[0]  # integers, to avoid rounding
    return float(alarms[reached] / alarms[-1])


def ood_scores(in_scores: Tensor, out_scores: Tensor) -> dict[str, float]:
    """Measure how well a score detects out-of-distribution data; larger scores must mean further out.

    Args:
        in_scores: (n,) scores of in-distribution examples.
        out_scores: (m,) scores of out-of-distribution examples.

    Returns:
        `auroc`: `P(out > in) + P(out = in) / 2`. `aupr_in`, `aupr_out`: average precision with in- or
        out-of-distribution as the positive class. `fpr85`, `fpr95`: fraction of out-of-distribution examples accepted
        at the threshold that accepts at least 85 or 95 % of the in-distribution ones (positive: in, as in ODIN).
    """
    scores = torch.cat([in_scores.detach().flatten(), out_scores.detach().flatten()]).double()
    if not in_scores.numel() or not out_scores.numel():
        raise UserError(
            f"ood_scores needs examples on both sides, got {in_scores.numel()} in, {out_scores.numel()} out"
        )
    if scores.isnan().any():
        raise UserError("ood_scores cannot order NaN: some scores are not numbers")
    is_out = torch.zeros_like(scores)
    is_out[in_scores.numel() :] = 1
    out, inside = _groups(scores, is_out, 1 - is_out)
    pairs_won = (out * (inside.flip(0).cumsum(0).flip(0) - inside / 2)).sum()  # a tie is half a win
    first_in, first_out = inside.flip(0), out.flip(0)  # from the smallest score up: the order of acceptance
    return {
        "auroc": float(pairs_won / (out.sum() * inside.sum())),
        "aupr_in": _average_precision(first_in, first_out),
        "aupr_out": _average_precision(out, inside),
        "fpr85": _false_alarm(first_in, first_out, 85),
        "fpr95": _false_alarm(first_in, first_out, 95),
    }


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Compute `risk(k/n) = errors among the k most confident / k`, and its mean over k, the AURC.

    Among equal confidences the errors are spread evenly, which is the expectation over all ways to break the tie.

    Args:
        confidence: (n,) larger means more certain; any scale.
        correct: (n,) whether the answer was right.
    """
    if confidence.shape != correct.shape or confidence.ndim != 1 or not len(confidence):
        raise UserError(
            f"risk_coverage takes two (n,) tensors, not {tuple(confidence.shape)} and {tuple(correct.shape)}"
        )
    if confidence.isnan().any():
        raise UserError("risk_coverage cannot order NaN: some confidences are not numbers")
    wrong = 1 - correct.double()
    errors, size = _groups(confidence.detach(), wrong, torch.ones_like(wrong))
    spread = (errors / size).repeat_interleave(size.long())
    answered = torch.arange(1, len(wrong) + 1, dtype=torch.float64, device=wrong.device)
    risk = spread.cumsum(0) / answered
    return RiskCoverage(answered / len(wrong), risk, float(risk.mean()))


def _cut_above(values: Tensor, last: int) -> float:
    """Place a threshold midway to the next value, so that rounding does not change the decision."""
    here = values[last]
    above = values[last + 1] if last + 1 < len(values) else here + 0.01 * here.abs()
    cut = here + (above - here) / 2
    return float(cut if cut < above else here)


def abstention(uncertainty: Tensor, correct: Tensor, target_risk: float) -> Abstention:
    """Compute `max t:  errors with uncertainty <= t  <=  target_risk * answers with uncertainty <= t`.

    This is the largest coverage whose error rate is at most the target. Choose it on validation data; on other data the
    risk will be near the target, the nearer the more validation data there were.

    Args:
        uncertainty: (n,) larger means less certain.
        correct: (n,) whether the answer was right.
        target_risk: The fraction of wrong answers allowed, from 0 to below 1.
    """
    if uncertainty.shape != correct.shape or uncertainty.ndim != 1 or not len(correct):
        raise UserError(f"abstention takes two (n,) tensors, not {tuple(uncertainty.shape)} and {tuple(correct.shape)}")
    if not 0 <= target_risk < 1:
        raise UserError(f"target_risk must be a fraction from 0 to below 1, not {target_risk}")
    if uncertainty.isnan().any():
        raise UserError("abstention cannot order NaN: some uncertainties are not numbers")
    scores = uncertainty.detach()
    wrong = 1 - correct.double()
    errors, size = (part.flip(0).cumsum(0) for part in _groups(scores, wrong, torch.ones_like(wrong)))
    reached = (errors <= target_risk * size + 1e-9).nonzero()  # 0.29 * 100 is below 29
    if not len(reached):
        raise UserError(
            f"no threshold has a risk of {target_risk:g}: even the most certain {int(size[0])} of {len(wrong)} "
            f"predictions have an error rate of {float(errors[0] / size[0]):.3g}; allow a larger risk"
        )
    last = int(reached[-1])
    return Abstention(
        _cut_above(scores.unique(), last), float(size[last] / len(wrong)), float(errors[last] / size[last]), len(wrong)
    )
