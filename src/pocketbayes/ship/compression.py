"""The best network within a budget: a sweep over weight sharing and precision, measured on validation data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from pocketbayes.base.errors import NotFiniteAnswersError, UserError
from pocketbayes.base.progress import Display, Show, display
from pocketbayes.data.batches import as_source, batches
from pocketbayes.files import network_file as artifact
from pocketbayes.files.packing import Precision
from pocketbayes.inference.evaluation import evaluate, loss_of
from pocketbayes.methods import Deterministic, WeightSharing
from pocketbayes.methods.recalibration import recalibrate
from pocketbayes.network import Mixture, Net, members
from pocketbayes.posteriors import MeanField, Point, Shared
from pocketbayes.training.fitting import fit

GAUSSIANS = (4, 8, 16, 32, 64, 128, 256)
"""K of the first round; the second tries K between the neighbours of the best."""
REFINEMENTS = 2
OUTLIERS = 4.0
"""Outliers are the weights beyond so many times the root mean square of all; or there are none."""
SHARED_PRECISION = Precision("int8", "int8", "bfloat16")
PRECISIONS = (
    Precision(),
    Precision("bfloat16", "int8", "bfloat16"),
    Precision("int8", "int4", "bfloat16"),
    Precision("int7", "int4", "bfloat16"),
    Precision("int6", "int3", "bfloat16"),
    Precision("int5", "int3", "bfloat16"),
    Precision("int4", "int2", "bfloat16"),
    Precision("int3", "int2", "bfloat16"),
)
MEANS_ONLY_STD = 1e-3
"""The std of every weight where only means are shared: any constant, for then it separates no weights."""
# A centre moves thousands of weights at once, and batch statistics would hide such a shift.
SMALL_STEPS: dict[str, Any] = {"lr": 1e-5, "freeze_batch_norm": True}
SHARED_STDS = {"std_lr": 5e-2}
RECALIBRATION_BATCHES = 20
DEFAULT_LOSS = 0.01
CHECKED_SAMPLES = 30
"""Other draws that what was chosen must stand: a few Gaussians with wide stds may answer with infinity now and then."""


@dataclass(frozen=True)
class Candidate:
    """A way to make a network small.

    Attributes:
        precision: How finely floats are kept.
        sharing: Settings of `WeightSharing`; None keeps the storage that the network has.
        means_only: Shares by the means alone, which spends all Gaussians on them: draws then spread as wide as the
            means of the weights that share one. Else stds count as well, and every weight draws for itself.
    """

    precision: Precision
    sharing: Mapping[str, Any] | None = None
    means_only: bool = False


@dataclass(frozen=True)
class Trial:
    """What came of a candidate.

    Attributes:
        candidate: The candidate.
        bytes: The size of the file, everything counted.
        bits: The same in bits a weight.
        nll: On the validation data, for a network that was read from such a file.
        accuracy: Likewise; None for regression.
    """

    candidate: Candidate
    bytes: int
    bits: float
    nll: float
    accuracy: float | None

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        sharing = self.candidate.sharing
        return {
            "bytes": self.bytes,
            "bits": self.bits,
            "nll": self.nll,
            "accuracy": self.accuracy,
            "sharing": None if sharing is None else {**sharing, "means_only": self.candidate.means_only},
            "precision": asdict(self.candidate.precision),
        }


@dataclass(frozen=True)
class Compressed:
    """What `compress` found.

    Attributes:
        net: The network as its file will give it back; save it with `chosen.candidate.precision`.
        chosen: Its trial.
        before: The network as it was.
        trials: Everything that was tried.
    """

    net: Net
    chosen: Trial
    before: Trial
    trials: tuple[Trial, ...]

    def save(self, path: Any) -> int:
        """Writes the chosen network; returns the file's size."""
        return artifact.save(self.net, path, precision=self.chosen.candidate.precision)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values; the curve holds what no other trial beats in both size and NLL."""
        return {
            "before": self.before.to_json(),
            "chosen": self.chosen.to_json(),
            "curve": [trial.to_json() for trial in frontier(self.trials)],
            "trials": [trial.to_json() for trial in self.trials],
        }


def compress(
    net: Net,
    train: Any,
    val: Any,
    *,
    bits: float | None = None,
    max_bytes: int | None = None,
    max_nll_loss: float | None = None,
    precision: str | Precision | None = None,
    epochs: int = 0,
    samples: int = 10,
    seed: int = 0,
    progress: Show = None,
) -> Compressed:
    """The network with the lowest validation NLL within a size, or the smallest within a loss of NLL.

    A network with a mean, or a mean and a std, for every weight, or a shared one, is tried with shared weights (stage 2
    of 2DGBNN) and as it is; any other as it is, in lower precision.

    Args:
        net: A trained network or mixture.
        train: Training data, for gradients, batch norm and, with epochs, training.
        val: Validation data.
        bits: The budget in bits a weight, the whole file counted.
        max_bytes: The budget in bytes.
        max_nll_loss: The budget in nats: the smallest file whose NLL is at most this much above the network's own;
            0.01 if no budget is given.
        precision: Only this precision, in place of a choice.
        epochs: Trains each shared network for so long.
        samples: Passes for a measurement.
        seed: Of all that is drawn.
        progress: Shows a bar; None for yes if stderr is a terminal.

    Raises:
        UserError: If nothing that was tried fits the budget, or the network cannot be measured.
    """
    if sum(budget is not None for budget in (bits, max_bytes, max_nll_loss)) > 1:
        raise UserError("one budget at a time: bits, max_bytes or max_nll_loss")
    weights = members(net)[0].layout.size
    limit = max_bytes if bits is None else int(bits * weights / 8)
    fixed = None if precision is None else Precision.of(precision)
    with display(progress) as bar:
        sweep = _Sweep(net, train, val, epochs, samples, seed, bar)
        kept = [Candidate(each) for each in (PRECISIONS if fixed is None else (Precision(), fixed))]
        shared = _shared_candidates(net, fixed)
        bar.begin("compress", len(kept) + len(shared) + (2 * REFINEMENTS if shared else 0))
        for candidate in kept + shared:
            sweep.try_out(candidate, limit)
        before = sweep.trials[0]
        allowed = None if limit is not None else before.nll + (DEFAULT_LOSS if max_nll_loss is None else max_nll_loss)
        for _ in range(REFINEMENTS if shared else 0):
            for candidate in _between(sweep, limit, allowed):
                sweep.try_out(candidate, limit)
    usable = sweep.trials[1:] if fixed is not None else sweep.trials
    while True:
        chosen = _choose(usable, limit, allowed)
        if (found := sweep.outcome(chosen, before)) is not None:
            return found
        usable = [trial for trial in usable if trial is not chosen]


def frontier(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that no other beats in both size and NLL, smallest first."""
    best: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (trial.bytes, trial.nll)):
        if not best or trial.nll < best[-1].nll:
            best.append(trial)
    return best


class _Sweep:
    """Makes and measures candidates, and remembers what came of them."""

    def __init__(self, net: Net, train: Any, val: Any, epochs: int, samples: int, seed: int, bar: Display) -> None:
        self.net, self.train, self.val = net, train, val
        self.epochs, self.samples, self.seed, self.bar = epochs, samples, seed, bar
        self.trials: list[Trial] = []

    def make(self, candidate: Candidate) -> Net:
        if candidate.sharing is None:
            return self.net
        assert not isinstance(self.net, Mixture)
        start = Deterministic().init(self.net) if candidate.means_only else self.net
        method = WeightSharing(**candidate.sharing, meanfield_epochs=0, std_init=MEANS_ONLY_STD)
        rates = {**SMALL_STEPS, **(SHARED_STDS if candidate.means_only else {})}
        net = fit(method, start, self.train, epochs=self.epochs, seed=self.seed, progress=False, **rates)
        if not self.epochs:
            stream = batches(as_source(self.train), 256, shuffle_seed=self.seed)
            recalibrate(net, iter(itertools.islice(stream, RECALIBRATION_BATCHES)))
        for new, old in zip(members(net), members(self.net)):
            new.info = old.info
        return net

    def try_out(self, candidate: Candidate, limit: int | None) -> None:
        """Measures a candidate; one that does not fit the limit is only counted, unless it is the first."""
        made, size = artifact.as_saved(self.make(candidate), candidate.precision)
        nll, accuracy = float("inf"), None
        if not self.trials or limit is None or size <= limit:
            with suppress(NotFiniteAnswersError):  # a candidate that went wrong is no reason to lose the others
                measures = evaluate(made, self.val, samples=self.samples, seed=self.seed)
                nll, accuracy = loss_of(measures), measures.get("accuracy")
                nll = nll if math.isfinite(nll) else float("inf")
        bits = 8 * size / members(self.net)[0].layout.size
        self.trials.append(Trial(candidate, size, bits, nll, accuracy))
        self.bar.advance(1, bytes=size, nll=nll)

    def outcome(self, chosen: Trial, before: Trial) -> Compressed | None:
        """What was chosen; None if more draws than it was chosen by find answers that are not finite."""
        net, _ = artifact.as_saved(self.make(chosen.candidate), chosen.candidate.precision)
        try:
            evaluate(net, self.val, samples=CHECKED_SAMPLES, seed=self.seed + 1)
        except NotFiniteAnswersError:
            return None
        measured = tuple(trial for trial in self.trials if trial.nll < float("inf"))
        return Compressed(net, chosen, before, measured)


def _shared_candidates(net: Net, fixed: Precision | None) -> list[Candidate]:
    """Shared means, and for a network with stds of its own shared pairs of mean and std; with outliers and without."""
    if isinstance(net, Mixture) or not isinstance(net.posterior, (Point, MeanField, Shared)):
        return []
    with torch.no_grad():
        mean, std = net.posterior.moments()
        far = OUTLIERS * float(mean.square().mean().sqrt())
        kinds = [True, False] if isinstance(net.posterior, MeanField) and bool((std > 0).all()) else [True]
    precision = fixed or SHARED_PRECISION
    return [
        Candidate(precision, _settings(k, tau_w, means_only), means_only)
        for k, tau_w, means_only in itertools.product(GAUSSIANS, (None, far), kinds)
        if k <= mean.numel() // 8
    ]


def _settings(k: int, tau_w: float | None, means_only: bool) -> dict[str, Any]:
    """Without merging, K is what it says; an ellipse point costs ten times the bits of a weight."""
    plain = {"merge": None, "ellipse": None, "n_min": 0, "gradient_fraction": 0.0}
    return {"k": k, "tau_w": tau_w, "draw": "shared" if means_only else "independent", **plain}


def _between(sweep: _Sweep, limit: int | None, allowed: float | None) -> list[Candidate]:
    """K between that of the best shared network and the next one that does not fit."""
    shared = [trial for trial in sweep.trials if trial.candidate.sharing is not None]
    fitting = _fitting(shared, limit, allowed)
    if not fitting:
        return []
    best = min(fitting, key=lambda trial: trial.nll if limit is not None else trial.bytes)
    sharing = best.candidate.sharing
    assert sharing is not None
    own = sorted(_k(trial) for trial in shared if _alike(trial.candidate, best.candidate))
    place = own.index(sharing["k"])
    neighbour = own[place + 1 :][:1] if limit is not None else own[:place][-1:]
    middle = [round((sharing["k"] * other) ** 0.5) for other in neighbour]
    return [replace(best.candidate, sharing={**sharing, "k": k}) for k in middle if k not in own]


def _k(trial: Trial) -> int:
    assert trial.candidate.sharing is not None
    return int(trial.candidate.sharing["k"])


def _alike(one: Candidate, two: Candidate) -> bool:
    return {**(one.sharing or {}), "k": 0} == {**(two.sharing or {}), "k": 0}


def _fitting(trials: Sequence[Trial], limit: int | None, allowed: float | None) -> list[Trial]:
    return [
        trial
        for trial in trials
        if (limit is None or trial.bytes <= limit) and (allowed is None or trial.nll <= allowed)
    ]


def _choose(trials: Sequence[Trial], limit: int | None, allowed: float | None) -> Trial:
    fitting = _fitting(trials, limit, allowed)
    if fitting:
        return min(
            fitting, key=lambda trial: (trial.nll, trial.bytes) if limit is not None else (trial.bytes, trial.nll)
        )
    if limit is not None:
        smallest = min(trials, key=lambda trial: trial.bytes)
        raise UserError(
            f"nothing fits {limit} bytes: the smallest that was tried takes {smallest.bytes} "
            f"({smallest.bits:.2f} bits a weight); raise the budget"
        )
    best = min(trials, key=lambda trial: trial.nll)
    raise UserError(f"nothing stays below an NLL of {allowed:.4f}: the best that was tried has {best.nll:.4f}")
