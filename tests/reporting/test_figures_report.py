"""The report's figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbayes.reporting.figures.evaluation import (
    confidence_boxes,
    ood_histograms,
    reliability,
    risk_coverage,
    shift_curves,
)
from pocketbayes.reporting.figures.tradeoff import beside, pareto, pareto_front
from pocketbayes.reporting.figures.training import layer_fractions, sigma_map, training_curves

pytest.importorskip("matplotlib")

ROWS: list[dict[str, Any]] = [
    {"severity": 2, "accuracy": 0.7, "nll": 0.9, "entropy_right": 0.2, "entropy_wrong": None},
    {"severity": 1, "accuracy": 0.8, "nll": 0.5, "entropy_right": 0.1, "entropy_wrong": 0.6},
]


def drawn(figure: Any) -> None:
    """Lay out and render the figure, which fails if something cannot be drawn."""
    figure.canvas.draw()


def test_reliability_diagram_draws_every_filled_bin() -> None:
    diagram = {"confidence": [None, 0.4, 0.9], "accuracy": [None, 0.5, 0.7], "count": [0, 10, 30]}
    figure = reliability({"a": diagram, "b": diagram})
    panel = figure.axes[0]
    bars, gaps = panel.containers
    assert [bar.get_height() for bar in bars] == [0.5, 0.7]
    assert [bar.get_height() for bar in gaps] == pytest.approx([-0.1, 0.2])
    assert [bar.get_x() for bar in bars] == pytest.approx([1 / 3, 2 / 3])
    assert "0.175" in panel.get_title()  # (10 * 0.1 + 30 * 0.2) / 40
    drawn(figure)


def test_box_figure_stands_at_its_quantiles() -> None:
    figure = confidence_boxes({"cat": [0.1, 0.2, 0.5, 0.8, 0.9, 40], "dog": [0.3, 0.4, 0.6, 0.7, 1.0, 40]}, "net")
    panel = figure.axes[0]
    assert len(panel.patches) == 2
    assert panel.patches[0].get_path().get_extents().intervaly.tolist() == pytest.approx([0.2, 0.8])
    assert [label.get_text() for label in panel.get_xticklabels()] == ["cat", "dog"]
    drawn(figure)


def test_risk_figure_draws_risk_over_coverage() -> None:
    figure = risk_coverage(
        {"a": {"coverage": [0.5, 1.0], "risk": [0.0, 0.1], "area": 0.05}, "b": {"coverage": [1.0], "risk": [0.2]}}
    )
    first, second = figure.axes[0].lines
    assert first.get_xydata().tolist() == [[0.5, 0.0], [1.0, 0.1]]
    assert first.get_label() == "a (area 0.0500)"
    assert second.get_label() == "b"
    drawn(figure)


def test_histogram_figure_shows_shares() -> None:
    figure = ood_histograms(
        {"a": {"score": "entropy", "edges": [0, 1, 2], "inside": [3, 1], "outside": [0, 2]}}, "in", "out"
    )
    panel = figure.axes[0]
    assert [patch.get_data().values.tolist() for patch in panel.patches[1::2]] == [[0.75, 0.25], [0.0, 1.0]]
    assert panel.get_xlabel() == "entropy"
    drawn(figure)


def test_shift_figure_has_a_panel_per_measure() -> None:
    figure = shift_curves({"a": ROWS, "b": ROWS})
    accuracy, nll, apart = figure.axes
    assert [panel.get_title() for panel in (accuracy, nll)] == ["accuracy", "NLL"]
    assert [line.get_xydata().tolist() for line in accuracy.lines] == [[[1, 0.8], [2, 0.7]]] * 2
    right, wrong = apart.lines[:2]
    assert right.get_ydata() == pytest.approx([0.1, 0.2])
    assert wrong.get_ydata() == pytest.approx([0.6])
    assert right.get_color() == wrong.get_color()
    drawn(figure)


def test_training_figure_separates_nll_and_kl() -> None:
    rows = [{"nll": 3.0, "kl": 0.0, "val_nll": 3.5}, {"nll": 0.1, "kl": 50.0, "val_nll": 0.4}]
    figure = training_curves({"a": rows, "empty": []})
    nll, kl = figure.axes
    assert [line.get_ydata().tolist() for line in nll.lines] == [[3.0, 0.1], [3.5, 0.4]]
    assert [line.get_xydata().tolist() for line in kl.lines] == [[[2, 50.0]]]
    assert nll.get_yscale() == "log"
    drawn(figure)


def test_layer_figure_shows_fractions_and_stds() -> None:
    figure = layer_fractions(
        [{"name": "w", "present": 0.5, "random": 0.25}, {"name": "v", "present": 1.0, "random": 0.0}]
    )
    assert [[bar.get_width() for bar in bars] for bars in figure.axes[0].containers] == [[0.5, 1.0], [0.25, 0.0]]
    drawn(figure)
    figure = sigma_map(np.array([[0.0, 0.1, np.nan], [0.3, 0.2, np.nan]]), "first")
    points, stds = figure.axes[0].images
    assert points.get_array().filled(np.nan).tolist()[0][0] == 0.0
    assert stds.get_array().mask.tolist() == [[True, False, True], [False, False, True]]
    drawn(figure)


def test_front_figure_connects_undominated_points() -> None:
    points = {"small": (1.0, 3.0), "good": (4.0, 1.0), "beaten": (5.0, 2.0), "as good": (6.0, 1.0)}
    figure = pareto(points, "bytes")
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1.0, 3.0], [4.0, 1.0]]
    assert len(figure.axes[0].lines) == 1 + len(points)
    drawn(figure)
    families = pareto({"a, 4 bits": (1.0, 3.0), "a, 5 bits": (4.0, 1.0), "b": (5.0, 2.0)}, "bytes").axes[0]
    assert [text.get_text() for text in families.legend_.texts] == ["front", "a", "b"]
    assert [text.get_text() for text in families.texts] == ["4 bits", "5 bits"]


def test_labels_cover_neither_points_nor_labels() -> None:
    places = {str(number): (100.0, 100.0 + 4 * number) for number in range(6)} | {"far": (200.0, 100.0)}
    sizes = dict.fromkeys(places, (30.0, 7.0))
    found = beside(places, sizes, left=60)
    boxes = [
        (places[n][0] + dx, places[n][1] + dy, places[n][0] + dx + 30, places[n][1] + dy + 7)
        for n, (dx, dy) in found.items()
    ]
    points = [(x - 3, y - 3, x + 3, y + 3) for x, y in places.values()]
    for number, (left, bottom, right, top) in enumerate(boxes):
        assert left >= 60
        for other in [*points, *boxes[:number]]:
            assert left >= other[2] or other[0] >= right or bottom >= other[3] or other[1] >= top
    assert found["far"] == (6.0, -2.5)  # room enough: right beside it
    assert beside({"edge": (70.0, 0.0)}, {"edge": (30.0, 7.0)}, left=60)["edge"][0] > 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_front_agrees_with_its_definition(points: list[tuple[float, float]]) -> None:
    def beaten(x: float, y: float) -> bool:
        return any(a <= x and b <= y and (a, b) != (x, y) for a, b in points)

    assert pareto_front(points) == sorted({point for point in points if not beaten(*point)})
