"""Memory stays flat over many predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper_figures.memory import memory

if not Path("/proc/self/statm").exists():
    pytest.skip("resident memory is read from /proc, which only Linux has", allow_module_level=True)
load = __import__("load")


@pytest.fixture(scope="module")
def net() -> object:
    return load.network()


def test_evaluate_holds_memory_flat(net: object) -> None:
    """40 000 images of 16 x 16 would take 41 MB, their probabilities over 30 samples 48 MB."""
    curve, measures = load.evaluated(net, 40_000)
    assert len(curve) == 40
    assert measures["accuracy"] > 0.5
    assert load.summary(curve)["growth in MB"] < 12


def test_predict_leaks_nothing_on_small_inputs(net: object) -> None:
    """A leak of one prediction's tensors would be about 2 kB per call."""
    assert load.summary(load.predicted(net, 1000))["bytes for each"] < 1024


def test_load_benchmark_detects_a_leak() -> None:
    curve = [(call, 500 + call * 2048 / 2**20) for call in range(1, 1001)]
    assert load.summary(curve)["bytes for each"] == pytest.approx(2048, rel=1e-3)
    assert load.summary(curve)["growth in MB"] == pytest.approx(1.76, rel=0.01)


def test_load_figure_starts_at_zero() -> None:
    figure = memory({"images": [(0, 100.0), (10, 101.0)], "calls": [(0, 90.0), (5, 90.0)]})
    for panel, points in zip(figure.axes, ([100.0, 101.0], [90.0, 90.0])):
        assert panel.get_ylim()[0] == 0
        assert list(panel.lines[0].get_ydata()) == points
