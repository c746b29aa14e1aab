"""Measures of predictions: streaming sums that merge over shards, and rankings of scores.

`Classification`, `Segmentation`, `Regression` and `HumanAgreement` keep no predictions, only sums in float64 whose size
does not depend on the number of examples: a data set may be streamed, split over machines, or resumed from saved sums.
Only `ood_scores`, `risk_coverage`, `abstention` and `temperature` need all their values at once, one or a row of them
per example.
"""

from pocketbayes.inference.metrics.accumulators import Classification, Regression, Segmentation
from pocketbayes.inference.metrics.calibration import Reliability, reliability_bins, temperature
from pocketbayes.inference.metrics.cost import flops, peak_memory
from pocketbayes.inference.metrics.equivalents import calibrated_nll, dee
from pocketbayes.inference.metrics.humans import HumanAgreement
from pocketbayes.inference.metrics.ranking import Abstention, RiskCoverage, abstention, ood_scores, risk_coverage
from pocketbayes.inference.metrics.tempered import Tempered

__all__ = [
    "Abstention",
    "Classification",
    "HumanAgreement",
    "Regression",
    "Reliability",
    "RiskCoverage",
    "Segmentation",
    "Tempered",
    "abstention",
    "calibrated_nll",
    "dee",
    "flops",
    "ood_scores",
    "peak_memory",
    "reliability_bins",
    "risk_coverage",
    "temperature",
]
