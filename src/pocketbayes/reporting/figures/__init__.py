"""Figures for papers and reports, one function per figure.

A function takes numbers (tensors, arrays, dictionaries written by `evaluate` and the benchmarks), never runs a network,
and returns a matplotlib `Figure`; `save` writes it as PNG, SVG or PDF by the suffix of the name.
"""

from __future__ import annotations

from pocketbayes.reporting.figures.style import PALETTE, canvas, save

__all__ = ["PALETTE", "canvas", "save"]
