"""Measures of a network on a data set, streamed batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.base.progress import Show, display
from pocketbayes.data.batches import Data, as_source, batch_size_for, batches, info_of, size_of
from pocketbayes.inference.adaptive import PassCount, Settled
from pocketbayes.inference.metrics import Classification, Regression, Segmentation, Tempered, dee
from pocketbayes.inference.passes import Density, OtherPasses, Passes, RealPasses
from pocketbayes.inference.prediction import likelihood_of, run_passes
from pocketbayes.likelihoods import check_target, match_target, task_of
from pocketbayes.network import Net, members
from pocketbayes.propagation import Ask
from pocketbayes.propagation.readout import Readout


def evaluate(
    net: Net,
    data: Data,
    *,
    samples: int = 30,
    propagation: str | None = None,
    batch_size: int = 256,
    seed: int = 0,
    readout: Readout = "sample",
    classes: str = "predicted",
    variance_scale: float = 1.0,
    adaptive: Any = None,
    curve: Sequence[float] | None = None,
    on_batch: Callable[[int], object] | None = None,
    team: ProcessGroup = ALONE,
    progress: Show = "bar",
) -> dict[str, float]:
    """Measure accuracy, NLL, calibration and uncertainty, or errors and likelihood for regression.

    Args:
        net: A network or mixture.
        data: A data set, a DataLoader or a pair (x, y).
        samples: Passes per example.
        propagation: As in `predict`.
        batch_size: Examples per batch.
        seed: Seed of the draws.
        readout: As in `predict`.
        classes: As in `predict`.
        variance_scale: As in `predict`.
        adaptive: As in `predict`; adds the mean number of `passes` to the measures.
        curve: The calibrated NLL of 1, 2, ... averaged independent networks on these data; adds `dee`, the deep
            ensemble equivalent.
        on_batch: Called with the number of examples after each batch, for progress.
        team: The processes that divide the batches, such as `ProcessGroup.current()`; all return the measures of all
            data.
        progress: As in `fit`.

    Returns:
        The measures by name; segmentation adds IoU per class and their mean. Of classes, `epistemic_share` is the
        mutual information over the entropy; `calibrated_nll` and `calibrated_ece` are those after a temperature that
        is fitted on one half of the data and measured on the other, both ways.
    """
    ask = Ask(samples, propagation, seed, batch_size, readout, classes, variance_scale, adaptive)
    source = as_source(data)
    info = info_of(source)
    measures: Measures | None = None
    with display(progress) as bar:
        bar.begin("evaluate", -(-size_of(source) // team.size))
        for passes, y in stream(net, source, ask, team=team):
            measures = measures or measures_for(net, passes, y, info.target_std if info else 1.0)
            measures(passes, y)
            bar.advance(len(y))
            if on_batch:
                on_batch(len(y))
    found = team.merge(measures).compute()
    if curve is None:
        return found
    if "calibrated_nll" not in found:
        raise UserError("curve compares classifiers by their calibrated NLL: these data have none")
    return {**found, "dee": dee(found["calibrated_nll"], curve)}


def stream(
    net: Net, data: Data, ask: Ask, *, on_pass: Callable[[], object] | None = None, team: ProcessGroup = ALONE
) -> Iterator[tuple[Passes, Tensor]]:
    """Yield the predictions and targets of each batch; data and settings are those of `evaluate`."""
    ask, source, device = ask.checked(), as_source(data), members(net)[0].device
    info = info_of(source)
    at_once = ask.batch_size if info is None else batch_size_for(info.input_shape, ask.batch_size)
    for x, y in batches(source, at_once, start=team.rank, stride=team.size):
        y = y.to(device)
        target = y if y.is_floating_point() or task_of(members(net)[0].likelihood) == "other" else None
        yield run_passes(net, x, ask, target=target, on_pass=on_pass), y


def loss_of(measures: Mapping[str, float]) -> float:
    """Return the mean negative log-likelihood, of classes or of real numbers."""
    return measures["nll"] if "nll" in measures else -measures["log_likelihood"]


class Measures:
    """The accumulators of one task, updated with the predictions of each batch."""

    def __init__(self, *accumulators: Any) -> None:
        self.accumulators = accumulators

    def __call__(self, passes: Passes, y: Tensor) -> None:
        """Add the predictions and targets of a batch."""
        prediction = passes.summary()
        for accumulator in self.accumulators:
            if isinstance(accumulator, Classification):
                accumulator.update(prediction.mean, y, prediction.epistemic, prediction.aleatoric)
            elif isinstance(accumulator, Tempered):
                accumulator.update(prediction.mean, y)
            elif isinstance(accumulator, Density):
                assert isinstance(passes, OtherPasses)
                accumulator.update(passes, y)
            elif isinstance(accumulator, PassCount):
                assert prediction.passes is not None
                accumulator.update(prediction.passes)
            elif isinstance(accumulator, Segmentation):
                accumulator.update(prediction.mean.argmax(1), y)
            else:
                assert isinstance(passes, RealPasses)
                accumulator.update(
                    prediction.mean,
                    prediction.std,
                    match_target(prediction.mean, y),
                    passes.log_likelihood(),
                )

    def merge(self, other: Measures) -> None:
        """Merge accumulators of the same task."""
        for mine, theirs in zip(self.accumulators, other.accumulators):
            mine.merge(theirs)

    def compute(self) -> dict[str, float]:
        """Return all measures so far, by name."""
        measures: dict[str, float] = {}
        for accumulator in self.accumulators:
            measures |= accumulator.compute()
        if measures.get("entropy", 0) > 0 and "epistemic" in measures:
            measures["epistemic_share"] = measures["epistemic"] / measures["entropy"]
        return measures


def measures_for(net: Net, passes: Passes, y: Tensor, target_std: float | tuple[float, ...]) -> Measures:
    """Return empty accumulators for the network's outputs and the data's targets."""
    likelihood = likelihood_of(net)
    if isinstance(passes, OtherPasses):
        assert likelihood is not None
        return Measures(Density(likelihood))
    if isinstance(passes, RealPasses):
        check_target(likelihood, (), y)
        return Measures(Regression(target_std))
    probs = passes.summary().mean
    check_target(likelihood, probs.shape, y)
    ignore = None if likelihood is None else likelihood.ignore_index
    classes = probs.shape[1]
    accumulators: list[Any] = [Classification(classes, ignore_index=ignore), Tempered(classes, ignore_index=ignore)]
    if isinstance(passes, Settled):
        accumulators.append(PassCount())
    if probs.ndim == 4:
        accumulators.append(Segmentation(classes, ignore_index=ignore))
    return Measures(*accumulators)
