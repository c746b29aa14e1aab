"""Warnings point at the user's code."""

from __future__ import annotations

import warnings

import torch

import pocketbayes as pb


def test_warn_points_at_the_line_that_called_the_package() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one_hot = torch.eye(3).repeat(4, 1)
        pb.fit("map", torch.nn.Linear(2, 3), (torch.randn(12, 2), one_hot), epochs=1, progress=False)
    told = [warning for warning in caught if "one-hot" in str(warning.message)]
    assert [warning.filename for warning in told] == [__file__]
