"""Figures of sparse training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paper_figures import sparsity
from pocketbayes.reporting import figures

pytest.importorskip("matplotlib")

CURVES = {
    "SSVI": {0.5: [0.9, 0.92], 0.01: [0.5, 0.54], 0.1: [0.8, 0.8]},
    "RigL": {0.5: [0.91], 0.01: [0.4], 0.1: [0.7]},
}


def test_density_figure_averages_over_seeds(tmp_path: Path) -> None:
    figure = sparsity.density_curves({"accuracy": CURVES, "NLL": CURVES}, {"accuracy": {"dense VI": [0.93, 0.95]}})
    left, right = figure.axes
    ours, rigl, dense = left.get_lines()
    np.testing.assert_allclose(ours.get_xydata(), [[0.01, 0.52], [0.1, 0.8], [0.5, 0.91]])
    np.testing.assert_allclose(rigl.get_ydata(), [0.4, 0.7, 0.91])
    np.testing.assert_allclose(dense.get_ydata(), 0.94)
    assert len(right.get_lines()) == 2
    band = left.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == 0.5
    assert band[:, 1].max() == 0.92
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SSVI", "RigL", "dense VI"]
    assert figures.save(figure, tmp_path / "density.png").read_bytes().startswith(b"\x89PNG")


def test_matrix_figure_prints_every_number() -> None:
    matrix = [[1.0, 0.25], [0.25, 1.0]]
    figure = sparsity.overlap_matrices({"start": matrix, "end": [[1.0, 0.75], [0.75, 1.0]]}, ["magnitude", "abs-snr"])
    start, end, _ = figure.axes
    assert [text.get_text() for text in start.texts] == ["1.00", ".25", ".25", "1.00"]
    assert [text.get_text() for text in end.texts] == ["1.00", ".75", ".75", "1.00"]
    np.testing.assert_allclose(start.images[0].get_array(), matrix)


def test_overlap_figure_gives_every_pair_its_own_line() -> None:
    pairs = {f"pair {number}": [number / 10, number / 20] for number in range(10)}
    lines = sparsity.overlap_over_training([0, 100], pairs).axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == list(pairs.values())
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 10


def test_layer_density_figure_omits_empty_layers() -> None:
    runs = {"density 0.1": {"a.weight": 0.1, "b.weight": 0.0}, "density 0.5": {"a.weight": 0.4, "b.weight": 0.6}}
    panel = sparsity.layer_densities(runs).axes[0]
    np.testing.assert_allclose(panel.get_lines()[0].get_ydata(), [0.1, np.nan])
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a", "b"]
