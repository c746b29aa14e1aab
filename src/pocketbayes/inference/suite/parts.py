"""The parts of an evaluation: clean data, another data set, one shift at one level."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pocketbayes.base.digests import new_digest, tensor_bytes
from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import ProcessGroup
from pocketbayes.base.progress import Display
from pocketbayes.data.batches import Source, info_of, size_of
from pocketbayes.data.shift import CORRUPTIONS, ORIGINAL_15, SEVERITIES
from pocketbayes.inference.evaluation import Measures, measures_for, stream
from pocketbayes.inference.metrics import Classification, HumanAgreement
from pocketbayes.inference.passes import Passes
from pocketbayes.inference.suite import per_image
from pocketbayes.inference.suite.store import Store, data_print
from pocketbayes.network import Net
from pocketbayes.propagation import Ask

ROW = ("accuracy", "nll", "ece", "brier", "entropy", "epistemic")
"""Measures in a row of a shift."""
TEMPERED = ("nll", "ece")
"""Measures in a row after scaling by the temperature of the clean data."""


@dataclass
class PredictionStream:
    """A network's predictions on a data set, batch by batch, with progress per image and pass."""

    net: Net
    source: Source
    bar: Display
    ask: Ask
    team: ProcessGroup

    def __iter__(self) -> Iterator[tuple[int, Passes, Tensor]]:
        """Yield the index of each batch's first image, the predictions and the targets."""
        passed, step = 0, self.source.batch_size if isinstance(self.source, DataLoader) else self.ask.batch_size
        if step is None and self.team.size > 1:
            raise UserError("several processes need a DataLoader with a batch_size: give a data set instead")

        def on_pass() -> None:
            nonlocal passed
            passed += 1
            self.bar.advance(0, passes=passed)

        start = self.team.rank * (step or 0)
        for passes, y in stream(self.net, self.source, self.ask, on_pass=on_pass, team=self.team):
            yield start, passes, y
            start += len(y) + (self.team.size - 1) * (step or 0)
            self.bar.advance(len(y))


class Part(ABC):
    """A part of an evaluation."""

    def __init__(self, title: str, group: str, source: Callable[[], Source]) -> None:
        """Take the displayed title, the entry of `seconds` for its time, and a function that returns its data."""
        self.title, self.group, self.source = title, group, source

    @abstractmethod
    def done(self, store: Store) -> bool:
        """Return whether the document contains it."""

    @abstractmethod
    def measure(self, predictions: PredictionStream, store: Store) -> None:
        """Measure this part and put the results into the document."""

    def run(self, predictions: PredictionStream, store: Store) -> None:
        """Measure the part, record the time and write the document."""
        start, work = time.monotonic(), time.process_time()
        self.measure(predictions, store)
        spent, work = time.monotonic() - start, time.process_time() - work
        seconds = store.document.setdefault("seconds", {})
        if self.group == "test":
            seconds |= {
                "test": round(spent, 3),
                "test, of CPU": round(work, 3),
                "per image": spent / size_of(predictions.source),
            }
        else:
            seconds[self.group] = round(seconds.get(self.group, 0.0) + spent, 3)
        store.keep()


class Clean(Part):
    """The clean data."""

    def __init__(self, source: Source, humans: Tensor | None) -> None:
        """Take the data and, if known, the fractions of people who chose each class for each image."""
        super().__init__("test", "test", lambda: source)
        self.humans = humans
        self.humans_print = None if humans is None else new_digest(tensor_bytes(humans)).hexdigest()

    def done(self, store: Store) -> bool:
        """Return whether the document has the measures, and the values per image that other parts need."""
        document = store.document
        same_humans = self.humans is None or document.get("humans", {}).get("data") == self.humans_print
        return "measures" in document and ("risk_coverage" not in document or bool(store.values)) and same_humans

    def measure(self, predictions: PredictionStream, store: Store) -> None:
        """Measure; for a classifier of whole images also keep curves, histograms and the values per image."""
        info = info_of(predictions.source)
        measures: Measures | None = None
        images, humans = per_image.PerImage(), HumanAgreement()
        for start, passes, y in predictions:
            measures = measures or measures_for(predictions.net, passes, y, info.target_std if info else 1.0)
            measures(passes, y)
            prediction = passes.summary()
            if prediction.probs is not None and prediction.probs.ndim == 2:
                images.add(start, prediction, y)
                if self.humans is not None:
                    humans.update(prediction.probs, self.humans[start : start + len(y)])
        measures, images, humans = (
            predictions.team.merge(measures),
            predictions.team.merge(images),
            predictions.team.merge(humans),
        )
        document = store.document
        document["measures"] = measures.compute()
        if isinstance(measures.accumulators[0], Classification):
            document["reliability"] = per_image.reliability_figures(measures.accumulators[0].reliability())
        if not len(images):
            return
        store.values = values = images.values()
        document["risk_coverage"] = per_image.risk_figures(values)
        log_probs = images.log_probs()
        if len(log_probs) > 1:
            document["temperature"] = per_image.temperature_figures(log_probs, values["label"][: len(log_probs)])
        document["images"] = per_image.shown_images(values, predictions.source)
        document["box"] = per_image.box_figures(values, info)
        if self.humans is not None:
            document["humans"] = {**humans.compute(), "data": self.humans_print}


class OutOfDistribution(Part):
    """An out-of-distribution data set."""

    def __init__(self, name: str, source: Source) -> None:
        """Take the name in the results, and the data."""
        super().__init__(f"ood {name}", "ood", lambda: source)
        self.name, self.data = name, data_print(source)

    def done(self, store: Store) -> bool:
        """Return whether exactly this data set was measured."""
        return bool(store.document.get("ood", {}).get(self.name, {}).get("data") == self.data)

    def measure(self, predictions: PredictionStream, store: Store) -> None:
        """Compare uncertainties with those of the clean data."""
        images = per_image.PerImage()
        for start, passes, _ in predictions:
            images.add(start, passes.summary())
        images = predictions.team.merge(images)
        figures = per_image.ood_figures(store.values, images.values(), images.classes)
        store.document.setdefault("ood", {})[self.name] = {**figures, "data": self.data}


class Shifted(Part):
    """The data under one shift at one level."""

    def __init__(self, kind: str, name: str | None, level: tuple[str, float], source: Callable[[], Source]) -> None:
        """Take the kind of shift, the corruption's name if it is one, the level's name and value, and the data."""
        words = [name or kind, f"{level[1]:g}"]
        super().__init__(" ".join(words), "shift", source)
        self.kind, self.name, self.level = kind, name, level

    def done(self, store: Store) -> bool:
        """Return whether there is a row for the level."""
        key, value = self.level
        rows = store.document.get("shift", {}).get(self.kind, {})
        return any(row[key] == value for row in (rows if self.name is None else rows.get(self.name, ())))

    def measure(self, predictions: PredictionStream, store: Store) -> None:
        """Add a row with the measures and the entropies of correct and wrong predictions."""
        measures: Measures | None = None
        images = per_image.PerImage()
        for start, passes, y in predictions:
            measures = measures or measures_for(predictions.net, passes, y, 1.0)
            measures(passes, y)
            images.add(start, passes.summary(), y)
        images = predictions.team.merge(images)
        computed, values = predictions.team.merge(measures).compute(), images.values()
        right = values["correct"].bool()
        row: dict[str, float | None] = {self.level[0]: self.level[1], **{name: computed[name] for name in ROW}}
        row |= {"entropy_right": _mean(values["entropy"][right]), "entropy_wrong": _mean(values["entropy"][~right])}
        row["variance"], row["images"] = _mean(values["variance"]), len(images)
        if "temperature" in store.document:
            clean, log_probs = store.document["temperature"]["value"], images.log_probs()
            after = per_image.tempered(log_probs, values["label"][: len(log_probs)], clean)
            row |= {f"tempered_{name}": after[name] for name in TEMPERED}
        shift = store.document.setdefault("shift", {})
        if self.name is None:
            shift.setdefault(self.kind, []).append(row)
        else:
            shift.setdefault(self.kind, {}).setdefault(self.name, []).append(row)
            shift["corruptions_mean"] = corruption_means(shift[self.kind])


def corruption_means(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return means over corruptions and severities, for the 15 of the benchmark, for all 19, and by severity.

    Only complete sets have a mean.
    """
    found: dict[str, Any] = {}
    for names in (ORIGINAL_15, CORRUPTIONS):
        if all(len(rows.get(name, ())) == len(SEVERITIES) for name in names):
            found[f"of {len(names)}"] = _mean_row([row for name in names for row in rows[name]])
            found["by severity"] = [
                {
                    "severity": level,
                    **_mean_row([row for name in names for row in rows[name] if row["severity"] == level]),
                }
                for level in SEVERITIES
            ]
    return found


def check_humans(humans: Any, count: int) -> Tensor:
    """Check and return human labels (n, classes), one row per image."""
    labels = torch.as_tensor(humans).detach().cpu()
    if labels.ndim != 2 or len(labels) != count:
        raise UserError(
            f"human labels must be (n, classes) for the {count} images in order, not of shape {tuple(labels.shape)}"
        )
    return labels


def _mean_row(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for name in (*ROW, "entropy_right", "entropy_wrong", "variance", *(f"tempered_{name}" for name in TEMPERED)):
        known = [row[name] for row in rows if row.get(name) is not None]
        if known:
            found[name] = sum(known) / len(known)
    return found


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None
