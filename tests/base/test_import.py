"""`import pocketbayes` is fast: slow modules are imported on use."""

from __future__ import annotations

import json
import subprocess
import sys

SLOW = ("lightning_fabric", "torchmetrics", "sklearn", "scipy", "matplotlib", "torchvision", "timm", "rich", "typer",
        "pydantic", "plotly", "laplace", "torch._dynamo", "torch._inductor", "sympy")  # fmt: skip


def test_import_loads_nothing_slow_beyond_torch() -> None:
    code = f"""
import json, sys
import torch
before = set(sys.modules)
import pocketbayes
print(json.dumps([name for name in {SLOW!r} if name in sys.modules and name not in before]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
