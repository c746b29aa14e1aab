"""A search for the weight of the KL: successive halving on validation data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.inference.evaluation import evaluate, loss_of
from pocketbayes.methods import VariationalMethod
from pocketbayes.network import Net
from pocketbayes.training.fitting import fit

BETAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Trial:
    """One network of a search after one round: its weight of the KL, the epochs behind it, its validation NLL."""

    beta: float
    epochs: int
    nll: float


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        beta: The weight with the best network of the last round.
        trials: Everything that was tried, in order.
    """

    beta: float
    trials: tuple[Trial, ...]


def search_beta(
    method: VariationalMethod,
    model: nn.Module,
    train: Any,
    val: Any,
    *,
    betas: Sequence[float] = BETAS,
    epochs: int = 1,
    keep: float = 0.5,
    seed: int = 0,
    samples: int = 10,
    **settings: Any,
) -> Search:
    """Successive halving (Jamieson and Talwalkar 2016): all weights for a few epochs, the better half for as many more.

    Survivors go on from where they are, PBN and 2DGBNN with the means alone. The network that wins is not kept: train
    with the weight that is found.

    Args:
        method: A variational method; its own `beta` is not tried unless it is among `betas`.
        model: As in `fit`.
        train: Training data.
        val: Validation data, whose NLL decides.
        betas: The weights tried.
        epochs: Epochs of the first round; every later one takes as many for those that are left.
        keep: The fraction that goes on to the next round.
        seed: As in `fit`.
        samples: Passes of a validation, where the method draws.
        **settings: Of `fit`, such as `lr`.
    """
    if not isinstance(method, VariationalMethod):
        raise UserError(f"{method.name!r} has no weight of a KL to search for")
    if not betas or min(betas) < 0 or not 0 < keep < 1 or epochs < 1:
        raise UserError(
            f"a search needs weights of at least 0, 0 < keep < 1 and an epoch, not {betas}, {keep}, {epochs}"
        )
    alive: dict[float, nn.Module | Net] = dict.fromkeys(sorted(set(betas)), model)
    trials: list[Trial] = []
    done = 0
    while True:
        done += epochs
        scores = {}
        for beta, start in alive.items():
            tried = replace(method, beta=beta)
            alive[beta] = fit(tried, start, train, epochs=epochs, seed=seed + done, **settings)
            nll = loss_of(evaluate(alive[beta], val, samples=samples))  # type: ignore[arg-type]
            scores[beta] = nll if math.isfinite(nll) else math.inf
            trials.append(Trial(beta, done, nll))
        best = sorted(scores, key=scores.__getitem__)
        if len(best) == 1:
            return Search(best[0], tuple(trials))
        alive = {beta: alive[beta] for beta in best[: max(1, math.floor(keep * len(best)))]}
