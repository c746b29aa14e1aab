"""Predictions, calibration, metrics and the evaluation suite."""
