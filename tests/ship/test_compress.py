"""Compression to a budget: it holds for the written file, the best of what fits is taken, the curve is drawn."""

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
from pocketbayes.files.packing import Precision
from pocketbayes.ship.compression import Candidate, Compressed, Trial, compress, frontier


def images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes of noisy points in 40 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 40, generator=generator)
    x[torch.arange(n), y] += 3.0
    return x, y


@pytest.fixture(scope="module")
def trained() -> pb.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3))
    net = pb.fit(pb.MeanFieldVI(std_init=0.02), model, images(192, 0), epochs=6, lr=1e-2, progress=False)
    assert isinstance(net, pb.Network)
    return net


def run(net: pb.Net, **budget: Any) -> Compressed:
    return compress(net, images(192, 0), images(150, 1), samples=3, progress=False, **budget)


def test_a_size_is_kept_and_the_file_is_as_large_as_it_says(trained: pb.Network, tmp_path: Path) -> None:
    found = run(trained, max_bytes=4000)
    assert found.chosen.bytes <= 4000
    assert found.save(tmp_path / "net.pocket") == found.chosen.bytes
    assert found.chosen.nll == min(trial.nll for trial in found.trials if trial.bytes <= 4000)
    model = nn.Sequential(nn.Linear(40, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3))
    measures = pb.evaluate(pb.load(tmp_path / "net.pocket", model), images(150, 1), samples=3)
    assert measures["nll"] == pytest.approx(found.chosen.nll, abs=1e-6)
    assert measures["nll"] < 1.09  # better than guessing among three


def test_bits_count_the_whole_file(trained: pb.Network) -> None:
    found = run(trained, bits=14)
    assert found.chosen.bits == 8 * found.chosen.bytes / trained.layout.size <= 14


def test_a_loss_is_kept_with_the_smallest_file(trained: pb.Network) -> None:
    found = run(trained, max_nll_loss=0.02)
    assert found.chosen.nll <= found.before.nll + 0.02
    assert found.chosen.bytes < 0.5 * found.before.bytes
    fitting = [trial for trial in found.trials if trial.nll <= found.before.nll + 0.02]
    assert found.chosen.bytes == min(trial.bytes for trial in fitting)
    assert {trial.candidate.sharing is None for trial in found.trials} == {True, False}


def test_only_the_precision_that_is_asked_for(trained: pb.Network) -> None:
    found = run(trained, max_nll_loss=1.0, precision="bfloat16")
    assert found.chosen.candidate.precision == Precision.of("bfloat16")


def test_other_storages_are_kept_and_written_more_coarsely() -> None:
    model = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 3))
    net = pb.bayesianize(model, pb.SSVI(density=0.2))
    net.likelihood = pb.Categorical()  # type: ignore[union-attr]
    found = run(net, max_nll_loss=0.5)
    assert all(trial.candidate.sharing is None for trial in found.trials)
    assert found.chosen.bytes < found.before.bytes


def test_a_budget_that_nothing_fits_says_what_would(trained: pb.Network) -> None:
    with pytest.raises(UserError, match=r"nothing fits 100 bytes: the smallest that was tried takes \d+"):
        run(trained, max_bytes=100)
    with pytest.raises(UserError, match="one budget at a time"):
        run(trained, max_bytes=100, bits=3)


def test_the_frontier_holds_what_nothing_beats() -> None:
    def trial(size: int, nll: float) -> Trial:
        return Trial(Candidate(Precision()), size, 0.0, nll, None)

    best = frontier([trial(30, 1.0), trial(10, 3.0), trial(20, 2.0), trial(25, 2.5), trial(20, 4.0)])
    assert [(each.bytes, each.nll) for each in best] == [(10, 3.0), (20, 2.0), (30, 1.0)]


def test_the_command_writes_the_file_the_curve_and_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    sizes = [trial["bytes"] for trial in found["curve"]]
    assert sizes == sorted(sizes)
    assert json.loads((tmp_path / "small.json").read_text())["curve"] == found["curve"]
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    shown = [each for each in command if each != "--json"] + ["--samples", "1", "--overwrite"]
    assert "NLL rises by" not in CliRunner().invoke(app, shown).stdout
    monkeypatch.setattr(sys.modules["pocketbayes.cli.compress"], "MUCH_LOST", -1.0)
    assert "NLL rises by" in CliRunner().invoke(app, shown).stdout


def test_the_figure_shows_every_trial() -> None:
    from pocketbayes.reporting.figures.compression import rate_distortion

    def trial(size: int, nll: float, sharing: Any = None) -> dict[str, Any]:
        return {"bytes": size, "bits": 1.0, "nll": nll, "accuracy": 1 - nll, "sharing": sharing, "precision": {}}

    trials = [trial(4000, 0.1), trial(1000, 0.15), trial(500, 0.2, {"k": 8})]
    found = {"trials": trials, "curve": trials[::-1], "chosen": trials[1], "before": trials[0]}
    figure = rate_distortion(found, {"FP32": 8000})
    assert len(figure.axes) == 2
    curve = figure.axes[0].lines[0]
    assert list(curve.get_xdata()) == [0.5, 1.0, 4.0]
    assert [len(points.get_offsets()) for points in figure.axes[0].collections] == [2, 1, 1]


def test_regressions_are_compressed_by_their_log_likelihood() -> None:
    x, _ = images(96, 0)
    data = x, x[:, :1] - x[:, 1:2]
    net = pb.fit(pb.MeanFieldVI(std_init=0.02), nn.Linear(40, 1), data, epochs=2, lr=1e-2, progress=False)
    found = compress(net, data, data, max_nll_loss=1.0, epochs=0, samples=2)
    assert found.before.nll == pytest.approx(-pb.evaluate(net, data, samples=2)["log_likelihood"])
    assert found.chosen.accuracy is None


def test_a_candidate_without_finite_answers_is_passed_over(
    trained: pb.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = sys.modules["pocketbayes.ship.compression"], []

    def sometimes(*args: Any, **settings: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise NotFiniteAnswersError("nan")
        return pb.evaluate(*args, **settings)

    monkeypatch.setattr(module, "evaluate", sometimes)
    found = run(trained, max_nll_loss=0.5)
    assert len(calls) > 3
    assert found.chosen.nll < float("inf")


def test_what_was_chosen_by_few_draws_must_stand_others(trained: pb.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run(trained, max_bytes=4000)
    module = sys.modules["pocketbayes.ship.compression"]
    checked = []

    def fails_at_first(*args: Any, samples: int, **settings: Any) -> Any:
        if samples == module.CHECKED_SAMPLES:
            checked.append(samples)
            if len(checked) == 1:
                raise NotFiniteAnswersError("inf")
        return pb.evaluate(*args, samples=samples, **settings)

    monkeypatch.setattr(module, "evaluate", fails_at_first)
    other = run(trained, max_bytes=4000)
    assert len(checked) == 2
    assert other.chosen.candidate != usual.chosen.candidate
    assert other.chosen.nll >= usual.chosen.nll


def test_answers_that_are_no_numbers_are_not_taken_for_logits() -> None:
    net = pb.bayesianize(nn.Linear(40, 3), pb.Deterministic())
    net.likelihood = pb.Categorical()
    with torch.no_grad():
        net.posterior.mean.fill_(torch.inf)
    with pytest.raises(NotFiniteAnswersError, match="answers are not finite"):
        pb.evaluate(net, images(9, 0))
