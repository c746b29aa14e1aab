"""Validation losses of a network by example, so that the difference between two files has a standard error."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pocketbayes.data.batches import as_source, info_of
from pocketbayes.inference.evaluation import Measures, loss_of, measures_for, stream
from pocketbayes.inference.passes import Passes, RealPasses
from pocketbayes.network import Net
from pocketbayes.propagation import Ask
from pocketbayes.ship.compression.members import Loss


class Measurement(NamedTuple):
    """Measures of a file.

    Attributes:
        losses: NLL and accuracy; of a mixture, those of its first 1, 2, ... members.
        disagreement: As in `Trial`.
        nll_error: As in `Trial`.
    """

    losses: list[Loss]
    disagreement: float | None = None
    nll_error: float = 0.0


def measure_examples(net: Net, data: Any, samples: int, seed: int) -> tuple[Loss, Tensor]:
    """Return the NLL and accuracy of a network as in `evaluate`, and the NLL of each example."""
    source = as_source(data)
    info = info_of(source)
    measures: Measures | None = None
    examples = []
    for passes, y in stream(net, source, Ask(samples, seed=seed)):
        measures = measures or measures_for(net, passes, y, info.target_std if info else 1.0)
        measures(passes, y)
        examples.append(_nll(passes, y))
    assert measures is not None, "the data are not empty"
    found = measures.compute()
    return (loss_of(found), found.get("accuracy")), torch.cat(examples)


def standard_error(own: Tensor, other: Tensor) -> float:
    """Return the standard error of the mean difference between two networks' losses on the same examples."""
    return float((own - other).std()) / math.sqrt(len(own)) if len(own) > 1 else 0.0


def _nll(passes: Passes, y: Tensor) -> Tensor:
    """Return the mean NLL of each example's targets, (n,)."""
    if isinstance(passes, RealPasses):
        return -passes.log_likelihood().reshape(len(y), -1).mean(1).double().cpu()
    probs = passes.summary().mean
    counted = (y >= 0) & (y < probs.shape[1])
    chosen = probs.gather(1, torch.where(counted, y, 0).unsqueeze(1)).squeeze(1)
    nll = -chosen.double().clamp(min=torch.finfo(torch.float32).tiny).log() * counted
    return (nll.reshape(len(y), -1).sum(1) / counted.reshape(len(y), -1).sum(1).clamp(min=1)).cpu()
