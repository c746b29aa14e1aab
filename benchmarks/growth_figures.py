"""Draw docs/figures/growth.png from results/growth.json.

python benchmarks/growth_figures.py
"""

from __future__ import annotations

from typing import Any

from measure import Rows, draw
from paper_figures.growth import Growth, power_laws

COSTS = {"seconds": "CPU seconds", "megabytes": "MB above the weights"}
SIZES = {"gaussians": "Gaussians"}


def growth() -> Any:
    panels = [
        Growth(SIZES.get(name, name), COSTS[cost], part["places"], {key: row["values"] for key, row in curves.items()})
        for name, part in Rows("growth", key="sweeps").items()
        for cost, curves in part["costs"].items()
    ]
    return power_laws(panels) if panels else None


if __name__ == "__main__":
    draw({"growth": growth})
