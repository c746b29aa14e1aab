"""Full-covariance propagation (VDP, the predecessor of VDP++) for small chains of layers."""

from pocketbayes.propagation.base import Ruled
from pocketbayes.propagation.full import elementwise, linear, pooling
from pocketbayes.propagation.full.table import FullMoments, NoFullRuleError, TooLargeError

MOMENTS_FULL = FullMoments()


class MomentsFull(Ruled):
    """Mean and full covariance of every activation."""

    name = "moments-full"
    examples = 16  # the covariance of d activations takes d^2 numbers per example
    table = MOMENTS_FULL


__all__ = [
    "MOMENTS_FULL",
    "FullMoments",
    "MomentsFull",
    "NoFullRuleError",
    "TooLargeError",
    "elementwise",
    "linear",
    "pooling",
]
