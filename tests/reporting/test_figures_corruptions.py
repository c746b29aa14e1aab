"""The contact sheet of corruptions."""

from __future__ import annotations

import numpy as np
import pytest

from pocketbayes.reporting.figures.corruptions import contact_sheet


@pytest.mark.parametrize("shape", [(6, 6, 3), (6, 9, 1), (6, 9)])
def test_corruption_figure_shows_undistorted_pictures(shape: tuple[int, ...]) -> None:
    pictures = {f"name_{i}": [np.full(shape, 10 * i + s, np.uint8) for s in range(5)] for i in range(19)}
    figure = contact_sheet(pictures, np.full(shape, 255, np.uint8))
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert sorted(int(panel.images[0].get_array().ravel()[0]) for panel in shown) == sorted(
        [10 * i + s for i in range(19) for s in range(5)] + [255]
    )
    width, height = figure.get_size_inches()
    for panel in shown:
        box = panel.get_position()
        assert 0 <= box.x0 < box.x1 <= 1
        assert 0 <= box.y0 < box.y1 <= 1
        assert (box.height * height) / (box.width * width) == pytest.approx(shape[0] / shape[1])
    boxes = [panel.get_position() for panel in shown]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    words = [text.get_text() for text in figure.texts]
    assert {"name\n0", "name\n18", "original", "severity"} <= set(words)
    assert words.count("5") == 2
