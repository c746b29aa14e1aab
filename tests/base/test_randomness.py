"""Private random generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.randomness import Randomness, current, forked, seed_torch
from pocketbayes.base.seeds import pass_seed

DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "rand": lambda x: torch.rand(30),
    "randn": lambda x: torch.randn(30),
    "randint": lambda x: torch.randint(5, (30,)),
    "randint of a range": lambda x: torch.randint(3, 9, (30,)),
    "randperm": lambda x: torch.randperm(30),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "normal in place": lambda x: x.clone().normal_(),
    "multinomial": lambda x: torch.multinomial(x.exp(), 3),
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout of channels": lambda x: F.dropout2d(x.view(2, 5, 5, 5), 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": F.gumbel_softmax,
    "a layer's start": lambda x: nn.Linear(3, 4).weight.detach(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_redirected_draws_equal_a_seeded_torch(name: str) -> None:
    x = torch.linspace(-2, 2, 250).view(10, 25)
    torch.manual_seed(5)
    expected = DRAWS[name](x)
    before = torch.get_rng_state()
    with Randomness(5).redirected() as redirection:
        assert torch.equal(DRAWS[name](x), expected)
    assert redirection.drew
    assert torch.equal(torch.get_rng_state(), before)


def test_redirected_inference_mode_leaves_torch_alone() -> None:
    x, before = torch.ones(100), torch.get_rng_state()
    outputs = []
    for _ in range(2):
        with torch.inference_mode(), Randomness(5).redirected():
            outputs.append(F.dropout(x, 0.5, True))
    assert torch.equal(*outputs)
    assert torch.equal(torch.get_rng_state(), before)


def test_redirected_attention_without_dropout_draws_nothing() -> None:
    x = torch.randn(1, 2, 5, 4)
    with torch.no_grad(), Randomness(5).redirected() as redirection:
        F.scaled_dot_product_attention(x, x, x)
    assert not redirection.drew


def test_redirected_blocks_nest_and_suspend() -> None:
    with Randomness(1).redirected() as outer:
        first = torch.rand(3)
        with Randomness(2).redirected():
            torch.rand(3)
        with outer.suspended():
            before = torch.get_rng_state()
            torch.rand(3)
            assert not torch.equal(torch.get_rng_state(), before)
        second = torch.rand(3)
    own = torch.Generator().manual_seed(1)
    assert torch.equal(first, torch.rand(3, generator=own))
    assert torch.equal(second, torch.rand(3, generator=own))
    assert current() is None


def test_forked_restores_the_random_state() -> None:
    with Randomness(1).redirected():
        with forked(seed=7):
            inner = torch.rand(3)
        with forked():
            once = torch.rand(3)
        again = torch.rand(3)
        seed_torch(7)
        assert torch.equal(torch.rand(3), inner)
    assert torch.equal(once, again)


def test_pass_seed_fits_torch_for_any_seed() -> None:
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        torch.Generator().manual_seed(pass_seed(seed, 12))
    assert pass_seed(3, 4) == 3_000_013
