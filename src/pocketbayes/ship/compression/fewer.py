"""What the first members of a mixture are worth: every prefix from one pass of each member."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import NotFiniteAnswersError
from pocketbayes.data.batches import as_source
from pocketbayes.inference.evaluation import evaluate, loss_of, stream
from pocketbayes.likelihoods import Categorical, task_of
from pocketbayes.network import Mixture, members

Loss = tuple[float, float | None]
"""NLL, and accuracy where there are classes."""


@dataclass(frozen=True)
class Prefixes:
    """Measures of the mixtures of the first 1, 2, ... members.

    Attributes:
        losses: NLL and accuracy of each.
        disagreement: The share of answers in which two members differ, the mean over all pairs; None without classes.
    """

    losses: list[Loss]
    disagreement: float | None = None


def measure_prefixes(net: Mixture, data: Any, samples: int, seed: int) -> Prefixes:
    """Measure the mixtures of the first 1, 2, ... members, and how often two members differ.

    Args:
        net: The mixture.
        data: As in `evaluate`.
        samples: Passes of the whole mixture.
        seed: Of the draws.
    """
    if task_of(members(net)[0].likelihood) != "classification":
        return Prefixes([_measured(prefix(net, count), data, samples, seed) for count in range(1, len(net) + 1)])
    source, networks = as_source(data), members(net)
    each = -(-samples // len(networks))
    shares = torch.tensor(net.shares()).cumsum(0)
    sums = torch.zeros(len(networks), 2, dtype=torch.float64)
    pairs = list(itertools.combinations(range(len(networks)), 2))
    total = different = 0
    for batch in zip(*(stream(network, source, samples=each, seed=seed) for network in networks)):
        own = torch.stack([passes.summary().mean for passes, _ in batch])
        y = batch[0][1]
        counted = _counted(net, y, own.shape[2])
        total += int(counted.sum())
        answers = own.argmax(2)
        different += sum(int((answers[one] != answers[two])[counted].sum()) for one, two in pairs)
        mixed = torch.zeros_like(own[0])
        for number, (probs, share) in enumerate(zip(own, net.shares())):
            mixed = mixed + probs * share
            chosen = (mixed / shares[number]).gather(1, torch.where(counted, y, 0).unsqueeze(1)).squeeze(1)
            sums[number, 0] -= chosen[counted].double().clamp(min=torch.finfo(torch.float32).tiny).log().sum().cpu()
            sums[number, 1] += (mixed.argmax(1) == y)[counted].sum().cpu()
    losses: list[Loss] = [(nll / total, right / total) for nll, right in sums.tolist()]
    return Prefixes(losses, different / (total * len(pairs)) if pairs else None)


def prefix(net: Mixture, count: int) -> Mixture:
    """Return the mixture of the first members, their shares in proportion."""
    shares = net.shares()[:count]
    return Mixture(members(net)[:count], None if net.weights is None else [share / sum(shares) for share in shares])


def _counted(net: Mixture, y: Tensor, classes: int) -> Tensor:
    likelihood = members(net)[0].likelihood
    ignored = likelihood.ignore_index if isinstance(likelihood, Categorical) else None
    counted = (y >= 0) & (y < classes)
    return counted if ignored is None else counted & (y != ignored)


def _measured(net: Mixture, data: Any, samples: int, seed: int) -> Loss:
    try:
        measures = evaluate(net, data, samples=samples, seed=seed)
    except NotFiniteAnswersError:
        return math.inf, None
    return loss_of(measures), measures.get("accuracy")
