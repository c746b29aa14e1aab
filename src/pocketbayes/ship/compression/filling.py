"""Search for the finest codes that fit a size, for each number of members of a mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pocketbayes.files.network_file import Packed
from pocketbayes.ship.compression.coding import Recipe

FINEST_LAMBDA, COARSEST_LAMBDA = 1e-5, 10.0
"""The range of lambda that is searched."""
HALVINGS = 12
MAX_FILES = 6
"""Largest number of files made to fill a size."""
TARGET_FRACTION = 0.997
CLOSE_FRACTION = 0.992
"""Fractions of a size: the target of an estimate, and a file that is close enough."""
SAME_LAMBDA_RATIO = 0.99
"""Ratio of two lambdas above which they count as equal."""
PATIENCE = 2
"""Number of consecutive member counts without improvement after which the search ends."""


def recipe_of_size(
    estimate: Callable[[Recipe, int], float],
    recipe: Recipe,
    count: int,
    size: float,
    low: float = FINEST_LAMBDA,
    high: float = COARSEST_LAMBDA,
    halvings: int = HALVINGS,
) -> Recipe:
    """Return the recipe with the lambda at which the codes of the first members are expected to take `size` bytes."""
    for _ in range(halvings):
        middle = math.sqrt(low * high)
        if estimate(replace(recipe, lam=middle), count) > size:
            low = middle
        else:
            high = middle
    return replace(recipe, lam=high)


def fill(
    recipe: Recipe,
    limit: int,
    counts: Iterable[int],
    estimate: Callable[[Recipe, int], float],
    pack: Callable[[Recipe, int], Packed],
    measure: Callable[[Packed, Recipe, int], float],
) -> None:
    """Measure the finest codes within a size for each number of members, until fewer members no longer help.

    Args:
        recipe: The settings of the coding, except lambda.
        limit: The size in bytes.
        counts: The numbers of members to try, in this order.
        estimate: Estimates the bytes of the codes of the first members.
        pack: Makes a file of the first members.
        measure: Measures a file that fits and returns its loss.
    """
    # Bytes per member besides the estimate: batch norm, biases and the description, minus the entropy coder's gain.
    rest, losses = pack(recipe, 1).size - estimate(recipe, 1), [math.inf]
    for count in counts:
        found = None
        low, high = FINEST_LAMBDA, COARSEST_LAMBDA  # a lambda whose file is too large, and one whose file fits
        for _ in range(MAX_FILES):
            own = recipe_of_size(estimate, recipe, count, TARGET_FRACTION * limit - rest * count, low, high)
            if (found is not None and own.lam > SAME_LAMBDA_RATIO * high) or (
                low > FINEST_LAMBDA and own.lam < low / SAME_LAMBDA_RATIO
            ):
                own = replace(recipe, lam=math.sqrt(low * high))  # the estimate repeats a lambda already tried
            packed = pack(own, count)
            rest = (packed.size - estimate(own, count)) / count
            if packed.size > limit:
                low = own.lam
            else:
                found, high = (packed, own), own.lam
                if packed.size >= CLOSE_FRACTION * limit or _is_finest(own):
                    break
            if low > SAME_LAMBDA_RATIO * high:
                break
        if found is not None:
            losses.append(measure(*found, count))
            if _is_finest(found[1]):
                return
        if min(losses[-PATIENCE:]) > min(losses):
            return
    if len(losses) == 1:
        measure(packed, own, count)  # nothing fits: the error names the smallest file


def _is_finest(recipe: Recipe) -> bool:
    return recipe.lam < 1.1 * FINEST_LAMBDA
