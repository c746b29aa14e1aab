"""Figures of partial Bayesian networks, regression and segmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paper_figures import partial, regression, segmentation
from pocketbayes.reporting import figures

pytest.importorskip("matplotlib")


def test_partial_figure_bands_are_three_stds_wide(tmp_path: Path) -> None:
    grid = np.linspace(-6, 6, 13)
    curves = {"deterministic": (grid, np.ones(13)), "VI": (grid, 2 * np.ones(13))}
    figure = regression.regression_bands(grid, curves, ([0.0], [1.0]), grid**3, (-4, 4))
    left, right = figure.axes
    for panel, height in ((left, 3), (right, 6)):
        band = panel.collections[0].get_paths()[0].vertices
        at_zero = band[np.isclose(band[:, 0], 0)][:, 1]
        np.testing.assert_allclose([at_zero.min(), at_zero.max()], [-height, height])
    assert [panel.get_title() for panel in figure.axes] == list(curves)
    assert figures.save(figure, tmp_path / "bands.png").read_bytes().startswith(b"\x89PNG")


def test_partial_figure_shows_mean_and_range_over_seeds() -> None:
    curves = {"Brier": {0.05: [0.1, 0.3], 0.01: [0.4, 0.4]}}
    figure = partial.measures_by_rate(curves, {"Brier": {"ensemble": [0.1, 0.2]}})
    line, other = figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[1, 0.4], [5, 0.2]])
    np.testing.assert_allclose(other.get_ydata(), 0.15)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == 0.1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["PBN", "ensemble"]


def test_partial_figure_has_a_point_per_network() -> None:
    points = {f"network {number}": (10.0**number, 90 + number) for number in range(10)}
    lines = partial.accuracy_by_flops(points).axes[0].get_lines()
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines] == list(points.values())
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 10


def test_convergence_figure_has_a_line_per_network() -> None:
    curves = {"PBN": [{"step": 20, "accuracy": 0.9, "nll": 0.3}, {"step": 40, "accuracy": 0.91, "nll": 0.2}]}
    left, right = partial.convergence(curves, ("accuracy", "nll")).axes
    assert left.get_lines()[0].get_xydata().tolist() == [[20, 0.9], [40, 0.91]]
    assert right.get_lines()[0].get_ydata().tolist() == [0.3, 0.2]


def test_weight_histograms_have_equal_area_and_name_the_test() -> None:
    layer = {"PBN": [1, 3], "ensemble": [10, 10], "low": -1.0, "high": 1.0, "ks statistic": 0.25, "p": 0.04}
    panel = partial.weight_distributions({"fc": layer}, ("PBN", "ensemble")).axes[0]
    ours, theirs = (patch.get_data().values for patch in panel.patches)
    np.testing.assert_allclose(ours, [0.25, 0.75])
    np.testing.assert_allclose(theirs, [0.5, 0.5])
    assert "KS 0.250, p = 0.040" in panel.get_title()


def test_image_figure_has_a_column_per_network() -> None:
    truth = np.array([[0, 1, 2], [2, 1, 3]])
    entropy = np.full((2, 3), 0.5)
    answers = {"deterministic": (truth % 3, entropy), "PBN": (truth % 3, 2 * entropy)}
    figure = segmentation.segmentation_row(np.zeros((2, 3, 3)), truth, answers, classes=3)
    image, first, second, mask, below, last = figure.axes[:6]
    assert [panel.get_title() for panel in (image, first, second)] == ["image", *answers]
    assert mask.images[0].get_array().mask.sum() == 1
    np.testing.assert_array_equal(first.images[0].get_array(), truth % 3)
    assert below.images[0].get_clim() == last.images[0].get_clim() == (0, 1)


def test_class_figure_has_a_bar_per_class_and_network() -> None:
    figure = segmentation.iou_bars({"deterministic": [0.5, 0.7], "PBN": [0.4, 0.6]}, ["sky", "road"])
    panel = figure.axes[0]
    assert [round(bar.get_height(), 2) for bar in panel.patches] == [0.5, 0.7, 0.4, 0.6]
    np.testing.assert_allclose([line.get_ydata()[0] for line in panel.get_lines()], [0.6, 0.5])
