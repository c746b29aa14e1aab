"""A search for the weight of the KL: successive halving on validation data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.seeds import repeat_seed
from pocketbayes.data.batches import Data, as_source, batches
from pocketbayes.inference.curves import pruned
from pocketbayes.inference.evaluation import evaluate, loss_of
from pocketbayes.inference.metrics import ood_scores
from pocketbayes.inference.prediction import predict
from pocketbayes.methods import VariationalMethod
from pocketbayes.network import Net
from pocketbayes.training.fitting import fit

BETAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CRITERIA = ("nll", "calibrated_nll", "pruned_accuracy", "ood_auroc")
PRUNED = 0.9
"""The fraction of weights that `pruned_accuracy` removes, by signal-to-noise ratio."""


@dataclass(frozen=True)
class Trial:
    """One network of a search after one round."""

    beta: float
    epochs: int
    nll: float
    score: float


@dataclass(frozen=True)
class Search:
    """The result of a search.

    Attributes:
        beta: The weight of the best network in the last round.
        trials: All trials, in order.
    """

    beta: float
    trials: tuple[Trial, ...]


def search_beta(
    method: VariationalMethod,
    model: nn.Module,
    train: Data,
    val: Data,
    *,
    betas: Sequence[float] = BETAS,
    epochs: int = 1,
    keep: float = 0.5,
    seed: int = 0,
    samples: int = 10,
    by: str | Callable[[Net], float] = "nll",
    ood: Data | None = None,
    **settings: Any,
) -> Search:
    """Search the weight of the KL by successive halving (Jamieson and Talwalkar 2016).

    A network is trained with each candidate for a few epochs, the better half for as many more, and so on. Survivors
    continue from their current state, PBN and 2DGBNN from their means. The best network is not returned: train with the
    weight found.

    Args:
        method: A variational method; its own `beta` is only tried if it is among `betas`.
        model: As in `fit`.
        train: Training data.
        val: Validation data.
        betas: The candidate weights.
        epochs: Epochs per round.
        keep: The fraction that continues to the next round.
        seed: As in `fit`.
        samples: Passes per validation, if the method draws.
        by: The criterion: "nll"; "calibrated_nll", after temperature scaling; "pruned_accuracy", with 90 % of the
            weights removed; "ood_auroc", of the entropy on `ood`; or a function of the network, lower is better.
        ood: Out-of-distribution inputs: a data set, or a pair (x, y).
        **settings: Settings of `fit`, such as `lr`.
    """
    if not isinstance(method, VariationalMethod):
        raise UserError(f"{method.name!r} has no KL weight to search for")
    if not betas or min(betas) < 0 or not 0 < keep < 1 or epochs < 1:
        raise UserError(
            f"a search needs weights of at least 0, 0 < keep < 1 and an epoch, not {betas}, {keep}, {epochs}"
        )
    if not callable(by) and by not in CRITERIA:
        raise UnknownNameError("criterion", by, CRITERIA)
    if (by == "ood_auroc") != (ood is not None):
        raise UserError("by='ood_auroc' and ood=, the out-of-distribution inputs, are given together")
    alive: dict[float, nn.Module | Net] = dict.fromkeys(sorted(set(betas)), model)
    trials: list[Trial] = []
    done = 0
    while True:
        done += epochs
        scores = {}
        for beta, start in alive.items():
            tried = replace(method, beta=beta)
            net = alive[beta] = fit(tried, start, train, epochs=epochs, seed=repeat_seed(seed, done), **settings)
            measures = evaluate(net, val, samples=samples)
            score = by(net) if callable(by) else _score(by, net, measures, val, ood, samples)
            scores[beta] = score if math.isfinite(score) else math.inf
            trials.append(Trial(beta, done, loss_of(measures), score))
        best = sorted(scores, key=scores.__getitem__)
        if len(best) == 1:
            return Search(best[0], tuple(trials))
        alive = {beta: alive[beta] for beta in best[: max(1, math.floor(keep * len(best)))]}


def _score(by: str, net: Net, measures: dict[str, float], val: Data, ood: Any, samples: int) -> float:
    """Return the criterion of a network, lower is better."""
    if by == "nll":
        return loss_of(measures)
    if "accuracy" not in measures:
        raise UserError(f"by={by!r} needs a classifier: for a regression use 'nll' or a function")
    if by == "calibrated_nll":
        return measures["calibrated_nll"]
    if by == "pruned_accuracy":
        return -evaluate(pruned(net, PRUNED, "snr"), val, samples=samples)["accuracy"]
    inside, outside = (
        torch.cat([predict(net, x, samples=samples).entropy for x, _ in batches(as_source(data), 256)])
        for data in (val, ood)
    )
    return -ood_scores(inside, outside)["auroc"]
