"""A factor for the variance of moments and of the delta method, fitted on validation data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.batches import as_source, batches
from pocketbayes.inference.passes import ClassPasses, Passed, RealPasses
from pocketbayes.inference.prediction import outputs_of, passes_for, scaled
from pocketbayes.network import Net, members
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation import Ask
from pocketbayes.propagation.readout import Readout

FACTORS = (1e-3, 1e3)


def fit_variance_scale(
    net: Net,
    val: Any,
    *,
    propagation: str = "moments",
    readout: Readout = "sample",
    classes: str = "predicted",
    samples: int = 30,
    batch_size: int = 256,
    seed: int = 0,
) -> float:
    """Return the factor on output variances with the lowest validation NLL.

    The network runs once over the data. Pass the factor as `variance_scale=` to `predict` or `evaluate`, with the same
    settings.

    Args:
        net: A network or mixture.
        val: Held-out data, used neither for training nor for testing.
        propagation: One with Gaussian outputs: moments, moments-exact, moments-full or linear.
        readout: As in `predict`.
        classes: As in `predict`.
        samples: As in `predict`; for "linear", the draws for the variance of outputs per pixel.
        batch_size: Examples per batch.
        seed: Seed of the readout's draws.
    """
    from scipy.optimize import minimize_scalar

    ask = Ask(samples, propagation, seed, batch_size, readout, classes).checked()
    parts: list[tuple[list[Passed], Tensor]] = []
    for x, y in batches(as_source(val), ask.batch_size):
        target = y.to(members(net)[0].device)
        parts.append((list(outputs_of(net, x, ask)), target))
    if not any(float(_variance(outputs).max()) > 0 for outputs, _ in parts):
        raise UserError(f"{propagation} propagation gives this network no output variance to scale")

    def nll(log_factor: float) -> float:
        total = 0.0
        for outputs, y in parts:
            passes = passes_for(members(net)[0], ask)
            for passed in outputs:
                passes.add(scaled(passed, math.exp(log_factor)), y if y.is_floating_point() else None)
            total += _nll(passes, y)
        return total

    grid = torch.linspace(math.log(FACTORS[0]), math.log(FACTORS[1]), 13).tolist()
    best = min(range(len(grid)), key=[nll(point) for point in grid].__getitem__)  # the NLL may have several minima
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(nll, bounds=around, method="bounded", options={"xatol": 1e-3})
    return math.exp(float(found.x))


def _variance(outputs: list[Passed]) -> Tensor:
    spread = [passed.output.variance.max() for passed in outputs if isinstance(passed.output, Gaussian)]
    return torch.stack(spread).max() if spread else torch.zeros(())


def _nll(passes: Any, y: Tensor) -> float:
    """Compute -log p(y), summed over the batch."""
    if isinstance(passes, RealPasses):
        return -float(passes.log_likelihood().sum())
    assert isinstance(passes, ClassPasses)
    probs = passes.summary().mean
    counted = (y >= 0) & (y < probs.shape[1])
    chosen = probs.gather(1, torch.where(counted, y, 0).unsqueeze(1)).squeeze(1)
    return -float((chosen.clamp_min(torch.finfo(chosen.dtype).tiny).log() * counted).sum())
