"""One network asked by many threads answers as if it were asked by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

THREADS, CALLS = 8, 24


class Pause(nn.Module):
    """Lets other threads go first, in the middle of a pass."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return x


def network() -> pb.Network:
    model = nn.Sequential(nn.Linear(3, 4), Pause(), nn.ReLU(), nn.Linear(4, 4), Pause(), nn.Linear(4, 2))
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.1)).eval()
    assert isinstance(net, pb.Network)
    return net


def at_once(call: Callable[[int], Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(CALLS)))


@pytest.mark.parametrize("propagation", ["sample", "local", "moments", "linear"])
def test_predictions_equal_the_serial_ones(propagation: str) -> None:
    net, x = network(), torch.randn(CALLS, 3)

    def call(number: int) -> Tensor:
        return pb.predict(net, x[number : number + 1], samples=3, propagation=propagation, seed=number).mean

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)


def test_direct_calls_equal_the_serial_ones_whatever_other_threads_predict() -> None:
    net, x = network(), torch.randn(CALLS, 3)
    net.propagation = "mean"

    def call(number: int) -> Tensor:
        with torch.no_grad():
            if number % 3 == 0:
                return pb.predict(net, x[number : number + 1], samples=2, propagation="sample", seed=number).mean
            return net(x[number : number + 1])  # type: ignore[no-any-return]

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)


def test_gradients_of_threads_are_those_of_one() -> None:
    net, x = network(), torch.randn(CALLS, 3)
    net.propagation = "mean"

    def call(number: int) -> Tensor:
        (gradient,) = torch.autograd.grad(net(x[number : number + 1]).sum(), net.posterior.mean)
        return gradient

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)
