"""Full-covariance propagation (VDP, the ancestor of VDP++): small chains of layers, every correlation carried."""

from pocketbayes.propagation.full import elementwise, linear, pooling
from pocketbayes.propagation.full.table import FullMoments, NoFullRuleError, TooLargeError

MOMENTS_FULL = FullMoments()

__all__ = ["MOMENTS_FULL", "FullMoments", "NoFullRuleError", "TooLargeError", "elementwise", "linear", "pooling"]
