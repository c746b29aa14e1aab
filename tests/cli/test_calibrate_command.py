"""`pocketbayes calibrate` writes the calibration into the run's file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app


def test_calibrate_command_replaces_the_file_of_a_run(tmp_path: Path) -> None:
    run = CliRunner().invoke
    folder = str(tmp_path / "run")
    made = run(app, ["train", "digits-map", "--out", folder, "--epochs", "2", "--json"])
    assert made.exit_code == 0, made.output
    assert "none (pocketbayes calibrate" in run(app, ["inspect", folder]).stdout
    found = run(app, ["calibrate", folder, "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    net = pb.load(folder)
    assert net.calibration is not None
    assert told["calibration"]["temperature"] == net.calibration.temperature
    assert told["after"]["nll"] <= told["before"]["nll"] + 1e-3
    shown = json.loads(run(app, ["inspect", folder, "--json"]).stdout)
    assert shown["networks"][0]["calibration"]["temperature"] == net.calibration.temperature
    assert shown["networks"][0]["prediction_sets"]["count"] == net.calibration.examples
    assert f"fitted on {net.calibration.examples} examples" in run(app, ["inspect", folder]).stdout


@pytest.mark.filterwarnings("ignore:.*examples leave the temperature")
def test_predict_command_takes_adaptive_passes(tmp_path: Path) -> None:
    run = CliRunner().invoke
    folder, file = str(tmp_path / "run"), str(tmp_path / "three.pocket")
    settings = ["--epochs", "4", "--set", "method.members=3"]
    made = run(app, ["train", "digits-ensemble", "--out", folder, *settings, "--json"])
    assert made.exit_code == 0, made.output
    refused = run(app, ["evaluate", folder, "--adaptive"])
    assert refused.exit_code == 2
    assert "fit_stopping" in refused.output.replace("\n", " ")
    found = run(app, ["calibrate", folder, "--out", file, "--data", "digits", "--adaptive", "--json"])
    assert found.exit_code == 0, found.output
    rule = json.loads(found.stdout)["stopping"]
    assert rule["steps"] == [1, 2, 3]
    assert pb.load(file).stopping == rule
    measured = run(app, ["evaluate", file, "--data", "digits", "--adaptive", "--json"])
    assert measured.exit_code == 0, measured.output
    expected = pb.evaluate(pb.load(file), pb.data.load("digits", "test"), adaptive=True)
    measures = json.loads(measured.stdout)["results"][0]["measures"]
    assert measures["passes"] == expected["passes"]
    assert (tmp_path / "three.adaptive.evaluation.json").is_file()
    images = tmp_path / "x.npy"
    np.save(images, pb.data.load("digits", "test").images[:4].numpy())
    answered = run(app, ["predict", file, str(images), "--adaptive", "--json"])
    assert answered.exit_code == 0, answered.output
    assert {row["passes"] for row in json.loads(answered.stdout)["predictions"]} <= {1, 2, 3}


def test_calibrate_command_prints_only_what_changed(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,y\n" + "".join(f"{i},{i / 2}\n" for i in range(100)))
    model = pb.models.build("mlp", in_features=1, hidden=[4], out_features=1)
    net = pb.fit("map", model, pb.data.load("npz", "train", path=str(table)), epochs=1, progress=False)
    pb.save(net, tmp_path / "net.pocket")
    command = ["calibrate", str(tmp_path / "net.pocket"), "--data", str(table)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert "intervals from" in result.stdout  # draws of a regression have no other calibration
    assert "before" not in result.stdout
