"""Training of coded networks, and sweeps that resume."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import pocketbayes as pb
from pocketbayes.network import Network
from pocketbayes.ship.compression import compress, sweep
from pocketbayes.ship.compression.coding import Recipe, Weights, code, codebook_of
from pocketbayes.ship.compression.retraining import distillation_loss, retrain


def points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 20, generator=generator)
    x[torch.arange(n), y] += 2.5
    return x, y


@pytest.fixture(scope="module")
def trained(learning_seed: int) -> Network:
    torch.manual_seed(learning_seed)
    model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    net = pb.fit("map", model, points(300, 0), epochs=10, lr=1e-2, progress=False, seed=learning_seed)
    assert isinstance(net, Network)
    return net


def tuned(
    net: Network, steps: int, stop_after: int = 1000, train: Any = None, **settings: Any
) -> tuple[Network, list[float]]:
    recipe = Recipe(0.6)
    losses: list[float] = []

    def see(loss: float) -> None:
        losses.append(loss)
        if len(losses) == stop_after:
            raise InterruptedError

    weights = Weights.of(net, recipe)
    made = retrain(
        weights, codebook_of([weights], recipe), train or points(300, 0),
        [points(300, 0)[0]], steps, on_step=see, **settings,
    )  # fmt: skip
    return made, losses


def test_retraining_restores_the_teachers_answers(trained: Network) -> None:
    x, y = points(300, 1)
    made, losses = tuned(trained, 80)
    start = code(trained, Recipe(0.6)).net
    with torch.no_grad():
        wanted = trained.eval()(x)
        assert distillation_loss(made(x), wanted, y) < distillation_loss(start.eval()(x), wanted, y)
    assert len(losses) == 80
    assert len(made.posterior.centres) < 20


class Reseeding(TensorDataset):
    """Data that reseed torch's global generator whenever they are read."""

    reads = 0

    def __getitem__(self, place: int) -> tuple[Tensor, ...]:
        type(self).reads += 1
        thread = threading.Thread(target=torch.manual_seed, args=(self.reads,))
        thread.start()
        thread.join()
        return super().__getitem__(place)


def test_retraining_is_independent_of_other_threads_seeds(trained: Network) -> None:
    first, second = (tuned(trained, 5, train=Reseeding(*points(300, 0)))[1] for _ in range(2))
    assert first == second


def test_retraining_resumes_where_it_stopped(trained: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocketbayes.ship.compression.retraining.STEPS_BETWEEN_CHECKPOINTS", 5)
    whole, losses = tuned(trained, 20)
    place = tmp_path / "state"

    with pytest.raises(InterruptedError):
        tuned(trained, 20, stop_after=13, checkpoint=place)
    resumed, rest = tuned(trained, 20, checkpoint=place)
    assert rest == pytest.approx(losses[10:], rel=1e-4)
    torch.testing.assert_close(resumed.posterior.moments()[0], whole.posterior.moments()[0])


def test_sweep_resumes_from_its_folder(trained: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compress(trained, points(300, 0), points(90, 1), max_bytes=2500, steps=4, out=tmp_path, progress=False)

    def refuse(*args: Any, **settings: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(sweep.Sweep, "losses", refuse)
    monkeypatch.setattr(sweep, "retrain", refuse)
    again = compress(trained, points(300, 0), points(90, 1), max_bytes=2500, steps=4, out=tmp_path, progress=False)
    assert again.to_json() == first.to_json()
    assert any(trial.how.get("steps") == 4 for trial in again.trials)
    assert again.save(tmp_path / "a.pocket") == first.save(tmp_path / "b.pocket") == first.chosen.bytes
    assert (tmp_path / "a.pocket").read_bytes() == (tmp_path / "b.pocket").read_bytes()


def test_difference_of_regressions_is_relative_to_the_teacher() -> None:
    wanted = torch.randn(50, 1)
    assert distillation_loss(wanted + 10 * wanted.std(), wanted, torch.zeros(50, 1)) == pytest.approx(100.0, rel=1e-4)
