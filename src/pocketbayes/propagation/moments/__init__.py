"""Moment propagation (VDP++): a rule per operation for mean and variance; others raise an error that names them."""

from __future__ import annotations

from typing import ClassVar

from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.base import Ruled
from pocketbayes.propagation.moments import activations, attention, normalisation, pooling, shape  # noqa: F401 (rules)
from pocketbayes.propagation.moments.exact import EXACT
from pocketbayes.propagation.moments.table import MomentRules

MOMENTS = MomentRules("moments")
MOMENTS_EXACT = MomentRules("moments-exact", own=EXACT)
"""ReLU, leaky ReLU and GELU with exact moments of a Gaussian input instead of first-order ones."""


class Moments(Ruled):
    """Mean and variance of every activation, in one pass."""

    name = "moments"
    table: ClassVar[RuleTable] = MOMENTS


class MomentsExact(Moments):
    """The same with the exact moments of ReLU, leaky ReLU and GELU."""

    name = "moments-exact"
    table = MOMENTS_EXACT
