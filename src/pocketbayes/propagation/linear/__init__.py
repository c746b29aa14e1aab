"""The delta method: one backward pass gives the variance of the outputs, every correlation kept."""
