"""The choice of a mixture's size where the validation data look like training data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import warn
from pocketbayes.data.batches import as_source, batches
from pocketbayes.inference.prediction import predict
from pocketbayes.network import Mixture, Net
from pocketbayes.ship.compression.fewer import Loss, prefix
from pocketbayes.ship.compression.trials import NOISE

SUSPICIOUS, MIN_ERRORS = 0.99, 30
"""Accuracy above which validation examples may be training examples, and errors that are enough all the same."""
EXAMPLES = 512


@dataclass(frozen=True)
class Agreement:
    """The original mixture's predictions for blends of pairs of inputs.

    Networks are confident on the data that they were trained on, and several are no better than one there. On blends
    they disagree, and dropping a member shows.

    Attributes:
        count: The number of the mixture's first members that predicted; later ones do harm.
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
        x = torch.cat(parts)[:EXAMPLES]
        own = torch.Generator().manual_seed(seed)
        share = torch.rand(len(x), *[1] * (x.dim() - 1), generator=own).to(x)
        inputs = share * x + (1 - share) * x[torch.randperm(len(x), generator=own)]
        least = min(nll for nll, _ in losses)
        count = max(number for number, (nll, _) in enumerate(losses, 1) if nll <= least + NOISE)
        return cls(count, inputs, predict(prefix(net, count), inputs, samples=samples, seed=seed).mean, samples, seed)

    def divergence(self, net: Net) -> float:
        """Return the mean Kullback-Leibler divergence of a network's predictions from the original's."""
        other = predict(net, self.inputs, samples=self.samples, seed=self.seed).mean
        tiny = torch.finfo(other.dtype).tiny
        ratio = self.probs.clamp(min=tiny).log() - other.clamp(min=tiny).log()
        return float((self.probs * ratio).flatten(1).sum(1).double().mean())


def look_known(data: Any, accuracy: float | None) -> bool:
    """Return whether a mixture makes too few errors on the data to tell what a member is worth; warn if so."""
    if accuracy is None or accuracy < SUSPICIOUS:
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
