"""Fewer passes where fewer do: members or draws are asked one after another until an answer is settled.

An input is settled after step k if the calibrated maximum probability exceeds a threshold. Each step has a temperature
of its own: one member is overconfident, five are not. Temperatures and thresholds are fitted on validation data so that
the NLL rises by no more than a stated fraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.batches import as_source, batches
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.metrics.calibration import temperature
from pocketbayes.inference.passes import ClassPasses, Passed, Passes
from pocketbayes.inference.prediction import Turn, as_inputs, calibrated, passes_for, turns_of
from pocketbayes.network import Net, members
from pocketbayes.propagation import Ask

THRESHOLDS = torch.linspace(0.0, 9.0, 181, dtype=torch.float64).sigmoid()
"""Maximum probabilities that are tried, evenly spaced in log(p / (1 - p)): from 0.5 to 0.9999."""


NEVER = 2.0
"""A threshold that no probability reaches."""


@dataclass(frozen=True)
class Stopping:
    """When a prediction stops asking.

    Attributes:
        steps: Passes that are done after each step.
        temperatures: Of the answer after each step.
        threshold: The calibrated maximum probability from which an input is settled.
        max_rise: The bound that was asked for: the rise of the NLL as a fraction of the NLL with all passes.
        rise: The rise on the validation data.
        error: Its standard error.
        passes: The mean number of passes on the validation data.
    """

    steps: tuple[int, ...]
    temperatures: tuple[float, ...]
    threshold: float
    max_rise: float
    rise: float
    error: float
    passes: float

    def __post_init__(self) -> None:
        if not self.steps or len(self.temperatures) != len(self.steps):
            raise UserError("a stopping rule needs a temperature per step")
        if not all(math.isfinite(value) and value > 0 for value in self.temperatures):
            raise UserError("the temperatures of a stopping rule must be positive numbers")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Stopping:
        """Build from plain values, such as a file's."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def choose_stopping(log_probs: Tensor, labels: Tensor, steps: Sequence[int], max_rise: float) -> Stopping:
    """Choose the lowest threshold that keeps the rise of the NLL within a bound, as every higher one does.

    Args:
        log_probs: (steps, n, classes) log-probabilities of the mean answer after each step.
        labels: (n,) integer labels.
        steps: Passes that are done after each step.
        max_rise: The largest rise of the NLL as a fraction of the NLL with all passes.
    """
    if not (math.isfinite(max_rise) and max_rise >= 0):
        raise UserError(f"max_rise must be a fraction of at least 0, such as 0.01, not {max_rise}")
    labels, count = labels.long(), len(steps)
    temperatures = tuple(temperature(each, labels) for each in log_probs)
    scaled = torch.stack([(each.double() / t).log_softmax(1) for each, t in zip(log_probs, temperatures)])
    sure = scaled.amax(2).exp()
    losses = -scaled.gather(2, labels.expand(count, -1)[..., None])[..., 0]
    total, cost = losses[-1].mean().clamp(min=1e-12), torch.tensor(steps, dtype=torch.float64)

    def outcome(threshold: float) -> tuple[float, float, float]:
        """Return the rise of the NLL, its standard error and the mean passes."""
        settled = sure >= threshold
        settled[-1] = True
        last = settled.int().argmax(0)
        rises = (losses.gather(0, last[None])[0] - losses[-1]) / total
        return float(rises.mean()), float(rises.std(correction=0)) / math.sqrt(len(rises)), float(cost[last].mean())

    chosen = NEVER
    for threshold in reversed(THRESHOLDS.tolist()):
        if outcome(threshold)[0] > max_rise:
            break
        chosen = threshold
    return Stopping(tuple(steps), temperatures, chosen, max_rise, *outcome(chosen))


def fit_stopping(
    net: Net,
    val: Any,
    *,
    max_rise: float = 0.01,
    samples: int = 30,
    propagation: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Stopping:
    """Fit when `predict(..., adaptive=True)` stops, and keep the rule in the network, whose file keeps it too.

    Args:
        net: A classifier: a mixture, or a network whose passes differ.
        val: Data that the network was not trained on, and will not be judged by.
        max_rise: The largest rise of the NLL on these data, as a fraction of the NLL with all passes.
        samples: As in `predict`.
        propagation: As in `predict`.
        batch_size: Examples in flight.
        seed: Of the draws.
    """
    ask = Ask(samples, propagation, seed, batch_size).checked()
    steps = _steps(net, ask)
    answers: list[list[Tensor]] = [[] for _ in steps]
    labels = []
    for x, y in batches(as_source(val), batch_size):
        inputs, passes = as_inputs(x), _empty(net, ask)
        for place, step in enumerate(steps):
            for passed in step.run(inputs, ask):
                passes.add(calibrated(passed, ask.variance_scale, members(net)[0].calibration))
            answers[place].append(passes.summary().mean.clamp(min=torch.finfo(torch.float32).tiny).log().cpu())
        if answers[0][-1].ndim != 2:
            raise UserError("adaptive passes are for classifiers of whole inputs, not of pixels")
        labels.append(y.cpu())
    found = choose_stopping(
        torch.stack([torch.cat(each) for each in answers]), torch.cat(labels), _passes_done(steps), max_rise
    )
    net.stopping = found.to_json()
    return found


class Settled(Passes):
    """Answers that are final."""

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


class PassCount:
    """The mean number of passes."""

    def __init__(self) -> None:
        self.total, self.count = 0, 0

    def update(self, passes: Tensor) -> None:
        """Take in the passes of a batch."""
        self.total += int(passes.sum())
        self.count += len(passes)

    def merge(self, other: PassCount) -> None:
        """Take in what another has counted."""
        self.total += other.total
        self.count += other.count

    def compute(self) -> dict[str, float]:
        """Return the mean."""
        return {"passes": self.total / self.count}


def settle(net: Net, x: ModelInput, ask: Ask) -> Settled:
    """Answer a batch step by step; inputs that are settled are left out of the next."""
    rule, steps, passes = stopping_of(net, ask.adaptive), _steps(net, ask), _empty(net, ask)
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
    """Return the rule that is asked for: the network's own for True."""
    if isinstance(adaptive, Stopping):
        return adaptive
    if adaptive is not True:
        raise UserError(f"adaptive must be True or a rule of pb.fit_stopping, not {adaptive!r}")
    if net.stopping is None:
        raise UserError("the network has no rule for adaptive passes: pb.fit_stopping(net, val) fits one")
    return Stopping.of(net.stopping)


def _empty(net: Net, ask: Ask) -> ClassPasses:
    passes = passes_for(members(net)[0], ask)
    if not isinstance(passes, ClassPasses):
        raise UserError("adaptive passes are for classifiers: only there a fitted confidence tells what is settled")
    return passes


def _steps(net: Net, ask: Ask) -> list[Turn]:
    """Return the passes of each step: a member each, or 1, 1, 2, 4, ... draws of a single network."""
    turns = turns_of(net, ask)
    if len(turns) > 1:
        return turns
    (turn,) = turns
    if len(turn.seeds) == 1:
        raise UserError("one pass answers everything here: adaptive passes are for mixtures and random networks")
    ends = [2**power for power in range(len(turn.seeds).bit_length()) if 2**power < len(turn.seeds)]
    edges = [0, *ends, len(turn.seeds)]
    return [replace(turn, seeds=turn.seeds[start:end]) for start, end in itertools.pairwise(edges)]


def _passes_done(steps: Sequence[Turn]) -> list[int]:
    return list(itertools.accumulate(len(step.seeds) for step in steps))


def _tempered(answer: Prediction, heat: float) -> Prediction:
    """Return an answer at a temperature; the mutual information of its passes stays, the rest is aleatoric."""
    probs = (answer.mean.clamp(min=torch.finfo(answer.mean.dtype).tiny).log() / heat).softmax(1)
    entropy = torch.special.entr(probs).sum(1)
    epistemic = torch.minimum(answer.epistemic, entropy)
    return replace(answer, mean=probs, probs=probs, entropy=entropy, epistemic=epistemic, aleatoric=entropy - epistemic)


def _rows(answer: Prediction, rows: Tensor) -> Prediction:
    """Return some rows of an answer."""
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}
    taken: dict[str, Any] = {
        name: value[rows.to(value.device)] for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(answer, **taken)
