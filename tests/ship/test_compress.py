"""Compression to a budget: file sizes, the choice of the best file, and the curve."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.base.errors import NotFiniteAnswersError, UserError
from pocketbayes.cli import app
from pocketbayes.network import Mixture
from pocketbayes.ship.compression import Compressed, Trial, compress, frontier, sweep
from pocketbayes.ship.compression.coding import Recipe, code, round_points
from pocketbayes.ship.compression.losses import measure_examples
from pocketbayes.ship.compression.trials import NLL_NOISE, Budget, choose


def images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noisy points of three classes in 40 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 40, generator=generator)
    x[torch.arange(n), y] += 3.0
    return x, y


@pytest.fixture(scope="module")
def trained(learning_seed: int) -> pb.Network:
    torch.manual_seed(learning_seed)
    model = nn.Sequential(nn.Linear(40, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3))
    settings = {"epochs": 6, "lr": 1e-2, "seed": learning_seed, "progress": False}
    net = pb.fit(pb.MeanFieldVI(std_init=0.02), model, images(192, 0), **settings)
    assert isinstance(net, pb.Network)
    return net


def run(net: pb.Net, **budget: Any) -> Compressed:
    return compress(net, images(192, 0), images(150, 1), samples=3, progress=False, **budget)


def model_like_trained() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3))


@pytest.fixture(scope="module")
def found(trained: pb.Network) -> Compressed:
    return run(trained, max_bytes=4000)


def test_compress_size_budget_holds_for_the_written_file(found: Compressed, tmp_path: Path) -> None:
    assert found.chosen.bytes <= 4000
    assert found.save(tmp_path / "net.pocket") == found.chosen.bytes == (tmp_path / "net.pocket").stat().st_size
    assert found.chosen.nll <= min(trial.nll for trial in found.trials if trial.bytes <= 4000) + NLL_NOISE
    measures = pb.evaluate(pb.load(tmp_path / "net.pocket", model_like_trained()), images(150, 1), samples=3)
    assert measures["nll"] == pytest.approx(found.chosen.nll, abs=1e-6)
    assert measures["nll"] < 1.09  # better than chance among three classes


def test_pick_serves_every_budget_from_one_sweep(found: Compressed) -> None:
    bits = found.pick(bits=14)
    assert bits.chosen.bits == 8 * bits.chosen.bytes / found.weights <= 14
    loss = found.pick(max_nll_loss=0.02)
    fitting = [trial for trial in found.trials if trial.nll <= found.before.nll + 0.02]
    assert loss.chosen.bytes == min(trial.bytes for trial in fitting) < 0.5 * found.before.bytes
    accurate = found.pick(max_accuracy_loss=0.05).chosen
    assert accurate.accuracy is not None
    assert accurate.accuracy >= (found.before.accuracy or 1.0) - 0.05
    assert pb.evaluate(loss.net, images(150, 1), samples=3)["nll"] == pytest.approx(loss.chosen.nll, abs=1e-6)


def test_frontier_loss_falls_as_files_grow(found: Compressed) -> None:
    front = found.front
    assert [t.bytes for t in front] == sorted(t.bytes for t in front)
    assert [t.nll for t in front] == sorted((t.nll for t in front), reverse=True)
    assert len(front) >= 3


def test_compress_by_precision_keeps_the_storage(trained: pb.Network) -> None:
    only = run(trained, max_nll_loss=1.0, precision="bfloat16")
    assert only.chosen.how == {"kept": "bfloat16"}
    assert isinstance(only.net, pb.Network)
    assert only.net.posterior.name == "mean-field"


@pytest.mark.parametrize("method", [pb.SSVI(density=0.2), pb.PBN(), pb.Deterministic()])
def test_compress_codes_any_storage_of_means_and_stds(method: Any) -> None:
    net = pb.bayesianize(nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 3)), method)
    net.likelihood = pb.Categorical()  # type: ignore[union-attr]
    small = run(net, max_nll_loss=0.5)
    assert small.chosen.how["units"] in ("network", "layer", "filter")
    assert small.chosen.bytes < small.before.bytes


def test_compress_keeps_dropout_in_lower_precision() -> None:
    model = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
    net = pb.bayesianize(model, pb.MCDropout())
    net.likelihood = pb.Categorical()  # type: ignore[union-attr]
    small = run(net, max_nll_loss=0.5)
    assert "kept" in small.chosen.how


def test_compress_takes_plain_models_and_mixtures() -> None:
    torch.manual_seed(0)
    plain = run(nn.Linear(40, 3), max_nll_loss=0.5)  # type: ignore[arg-type]
    assert plain.chosen.bytes <= plain.before.bytes
    net = pb.bayesianize(nn.Sequential(nn.Linear(40, 24), nn.BatchNorm1d(24), nn.Linear(24, 3)), pb.Ensemble(members=2))
    both = run(net, max_nll_loss=0.5)
    assert isinstance(both.net, Mixture)
    assert both.weights == 2 * (40 * 24 + 24 * 3)
    whole = next(trial for trial in both.trials if "lam" in trial.how and "members" not in trial.how)
    one, two = (network.posterior.centres for network in whole.packed.unpack(both.models))
    assert set(one.tolist()) & set(two.tolist())  # one codebook for all members


def test_compress_refuses_budgets_that_cannot_be_met(trained: pb.Network) -> None:
    with pytest.raises(UserError, match=r"nothing fits 100 bytes: the smallest that was tried takes \d+"):
        run(trained, max_bytes=100)
    with pytest.raises(UserError, match="give only one budget"):
        run(trained, max_bytes=100, bits=3)


def test_frontier_holds_undominated_trials() -> None:
    def trial(size: int, nll: float) -> Trial:
        return Trial({}, size, 0.0, nll, None)

    best = frontier([trial(30, 1.0), trial(10, 3.0), trial(20, 2.0), trial(25, 2.5), trial(20, 4.0)])
    assert [(each.bytes, each.nll) for each in best] == [(10, 3.0), (20, 2.0), (30, 1.0)]


def test_compress_command_writes_file_curve_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pb.save(
        pb.fit("map", pb.models.build("mlp", in_features=64, out_features=10, hidden=[16]),
               pb.data.load("digits", "train"), epochs=3, lr=1e-2, progress=False),
        tmp_path / "net.pocket",
    )  # fmt: skip
    out = tmp_path / "small.pocket"
    command = ["compress", str(tmp_path / "net.pocket"), "--out", str(out), "--max-nll-loss", "0.1", "--json"]
    result = CliRunner().invoke(app, [*command, "--samples", "1"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["bytes"] == out.stat().st_size == found["chosen"]["bytes"] < found["before"]["bytes"]
    assert found["chosen"]["nll"] <= found["before"]["nll"] + 0.1
    described = json.loads(CliRunner().invoke(app, ["inspect", str(out), "--json"]).stdout)
    assert {weight["name"]: weight["bits"] for weight in described["networks"][0]["weights"]} == found["layer_bits"]
    sizes = [trial["bytes"] for trial in found["front"]]
    assert sizes == sorted(sizes)
    assert json.loads((tmp_path / "small.json").read_text())["front"] == found["front"]
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    shown = [each for each in command if each != "--json"] + ["--samples", "1", "--overwrite"]
    text = CliRunner().invoke(app, shown).stdout
    assert "bits per weight by layer" in text
    assert "NLL rises by" not in text
    monkeypatch.setattr(sys.modules["pocketbayes.cli.compress"], "MUCH_LOST", -1.0)
    assert "NLL rises by" in CliRunner().invoke(app, shown).stdout


def test_compress_figure_shows_every_trial() -> None:
    from pocketbayes.reporting.figures.tradeoff import rate_distortion

    def trial(size: int, nll: float, **how: Any) -> dict[str, Any]:
        return {"bytes": size, "bits": 1.0, "nll": nll, "accuracy": 1 - nll, "how": how}

    trials = [trial(4000, 0.1), trial(1000, 0.15), trial(500, 0.2, lam=0.1)]
    found = {"trials": trials, "front": trials[::-1], "chosen": trials[1], "before": trials[0]}
    figure = rate_distortion(found)
    assert len(figure.axes) == 2
    curve = figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [0.5, 1.0, 4.0]
    assert [len(points.get_offsets()) for points in figure.axes[0].collections] == [2, 1, 1]


def test_compress_measures_regressions_by_log_likelihood() -> None:
    x, _ = images(96, 0)
    data = x, x[:, :1] - x[:, 1:2]
    net = pb.fit(pb.MeanFieldVI(std_init=0.02), nn.Linear(40, 1), data, epochs=2, lr=1e-2, progress=False)
    found = compress(net, data, data, max_nll_loss=1.0, samples=2)
    assert found.before.nll == pytest.approx(-pb.evaluate(net, data, samples=2)["log_likelihood"])
    assert found.chosen.accuracy is None


def test_compress_skips_files_without_finite_answers(trained: pb.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def sometimes(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise NotFiniteAnswersError("nan")
        return measure_examples(*args)

    monkeypatch.setattr(sweep, "measure_examples", sometimes)
    found = run(trained, max_nll_loss=0.5)
    assert len(calls) > 3
    assert found.chosen.nll < float("inf")


def test_compress_fills_a_size_where_loss_is_chance() -> None:
    codes = [
        Trial({"lam": lam, "units": units}, size, 1.0, nll, None)
        for lam, units, size, nll in (
            (0.1, "network", 90, 0.304),
            (0.2, "network", 60, 0.301),
            (0.05, "network", 99, 0.320),
            (0.1, "filter", 95, 0.302),
            (0.01, "network", 120, 0.290),
        )
    ]
    assert choose(codes, Budget(max_bytes=100), codes[-1], 800) is codes[0]


def test_choose_within_a_size_prefers_finer_codes_at_a_high_nll() -> None:
    fine, coarse = (Trial({"lam": lam}, size, 1.0, nll, None) for lam, size, nll in ((0.1, 90, 4.3), (0.2, 60, 4.2)))
    assert choose([fine, coarse], Budget(max_bytes=100), fine, 800) is fine
    worse = Trial({"lam": 0.1}, 90, 1.0, 4.5, None)
    assert choose([worse, coarse], Budget(max_bytes=100), worse, 800) is coarse


def test_choose_without_a_budget_allows_a_standard_error() -> None:
    before = Trial({}, 100, 1.0, 4.0, None)
    unclear, worse = (Trial({}, size, 1.0, 4.03, None, nll_error=error) for size, error in ((50, 0.03), (40, 0.01)))
    assert choose([before, unclear, worse], Budget(), before, 800) is unclear
    assert choose([before, unclear, worse], Budget(max_nll_loss=0.01), before, 800) is before


def test_compress_measures_the_error_of_a_difference(trained: pb.Network, tmp_path: Path) -> None:
    found = run(trained, max_nll_loss=0.05, out=tmp_path)
    assert found.before.nll_error == 0
    assert 0 < found.chosen.nll_error < 0.2
    again = run(trained, max_nll_loss=0.05, out=tmp_path)
    assert [trial.nll_error for trial in again.trials] == [trial.nll_error for trial in found.trials]
    (loss, _), examples = measure_examples(found.net, images(150, 1), 3, 0)
    assert loss == found.chosen.nll
    assert float(examples.mean()) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(("lam", "error"), [(0.003, 2.0**-8), (0.1, 2.0**-6)])
def test_fine_codes_keep_finer_normalisation(lam: float, error: float) -> None:
    net = pb.bayesianize(nn.Sequential(nn.Linear(4, 99), nn.BatchNorm1d(99)), "map")
    (norm,) = (module for module in net.modules() if isinstance(module, nn.BatchNorm1d))
    exact = torch.linspace(1.0, 2.0, 99)
    norm.running_mean = exact.clone()
    round_points(net, Recipe(lam).point_bits)
    assert error / 2 < float((norm.running_mean / exact - 1).abs().max()) <= error


def test_compress_choice_holds_for_other_draws(trained: pb.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run(trained, max_bytes=4000)
    checked = []

    def fails_at_first(net: Any, data: Any, samples: int, seed: int) -> Any:
        if samples == sweep.CHECK_SAMPLES:
            checked.append(samples)
            if len(checked) == 1:
                raise NotFiniteAnswersError("inf")
        return measure_examples(net, data, samples, seed)

    monkeypatch.setattr(sweep, "measure_examples", fails_at_first)
    other = run(trained, max_bytes=4000)
    assert len(checked) == 2
    assert other.chosen.how != usual.chosen.how
    assert other.chosen.nll >= usual.chosen.nll - NLL_NOISE


def test_compress_rejects_answers_that_are_not_finite() -> None:
    net = pb.bayesianize(nn.Linear(40, 3), pb.Deterministic())
    net.likelihood = pb.Categorical()
    with torch.no_grad():
        net.posterior.mean.fill_(torch.inf)
    with pytest.raises(NotFiniteAnswersError, match="outputs are not finite"):
        pb.evaluate(net, images(9, 0))


def test_compress_keeps_learned_stds_with_the_codes() -> None:
    """Different stds per weight are kept; one std per layer would lose them."""
    torch.manual_seed(0)
    net = pb.bayesianize(nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 3)), pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    with torch.no_grad():
        net.posterior.rho.copy_(torch.where(torch.arange(net.layout.size) % 3 == 0, -1.5, -6.0))
    made = code(net, Recipe(0.003, std_units="code")).net
    with torch.no_grad():
        (mean, std), (wanted_mean, wanted_std) = made.posterior.moments(), net.posterior.moments()
        assert torch.corrcoef(torch.stack([std, wanted_std]))[0, 1] > 0.95
        assert torch.corrcoef(torch.stack([mean, wanted_mean]))[0, 1] > 0.95


def test_compress_tries_finer_codes_until_a_loss_allows_one(
    trained: pb.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "PROBE_LAMBDA", 3.0)
    monkeypatch.setattr(sweep, "LAMBDAS", (1.0, 3.0))
    monkeypatch.setattr(sweep, "FINER_FACTOR", 10.0)
    usual = {"max_nll_loss": 0.02}
    found = run(trained, **usual)
    assert found.chosen is not found.before
    assert found.chosen.how["lam"] < 1.0
