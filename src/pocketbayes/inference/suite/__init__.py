"""One evaluation for every network: clean data, other data, shifted data, part by part, resumable.

`evaluate_suite` measures; `Store` keeps what is finished; `comparison` says which network is better, with its test.
"""

from __future__ import annotations

from pocketbayes.inference.suite.comparison import compare, over_seeds
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
