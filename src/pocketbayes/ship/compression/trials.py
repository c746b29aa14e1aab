"""The trials of a sweep, in memory and on disk, and the choice of a file for a budget."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from torch import nn

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.digests import new_digest
from pocketbayes.base.errors import UserError
from pocketbayes.base.plain import finite
from pocketbayes.files import pocket
from pocketbayes.files.network_file import Packed
from pocketbayes.network import Net, members

DEFAULT_NLL_LOSS = 0.01
NLL_NOISE = 0.01
"""Difference of NLL in nats that is noise for a thousand validation examples."""
RELATIVE_NLL_NOISE = 0.03
"""The same as a fraction of the NLL, which matters for many classes and few validation examples."""
NAME_BYTES = 12
"""Bytes of the digest that names a trial's files."""


@dataclass(frozen=True)
class Budget:
    """A budget: a size, or a loss on the validation data.

    Attributes:
        bits: Bits per weight, of the whole file.
        max_bytes: Bytes of the file.
        max_nll_loss: Nats of NLL above the network's own.
        max_accuracy_loss: Accuracy below the network's own, between 0 and 1.
    """

    bits: float | None = None
    max_bytes: int | None = None
    max_nll_loss: float | None = None
    max_accuracy_loss: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in vars(self).values() if value is not None]
        if len(given) > 1:
            raise UserError("give only one budget: bits, max_bytes, max_nll_loss or max_accuracy_loss")
        if given and not (isinstance(given[0], Real) and math.isfinite(given[0])):
            raise UserError(f"a budget must be a finite number, not {given[0]!r}")
        if given and not given[0] >= 0:
            raise UserError(f"a budget must not be negative: {given[0]}")
        if self.max_accuracy_loss is not None and self.max_accuracy_loss > 1:
            raise UserError(f"max_accuracy_loss must lie between 0 and 1, not {self.max_accuracy_loss}: 0.01 is 1 %")

        if 0 in (self.bits, self.max_bytes):
            raise UserError("a file has more than 0 bytes: raise the budget")

    def check_measured(self, before: Trial) -> None:
        """Reject an accuracy budget for a network without an accuracy."""
        if self.max_accuracy_loss is not None and before.accuracy is None:
            raise UserError("max_accuracy_loss is for classification: give max_nll_loss")

    def limit(self, weights: int) -> int | None:
        """Return the largest file in bytes, if the budget is a size."""
        return self.max_bytes if self.bits is None else int(self.bits * weights / 8)


@dataclass(frozen=True)
class Trial:
    """A file that was made and measured.

    Attributes:
        how: The settings of the coding, as JSON values.
        bytes: The size of the whole file.
        bits: The same in bits per weight.
        nll: The NLL on the validation data of the network read from this file.
        accuracy: Its accuracy; None for regression.
        packed: The file's content.
        disagreement: The fraction of predictions in which two members of a mixture differ, averaged over pairs.
        nll_error: The standard error of the NLL's difference from the original network's, on the same examples; 0 for
            mixtures, where it is not measured.
    """

    how: Mapping[str, Any]
    bytes: int
    bits: float
    nll: float
    accuracy: float | None
    packed: Packed | None = field(default=None, repr=False, compare=False)
    disagreement: float | None = None
    nll_error: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as plain values."""
        return {
            "bytes": self.bytes,
            "bits": self.bits,
            "nll": self.nll,
            "accuracy": self.accuracy,
            "nll_error": self.nll_error,
            **({} if self.disagreement is None else {"disagreement": self.disagreement}),
            "how": dict(self.how),
        }


def frontier(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that no other beats in both size and NLL, smallest first."""
    best: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.bytes, trial.nll)):
        if not best or trial.nll < best[-1].nll:
            best.append(trial)
    return best


def choose(trials: Sequence[Trial], budget: Budget, before: Trial, weights: int) -> Trial:
    """Return the lowest NLL within a size, or the smallest file within a loss.

    Among files within a size that differ only in lambda, and in NLL by no more than noise, the largest is chosen. A
    file is within a loss if its NLL exceeds the limit by at most one standard error: a few dozen examples cannot show
    smaller differences, and would reject good files by chance.

    Raises:
        UserError: If no trial fits.
    """
    limit = budget.limit(weights)
    if limit is not None:
        fitting = [trial for trial in trials if trial.bytes <= limit]
        if not fitting:
            smallest = min(trials, key=lambda trial: trial.bytes)
            raise UserError(
                f"nothing fits {limit} bytes: the smallest that was tried takes {smallest.bytes} "
                f"({smallest.bits:.2f} bits per weight); raise the budget"
            )
        best = min(fitting, key=lambda trial: (trial.nll, trial.bytes))
        most = best.nll + max(NLL_NOISE, RELATIVE_NLL_NOISE * abs(best.nll))
        equal = [t for t in fitting if {**t.how, "lam": None} == {**best.how, "lam": None} and t.nll <= most]
        return max(equal, key=lambda trial: trial.bytes, default=best)
    budget.check_measured(before)
    if budget.max_accuracy_loss is not None:
        assert before.accuracy is not None
        fitting = [
            t for t in trials if t.accuracy is not None and t.accuracy >= before.accuracy - budget.max_accuracy_loss
        ]
    else:
        stated = budget.max_nll_loss
        fitting = [
            trial for trial in trials
            if trial.nll - before.nll <= (DEFAULT_NLL_LOSS + trial.nll_error if stated is None else stated)
        ]  # fmt: skip
    return min(fitting, key=lambda trial: (trial.bytes, trial.nll), default=before)


def fits_budget(trial: Trial, budget: Budget, before: Trial, weights: int) -> bool:
    """Return whether a trial fits a budget."""
    limit = budget.limit(weights)
    if limit is not None:
        return trial.bytes <= limit
    return choose([trial], budget, before, weights) is trial


@dataclass(frozen=True)
class Compressed:
    """The result of `compress`.

    Attributes:
        net: The chosen network, as read from its file.
        chosen: Its measurements.
        before: The measurements of the original network.
        trials: All measured files.
        weights: The number of weights of all members.
        models: The architectures, which files do not contain.
    """

    net: Net
    chosen: Trial
    before: Trial
    trials: tuple[Trial, ...]
    weights: int
    models: Sequence[nn.Module] = field(repr=False)

    @property
    def front(self) -> list[Trial]:
        """The trials that no other beats in both size and NLL, smallest first."""
        return frontier(self.trials)

    @property
    def layer_bits(self) -> dict[str, float]:
        """Bits per weight of each layer's codes in the chosen network; for a mixture, in its first member."""
        return members(self.net)[0].posterior.code_bits()

    def pick(
        self,
        *,
        bits: float | None = None,
        max_bytes: int | None = None,
        max_nll_loss: float | None = None,
        max_accuracy_loss: float | None = None,
    ) -> Compressed:
        """Choose for another budget among the measured files.

        Raises:
            UserError: If nothing fits.
        """
        chosen = choose(
            self.trials, Budget(bits, max_bytes, max_nll_loss, max_accuracy_loss), self.before, self.weights
        )
        assert chosen.packed is not None
        net = chosen.packed.unpack(list(self.models)[: chosen.packed.networks])
        return Compressed(net, chosen, self.before, self.trials, self.weights, self.models)

    def save(self, path: str | Path) -> int:
        """Write the chosen network; return the file's size in bytes."""
        assert self.chosen.packed is not None
        return self.chosen.packed.write(path)

    def to_json(self) -> dict[str, Any]:
        """Return all measurements as JSON values."""
        return {
            "weights": self.weights,
            "before": self.before.to_json(),
            "chosen": self.chosen.to_json(),
            "layer_bits": self.layer_bits,
            "front": [trial.to_json() for trial in self.front],
            "trials": [trial.to_json() for trial in self.trials],
        }


class Store:
    """A folder of measured files, or none.

    A trial is identified by its coding, the network, and the settings of the measurement.
    """

    def __init__(self, folder: str | Path | None, origin: Packed, settings: Mapping[str, Any]) -> None:
        """Take the folder, the original network, and the settings of the sweep."""
        self.folder, self.origin = None if folder is None else Path(folder), ""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = new_digest(json.dumps(settings, sort_keys=True).encode())
        for name, part in origin.parts.items():
            digest.update(name.encode() + part)
        self.origin = digest.hexdigest()

    def path(self, how: Mapping[str, Any], suffix: str) -> Path | None:
        """Return the path of a trial's file."""
        if self.folder is None:
            return None
        text = self.origin + json.dumps(how, sort_keys=True)
        return self.folder / (new_digest(text.encode(), NAME_BYTES).hexdigest() + suffix)

    def find(self, how: Mapping[str, Any]) -> Trial | None:
        """Return an earlier trial, if any."""
        record, file = self.path(how, ".json"), self.path(how, ".pocket")
        if record is None or file is None or not (record.is_file() and file.is_file()):
            return None
        known = json.loads(record.read_text())
        text, parts = pocket.read(file)
        text = {key: value for key, value in text.items() if key != "format"}
        packed = Packed(text, {name: bytes(part) for name, part in parts.items()})
        nll = float("inf") if known["nll"] is None else known["nll"]
        figures = known["bytes"], known["bits"], nll, known["accuracy"]
        return Trial(known["how"], *figures, packed, known.get("disagreement"), known.get("nll_error", 0.0))

    def keep(self, trial: Trial) -> None:
        """Write a trial; its record comes last."""
        record, file = self.path(trial.how, ".json"), self.path(trial.how, ".pocket")
        if record is None or file is None or trial.packed is None:
            return
        trial.packed.write(file)
        write_atomically(record, json.dumps(finite(trial.to_json())))
