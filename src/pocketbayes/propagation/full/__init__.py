"""Full-covariance propagation (VDP, the predecessor of VDP++) for small chains of layers."""

from pocketbayes.propagation.base import Ruled
from pocketbayes.propagation.full import elementwise, linear, pooling  # noqa: F401 (their rules)
from pocketbayes.propagation.full.table import NAME, RULES, FullMoments

MOMENTS_FULL = FullMoments(NAME, RULES)


class MomentsFull(Ruled):
    """Mean and full covariance of every activation."""

    name = NAME
    examples = 16  # the covariance of d activations takes d^2 numbers per example
    table = MOMENTS_FULL
