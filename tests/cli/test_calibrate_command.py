"""`pocketbayes calibrate` writes the calibration into the run's file."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app


def test_calibrate_command_replaces_the_file_of_a_run(tmp_path: Path) -> None:
    run = CliRunner().invoke
    folder = str(tmp_path / "run")
    made = run(app, ["train", "digits-map", "--out", folder, "--epochs", "2", "--json"])
    assert made.exit_code == 0, made.output
    found = run(app, ["calibrate", folder, "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    net = pb.load(folder)
    assert net.calibration is not None
    assert told["calibration"]["temperature"] == net.calibration.temperature
    assert told["after"]["nll"] <= told["before"]["nll"] + 1e-3
    shown = json.loads(run(app, ["inspect", folder, "--json"]).stdout)
    assert shown["networks"][0]["calibration"]["temperature"] == net.calibration.temperature
