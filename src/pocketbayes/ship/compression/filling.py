"""Filling a size: the finest codes that fit, for each number of members of a mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from pocketbayes.files.network_file import Packed
from pocketbayes.ship.compression.coding import Recipe

FINEST, COARSEST = 1e-5, 10.0
"""Lambdas between which a size is searched for."""
HALVINGS = 12
ATTEMPTS = 6
"""Files that are made, at most, until one fills a size."""
AIM = 0.997
CLOSE = 0.992
"""Shares of a size: what is aimed at, and what is close enough."""
SAME = 0.99
"""Share of a lambda from which on another counts as the same."""
PATIENCE = 2
"""Numbers of members in a row that may be worse than the best one before the search ends."""


def recipe_of_size(
    estimate: Callable[[Recipe, int], float],
    recipe: Recipe,
    count: int,
    size: float,
    low: float = FINEST,
    high: float = COARSEST,
    halvings: int = HALVINGS,
) -> Recipe:
    """Return the recipe with the lambda by which the codes of the first members should take a size, by bisection."""
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
    """Measure the finest codes within a size for ever fewer members, until fewer members no longer pay.

    Args:
        recipe: How to code it, but for lambda.
        limit: Bytes of a file.
        counts: Numbers of members that are tried, in this order.
        estimate: Estimates the bytes of the codes of the first members by a recipe.
        pack: Makes a file of the first members by a recipe.
        measure: Measures a file that fits and returns its loss.
    """
    # Batch norm, biases and what describes the network, less what the entropy coder gains: about so much per member.
    rest, losses = pack(recipe, 1).size - estimate(recipe, 1), [math.inf]
    for count in counts:
        found = None
        low, high = FINEST, COARSEST  # too large, and small enough
        for _ in range(ATTEMPTS):
            own = recipe_of_size(estimate, recipe, count, AIM * limit - rest * count, low, high)
            if (found is not None and own.lam > SAME * high) or (low > FINEST and own.lam < low / SAME):
                own = replace(recipe, lam=math.sqrt(low * high))  # the estimate is wrong about what has been tried
            packed = pack(own, count)
            rest = (packed.size - estimate(own, count)) / count
            if packed.size > limit:
                low = own.lam
            else:
                found, high = (packed, own), own.lam
                if packed.size >= CLOSE * limit or _is_finest(own):
                    break
            if low > SAME * high:
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
    return recipe.lam < 1.1 * FINEST
