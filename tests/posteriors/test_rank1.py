"""The factors of the rank-1 storage."""

from __future__ import annotations

import pytest

from pocketbayes.posteriors.layout import Layout, Slot
from pocketbayes.posteriors.rank1 import count_factors


@pytest.mark.parametrize(("shape", "factors"), [((3, 4), 7), ((3,), 4), ((3, 4, 2, 2), 7), ((3, 0), 3), ((0, 4), 4)])
def test_count_factors_of_any_shape(shape: tuple[int, ...], factors: int) -> None:
    assert count_factors(Layout((Slot("weight", shape, 0, ("weight",)),))) == factors
