"""Networks as files: the .pocket format, its entropy codes, and the container of checkpoints."""
