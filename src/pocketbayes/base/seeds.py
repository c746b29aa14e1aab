"""Seeds derived from the user's seed.

Runs are resumed and results reproduced from these numbers, so they must not change between releases.
"""

from __future__ import annotations

import random
import zlib

import numpy as np

from pocketbayes.base.randomness import seed_torch

MASK = 0x7FFFFFFF
"""Seeds lie in [0, 2^31), which every generator takes."""
TURN = 1_000_003
RANK = 7919
FILE_OFFSET = 1 << 32
"""NumPy simulates data with the generator of our splits. With equal seeds, often 0, the rows of a simulated file would
be split by the values of a column."""


def derive_seed(*numbers: int) -> int:
    """Derive a seed from several integers, such as a run's seed, stage and epoch."""
    return hash(numbers) & MASK


def turn_seed(seed: int, turn: int) -> int:
    """Return the seed of a further pass over the data, in another order."""
    return (seed + TURN * turn) & MASK


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of the noise of one process among several."""
    return seed + RANK * rank


def pass_seed(seed: int, number: int) -> int:
    """Return the seed of one pass of a prediction."""
    return (seed * TURN + number) % 2**64


def repeat_seed(seed: int, number: int) -> int:
    """Return the seed of a repetition, such as a further epoch, round or check."""
    return seed + number


def split_seed(seed: int, split: str) -> int:
    """Return the seed of the drawn rows of a split, "train" or "val", different from those of other seeds."""
    return 3 * seed + (1 if split == "train" else 2)


def file_seed(seed: int) -> int:
    """Return the seed of the split of a user's file."""
    return seed + FILE_OFFSET


def image_generator(seed: int, corruption: str, severity: int, index: int) -> np.random.Generator:
    """Return the generator of one image's corruption, independent of its batch."""
    return np.random.default_rng([seed, zlib.crc32(corruption.encode()), severity, index])


def seed_generators(seed: int) -> None:
    """Seed this thread's generators and those of numpy and Python, since a transform may use any of them."""
    seed_torch(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (the global generator is what user code may use)
    random.seed(seed)
