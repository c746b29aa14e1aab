"""The software and hardware behind a measurement, without host names or paths."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PEERS = ("bayesian-torch", "torch-uncertainty", "blitz-bayesian-pytorch", "ivon-opt", "fastbnns", "laplace-torch")
PACKAGES = frozenset({"torch", "torchvision", "numpy", "scikit-learn", "pocketbayes", *PEERS})


def environment() -> dict[str, Any]:
    """Return the versions of relevant packages, the processor, the thread count and the date."""
    installed = {d.name.lower().replace("_", "-"): d.version for d in metadata.distributions() if d.name}
    return {
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in sorted(PACKAGES & set(installed))},
        "cpu": _processor(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
