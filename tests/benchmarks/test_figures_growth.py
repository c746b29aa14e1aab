"""Figures of scaling: curves, and exponents of the last points."""

from __future__ import annotations

import pytest

from paper_figures.growth import Growth, power_laws


def test_growth_figure_has_a_panel_per_sweep_with_its_exponent() -> None:
    bent = [5.0, 5.0, 10.0, 100.0, 1000.0]
    places = [1.0, 10.0, 100.0, 1000.0, 10000.0]
    down = Growth("density", "seconds", [1.0, 0.1, 0.01], {"step": [4.0, 2.0, 1.0]})
    figure = power_laws([Growth("weights", "seconds", places, {"survey": bent}), down])
    first, second, empty = figure.axes
    curve, law = first.lines
    assert list(curve.get_ydata()) == bent
    assert law.get_ydata()[-1] == pytest.approx(1000)
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["survey: b = 1.00"]
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["step: b = 0.30"]
    assert not first.xaxis_inverted()
    assert second.xaxis_inverted()
    assert not empty.get_visible()
