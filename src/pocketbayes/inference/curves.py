"""Accuracy of a trained network against the fraction of pruned weights and against input noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.base.model_lock import copy_model
from pocketbayes.data.batches import Data
from pocketbayes.data.dataset import Pictures
from pocketbayes.data.shift import noisy
from pocketbayes.inference.evaluation import evaluate, stream
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors import from_moments
from pocketbayes.propagation import Ask

Criterion = Literal["magnitude", "snr"]
FRACTIONS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
DECIBELS = (-6.0, 0.0, 6.0, 10.0, 15.0, 20.0)


def importance(mean: Tensor, std: Tensor, by: Criterion = "magnitude") -> Tensor:
    """Compute |mean| (global L1), or the signal-to-noise ratio |mean| / std, infinite for a point other than 0."""
    check_choice("pruning criterion", by, get_args(Criterion))
    size = mean.abs()
    return size if by == "magnitude" else torch.where(size > 0, size / std, 0)


def pruned(net: Net, fraction: float, by: Criterion = "magnitude") -> Net:
    """Return a copy with the mean and std of the globally least important weights set to 0.

    The copy stores means and stds, so its draws are independent even if the original's were not.

    Args:
        net: A network with any posterior, or a mixture, whose networks are all pruned.
        fraction: The fraction of the posterior's weights, in [0, 1].
        by: See `importance`.
    """
    if not 0 <= fraction <= 1:
        raise UserError(f"the fraction to prune must lie between 0 and 1, not {fraction}")
    if isinstance(net, Mixture):
        return Mixture([_pruned(network, fraction, by) for network in members(net)], net.weights)
    return _pruned(net, fraction, by)


def _pruned(network: Network, fraction: float, by: Criterion) -> Network:
    with torch.no_grad():
        mean, std = network.posterior.moments()
        order = importance(mean, std, by).argsort(stable=True)
        kept = torch.ones_like(mean).index_fill(0, order[: round(fraction * len(order))], 0)
        # A weight with a std of zero is a point.
        result = Network(
            copy_model(network.model),
            from_moments(network.layout, mean * kept, std * kept),
            prior=network.prior,
            likelihood=network.likelihood,
            propagation=network.propagation,
            input_var=network.input_var,
        )
    result.info = network.info
    return result.eval()


def pruning_curve(
    net: Net, data: Data, fractions: Sequence[float] = FRACTIONS, by: Criterion = "magnitude", **settings: Any
) -> list[dict[str, float]]:
    """Measure accuracy and NLL at increasing fractions of pruned weights, without retraining.

    Args:
        net: As in `pruned`.
        data: As in `evaluate`.
        fractions: Fractions of pruned weights.
        by: See `importance`.
        **settings: Of `evaluate`, such as `propagation`.

    Returns:
        A row {"pruned", "accuracy", "nll"} for each fraction.
    """
    rows = []
    for fraction in fractions:
        measures = evaluate(pruned(net, fraction, by), data, **settings)
        rows.append({"pruned": fraction, "accuracy": measures["accuracy"], "nll": measures["nll"]})
    return rows


def noise_curve(
    net: Net, pictures: Pictures, decibels: Sequence[float] = DECIBELS, *, noise_seed: int = 0, **settings: Any
) -> list[dict[str, float]]:
    """Measure accuracy and the variance of the predicted class's probability against the signal-to-noise ratio.

    Args:
        net: A classifier.
        pictures: Images; the noise is added before normalisation.
        decibels: 10 log10 of signal power over noise power.
        noise_seed: Seed of the noise.
        **settings: Of `evaluate`, such as `propagation`.

    Returns:
        A row {"db", "accuracy", "variance", "entropy"} for each ratio; means over images. "relative variance" is the
        variance over that at the lowest ratio.
    """
    rows = []
    for ratio in sorted(decibels):
        sums = dict.fromkeys(("accuracy", "variance", "entropy"), 0.0)
        for passes, y in stream(net, noisy(pictures, ratio, noise_seed), Ask(**settings)):
            answer = passes.summary()
            predicted = answer.mean.argmax(1)
            sums["accuracy"] += float((predicted == y).sum())
            sums["variance"] += float(answer.std.gather(1, predicted[:, None]).square().sum())
            sums["entropy"] += float(answer.entropy.sum())
        rows.append({"db": ratio, **{name: total / len(pictures) for name, total in sums.items()}})
    first = rows[0]["variance"]
    return [{**row, "relative variance": row["variance"] / first if first else 0.0} for row in rows]
