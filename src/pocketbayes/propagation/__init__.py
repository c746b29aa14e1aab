"""Rule tables: how an operation treats a Gaussian, one file or folder per propagation."""

from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import RuleTable
from pocketbayes.propagation.dropout import DROPOUT
from pocketbayes.propagation.flipout import FLIPOUT
from pocketbayes.propagation.full import MOMENTS_FULL
from pocketbayes.propagation.local import LOCAL
from pocketbayes.propagation.moments import MOMENTS, MOMENTS_EXACT, register_moment_rule

RULES: dict[str, RuleTable] = {table.name: table for table in (LOCAL, FLIPOUT, MOMENTS, MOMENTS_EXACT, MOMENTS_FULL)}


def rules_for(posterior: Posterior, propagation: str) -> RuleTable | None:
    """Return the rule table of a propagation for a posterior's weights; None where weights are plain values."""
    if posterior.drops_units and propagation in (LOCAL.name, FLIPOUT.name):
        return DROPOUT
    return RULES.get(propagation)


__all__ = ["FLIPOUT", "LOCAL", "MOMENTS", "MOMENTS_EXACT", "MOMENTS_FULL", "RULES", "register_moment_rule", "rules_for"]
