"""`pocketbayes adapt`: from a trained network to a small, calibrated file in one command."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app


@pytest.mark.filterwarnings("ignore:.*leave the temperature between")
def test_adapt_makes_file_graph_and_report(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = pb.models.build("mlp", in_features=64, hidden=[32], out_features=10)
    net = pb.fit("map", model, pb.data.load("digits", "train"), epochs=8, lr=1e-2, progress=False)
    pb.save(net, tmp_path / "net.pocket")
    out = tmp_path / "small.pocket"
    ask = ["adapt", str(tmp_path / "net.pocket"), "--data", "digits", "--out", str(out), "--samples", "3", "--json"]
    found = CliRunner().invoke(app, ask, catch_exceptions=False)
    result = json.loads(found.stdout)
    assert result["bytes"]["file"] == out.stat().st_size < result["plain_bytes"] / 2
    assert result["measures"]["after"]["accuracy"] > result["measures"]["before"]["accuracy"] - 0.05
    assert out.with_suffix(".onnx").is_file()
    assert out.with_suffix(".html").is_file()
    small = pb.load(out)
    assert small.conformal is not None
    assert pb.predict(small, torch.zeros(1, 1, 8, 8)).sets(0.9).any()


def test_adapt_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    ask = ["adapt", "mlp", "--data", "digits", "--out", str(tmp_path / "small.pocket")]
    assert "--weights" in str(CliRunner().invoke(app, ask).output)
