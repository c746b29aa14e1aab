"""Rule tables: how an operation treats a Gaussian, one file or folder per propagation."""

from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.flipout import FLIPOUT
from pocketbayes.propagation.full import MOMENTS_FULL
from pocketbayes.propagation.local import LOCAL
from pocketbayes.propagation.moments import MOMENTS, MOMENTS_EXACT, register_moment_rule

RULES: dict[str, RuleTable] = {table.name: table for table in (LOCAL, FLIPOUT, MOMENTS, MOMENTS_EXACT, MOMENTS_FULL)}

__all__ = ["FLIPOUT", "LOCAL", "MOMENTS", "MOMENTS_EXACT", "MOMENTS_FULL", "RULES", "register_moment_rule"]
