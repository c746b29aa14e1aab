"""Adaptive passes: members or draws run one after another until a prediction is certain enough."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.batches import Data, as_source, batches
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.metrics.accumulators import Sums
from pocketbayes.inference.passes import ClassPasses, Passed, Passes
from pocketbayes.inference.prediction import Turn, calibrated, passes_for, turns_of
from pocketbayes.inference.stopping import Stopping, choose_stopping
from pocketbayes.likelihoods import check_target
from pocketbayes.network import Net, members
from pocketbayes.propagation import Ask


def fit_stopping(
    net: Net,
    val: Data,
    *,
    max_rise: float = 0.005,
    max_passes: float | None = None,
    samples: int = 30,
    propagation: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Stopping:
    """Fit the stopping rule of `predict(..., adaptive=True)` and store it in the network, also in its file.

    Args:
        net: A classifier: a mixture, or a network whose passes differ.
        val: Held-out data, used neither for training nor for testing.
        max_rise: The largest expected rise of the NLL, as a fraction of the NLL with all passes.
        max_passes: A bound on the mean number of passes instead of `max_rise`.
        samples: As in `predict`.
        propagation: As in `predict`.
        batch_size: Examples per batch.
        seed: Seed of the draws.
    """
    ask = Ask(samples, propagation, seed, batch_size).checked()
    steps = _steps(net, ask)
    answers: list[list[Tensor]] = [[] for _ in steps]
    labels = []
    for x, y in batches(as_source(val), ask.batch_size):
        for place, step in enumerate(steps):
            passes = _empty(net, ask)
            for passed in step.run(x, ask):
                passes.add(calibrated(passed, ask.variance_scale, members(net)[0].calibration))
            answers[place].append(passes.summary().mean.cpu())
        if answers[0][-1].ndim != 2:
            raise UserError("adaptive passes are not supported for segmentation")
        check_target(members(net)[0].likelihood, answers[0][-1].shape, y)
        labels.append(y.cpu())
    passes_of = [len(step.numbers) for step in steps]
    found = choose_stopping(
        torch.stack([torch.cat(each) for each in answers]),
        torch.cat(labels),
        passes_of,
        max_rise,
        [step.weight * count for step, count in zip(steps, passes_of)],
        max_passes=max_passes,
        reorder=len({id(step.network) for step in steps}) > 1,
    )
    net.stopping = found.to_json()
    return found


class Settled(Passes):
    """Final predictions."""

    def __init__(self, prediction: Prediction) -> None:
        super().__init__()
        self.prediction = prediction
        assert prediction.passes is not None
        self.count = int(prediction.passes.max())

    def add(self, passed: Passed, target: Tensor | None = None) -> None:
        """Refuse further passes."""
        raise TypeError("these answers are final")

    def summary(self) -> Prediction:
        """Return the answers."""
        return self.prediction


class PassCount(Sums):
    """The mean number of passes."""

    def update(self, passes: Tensor) -> None:
        """Add the passes of a batch."""
        self._add(count=torch.tensor(len(passes)), passes=passes.sum())

    def compute(self) -> dict[str, float]:
        """Return the mean."""
        return {"passes": self._mean("passes")}


def settle(net: Net, x: ModelInput, ask: Ask) -> Settled:
    """Predict a batch step by step, dropping inputs that are settled."""
    rule, steps, passes = stopping_of(net, ask.adaptive), _steps(net, ask), _empty(net, ask)
    steps = rule.ordered(steps) if len(steps) == len(rule.steps) else steps
    if list(rule.steps) != _passes_done(steps):
        raise UserError(
            f"the rule of adaptive passes was fitted for {list(rule.steps)} passes, not {_passes_done(steps)}: predict "
            "with the samples= and propagation= it was fitted with, or fit it again with pb.fit_stopping"
        )
    rows, answers, places = torch.arange(len(x)), [], []
    for number, (step, heat) in enumerate(zip(steps, rule.temperatures), 1):
        for passed in step.run(x[rows], ask):
            passes.add(calibrated(passed, ask.variance_scale, members(net)[0].calibration))
        answer = _tempered(passes.summary(), heat)
        sure = answer.mean.amax(1).cpu() >= rule.threshold
        done = torch.ones_like(sure) if number == len(steps) else sure
        answers.append(_rows(answer, done))
        places.append(rows[done])
        rows = rows[~done]
        if not len(rows):
            break
        passes.keep(~done.to(answer.mean.device))
    return Settled(_rows(Prediction.cat(answers), torch.cat(places).argsort()))


def stopping_of(net: Net, adaptive: Any) -> Stopping:
    """Return the given rule, or the network's own for True."""
    if isinstance(adaptive, Stopping):
        return adaptive
    if adaptive is not True:
        raise UserError(f"adaptive must be True or a rule of pb.fit_stopping, not {adaptive!r}")
    if net.stopping is None:
        raise UserError("the network has no rule for adaptive passes: fit one with pb.fit_stopping(net, val)")
    return Stopping.of(net.stopping)


def _empty(net: Net, ask: Ask) -> ClassPasses:
    passes = passes_for(members(net)[0], ask)
    if not isinstance(passes, ClassPasses):
        raise UserError("adaptive passes need a classifier, whose confidence decides when to stop")
    return passes


def _steps(net: Net, ask: Ask) -> list[Turn]:
    """Return the passes of each step: one member, or 1, 1, 2, 4, ... draws of a single network."""
    turns = turns_of(net, ask)
    if len(turns) > 1:
        return turns
    (turn,) = turns
    if len(turn.numbers) == 1:
        raise UserError("this network needs only one pass: adaptive passes are for mixtures and random networks")
    ends = [2**power for power in range(len(turn.numbers).bit_length()) if 2**power < len(turn.numbers)]
    edges = [0, *ends, len(turn.numbers)]
    return [replace(turn, numbers=turn.numbers[start:end]) for start, end in itertools.pairwise(edges)]


def _passes_done(steps: Sequence[Turn]) -> list[int]:
    return list(itertools.accumulate(len(step.numbers) for step in steps))


def _tempered(answer: Prediction, heat: float) -> Prediction:
    """Apply a temperature; the mutual information of the passes is kept, the rest is aleatoric."""
    probs = (answer.mean.clamp(min=torch.finfo(answer.mean.dtype).tiny).log() / heat).softmax(1)
    entropy = torch.special.entr(probs).sum(1)
    epistemic = torch.minimum(answer.epistemic, entropy)
    return replace(answer, mean=probs, probs=probs, entropy=entropy, epistemic=epistemic, aleatoric=entropy - epistemic)


def _rows(answer: Prediction, rows: Tensor) -> Prediction:
    """Select rows of a prediction."""
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}
    taken: dict[str, Any] = {
        name: value[rows.to(value.device)] for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(answer, **taken)
