"""Figures of uncertainty without sampling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paper_figures import propagation
from pocketbayes.reporting import figures

pytest.importorskip("matplotlib")


def test_fidelity_figure_has_a_line_per_propagation(tmp_path: Path) -> None:
    layers = {
        "moments": {"conv1": 1.0, "pool": 0.3, "head": 0.5},
        "moments-exact": {"conv1": 1.0, "pool": 0.3, "head": 0.4},
    }
    figure = propagation.fidelity_by_layer({"LeNet-5": layers, "ResNet-20": layers})
    assert len(figure.axes) == 2
    moments, exact, one = figure.axes[0].get_lines()
    assert moments.get_ydata().tolist() == [1.0, 0.3, 0.5]
    assert exact.get_ydata().tolist()[-1] == 0.4
    assert list(one.get_ydata()) == [1, 1]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["conv1", "pool", "head"]
    assert figures.save(figure, tmp_path / "fidelity.png").read_bytes().startswith(b"\x89PNG")


def test_samples_figure_draws_single_passes_as_lines() -> None:
    row = {"nll": 0.3, "ece": 0.02, "auroc, entropy": 0.9}
    ways = {"30 samples": row, "5 samples": {**row, "nll": 0.4}, "moments": {**row, "nll": 0.35}, "mean": {"nll": 0.5}}
    figure = propagation.pass_worth({"SSVI": ways, "PBN": ways})
    assert len(figure.axes) == 6
    samples, moments, mean = figure.axes[0].get_lines()
    np.testing.assert_allclose(samples.get_xydata(), [[5, 0.4], [30, 0.3]])
    assert list(moments.get_ydata()) == [0.35, 0.35]
    assert list(mean.get_ydata()) == [0.5, 0.5]
    assert len(figure.axes[1].get_lines()) == 2  # the mean has no ECE here
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["weight samples", "moments", "mean"]


def test_pruning_figure_averages_over_seeds() -> None:
    rows = [
        [{"pruned": 0.0, "accuracy": a, "nll": 1.0}, {"pruned": 0.9, "accuracy": a / 2, "nll": 1.0}] for a in (0.8, 1)
    ]
    figure = propagation.pruning({"magnitude": {"map": rows[:1], "vdp": rows}, "snr": {"vdp": rows}})
    left, right = figure.axes
    np.testing.assert_allclose(left.get_lines()[1].get_xydata(), [[0, 90], [90, 45]])
    assert right.get_lines()[0].get_color() == left.get_lines()[1].get_color()  # a method has one colour


def test_noise_figure_shows_only_existing_variances() -> None:
    rows = [{"db": -6.0, "accuracy": 0.5, "variance": 0.02, "relative variance": 1.0}]
    rows.append({"db": 20.0, "accuracy": 0.9, "variance": 0.01, "relative variance": 0.5})
    plain = [{**row, "variance": 0.0, "relative variance": 0.0} for row in rows]
    figure = propagation.noise({"map": plain, "vdp": rows})
    assert len(figure.axes[0].get_lines()) == 2
    (line,) = figure.axes[1].get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[-6, 1], [20, 0.5]])


def test_explanation_figure_has_a_box_per_method() -> None:
    values = {"map": [0.1, 0.2, 0.3], "vdp": [0.01, 0.02, 0.05]}
    figure = propagation.explanations({"Infidelity": values, "Sensitivity-max": values})
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["map", "vdp"]
    assert len(figure.axes[0].patches) == 2
