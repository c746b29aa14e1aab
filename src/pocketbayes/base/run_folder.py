"""The names of the files in the folder of a run: who wrote and who reads them agree here."""

from __future__ import annotations

MODEL_FILE = "model.pocket"
"""The trained network."""
METRICS_FILE = "metrics.jsonl"
"""A line for every epoch."""
CHECKPOINT_FILE = "checkpoint.safetensors"
"""Where the run stands; older ones, where they are kept, are checkpoint-1.safetensors and so on."""
RECIPE_FILE = "recipe.yaml"
"""What was asked for."""
EVALUATION_FILE = "evaluation.json"
"""What was measured of the trained network."""
LOCK_FILE = ".lock"
"""Who trains in the folder."""
