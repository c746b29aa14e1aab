"""Figures for papers and reports: numbers in, a matplotlib `Figure` out, one function a figure, one file a subject.

A function here takes plain numbers (tensors, arrays, the dictionaries that `evaluate` and the benchmarks write), never
runs a network, and returns the figure; `save` writes it as PNG, SVG or PDF, by the ending of the name.
"""

from __future__ import annotations

from pocketbayes.reporting.figures.style import PALETTE, canvas, save

__all__ = ["PALETTE", "canvas", "save"]
