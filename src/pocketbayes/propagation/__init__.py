"""Propagations of weight uncertainty to the outputs, one file or folder each."""

# In the order in which their names are listed.
from pocketbayes.propagation.sample import Mean, Sample  # isort: skip
from pocketbayes.propagation.local import LOCAL, Local  # isort: skip
from pocketbayes.propagation.flipout import FLIPOUT, Flipout  # isort: skip
from pocketbayes.propagation.moments import MOMENTS, MOMENTS_EXACT, Moments, MomentsExact  # isort: skip
from pocketbayes.propagation.full import MOMENTS_FULL, MomentsFull  # isort: skip
from pocketbayes.propagation.linear import Linear  # isort: skip
from pocketbayes.propagation.base import PROPAGATIONS, Ask, Propagation, find_propagation
from pocketbayes.propagation.moments.table import register_moment_rule

__all__ = [
    "FLIPOUT", "LOCAL", "MOMENTS", "MOMENTS_EXACT", "MOMENTS_FULL", "PROPAGATIONS", "Ask", "Flipout", "Linear", "Local",
    "Mean", "Moments", "MomentsExact", "MomentsFull", "Propagation", "Sample", "find_propagation",
    "register_moment_rule",
]  # fmt: skip
