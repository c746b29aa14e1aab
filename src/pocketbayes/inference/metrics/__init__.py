"""Measures of predictions: streaming sums that can be merged, and rankings of scores.

`Classification`, `Segmentation`, `Regression` and `HumanAgreement` store no predictions, only sums in float64 whose
size is independent of the number of examples, so that data may be streamed, split over machines, or resumed. Only
`ood_scores`, `risk_coverage`, `abstention` and `temperature` need all values at once.
"""

from pocketbayes.inference.metrics.accumulators import Classification, HumanAgreement, Regression, Segmentation
from pocketbayes.inference.metrics.calibration import Reliability, reliability_bins, temperature
from pocketbayes.inference.metrics.cost import flops
from pocketbayes.inference.metrics.ranking import Abstention, RiskCoverage, abstention, ood_scores, risk_coverage
from pocketbayes.inference.metrics.tempered import Tempered, calibrated_nll, dee

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
    "reliability_bins",
    "risk_coverage",
    "temperature",
]
