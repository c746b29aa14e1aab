"""Every seed that is derived from another one.

Runs are resumed, and results repeated, from the user's one seed: the numbers that these functions return must not
change from one release to the next.
"""

from __future__ import annotations

import random

import numpy as np

from pocketbayes.base.randomness import seed_torch

MASK = 0x7FFFFFFF
"""Seeds lie in [0, 2^31), which every generator takes."""
TURN = 1_000_003
RANK = 7919


def derive_seed(*numbers: int) -> int:
    """Derive a seed from several integers, such as a run's seed, stage and epoch."""
    return hash(numbers) & MASK


def turn_seed(seed: int, turn: int) -> int:
    """Return the seed of another pass over the data in its own order."""
    return (seed + TURN * turn) & MASK


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of the noise of one process among several."""
    return seed + RANK * rank


def pass_seed(seed: int, number: int) -> int:
    """Return the seed of one pass of a prediction."""
    return (seed * TURN + number) % 2**64


def seed_generators(seed: int) -> None:
    """Seed what this thread draws from, and the generators of numpy and Python: a transform may use any of them."""
    seed_torch(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (the global generator is what user code may use)
    random.seed(seed)
