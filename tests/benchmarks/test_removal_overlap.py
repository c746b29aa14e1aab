"""The agreement of SSVI's removal scores."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pocketbayes as pb
from pocketbayes.posteriors.sparse import SCORES, Sparse
from removal_overlap import removal_overlap


def test_overlap_compares_removal_criteria() -> None:
    layout = pb.Layout.of(nn.Linear(4, 1))
    mean, std = torch.tensor([1.0, 2, 3, 4]), torch.tensor([0.1, 1.0, 3.0, 0.1])
    overlap = removal_overlap(Sparse(layout, torch.arange(4), mean, std), fraction=0.5)
    by_name = {(a, b): float(overlap[i, j]) for i, a in enumerate(SCORES) for j, b in enumerate(SCORES)}
    assert by_name["magnitude", "snr"] == pytest.approx(1 / 3)  # {0, 1} and {1, 2}
    assert by_name["snr", "abs-snr"] == 1
    assert torch.equal(overlap, overlap.T)
    assert bool((overlap.diagonal() == 1).all())
    assert by_name["magnitude", "exp-mean"] == 1
    steep = removal_overlap(Sparse(layout, torch.arange(4), mean, std), fraction=0.5, scale=10.0)
    assert float(steep[0, 4]) == pytest.approx(1 / 3)  # l^2 std^2 / 2 decides: {0, 3}
