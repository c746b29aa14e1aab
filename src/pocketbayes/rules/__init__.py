"""Rule tables: how an operation treats a Gaussian weight, one file per propagation."""

from pocketbayes.gaussian import RuleTable
from pocketbayes.rules.flipout import FLIPOUT
from pocketbayes.rules.local import LOCAL

RULES: dict[str, RuleTable] = {table.name: table for table in (LOCAL, FLIPOUT)}

__all__ = ["FLIPOUT", "LOCAL", "RULES"]
