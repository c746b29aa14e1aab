"""`pocketbayes predict` on tables, with intervals and sets of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app
from pocketbayes.inference.calibration import fit_conformal


def ask(*arguments: object) -> list[dict[str, Any]]:
    found = CliRunner().invoke(app, ["predict", *map(str, arguments), "--json"])
    assert found.exit_code == 0, found.output
    rows: list[dict[str, Any]] = json.loads(found.stdout)["predictions"]
    return rows


def save_net(path: Path, outputs: int, **about: Any) -> Path:
    net = pb.bayesianize(pb.models.build("mlp", in_features=2, hidden=[4], out_features=outputs), "bbb")
    classes = outputs if outputs > 1 else None
    net.likelihood = pb.Categorical() if classes else pb.GaussianNoise()  # type: ignore[union-attr]
    task: Any = "classification" if classes else "regression"
    names = tuple(f"kind{label}" for label in range(outputs)) if classes else None
    net.info = pb.DataInfo("table", task, classes, names, (2,), **about)
    pb.save(net, path)
    return path


@pytest.mark.filterwarnings("ignore:.*not calibrated:UserWarning")
def test_predict_command_prints_intervals_of_a_table(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,b\n0.5,1\n-1,2\n")
    net = save_net(tmp_path / "net.pocket", 1, target_mean=100.0, target_std=20.0)
    rows = ask(net, table, "--level", 0.9)
    assert len(rows) == 2
    for row in rows:
        ((low, high),) = row["interval"]
        assert high - low == pytest.approx(2 * 1.6449 * row["std"][0], rel=1e-3)
        assert (low + high) / 2 == pytest.approx(row["mean"][0], rel=1e-4)
    assert "interval" in CliRunner().invoke(app, ["predict", str(net), str(table), "--level", "0.9"]).output


@pytest.mark.filterwarnings("ignore:.*not calibrated:UserWarning")
def test_predict_command_prints_sets_of_classes(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,b,target\n0.5,1,kind0\n-1,2,kind1\n")
    net = save_net(tmp_path / "net.pocket", 3)
    rows = ask(net, table, "--level", 0.9)
    sets = pb.predict(pb.load(net), torch.tensor([[0.5, 1.0], [-1.0, 2.0]])).sets(0.9)
    assert [row["set"] for row in rows] == [[f"kind{k}" for k in range(3) if row[k]] for row in sets.tolist()]
    refused = CliRunner().invoke(app, ["predict", str(net), str(table), "--level", "90"])
    assert refused.exit_code == 2


def test_predict_command_says_that_sets_are_not_calibrated(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n0.5,1\n")
    path = save_net(tmp_path / "net.pocket", 3)
    with pytest.warns(UserWarning, match="not calibrated: its sets and intervals"):
        ask(path, tmp_path / "rows.csv", "--level", 0.9)
    net = pb.load(path)
    x = torch.randn(60, 2)
    pb.save(fit_conformal(net, (x, torch.arange(60) % 3), samples=30), path)
    ask(path, tmp_path / "rows.csv", "--level", 0.9)  # warnings are errors


@pytest.mark.filterwarnings("ignore:.*another order:UserWarning")
def test_predict_command_reports_columns_in_another_order(tmp_path: Path) -> None:
    net = save_net(tmp_path / "net.pocket", 3, features=("a", "b"))
    (tmp_path / "rows.csv").write_text("a,b\n0.5,1\n")
    (tmp_path / "turned.csv").write_text("b,a\n1,0.5\n")
    (tmp_path / "renamed.csv").write_text("a,x\n0.5,1\n")
    assert ask(net, tmp_path / "rows.csv")[0]["probs"] == ask(net, tmp_path / "turned.csv")[0]["probs"]
    with pytest.warns(UserWarning, match="another order than in training"):
        found = CliRunner().invoke(app, ["predict", str(net), str(tmp_path / "turned.csv"), "--json"])
    assert "another order than in training" in json.loads(found.stdout)["warnings"][0]
    refused = CliRunner().invoke(app, ["predict", str(net), str(tmp_path / "renamed.csv")])
    assert refused.exit_code == 2
    assert "no column 'b'" in refused.output
