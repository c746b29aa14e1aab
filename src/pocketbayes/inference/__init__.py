"""From a network to answers and their measures: predictions, calibration, metrics, the evaluation suite."""
