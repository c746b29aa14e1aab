"""Sums of gradients by table entry, without the gradients themselves."""

from __future__ import annotations

import pytest
import torch

from pocketbayes.propagation.linear.tied import MAX_PAIRS, TiedLayer


@pytest.mark.parametrize("examples", [1, 5])
def test_tied_layer_sums_the_gradients_of_each_entry(examples: int) -> None:
    outputs, inputs, size = 6, 40, 3
    index = torch.randint(0, size, (outputs, inputs))
    layer = TiedLayer(index, size)
    assert layer.worthwhile
    delta, x = torch.randn(examples, outputs), torch.randn(examples, inputs)
    gradient = (delta[:, :, None] * x[:, None]).flatten(1)
    expected = torch.zeros(examples, size).scatter_add_(1, index.flatten().expand_as(gradient), gradient)
    torch.testing.assert_close(layer.sums(delta, x), expected, rtol=1e-4, atol=1e-4)


def test_tied_layer_is_not_worthwhile_with_an_entry_per_weight() -> None:
    index = torch.arange(40).view(4, 10)
    assert not TiedLayer(index, 40).worthwhile
    assert MAX_PAIRS < 1
