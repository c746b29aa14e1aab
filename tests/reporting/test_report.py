"""The report: inputs, contents, and safety against script injection."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.base.errors import UserError
from pocketbayes.cli import app
from pocketbayes.reporting import drawing
from pocketbayes.reporting.build import as_data, document, gather, render
from pocketbayes.reporting.leaderboard import leaderboard, made_by
from pocketbayes.reporting.runs import PARTS, RunFolder, read_runs
from pocketbayes.reporting.weights import GAP, POINT, codes_of, plane_of, tiled

Change = Callable[[Path, Any], None]
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{script}}"


def data_of(page: Path) -> dict[str, Any]:
    """Return the data embedded in a page."""
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def page(runs_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pb.report(runs_dir, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def copies(runs_dir: Path, tmp_path: Path) -> Path:
    """Return copies of the runs that a test may change."""
    return Path(shutil.copytree(runs_dir, tmp_path / "runs"))


# -- the page -------------------------------------------------------------------------------------------------------


def test_report_needs_no_external_resources(page: Path) -> None:
    text = page.read_text()
    assert "{{" not in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", text)
    assert not re.findall(r"@import|url\(\s*['\"]?http", text)


def test_report_allows_only_its_own_script(page: Path) -> None:
    text = page.read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_report_holds_what_the_runs_hold(page: Path, runs_dir: Path) -> None:
    data = data_of(page)
    assert [run["name"] for run in data["runs"]] == ["shared", "sparse"]
    assert [run["method"] for run in data["runs"]] == ["2dgbnn", "ssvi"]
    assert all(run["problems"] == [] for run in data["runs"])
    evaluation = json.loads((runs_dir / "shared" / "evaluation.json").read_text())
    values = data["leaderboard"]["rows"][0]["values"]
    assert values["nll"] == pytest.approx(evaluation["measures"]["nll"], rel=1e-6)
    assert values["auroc noise"] == pytest.approx(evaluation["ood"]["noise"]["scores"]["entropy"]["auroc"], rel=1e-6)
    assert values["bytes"] == (runs_dir / "shared" / "model.pocket").stat().st_size
    assert values["values"] == pb.census(pb.load(runs_dir / "shared" / "model.pocket")).values
    assert "name: 2dgbnn" in data["runs"][0]["recipe"]
    assert [row["stage"] for row in data["runs"][1]["epochs"]] == ["train", "train"]


def test_report_cost_counts_all_passes(runs_dir: Path) -> None:
    (run,) = gather(runs_dir / "sparse")
    weights = 64 * 8 + 8 * 10
    assert run.cost["flops"] == 3 * 2 * weights
    assert run.cost["latency"] > 0


def test_report_keeps_planted_scripts_as_text(copies: Path, tmp_path: Path, change: Change) -> None:
    def plant(document: dict[str, Any]) -> None:
        document |= {"method": ATTACK, "data": {"name": ATTACK}}
        document["box"][ATTACK] = document["box"].pop(next(iter(document["box"])))
        document["ood"][ATTACK] = document["ood"]["noise"]
        document["images"]["most certain"][0]["png"] = ATTACK

    change(copies / "shared", plant)
    shutil.move(copies / "shared", copies / "<script>alert(3)<")
    recipe = copies / "sparse" / "recipe.yaml"
    recipe.write_text(f"about: {json.dumps(ATTACK)}\n{recipe.read_text()}")
    text = pb.report(copies, tmp_path / "report.html").read_text()
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert "alert(1)" in text
    assert data_of(tmp_path / "report.html")["runs"][0]["method"] == ATTACK
    assert ATTACK not in str(data_of(tmp_path / "report.html")["runs"][0]["evaluation"]["images"])


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_report_data_are_restored_and_stay_in_their_tag(value: Any) -> None:
    text = as_data(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_report_turns_nan_into_null() -> None:
    assert as_data([float("nan"), float("inf"), 0.1]) == "[null,null,0.1]"


def test_report_does_not_expand_inserted_text() -> None:
    assert "{{style}}" in render({"name": "{{style}}"}, "{{data}}")


# -- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["evaluation.json", "model.pocket", "recipe.yaml", "metrics.jsonl"])
def test_report_of_an_incomplete_run_shows_the_rest(copies: Path, tmp_path: Path, missing: str) -> None:
    (copies / "shared" / missing).unlink()
    run = data_of(pb.report(copies, tmp_path / "report.html"))["runs"][0]
    assert bool(run["evaluation"]) == (missing != "evaluation.json")
    assert bool(run["weights"]) == (missing != "model.pocket")
    assert bool(run["cost"]) == (missing != "model.pocket")
    assert bool(run["recipe"]) == (missing != "recipe.yaml")
    assert bool(run["epochs"]) == (missing != "metrics.jsonl")
    assert bool(run["problems"]) == (missing in ("evaluation.json", "model.pocket"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("evaluation.json", b"{", "not a readable evaluation"),
        ("evaluation.json", b'{"format": 99}', "not an evaluation of format 1"),
        ("model.pocket", b"nonsense", "the network cannot be read"),
        ("metrics.jsonl", b'{"epoch": 1, "nll": 2.0}\n{"epo', "not JSON"),
        ("recipe.yaml", b"[", "the recipe cannot be read"),
    ],
)
def test_report_names_and_omits_a_broken_file(copies: Path, name: str, content: bytes, words: str) -> None:
    (copies / "shared" / name).write_bytes(content)
    broken, whole = gather(copies)
    assert any(words in problem for problem in broken.problems), broken.problems
    assert whole.problems == []
    document([broken, whole])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@example({"data": {}, "network": None, "measures": {"": 0}}, {})
@given(
    st.dictionaries(st.sampled_from(PARTS), JSON), st.dictionaries(st.sampled_from(["method", "data", "seed"]), JSON)
)
def test_report_takes_evaluations_of_any_kind(evaluation: dict[str, Any], recipe: dict[str, Any]) -> None:
    run = RunFolder("a", Path("a"), evaluation={"measures": {"nll": 1.0}, **evaluation}, recipe=recipe)
    render(document([run, RunFolder("b", Path("b"), evaluation=evaluation)]), "a")


def test_report_names_a_figure_that_cannot_be_drawn(tmp_path: Path) -> None:
    run = RunFolder("a", Path("a"), evaluation={"reliability": {"confidence": 3}})
    with pytest.raises(UserError, match="figure reliability"):
        drawing.draw([run], tmp_path)


def test_report_tests_no_values_of_another_program(copies: Path) -> None:
    runs = gather(copies)
    assert {pair["measure"] for pair in document(runs)["pairs"]} == {"accuracy", "nll", "brier"}
    (copies / "shared" / "evaluation.safetensors").write_bytes(b"nonsense")
    assert document(runs)["pairs"] == []


def test_report_finds_runs_by_folder_file_and_evaluation(copies: Path) -> None:
    lone = copies / "lone.pocket"
    shutil.copy(copies / "shared" / "model.pocket", lone)
    shutil.copy(copies / "shared" / "evaluation.json", copies / "lone.evaluation.json")
    shutil.copy(copies / "sparse" / "evaluation.json", copies / "other.evaluation.json")
    change_network(copies / "other.evaluation.json", str(copies / "sparse"))
    runs = read_runs([copies, lone, copies / "other.evaluation.json", copies / "sparse" / "model.pocket"])
    assert [run.name for run in runs] == ["shared", "sparse", "lone", "other"]
    assert [run.file for run in runs] == [
        copies / "shared" / "model.pocket",
        copies / "sparse" / "model.pocket",
        lone,
        copies / "sparse" / "model.pocket",
    ]
    assert all(run.measures for run in runs)
    assert runs[2].recipe == {}
    assert runs[3].recipe["method"]["name"] == "ssvi"


def change_network(file: Path, path: str) -> None:
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "network": path}))


def test_report_distinguishes_equal_names(copies: Path) -> None:
    shutil.copytree(copies / "shared", copies / "again" / "shared")
    assert [run.name for run in read_runs([copies / "shared", copies / "again"])] == ["runs/shared", "again/shared"]


def test_report_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    for path, words in ((tmp_path / "none", "no run"), (tmp_path, "contains no run"), (tmp_path / "text.txt", "not a")):
        with pytest.raises(UserError, match=words):
            pb.report(path, tmp_path / "report.html")
    with pytest.raises(UserError, match="nothing to report"):
        pb.report([], tmp_path / "report.html")
    with pytest.raises(UserError, match=r"must end in \.html"):
        pb.report(tmp_path, tmp_path / "report.pdf")
    assert not (tmp_path / "report.html").exists()


# -- leaderboard, weights, plane --------------------------------------------------------------------------------------


def made_up(name: str, data: str = "digits", **measures: float) -> RunFolder:
    return RunFolder(name, Path(name), evaluation={"measures": measures, "data": {"name": data}, "split": "test"})


def test_report_marks_the_best_among_equal_data_only() -> None:
    board = leaderboard(
        [made_up("a", accuracy=0.9, nll=0.3), made_up("b", accuracy=0.8, nll=0.2), made_up("c", "other", accuracy=0.99)]
    )
    assert [row["best"] for row in board["rows"]] == [["accuracy"], ["nll"], []]
    assert [column["key"] for column in board["columns"]] == ["accuracy", "nll"]
    assert [column["better"] for column in board["columns"]] == ["high", "low"]


def test_report_averages_seeds_of_one_recipe(copies: Path, change: Change) -> None:
    shutil.copytree(copies / "sparse", copies / "sparse-2")
    recipe = copies / "sparse-2" / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "seed: 5\n")
    change(copies / "sparse-2", lambda d: d["measures"].update(nll=d["measures"]["nll"] + 1.0))
    data = document(gather(copies))
    (group,) = data["seeds"]
    assert group["networks"] == [1, 2]
    first = data["leaderboard"]["rows"][1]["values"]["nll"]
    assert group["measures"]["nll"]["mean"] == pytest.approx(first + 0.5)


@torch.no_grad()
def test_report_layers_count_present_and_random_weights(runs_dir: Path) -> None:
    (run,) = gather(runs_dir / "sparse")
    net = pb.load(runs_dir / "sparse" / "model.pocket")
    mean, std = net.posterior.moments()
    for layer, m, s in zip(run.weights["layers"], net.layout.views(mean), net.layout.views(std)):
        assert layer["random"] == pytest.approx(float((s > 0).double().mean()))
        assert layer["present"] == pytest.approx(float(((s > 0) | (m != 0)).double().mean()))
        assert layer["std"] == pytest.approx(float(s[s > 0].double().mean()))
    assert run.weights["layers"][0]["random"] == pytest.approx(0.25, abs=0.01)


def test_report_plane_counts_every_weight_once(runs_dir: Path) -> None:
    posterior = pb.load(runs_dir / "shared" / "model.pocket").posterior
    found = plane_of(posterior.plane(), ["layer"])
    members = torch.tensor(found["members"])
    assert members.sum() + posterior.outliers == pytest.approx(posterior.layout.size, abs=0.1 * members.numel())
    sizes = torch.tensor([slot.size for slot in posterior.layout.slots])
    assert (members.sum(0) <= sizes + 0.1 * len(members)).all()
    torch.testing.assert_close(members.sum(1), posterior.counts.sort(descending=True).values, atol=0.2, rtol=0)
    order = posterior.counts.argsort(descending=True)
    centres = torch.tensor(found["gaussians"])[:, 0]
    torch.testing.assert_close(centres, posterior.centre_mean.detach()[order], atol=1e-6, rtol=1e-4)


def test_report_plane_and_layers_state_the_same_stds(runs_dir: Path) -> None:
    """The plane's stds of drawn weights are those that the weights tab averages."""
    posterior = pb.load(runs_dir / "shared" / "model.pocket").posterior
    drawn = torch.tensor(plane_of(posterior.plane(), ["layer"])["drawn_stds"])
    stds = posterior.moments()[1].detach()[posterior.index < posterior.gaussians]
    gap = (drawn / stds[:, None] - 1).abs().min(1).values
    assert gap.max() < 1e-3


def test_report_picture_has_a_tile_per_unit() -> None:
    stds = np.arange(1, 6 * 2 * 3 * 4 + 1, dtype=float).reshape(6, 2, 3, 4)
    picture, shown = tiled(stds)
    assert shown == 6
    assert sorted(picture[~np.isnan(picture)]) == sorted(stds.flatten())
    np.testing.assert_array_equal(picture[:3, :8], np.concatenate([stds[0, 0], stds[0, 1]], axis=1))
    assert np.isnan(picture[3]).all()
    linear, _ = tiled(stds.reshape(6, 24), (2, 3, 4))
    np.testing.assert_array_equal(linear, picture)
    matrix, shown = tiled(stds.reshape(6, 24))
    assert matrix.shape == (6, 24)
    wide, shown = tiled(np.ones((500, 500)))
    assert wide.size <= 120 * 120
    assert shown == len(wide)


def test_report_codes_mark_gaps_points_and_range() -> None:
    codes, low, high = codes_of(np.array([[np.nan, 0.0], [1.0, 3.0]]))
    assert list(codes) == [GAP, POINT, 2, 255]
    assert (low, high) == (1.0, 3.0)
    assert codes_of(np.full((1, 2), 0.5)) == (bytes([2, 2]), 0.5, 0.5)


def test_report_takes_ensembles_and_regressions(tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("mlp", in_features=3, hidden=[4], out_features=1), "bbb")
    mixture = pb.Mixture(
        [net, pb.bayesianize(pb.models.build("mlp", in_features=3, hidden=[4], out_features=1), "bbb")]
    )
    pb.save(mixture, tmp_path / "two.pocket")
    (tmp_path / "two.evaluation.json").write_text(
        json.dumps({"format": 1, "method": "ensemble", "data": {"name": "line"}, "measures": {"rmse": 0.5, "mae": 0.4}})
    )
    data = data_of(pb.report(tmp_path / "two.pocket", tmp_path / "report.html"))
    assert data["leaderboard"]["rows"][0]["values"]["rmse"] == 0.5
    assert data["runs"][0]["weights"]["networks"] == 2
    assert data["runs"][0]["weights"]["values"] == pb.census(mixture).values


# -- files and the command line ---------------------------------------------------------------------------------------


def test_report_draws_every_figure(runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(drawing, "FORMATS", (".png",))
    pb.report(runs_dir, tmp_path / "report.html", figures=tmp_path / "figures")
    stems = {file.stem for file in (tmp_path / "figures").iterdir()}
    once = "pareto-bytes pareto-latency reliability risk-coverage ood-noise noise corruption-fog training"
    each = ["confidence-shared", "confidence-sparse", "layers-shared", "layers-sparse", "sigma-shared", "sigma-sparse"]
    assert stems == {*once.split(), *each, "corruption-gaussian_noise", "plane-shared"}


def test_report_writes_figures_in_three_formats(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = RunFolder("a/b", Path("a"), epochs=[{"nll": 2.0, "kl": 0.0}, {"nll": 1.0, "kl": 3.0}])
    run.weights = {"layers": [{"name": "w", "present": 1.0, "random": 0.5}]}
    files = drawing.draw([run], tmp_path)
    names = [f"{stem}.{ending}" for stem in ("training", "layers-a-b") for ending in ("png", "svg", "pdf")]
    assert [file.name for file in files] == names
    assert all(file.is_file() for file in files)


def test_report_command_prints_what_it_wrote(runs_dir: Path, copies: Path, tmp_path: Path) -> None:
    (copies / "shared" / "model.pocket").unlink()
    out = tmp_path / "a" / "report.html"
    result = CliRunner().invoke(app, ["report", str(copies), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["report"] == str(out)
    assert [run["name"] for run in found["runs"]] == ["shared", "sparse"]
    assert "the network's file" in found["runs"][0]["problems"][0]
    (copies / "shared" / "evaluation.json").unlink()
    unfinished = CliRunner().invoke(app, ["report", str(copies), "--out", str(out), "--json"])
    assert unfinished.exit_code == 2
    assert "--resume" in json.loads(unfinished.stdout)["runs"][0]["problems"][-1]
    assert "shared: unfinished" in unfinished.stderr
    result = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_report_row_states_its_evidence(runs_dir: Path) -> None:
    board = document(gather(runs_dir))["leaderboard"]
    rows, columns = board["rows"], [column["key"] for column in board["columns"]]
    assert len(set(columns)) == len(columns)
    assert all("examples" in row["data"] for row in rows)
    assert all("passes" in row["by"] and "epoch" in row["by"] and "seed" in row["by"] for row in rows)


def test_report_row_names_a_run_that_was_not_evaluated() -> None:
    trained = RunFolder("a", Path("a"), epochs=[{"nll": 2.0}, {"nll": 1.0}])
    assert made_by(trained) == "not evaluated, 2 epochs"
    assert "not evaluated" not in made_by(replace(trained, evaluation={"measures": {"nll": 1.0}, "samples": 30}))


def test_report_row_states_whether_stds_learned(runs_dir: Path) -> None:
    runs = gather(runs_dir)
    board = document(runs)["leaderboard"]
    for run, row in zip(runs, board["rows"]):
        learned = run.weights["learned"]
        assert ("stds learned" in row["by"], "stds not learned" in row["by"]) == (learned is True, learned is False)
        assert {"calibrated_nll", "epistemic_share"} <= set(row["values"])
        assert any("median |mean| / std" in note for note in run.weights["notes"])
