"""Moment propagation (VDP++): a rule per operation for mean and variance, and a refusal by name where there is none."""

from pocketbayes.propagation.moments import activations, arithmetic, attention, normalisation, pooling, shape
from pocketbayes.propagation.moments.exact import EXACT
from pocketbayes.propagation.moments.table import Moments, NoRuleError, register_moment_rule

MOMENTS = Moments("moments")
MOMENTS_EXACT = Moments("moments-exact", EXACT)
"""ReLU, leaky ReLU and GELU with the moments of a Gaussian input in place of the first-order ones."""

__all__ = [
    "MOMENTS",
    "MOMENTS_EXACT",
    "Moments",
    "NoRuleError",
    "activations",
    "arithmetic",
    "attention",
    "normalisation",
    "pooling",
    "register_moment_rule",
    "shape",
]
