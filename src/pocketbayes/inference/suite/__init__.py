"""A resumable evaluation on clean, out-of-distribution and shifted data.

`evaluate_suite` measures, `Store` keeps finished parts, and `comparison` tests which network is better.
"""

from __future__ import annotations

from pocketbayes.inference.statistics import compare, over_seeds
from pocketbayes.inference.suite.run import SHIFTS, evaluate_suite
from pocketbayes.inference.suite.store import read_document, read_values

__all__ = [
    "SHIFTS",
    "compare",
    "evaluate_suite",
    "over_seeds",
    "read_document",
    "read_values",
]
