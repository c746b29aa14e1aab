"""Rule tables: how an operation treats a Gaussian, one file or folder per propagation."""

from pocketbayes.gaussian import RuleTable
from pocketbayes.rules.flipout import FLIPOUT
from pocketbayes.rules.full import MOMENTS_FULL
from pocketbayes.rules.local import LOCAL
from pocketbayes.rules.moments import MOMENTS, MOMENTS_EXACT, register_moment_rule

RULES: dict[str, RuleTable] = {table.name: table for table in (LOCAL, FLIPOUT, MOMENTS, MOMENTS_EXACT, MOMENTS_FULL)}

__all__ = ["FLIPOUT", "LOCAL", "MOMENTS", "MOMENTS_EXACT", "MOMENTS_FULL", "RULES", "register_moment_rule"]
