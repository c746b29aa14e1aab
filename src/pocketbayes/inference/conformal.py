"""`fit_conformal`: scores of held-out data that give sets and intervals guaranteed coverage."""

from __future__ import annotations

from typing import Any

import torch

from pocketbayes.base.conformal import Conformal
from pocketbayes.base.errors import UserError
from pocketbayes.data.batches import as_source
from pocketbayes.inference.evaluation import stream
from pocketbayes.likelihoods import match_target
from pocketbayes.network import Net, members


def fit_conformal(
    net: Net, val: Any, *, samples: int = 30, propagation: str | None = None, batch_size: int = 256, seed: int = 0
) -> Net:
    """Give `Prediction.sets(level)` and `Prediction.interval(level)` guaranteed coverage.

    Split conformal prediction: for any network, the true class lies in the set, and the true value in the interval,
    with probability `level` or more, for new examples exchangeable with those in `val`. The guarantee holds on average
    over examples, not for each group of them, and for predictions with the same `samples` and `propagation`.

    Args:
        net: A network or mixture, which is changed; `pb.save` stores the scores.
        val: Held-out data, at least 1 / (1 - level) examples, better a few hundred.
        samples: As in `predict`.
        propagation: As in `predict`.
        batch_size: Examples per batch.
        seed: Seed of the draws.

    Returns:
        The same network.
    """
    scores: list[torch.Tensor] = []
    kind = "classes"
    for passes, y in stream(
        net, as_source(val), samples=samples, propagation=propagation, batch_size=batch_size, seed=seed
    ):
        answer = passes.summary()
        if answer.probs is None:
            kind = "real"
            score = (match_target(answer.mean, y) - answer.mean).abs() / answer.std
            scores.append(score.reshape(len(y), -1).amax(1))  # the worst of several targets, so that the box covers all
        elif answer.probs.ndim > 2:
            raise UserError("the network predicts every pixel: prediction sets are for one prediction per example")
        else:
            known = (y >= 0) & (y < answer.probs.shape[1])  # others are ignored, as in training
            scores.append(1 - answer.probs[known].gather(1, y[known, None]).squeeze(1))
    found = Conformal.of(kind, torch.cat(scores).double().tolist(), samples, propagation)
    for network in members(net):
        network.conformal = found
    return net
