"""A network shared by many threads predicts as in a single thread."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

THREADS, CALLS = 8, 24


class Pause(nn.Module):
    """A module that lets other threads run in the middle of a pass."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return x


class AlwaysDropout(nn.Module):
    """Dropout that is also active in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.3, training=True)


DATA = torch.linspace(-1, 1, 48).view(16, 3), torch.arange(16) % 2


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), Pause(), nn.ReLU(), nn.Linear(4, 4), Pause(), nn.Linear(4, 2))


def network() -> pb.Network:
    net = pb.bayesianize(plain_model(), pb.MeanFieldVI(std_init=0.1)).eval()
    assert isinstance(net, pb.Network)
    return net


def at_once(call: Callable[[int], Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(CALLS)))


@pytest.mark.parametrize("propagation", ["sample", "local", "moments", "linear"])
def test_predict_in_threads_equals_serial_predictions(propagation: str) -> None:
    net, x = network(), torch.randn(CALLS, 3)

    def call(number: int) -> Tensor:
        return pb.predict(net, x[number : number + 1], samples=3, propagation=propagation, seed=number).mean

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)


PROPAGATIONS = (None, "mean", "sample", "local", "flipout", "moments", "moments-exact", "linear")


@pytest.mark.parametrize("trained", ["sample", "local", "moments"])
def test_predict_in_threads_mixes_propagations(trained: str) -> None:
    net, x = network(), torch.randn(CALLS, 3)
    net.propagation = trained

    def call(number: int) -> Tensor:
        with net.using("mean"):  # only in this thread
            net(x[:1])
        how = PROPAGATIONS[number % len(PROPAGATIONS)]
        prediction = pb.predict(net, x[number : number + 1], samples=3, propagation=how, seed=number)
        return torch.cat([prediction.mean, prediction.epistemic[:, None]], 1)

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)


def test_predict_in_threads_leaves_torchs_generator_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), AlwaysDropout(), nn.Linear(4, 2))
    net, x = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.1)), torch.randn(4, 3)
    before = torch.get_rng_state()
    one, two = (pb.predict(net, x, samples=3, seed=4) for _ in range(2))
    assert torch.equal(one.mean, two.mean)
    assert bool((one.epistemic > 0).all())
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_is_unchanged_beside_predicting_threads() -> None:
    net = pb.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), pb.MeanFieldVI(std_init=0.1))
    x = torch.randn(64, 3)
    y = (x[:, 0] > 0).long()

    def fit() -> list[Tensor]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))
        nn.init.ones_(model[0].weight), nn.init.zeros_(model[0].bias)
        nn.init.ones_(model[2].weight), nn.init.zeros_(model[2].bias)
        trained = pb.fit("lrt", model, (x, y), epochs=2, seed=3, batch_size=16, progress=False)
        return list(trained.state_dict().values())

    alone = fit()
    stop = threading.Event()

    def predict(number: int) -> None:
        while not stop.is_set():
            how = PROPAGATIONS[number % len(PROPAGATIONS)]
            pb.predict(net, x[:2], samples=2, propagation=how, seed=number)
            time.sleep(0.002)

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(predict, number) for number in range(4)]
        try:
            beside = fit()
        finally:
            stop.set()
        for each in running:
            each.result()
    for one, other in zip(alone, beside):
        assert torch.equal(one, other)


def test_deepcopy_is_whole_beside_predicting_threads() -> None:
    net, x = network(), torch.randn(CALLS, 3)

    def call(number: int) -> Tensor:
        if number % 2:
            other = copy.deepcopy(net)
            assert list(other.state_dict()) == names
            return other.posterior.mean.detach()
        return pb.predict(net, x[number : number + 1], samples=2, seed=number).mean

    names = list(net.state_dict())
    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)


READERS: dict[str, Callable[[pb.Network, Path], object]] = {
    "save": lambda net, path: pb.save(net, path) and pb.load(path, plain_model()),
    "another method": lambda net, path: pb.bayesianize(net, "map"),
    "to_module": lambda net, path: net.to_module(),
    "census": lambda net, path: net.census(),
    "parameters": lambda net, path: [name for name, _ in net.named_parameters()],
    "compress": lambda net, path: pb.compress(net, DATA, DATA, max_nll_loss=9.0, samples=1, progress=False),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
@pytest.mark.parametrize("reader", READERS)
def test_network_is_read_whole_beside_predicting_threads(reader: str, tmp_path: Path) -> None:
    net, stop = network(), threading.Event()
    net.likelihood = pb.Categorical()
    pb.save(net, tmp_path / "net.pocket")
    names = [name for name, _ in net.named_parameters()]

    def predict() -> None:
        while not stop.is_set():
            pb.predict(net, DATA[0][:2], samples=2)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(predict) for _ in range(2)]
        try:
            for number in range(1 if reader == "compress" else 6):
                found = READERS[reader](net, tmp_path / f"{number}.pocket")
                assert reader != "parameters" or found == names
        finally:
            stop.set()
        for each in running:
            each.result()


def test_network_call_ignores_other_threads() -> None:
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


def test_gradients_in_threads_equal_those_of_one() -> None:
    net, x = network(), torch.randn(CALLS, 3)
    net.propagation = "mean"

    def call(number: int) -> Tensor:
        (gradient,) = torch.autograd.grad(net(x[number : number + 1]).sum(), net.posterior.mean)
        return gradient

    serial = [call(number) for number in range(CALLS)]
    for one, other in zip(serial, at_once(call)):
        assert torch.equal(one, other)
