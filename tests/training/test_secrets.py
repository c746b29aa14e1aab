"""Secrets of the environment do not appear in files or output of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbayes.cli import app

SECRET = "hf_qQ7secret7Qq"
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PASSWORD")


def test_secrets_appear_in_no_file_or_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    commands = (
        ["train", "digits-map", "--out", "run", "--set", "training.epochs=1", "--json"],
        ["evaluate", "run", "--json"],
        ["inspect", "run", "--json"],
        ["report", "run", "--out", "report.html"],
        ["predict", "run", "nothing.png"],
        ["train", "nothing"],
    )
    said = [CliRunner().invoke(app, command) for command in commands]
    assert [answer.exit_code for answer in said] == [0, 0, 0, 0, 2, 2], [answer.output[-300:] for answer in said]
    for answer in said:
        assert SECRET not in answer.output
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.name for file in written} >= {"model.pocket", "recipe.yaml", "evaluation.json", "report.html"}
    for file in written:
        assert SECRET.encode() not in file.read_bytes(), file
