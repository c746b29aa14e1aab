"""The members of a mixture: their order, measures of the first ones, and the choice of their number.

Throughout, `samples` counts the passes of the whole mixture.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import NotFiniteAnswersError, warn
from pocketbayes.data.batches import as_source, batches, size_of
from pocketbayes.inference.evaluation import evaluate, loss_of, stream
from pocketbayes.inference.passes import RealPasses
from pocketbayes.inference.prediction import likelihood_of, predict
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Mixture, Net, members
from pocketbayes.propagation import Ask
from pocketbayes.ship.compression.trials import NLL_NOISE

Loss = tuple[float, float | None]
"""NLL, and accuracy where there are classes."""
MAX_RANKED_TARGETS = 1 << 20
"""Largest number of targets by which members are ordered; of more, such as pixels, every n-th is used."""
MAX_UNSEEN_ACCURACY, MIN_ERRORS = 0.99, 30
"""Accuracy above which validation examples may be training examples, unless there are this many errors."""
BLENDED_EXAMPLES = 512


@dataclass(frozen=True)
class Prefixes:
    """Measures of the mixtures of the first 1, 2, ... members.

    Attributes:
        losses: NLL and accuracy of each.
        disagreement: The fraction of predictions in which two members differ, averaged over pairs; None without
            classes.
    """

    losses: list[Loss]
    disagreement: float | None = None


def best_first(net: Mixture, data: Any, samples: int, seed: int, count: int | None) -> Mixture:
    """Order the members so that the last can be dropped first; unchanged if all are kept.

    Raises:
        UserError: If the members do not fit together.
    """
    predict(net, next(iter(batches(as_source(data), 1)))[0], samples=1)  # raises an error that names the misfit
    if count == len(net):
        return net
    order, networks, weights = order_by_worth(net, data, samples, seed), members(net), net.weights
    return Mixture([networks[place] for place in order], weights and [weights[place] for place in order])


def order_by_worth(net: Mixture, data: Any, samples: int, seed: int) -> list[int]:
    """Return the members' indices, the least valuable last."""
    left, dropped = list(range(len(net))), []
    densities = log_densities(net, data, samples, seed) + torch.tensor(net.shares()).log()[:, None]
    while len(left) > 1:
        without = [[other for other in left if other != number] for number in left]
        losses = [_nll(densities[rest], [net.shares()[number] for number in rest]) for rest in without]
        dropped.append(left.pop(losses.index(min(losses))))
    return left + dropped[::-1]


def log_densities(net: Mixture, data: Any, samples: int, seed: int) -> Tensor:
    """Return the log density (members, targets) of the targets under each member; NaN becomes the smallest number."""
    source, rows = as_source(data), []
    each = -(-samples // len(net))
    for network in members(net):
        found: list[Tensor] = []
        for passes, y in stream(network, source, Ask(each, seed=seed)):
            if isinstance(passes, RealPasses):
                own = passes.log_likelihood().flatten()
            else:
                probs = passes.summary().mean
                counted = _counted(net, y, probs.shape[1])
                own = probs.gather(1, torch.where(counted, y, 0).unsqueeze(1)).squeeze(1)[counted].log()
            stride = -(-size_of(source) * own.numel() // (len(y) * MAX_RANKED_TARGETS))
            found.append(own[:: max(stride, 1)].double().cpu())
        rows.append(torch.cat(found))
    least = math.log(torch.finfo(torch.float64).tiny)
    return torch.stack(rows).nan_to_num(nan=least).clamp(min=least)


def _nll(densities: Tensor, shares: Sequence[float]) -> float:
    """Return the NLL of a mixture from its members' log densities with their shares."""
    return math.log(sum(shares)) - float(densities.logsumexp(0).mean())


def measure_prefixes(net: Mixture, data: Any, samples: int, seed: int) -> Prefixes:
    """Measure the mixtures of the first 1, 2, ... members, and how often two members differ."""
    if task_of(members(net)[0].likelihood) != "classification":
        return Prefixes([_measured(prefix(net, count), data, samples, seed) for count in range(1, len(net) + 1)])
    source, networks = as_source(data), members(net)
    each = -(-samples // len(networks))
    shares = torch.tensor(net.shares()).cumsum(0)
    sums = torch.zeros(len(networks), 2, dtype=torch.float64)
    pairs = list(itertools.combinations(range(len(networks)), 2))
    total = different = 0
    for batch in zip(*(stream(network, source, Ask(each, seed=seed)) for network in networks)):
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
    """Return the mixture of the first members, with their weights rescaled."""
    shares = net.shares()[:count]
    return Mixture(members(net)[:count], None if net.weights is None else [share / sum(shares) for share in shares])


def _counted(net: Mixture, y: Tensor, classes: int) -> Tensor:
    likelihood = likelihood_of(net)
    ignored = None if likelihood is None else likelihood.ignore_index
    counted = (y >= 0) & (y < classes)
    return counted if ignored is None else counted & (y != ignored)


def _measured(net: Mixture, data: Any, samples: int, seed: int) -> Loss:
    try:
        measures = evaluate(net, data, samples=samples, seed=seed)
    except NotFiniteAnswersError:
        return math.inf, None
    return loss_of(measures), measures.get("accuracy")


@dataclass(frozen=True)
class Agreement:
    """The original mixture's predictions for blends of pairs of inputs.

    On the data that they were trained on, networks are confident, and several are no better than one. On blends of
    inputs they disagree, so the effect of dropping a member is visible.

    Attributes:
        count: The number of the mixture's first members that predicted; more members would be worse.
        inputs: The blends.
        probs: The predictions.
        samples: Passes of a prediction.
        seed: Of the draws.
    """

    count: int
    inputs: Tensor
    probs: Tensor
    samples: int
    seed: int

    @classmethod
    def of(cls, net: Mixture, losses: list[Loss], stream: Iterable[Any], samples: int, seed: int) -> Agreement | None:
        """Predict with the original; None if the inputs cannot be blended.

        Args:
            net: The mixture, the least valuable members last.
            losses: NLL and accuracy of its first 1, 2, ... members.
            stream: Batches of inputs.
            samples: Passes of a prediction.
            seed: Of the blends and the draws.
        """
        parts = list(stream)
        if not all(isinstance(x, Tensor) and x.is_floating_point() for x in parts):
            return None
        x = torch.cat(parts)[:BLENDED_EXAMPLES]
        own = torch.Generator().manual_seed(seed)
        share = torch.rand(len(x), *[1] * (x.dim() - 1), generator=own).to(x)
        inputs = share * x + (1 - share) * x[torch.randperm(len(x), generator=own)]
        least = min(nll for nll, _ in losses)
        count = max(number for number, (nll, _) in enumerate(losses, 1) if nll <= least + NLL_NOISE)
        return cls(count, inputs, predict(prefix(net, count), inputs, samples=samples, seed=seed).mean, samples, seed)

    def divergence(self, net: Net) -> float:
        """Return the mean Kullback-Leibler divergence of a network's predictions from the original's."""
        other = predict(net, self.inputs, samples=self.samples, seed=self.seed).mean
        tiny = torch.finfo(other.dtype).tiny
        ratio = self.probs.clamp(min=tiny).log() - other.clamp(min=tiny).log()
        return float((self.probs * ratio).flatten(1).sum(1).double().mean())


def look_like_training_data(data: Any, accuracy: float | None) -> bool:
    """Return whether a mixture makes too few errors on the data to judge its members; warn if so."""
    if accuracy is None or accuracy < MAX_UNSEEN_ACCURACY:
        return False
    targets = sum(torch.as_tensor(y).numel() for _, y in batches(as_source(data), 256))
    errors = round((1 - accuracy) * targets)
    if errors >= MIN_ERRORS:
        return False
    warn(
        f"the mixture has {errors} errors on {targets} validation examples, too few to choose the number of members: "
        "give examples that the members were not trained on, or count="
    )
    return True
