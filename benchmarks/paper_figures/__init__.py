"""Figures that only the papers' trials need: numbers in, a matplotlib figure out."""
