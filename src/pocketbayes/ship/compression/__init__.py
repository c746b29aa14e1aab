"""Compression of networks to a budget by entropy-constrained codes, from fine to coarse."""

from __future__ import annotations

from pocketbayes.ship.compression.budgets import compress
from pocketbayes.ship.compression.trials import Budget, Compressed, Trial, choose, frontier

__all__ = ["Budget", "Compressed", "Trial", "choose", "compress", "frontier"]
