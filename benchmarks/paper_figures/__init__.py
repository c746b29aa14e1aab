"""Figures for the papers' experiments; functions take numbers and return a matplotlib figure."""
