"""Steps and passes on the meta device, where reading a value raises an error."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import pocketbayes as pb
from pocketbayes.likelihoods import Categorical
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation import PROPAGATIONS, Ask
from pocketbayes.training import loop
from pocketbayes.training.checks import NotFiniteError


@pytest.mark.parametrize("propagation", ["sample", "flipout", "local"])
@pytest.mark.parametrize("prior_std", [None, 0.3])
def test_fit_step_never_waits_for_the_device(propagation: str, prior_std: float | None) -> None:
    method = pb.MeanFieldVI(propagation=propagation, prior_std=prior_std)
    net = pb.bayesianize(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method).train()
    net(torch.randn(2, 6))  # the first call looks at the model's flow, once
    net = net.to("meta")
    x, y = torch.randn(4, 6, device="meta"), torch.zeros(4, dtype=torch.long, device="meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + net.kl() / 100).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.is_meta for p in net.posterior.parameters())
    with pytest.raises(RuntimeError):
        net.kl().item()


@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("propagation", sorted(PROPAGATIONS.keys() - {"linear"}))  # which asks once what is random
def test_propagation_never_waits_for_the_device(propagation: str, convolution: bool) -> None:
    model = nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    if convolution:
        model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    net = pb.bayesianize(model, pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    shape = (4, 3, 2, 2) if convolution else (4, 12)
    ask = Ask(propagation=propagation)
    net.answer(torch.randn(shape), ask)  # the first call looks at the model's flow, once
    output = net.to("meta").answer(torch.randn(shape, device="meta"), ask)
    mean = output.loc if isinstance(output, Gaussian) else output
    assert mean.is_meta
    assert mean.shape == (4, 3)
    if PROPAGATIONS[propagation].differentiable:
        Categorical().nll(output, torch.zeros(4, dtype=torch.long, device="meta")).backward()
        assert all(p.grad is not None for p in net.posterior.parameters() if propagation != "mean")


READS = (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.numpy, torch.equal)


class CountingReads(TorchFunctionMode):
    """Counts how often Python asks for a number, for which a device has to finish everything that is queued.

    Data are read before they are moved there, and posteriors read only on a CPU, as the test above shows.
    """

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            reader = Path(sys._getframe(1).f_code.co_filename).parent.name
            self.count += reader not in ("data", "posteriors")
        return func(*args, **(kwargs or {}))


def data(examples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 6, generator=generator), torch.arange(examples) % 3


def fitted(every: int, monkeypatch: pytest.MonkeyPatch, examples: int = 96, **settings: Any) -> pb.Network:
    monkeypatch.setattr(loop, "steps_between_reads", lambda device: every)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    settings = {"epochs": 1, "clip_norm": 5.0, **settings}
    return pb.fit(pb.MeanFieldVI(), model, data(examples), batch_size=4, progress=False, **settings)


@pytest.mark.filterwarnings("ignore::pocketbayes.posteriors.health.StdsNotLearnedWarning")
@pytest.mark.parametrize("every", [1, 8])
def test_fit_reads_numbers_once_in_many_steps(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for examples in (96, 96 + 160):
        with CountingReads() as reads:
            fitted(every, monkeypatch, examples)
        counts.append(reads.count)
    assert counts[1] - counts[0] == 40 // every


@pytest.mark.filterwarnings("ignore::pocketbayes.posteriors.health.StdsNotLearnedWarning")
def test_fit_does_not_depend_on_when_numbers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weights = [], []
    for every in (1, 7):
        net = fitted(every, monkeypatch, epochs=2, out=tmp_path / str(every), checkpoint_steps=5)
        rows.append((tmp_path / str(every) / "metrics.jsonl").read_text())
        weights.append(net.posterior.weight_means())
    assert rows[0] == rows[1]
    assert torch.equal(*weights)


def test_fit_names_the_step_of_a_loss_that_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "steps_between_reads", lambda device: 8)
    backward, steps = loop.Loop._backward_nll, itertools.count()

    def spoiled(self: Any, *args: Any) -> Any:
        scale = torch.tensor(float("nan") if next(steps) == 10 else 1.0)
        return [nll * scale for nll in backward(self, *args)]

    monkeypatch.setattr(loop.Loop, "_backward_nll", spoiled)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(NotFiniteError, match=r"epoch 1, step 11: NLL nan"):
        pb.fit(pb.MeanFieldVI(), model, data(96), batch_size=4, epochs=1, progress=False)


def test_fit_stays_on_the_cpu_where_mps_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("with CUDA, auto is CUDA")
    mps = "lightning_fabric.accelerators.mps.MPSAccelerator.is_available"
    monkeypatch.setattr(mps, staticmethod(lambda: True))
    data = (torch.randn(8, 4), torch.arange(8) % 2)
    net = pb.fit("map", nn.Linear(4, 2), data, epochs=1, progress=False)
    assert next(net.parameters()).device.type == "cpu"
