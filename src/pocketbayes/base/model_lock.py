"""The lock of models: a pass puts weights into a model, so threads take turns, readers included."""

from __future__ import annotations

import copy
from threading import RLock
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)

MODEL_LOCK = RLock()
"""Held while a thread has weights in a model, changes its mode, or reads or copies what it holds."""


def copy_model(model: Model) -> Model:
    """Copy a model while no thread has weights in it."""
    with MODEL_LOCK:
        return copy.deepcopy(model)
