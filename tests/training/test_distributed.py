"""Several processes over gloo: equal networks on all ranks, and the result of one process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
import ranks
from cases import smooth, tiny_data, tiny_model
from pocketbayes.base.process_group import ProcessGroup
from pocketbayes.data.batches import as_source, batches
from pocketbayes.data.batches import share as weight_of
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.methods.addition import DenseGradients
from pocketbayes.methods.laplace import _Problem
from pocketbayes.methods.sensitivity import sensitivities
from pocketbayes.network import members
from pocketbayes.plane import PlaneSettings, survey
from pocketbayes.training import checkpoint
from pocketbayes.training.checks import fingerprint
from pocketbayes.training.loop import Loop

QUIET: dict[str, Callable[[], pb.Method]] = {
    "map": pb.Deterministic,
    "ensemble": lambda: pb.Ensemble(members=2),
    "mc-dropout": lambda: pb.MCDropout(rate=1e-7),
    "swag": lambda: pb.SWAG(swag_epochs=2, rank=2),
    "laplace": lambda: pb.Laplace(hessian="diag"),
    "bbb": lambda: pb.MeanFieldVI(std_init=1e-6, prior_std=0.1),
    "lrt": lambda: pb.MeanFieldVI(std_init=1e-6, prior_std=0.1, propagation="local"),
    "flipout": lambda: pb.MeanFieldVI(std_init=1e-6, prior_std=0.1, propagation="flipout"),
    "int8": lambda: pb.Int8(method=pb.MeanFieldVI(std_init=1e-6)),
    "2dgbnn": lambda: pb.WeightSharing(
        k=4, n_min=2, tau_w=0.2, pretrain_epochs=1, meanfield_epochs=1, std_init=1e-4, draw="shared-noise"
    ),
    "pbn": lambda: pb.PBN(rate=0.2, pretrain_epochs=1, rho_mean=-12.0, train_samples=2),
    "ssvi": lambda: pb.SSVI(density=0.3, swap_every=2, swap_until=1.0, std_init=1e-7, std_spread=0.0, beta=0.0),
    "rigl": lambda: pb.RigL(density=0.3, swap_every=2, swap_until=1.0),
    "vdp": lambda: pb.VDP(std_init=0.05),
    "vdp-full": lambda: pb.FullCovarianceVDP(std_init=0.05),
    "ivon": lambda: pb.IVON(std_init=1e-6),
    "rank1": lambda: pb.Rank1VI(std_init=1e-6),
    "sparse-vd": lambda: pb.VariationalDropout(std_init=1e-6),
    "mbnn": lambda: pb.MaskedVI(std_init=1e-6, moves=0),
}
"""Every method, with little noise so that one and several processes can be compared."""
EXAMPLES = 46
"""Not a multiple of the batch: the last one has parts of unequal size, and with 4 ranks hardly enough for all."""


def train(
    name: str, folder: Path, model: Callable[[], nn.Module] = smooth, told: Any = None, **settings: Any
) -> dict[str, Any]:
    settings = {"epochs": 2, "batch_size": 16, "lr": 0.05, "optimizer": "sgd", "accelerator": "cpu", **settings}
    if name == "2dgbnn":  # many weights share one Gaussian, so their gradients add up
        settings["stages"] = {"shared": {"lr": 1e-4}}
    if name == "ssvi":  # its swaps depend on stds, whose gradients are noise here
        settings["std_lr"] = 1e-9
    data = told or tiny_data(EXAMPLES)
    net = pb.fit(QUIET[name](), model(), data, val=tiny_data(30), out=folder, progress=False, **settings)
    moments = torch.cat([torch.stack(network.posterior.moments()) for network in members(net)], 1).detach()
    state = {key: value.clone() for key, value in net.state_dict().items()}
    return {"print": fingerprint(net), "mean": moments[0], "std": moments[1], "state": state}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def compare(name: str, size: int, folder: Path) -> None:
    (alone,) = ranks.run(train, 1, folder / "answers1", name, folder / "one")
    together = ranks.run(train, size, folder / "answers", name, folder / "several")
    for found in (alone, *together):
        assert isinstance(found, dict), found
    assert len({found["print"] for found in together}) == 1
    step = 0.02 if name == "int8" else 1e-4  # a mean next to the edge between two integers
    torch.testing.assert_close(together[0]["mean"], alone["mean"], rtol=1e-3, atol=step)
    torch.testing.assert_close(together[0]["std"], alone["std"], rtol=0.05, atol=step)
    one, several = lines(folder / "one"), lines(folder / "several")
    assert len(one) == len(several)
    for mine, theirs in zip(one, several):
        assert mine.keys() == theirs.keys()
        for key in {"nll", "val_nll", "val_accuracy"} & mine.keys():
            assert theirs[key] == pytest.approx(mine[key], rel=0.1 if name == "2dgbnn" else 2e-3), key  # it draws


@pytest.mark.parametrize("name", QUIET)
def test_fit_on_two_ranks_equals_one_process(name: str, tmp_path: Path) -> None:
    compare(name, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUIET)
def test_fit_on_four_ranks_equals_one_process(name: str, tmp_path: Path) -> None:
    compare(name, 4, tmp_path)


def test_fit_on_ranks_covers_every_method() -> None:
    assert set(QUIET) == set(pb.methods())


# -- batch norm -------------------------------------------------------------------------------------------------------


def train_normed(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    return train("map", folder, tiny_model, **settings)


def test_fit_on_ranks_agrees_on_batch_norm(tmp_path: Path) -> None:
    joint = {"sync_batch_norm": True}
    (alone,) = ranks.run(train_normed, 1, tmp_path / "a", tmp_path / "one", {})
    apart = ranks.run(train_normed, 2, tmp_path / "b", tmp_path / "apart", {})
    together = ranks.run(train_normed, 2, tmp_path / "c", tmp_path / "together", joint)
    for found in (alone, *apart, *together):
        assert isinstance(found, dict), found
    assert apart[0]["print"] == apart[1]["print"]
    assert together[0]["print"] == together[1]["print"]
    for key, value in alone["state"].items():
        torch.testing.assert_close(together[0]["state"][key], value, rtol=1e-3, atol=1e-5, msg=key)
    statistics = [found["state"]["model.norm.running_mean"] for found in (alone, apart[0])]
    assert not torch.equal(*statistics)  # each rank's own batches
    torch.testing.assert_close(*statistics, rtol=0.3, atol=0.05)


def test_fit_on_ranks_refuses_settings_they_cannot_share(tmp_path: Path) -> None:
    with pytest.raises(pb.UserError, match="accumulate=1"):
        pb.Training(sync_batch_norm=True, accumulate=2)
    with pytest.raises(pb.UserError, match="use 'ddp'"):
        pb.fit("bbb", smooth(), tiny_data(), strategy="fsdp")
    with pytest.raises(pb.UserError, match="timeout"):
        pb.Training(timeout=0)
    found = ranks.run(train_normed, 2, tmp_path / "a", tmp_path / "one", {"batch_size": 1})
    assert all("batch_size=1 is too small for 2 processes" in text for text in found)


# -- shares that are merged -------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """Labels for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def nets() -> dict[str, tuple[pb.Network, tuple[Tensor, Tensor]]]:
    """Return a small network and data for every task, with an incomplete last batch."""
    torch.manual_seed(5)
    x, y = tiny_data(23)
    classes = pb.bayesianize(smooth(), pb.MeanFieldVI(std_init=0.3, propagation="local"))
    classes.likelihood = pb.Categorical()
    pixels = pb.bayesianize(Pixels(), pb.MeanFieldVI(std_init=0.3))
    pixels.likelihood = pb.Categorical()
    numbers = pb.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), pb.MeanFieldVI(std_init=0.3))
    numbers.likelihood = pb.GaussianNoise("learned")
    return {
        "classification": (classes, (x, y)),
        "segmentation": (pixels, (x, (x[:, 0] > 0.5).long())),
        "regression": (numbers, (x, y.float()[:, None])),
    }


def share(size: int) -> dict[str, Any]:
    if size > 1:
        torch.distributed.init_process_group("gloo")
    team = ProcessGroup.current()
    assert team.size == size
    found: dict[str, Any] = {
        name: evaluate(net, data, samples=3, batch_size=4, team=team) for name, (net, data) in nets().items()
    }
    found["few"] = evaluate(*nets()["regression"], samples=3, team=team)  # one batch, and two ranks without any
    net, (x, y) = nets()["classification"]
    for kind in ("gradient", "squared", "output"):
        found[kind] = sensitivities(net, zip(x.split(4), y.split(4)), kind, team=team)  # type: ignore[arg-type]
    source = as_source((x[:14], y[:14]))  # three batches, the last one of two examples: the third rank has none
    batch = list(batches(source, 6, rank=team.rank, world=size))[-1]
    passes = DenseGradients(net, lambda: [[batch]], "mean", team, weight_of(source, 6, 2, team.rank, size))
    found["swap"] = torch.cat(list(passes.gradients()))
    torch.manual_seed(6)
    mean, std = 0.05 * torch.randn(3000), 0.01 * torch.rand(3000) + 1e-3
    found["plane"] = survey(mean, std, mean.square(), PlaneSettings(k=8, n_min=5), team)
    return found


def test_fit_on_three_ranks_covers_all_data(tmp_path: Path) -> None:
    (alone,) = ranks.run(share, 1, tmp_path / "one", 1)
    assert isinstance(alone, dict), alone
    several = ranks.run(share, 3, tmp_path / "three", 3)
    for found in several:
        assert isinstance(found, dict), found
        for task in ("classification", "segmentation", "regression", "few"):
            assert found[task] == pytest.approx(alone[task], rel=1e-12)
            assert found[task]["count"] == alone[task]["count"]
        for kind in ("gradient", "squared", "output", "swap"):
            torch.testing.assert_close(found[kind], alone[kind])
            assert torch.equal(found[kind], several[0][kind])
        mine, theirs = found["plane"], alone["plane"]
        assert torch.equal(mine.index, theirs.index)
        assert torch.equal(mine.ellipses, theirs.ellipses)
        torch.testing.assert_close(mine.mixture.means, theirs.mixture.means, rtol=1e-9, atol=1e-12)
        assert torch.equal(mine.mixture.covs, several[0]["plane"].mixture.covs)


def laplace(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return a network's Laplace posterior, and the number of examples that this process has seen."""
    seen, usual = [], _Problem.examples

    def counted(self: Any) -> Any:
        for x, y in usual(self):
            seen.append(len(y))
            yield x, y

    _Problem.examples = counted  # type: ignore[method-assign]
    method = pb.Laplace(bayesian_bias=True, **settings)
    net = pb.fit(method, nets()["classification"][0], tiny_data(EXAMPLES), accelerator="cpu", batch_size=16)
    directions = net.posterior.project(torch.eye(net.layout.size))
    covariance = directions @ directions.T
    return {"print": fingerprint(net), "covariance": covariance, "prior": net.prior.std, "seen": sum(seen)}


@pytest.mark.parametrize(
    "settings",
    [{"hessian": "full"}, {"hessian": "kron"}, {"hessian": "full", "subset": "subnetwork", "subnetwork_size": 20}],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_laplace_divides_examples_among_ranks(settings: dict[str, Any], tmp_path: Path) -> None:
    (alone,) = ranks.run(laplace, 1, tmp_path / "one", tmp_path, settings)
    several = ranks.run(laplace, 3, tmp_path / "three", tmp_path, settings)
    assert isinstance(alone, dict), alone
    for found in several:
        assert isinstance(found, dict), found
        assert found["print"] == several[0]["print"]
        assert found["prior"] == pytest.approx(alone["prior"], rel=1e-4)
        torch.testing.assert_close(found["covariance"], alone["covariance"], rtol=1e-3, atol=1e-5)
    assert sum(found["seen"] for found in several) == alone["seen"]
    assert max(found["seen"] for found in several) <= alone["seen"] / 3 + 4


def train_few(folder: Path) -> dict[str, Any]:
    return train("ssvi", folder, told=tiny_data(34))


def test_ssvi_swaps_where_a_rank_has_no_examples(tmp_path: Path) -> None:
    (alone,) = ranks.run(train_few, 1, tmp_path / "a", tmp_path / "one")
    several = ranks.run(train_few, 3, tmp_path / "b", tmp_path / "three")
    for found in (alone, *several):
        assert isinstance(found, dict), found
        torch.testing.assert_close(found["mean"], alone["mean"], rtol=1e-3, atol=1e-4)
        assert torch.equal(found["state"]["posterior.index"], alone["state"]["posterior.index"])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rank_parts_cover_everything_once(size: int) -> None:
    for length in (0, 1, 5, 21):
        parts = [range(length)[ProcessGroup(rank, size).part(length)] for rank in range(size)]
        assert [number for part in parts for number in part] == list(range(length))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# -- ranks that disagree, die or are stopped --------------------------------------------------------------------------


class Told(torch.utils.data.Dataset):
    """The tiny data; a function is called on one rank when it fetches its n-th batch."""

    def __init__(self, rank: int, at: int, what: str) -> None:
        self.x, self.y = tiny_data(EXAMPLES)
        self.rank, self.at, self.what, self.count = rank, at, what, 0

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        self.count += 1
        if self.count == self.at and int(os.environ["RANK"]) == self.rank:
            os.kill(os.getpid(), getattr(signal, self.what))
        return [(self.x[row], self.y[row]) for row in rows]


def train_told(folder: Path, told: Told | None, resume: bool) -> dict[str, Any]:
    data = told or Told(-1, 0, "")
    options = {"checkpoint_steps": 1, "timeout": 60, "resume": resume}
    return train("bbb", folder, tiny_model, data, **options)


@pytest.mark.parametrize("what", ["SIGKILL", "SIGTERM"])
def test_fit_stops_when_a_rank_is_killed_and_resumes(what: str, tmp_path: Path) -> None:
    whole = ranks.run(train_told, 2, tmp_path / "a", tmp_path / "whole", None, False)
    found = ranks.run(train_told, 2, tmp_path / "b", tmp_path / "run", Told(1, 5, what), False)
    if what == "SIGKILL":
        assert found[1] is None
        assert found[0].startswith("LostProcessError: process 0 of 2 stops: another process has ended")
        assert "resume the run from its last checkpoint" in found[0]
    else:  # both save the same step and leave
        assert found[0].startswith("KeyboardInterrupt: stopped by a signal to another process")
        assert found[1].startswith("KeyboardInterrupt: stopped by SIGTERM")
    again = ranks.run(train_told, 2, tmp_path / "c", tmp_path / "run", None, True)
    for mine, theirs in zip(again, whole):
        assert isinstance(mine, dict), mine
        assert mine["print"] == theirs["print"]
    names = ("metrics.jsonl", "model.pocket", "checkpoint.safetensors")
    assert all((tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)


@pytest.mark.slow
def test_fit_waits_for_a_silent_rank_until_the_timeout(tmp_path: Path) -> None:
    processes = ranks.start(train_told, 2, tmp_path / "a", tmp_path / "run", Told(1, 5, "SIGSTOP"), False)
    processes[0].join(ranks.SECONDS)
    processes[1].kill()
    found = ranks.results(processes, tmp_path / "a")
    assert found[0].startswith("LostProcessError: process 0 of 2 stops: another process has ended or does not respond")
    assert found[1] is None
    assert checkpoint.read(tmp_path / "run") is not None


def test_fit_resumes_with_another_number_of_processes(tmp_path: Path) -> None:
    ranks.run(train_told, 2, tmp_path / "a", tmp_path / "run", Told(0, 5, "SIGTERM"), False)
    os.environ["RANK"] = "0"
    try:
        with pytest.warns(UserWarning, match="has 2 processes, this run 1"):
            found = train_told(tmp_path / "run", None, True)
    finally:
        del os.environ["RANK"]
    assert torch.isfinite(found["mean"]).all()


def stray(folder: Path) -> dict[str, Any]:
    step = Loop.step

    def other_step(self: Any, *args: Any) -> Any:
        figures = step(self, *args)
        if self.run.team.rank == 1:
            with torch.no_grad():
                self.network.posterior.mean[0] += 1e-6
        return figures

    Loop.step = other_step  # type: ignore[method-assign]
    return train("bbb", folder)


def test_fit_stops_when_ranks_disagree(tmp_path: Path) -> None:
    found = ranks.run(stray, 2, tmp_path / "a", tmp_path / "run")
    assert all(text.startswith("TrainingError: rank 1 differs from rank 0") for text in found)
    assert not (tmp_path / "run" / "model.pocket").exists()


def test_train_command_runs_under_torchrun(tmp_path: Path) -> None:
    """Two processes and one print the same table; only the first rank writes and prints."""
    settings = ["data.subset=200", "training.epochs=1", "training.accelerator=cpu", "training.batch_size=64"]
    options = ["train", "digits-map", "--json", *(item for s in settings for item in ("--set", s))]
    found = [
        ranks.by_command_line(options, tmp_path / name, torchrun=name == "two")["measures"] for name in ("two", "one")
    ]
    assert found[0]["count"] == found[1]["count"]
    assert found[0]["nll"] == pytest.approx(found[1]["nll"], rel=1e-3)
