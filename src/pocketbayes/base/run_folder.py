"""The names of the files in a run folder."""

from __future__ import annotations

MODEL_FILE = "model.pocket"
"""The trained network."""
METRICS_FILE = "metrics.jsonl"
"""One line per epoch."""
CHECKPOINT_FILE = "checkpoint.safetensors"
"""The state of the run; older checkpoints, if kept, are checkpoint-1.safetensors and so on."""
RECIPE_FILE = "recipe.yaml"
"""The recipe of the run."""
EVALUATION_FILE = "evaluation.json"
"""The measurements of the trained network."""
TUNING_FILE = "tuning.json"
"""The choices of `fit(tune=True)`."""
LOCK_FILE = ".lock"
"""The lock of the process that trains in the folder."""
