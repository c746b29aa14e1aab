"""`compress`: the best network within a budget."""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from pocketbayes.base.arguments import check_path
from pocketbayes.base.errors import UserError
from pocketbayes.base.naming import fits
from pocketbayes.base.progress import Show, display
from pocketbayes.data.batches import Data
from pocketbayes.files.packing import Precision
from pocketbayes.methods import Deterministic
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.propagation import Ask
from pocketbayes.ship.compression.coding import can_be_coded
from pocketbayes.ship.compression.members import best_first
from pocketbayes.ship.compression.sweep import Sweep
from pocketbayes.ship.compression.trials import Budget, Compressed, choose

FALLBACK_PRECISIONS = (
    Precision("bfloat16", "int8", "bfloat16"),
    Precision("int8", "int4", "bfloat16"),
    Precision("int6", "int3", "bfloat16"),
    Precision("int4", "int2", "bfloat16"),
)
"""Precisions for posteriors that codes cannot represent: dropout, low-rank and Kronecker-factored covariances."""


def compress(
    net: Net | nn.Module,
    train: Data,
    val: Data,
    *,
    bits: float | None = None,
    max_bytes: int | None = None,
    max_nll_loss: float | None = None,
    max_accuracy_loss: float | None = None,
    precision: str | Precision | None = None,
    count: int | None = None,
    steps: int = 0,
    samples: int = 10,
    seed: int = 0,
    out: str | Path | None = None,
    progress: Show = None,
) -> Compressed:
    """Find the network with the lowest validation NLL within a size, or the smallest file within a loss.

    Weights become entries of one codebook, chosen by distance and code length. Later weights compensate the errors of
    earlier ones, as far as the layer's inputs allow, and batch norm is corrected relative to the original network.
    `result.pick(...)` chooses for another budget without another sweep.

    Args:
        net: A trained network or mixture, or a plain model.
        train: Training data, of which a few hundred examples are used.
        val: Validation data.
        bits: The budget in bits per weight, for the whole file.
        max_bytes: The budget in bytes.
        max_nll_loss: The budget in nats: the smallest file whose NLL on `val` is at most this much above the network's
            own. If no budget is given, 0.01 and one standard error of the difference, which is large on few examples.
        max_accuracy_loss: The budget in accuracy, likewise.
        precision: Keep the network's storage at this precision instead of coding.
        count: The number of members that a mixture keeps; None chooses it.
        steps: Training steps of coded networks near the budget, with the original network as teacher; a trained file is
            chosen only if it is better on the validation data.
        samples: Passes per measurement, if there are stds.
        seed: Seed of all draws.
        out: A folder for all measured files, from which an interrupted sweep resumes.
        progress: Whether to show a bar; None for only on a terminal.

    Raises:
        UserError: If no file fits the budget, or the network cannot be measured.
    """
    budget = Budget(bits, max_bytes, max_nll_loss, max_accuracy_loss)
    folder = None if out is None else check_path(out, "out=")
    ask = Ask(samples, seed=seed).checked()
    if not fits(steps, int) or steps < 0:
        raise UserError(f"steps must be a whole number of at least 0, not {steps!r}")
    if not isinstance(net, nn.Module):
        raise UserError(f"expected a network, a mixture or a torch module to compress, not {type(net).__name__}")
    if not isinstance(net, (Network, Mixture)):
        net = Deterministic().init(net)
    if count is not None and not (isinstance(count, int) and 1 <= count <= len(members(net))):
        raise UserError(f"count={count!r}: the mixture has {len(members(net))} members")
    if isinstance(net, Mixture):
        net = best_first(net, val, ask.samples, ask.seed, count)
    with display(progress) as bar:
        sweep = Sweep(net, train, val, ask.samples, ask.seed, folder, bar)
        sweep.keep_as("lossless", "lossless")
        before, limit = sweep.trials[0], budget.limit(sweep.weights)
        budget.check_measured(before)
        if precision is not None:
            sweep.keep_as(precision, str(precision))
        elif can_be_coded(net):
            if limit is not None:
                count = sweep.fill(limit, count)
            if limit is None or not isinstance(net, Mixture):
                sweep.trace(budget)
                sweep.refine(budget)
            if steps:
                sweep.retrain(budget, steps)
        else:
            for each in FALLBACK_PRECISIONS:
                sweep.keep_as(each, each.means)
        usable = [t for t in sweep.trials if math.isfinite(t.nll)]
        usable = usable[1:] if precision is not None else usable
        if count is not None:
            usable = [t for t in usable if t.packed is not None and t.packed.networks == count]
        while True:
            chosen = choose(usable, budget, before, sweep.weights)
            assert chosen.packed is not None
            found = chosen.packed.unpack(sweep.models[: chosen.packed.networks])
            if chosen is before or sweep.is_finite(found):
                return Compressed(found, chosen, before, tuple(usable), sweep.weights, sweep.models)
            usable.remove(chosen)
