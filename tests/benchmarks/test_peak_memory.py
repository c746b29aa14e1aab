"""The peak memory of a call."""

from __future__ import annotations

import torch
from torch import Tensor

from peak_memory import peak_memory


def test_peak_memory_counts_what_lives_at_once() -> None:
    x = torch.zeros(1000)

    def chain(x: Tensor) -> Tensor:
        for _ in range(5):
            x = x + 1  # the previous process dies
        return x

    def hoard(x: Tensor) -> Tensor:
        return torch.stack([x + i for i in range(5)])

    assert peak_memory(chain, x) == 2 * 4000
    assert peak_memory(hoard, x) == 10 * 4000
    assert peak_memory(lambda: x.view(10, 100).t()) == 0, "a view holds nothing of its own"
    weight = torch.zeros(50, 20, requires_grad=True)

    def train() -> None:
        (torch.ones(100, 20) @ weight.T).relu().sum().backward()

    assert peak_memory(train) >= 100 * 20 * 4 + 2 * 100 * 50 * 4, "saved activations count"
