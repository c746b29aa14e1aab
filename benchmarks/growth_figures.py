"""Draws docs/figures/growth.png from results/growth.json.

python benchmarks/growth_figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

from measure import RESULTS
from pocketbayes import figures
from pocketbayes.figures.growth import Growth, power_laws

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
COSTS = {"seconds": "CPU seconds", "megabytes": "MB above the weights"}
SIZES = {"gaussians": "Gaussians"}


def main() -> None:
    sweeps = json.loads((RESULTS / "growth.json").read_text())["sweeps"]
    panels = [
        Growth(SIZES.get(name, name), COSTS[cost], part["places"], {key: row["values"] for key, row in curves.items()})
        for name, part in sweeps.items()
        for cost, curves in part["costs"].items()
    ]
    print(figures.save(power_laws(panels), FOLDER / "growth.png").name)


if __name__ == "__main__":
    main()
