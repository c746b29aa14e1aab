"""Full-covariance propagation (VDP, the ancestor of VDP++): small chains of layers, every correlation carried."""

from pocketbayes.rules.full import elementwise, linear, pooling
from pocketbayes.rules.full.table import FullMoments, NoFullRuleError, TooLargeError

MOMENTS_FULL = FullMoments()

__all__ = ["MOMENTS_FULL", "FullMoments", "NoFullRuleError", "TooLargeError", "elementwise", "linear", "pooling"]
