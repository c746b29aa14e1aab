"""Predictions with uncertainty, in memory independent of the number of samples and inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pocketbayes.base.calibration import Calibration
from pocketbayes.base.errors import MisfitError, UserError, warn
from pocketbayes.base.model_lock import MODEL_LOCK
from pocketbayes.data.batches import batch_size_for
from pocketbayes.data.model_inputs import ModelInput, tensors_of
from pocketbayes.data.validate import checked_inputs
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.passes import ClassPasses, OtherPasses, Passed, Passes, RealPasses
from pocketbayes.likelihoods import Likelihood, task_of
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.propagation import Ask, Propagation, find_propagation
from pocketbayes.propagation.readout import Readout


def predict(
    net: Net,
    x: Any,
    samples: int = 30,
    propagation: str | None = None,
    *,
    batch_size: int = 256,
    seed: int = 0,
    readout: Readout = "sample",
    classes: str = "predicted",
    variance_scale: float = 1.0,
    adaptive: Any = None,
    low_memory: bool = True,
) -> Prediction:
    """Compute p(y | x) averaged over the posterior.

    Pass s draws the same weights for every batch, so predictions by weight samples depend on the seed, not on the batch
    size. Local noise and flipout draw per example and depend on its position in the batch.

    Args:
        net: A network or mixture.
        x: Inputs (n, ...); for models of several inputs a mapping of names to tensors, as tokenizers return it, or a
            tuple.
        samples: Number of passes; one for a network without randomness, divided among the members of a mixture.
        propagation: How uncertainty passes through the network; by default weight samples, or as in training if that
            needs no sampling. "mean" is one pass at the posterior mean. "moments" and "linear" need no sampling: one
            pass gives the distribution of the outputs.
        batch_size: Largest number of inputs per batch; fewer for large images, to fit memory.
        seed: Seed of the draws.
        readout: How Gaussian logits become probabilities: by draws of the logits ("sample"), or in closed form
            ("probit", "taylor"); see `readout.read_out`.
        classes: For "linear", the logits whose variance is computed (see `linear.linearise`); other logits get their
            mean variance.
        variance_scale: A factor on the variance of Gaussian outputs, fitted by `fit_variance_scale` on validation data.
        adaptive: Run members or draws one after another and stop early for settled inputs: True for the network's rule
            from `fit_stopping`, or a rule. The result has the number of `passes` per input.
        low_memory: Decode the weights of one member of a mixture at a time, again for each batch; False keeps those of
            all members during the call, which is faster for small batches.
    """
    ask = Ask(samples, propagation, seed, batch_size, readout, classes, variance_scale, adaptive).checked()
    info = members(net)[0].info
    x = checked_inputs(x, info)
    with nullcontext() if low_memory else _all_decoded(net):
        parts = x.split(batch_size_for(x.shape[1:], ask.batch_size))
        prediction = Prediction.cat([run_passes(net, batch, ask).summary() for batch in parts])
    _warn_if_not_finite(prediction, x)
    names = info.class_names if info is not None else None
    return replace(prediction, conformal=members(net)[0].conformal, class_names=names)


@contextmanager
def _all_decoded(net: Net) -> Iterator[None]:
    """Hold the decoded weights of all members within the block."""
    with MODEL_LOCK, ExitStack() as stack:
        for network in members(net):
            stack.enter_context(network.posterior.frozen())
        yield


def _warn_if_not_finite(prediction: Prediction, x: ModelInput) -> None:
    finite = prediction.entropy.isfinite().reshape(len(x), -1).all(1)
    rows = finite.logical_not_().nonzero().flatten().tolist()
    if rows:
        cause = "its weights are too large" if _is_finite(x[rows[0]]) else "its input is not finite either"
        message = f"predictions for {len(rows)} of {len(x)} inputs are not finite, first for x[{rows[0]}]: {cause}"
        warn(message)


def _is_finite(x: ModelInput) -> bool:
    return all(bool(values.isfinite().all()) for values in tensors_of(x))


def run_passes(
    net: Net, x: ModelInput, ask: Ask, *, target: Tensor | None = None, on_pass: Callable[[], object] | None = None
) -> Passes:
    """Summarise all passes over one batch; `on_pass` is called after each of them, for progress."""
    if ask.adaptive:
        from pocketbayes.inference.adaptive import settle

        return settle(net, x, ask)
    return summarise(net, outputs_of(net, x, ask), ask, target=target, on_pass=on_pass)


def closing_after(outputs: Iterable[Passed]) -> Iterator[Passed]:
    """Yield the outputs, and close their generator after an error too, as it holds the model's lock and no gradients.

    An error's traceback refers to local variables, which would keep the generator open.
    """
    try:
        yield from outputs
    finally:
        if isinstance(outputs, Generator):
            outputs.close()


def summarise(
    net: Net,
    outputs: Iterable[Passed],
    ask: Ask,
    *,
    target: Tensor | None = None,
    on_pass: Callable[[], object] | None = None,
) -> Passes:
    """Summarise the outputs of all passes over one batch, calibrated as the network is."""
    passes = passes_for(members(net)[0], ask)
    for passed in closing_after(outputs):
        before = passes.count
        passes.add(calibrated(passed, ask.variance_scale, members(net)[0].calibration), target)
        if on_pass is not None:
            for _ in range(passes.count - before):
                on_pass()
    return passes


def passes_for(network: Network, ask: Ask) -> Passes:
    """Return an empty summary for the network's kind of output."""
    task = task_of(network.likelihood)
    if task == "classification":
        return ClassPasses(ask.readout, ask.seed)
    if task == "regression":
        return RealPasses()
    return OtherPasses(ask.seed)


def propagation_of(network: Network, name: str | None = None) -> Propagation:
    """Return the named propagation, by default the one that predicts best for how the network was trained."""
    if name is not None:
        return find_propagation(name)
    trained = find_propagation(network.propagation)
    return trained if trained.predicts_by is None else find_propagation(trained.predicts_by)


def calibrated(passed: Passed, variance_scale: float, calibration: Calibration | None) -> Passed:
    """Apply the given variance scale, or by default the network's calibration."""
    if variance_scale != 1 or calibration is None:
        return scaled(passed, variance_scale)
    if isinstance(passed.output, Gaussian):
        return scaled(passed, calibration.variance_scale)
    if calibration.temperature == 1 or task_of(passed.likelihood) != "classification":
        return passed
    return replace(passed, output=passed.output / calibration.temperature)


def scaled(passed: Passed, factor: float) -> Passed:
    """Multiply the variance of an output."""
    output = passed.output
    if factor == 1:
        return passed
    if isinstance(output, Correlated):
        return replace(passed, output=Correlated(output.loc, factor * output.blocks))
    if isinstance(output, Gaussian):
        return replace(passed, output=Gaussian(output.loc, factor * output.variance))
    raise UserError("variance_scale is for outputs with a variance: use it with propagation='moments' or 'linear'")


@dataclass(frozen=True)
class Turn:
    """Passes of one network."""

    network: Network
    way: Propagation
    weight: float
    numbers: Sequence[int]

    def run(self, x: ModelInput, ask: Ask) -> Iterator[Passed]:
        """Yield what `Passes.add` takes; the network's weights are decoded while its passes run."""
        network = self.network
        # Real outputs each need a variance.
        classes = ask.classes if task_of(network.likelihood) == "classification" else "all"
        own = replace(ask, propagation=self.way.name, classes=classes)
        x = network.place(x)
        with network.predicting(x):
            for output in self.way.passes(network, x, own, self.numbers):
                yield Passed(output, self.weight, network.likelihood)


def turns_of(net: Net, ask: Ask) -> list[Turn]:
    """Return equally many passes of each network, or one with their weight if a network does not draw."""
    networks = members(net)
    share = math.ceil(ask.samples / len(networks))
    ways = [propagation_of(network, ask.propagation) for network in networks]
    random = [way.draws and network.posterior.noise_size > 0 for way, network in zip(ways, networks)]
    count = share if any(random) else 1
    weights = net.shares() if isinstance(net, Mixture) else [1.0]
    turns = []
    for number, (network, way, weight) in enumerate(zip(networks, ways, weights)):
        draws = count if random[number] else 1
        turns.append(Turn(network, way, weight * count / draws, range(number * share, number * share + draws)))
    return [turn for turn in turns if turn.weight > 0]


def outputs_of(net: Net, x: ModelInput, ask: Ask) -> Iterator[Passed]:
    """Yield outputs network by network, with the decoded weights of one network in memory at a time."""
    for number, turn in enumerate(turns_of(net, ask), 1):
        yield from _run_named(turn, number, x, ask)


def _run_named(turn: Turn, number: int, x: ModelInput, ask: Ask) -> Iterator[Passed]:
    """Run passes; name a later member that does not accept the inputs of the first."""
    try:
        yield from turn.run(x, ask)
    except MisfitError as error:
        if number == 1:
            raise
        raise UserError(f"member {number} does not accept the inputs of the members before it: {error}") from error


def likelihood_of(net: Net) -> Likelihood | None:
    """Return the likelihood that the network, or every network of a mixture, was trained with."""
    return members(net)[0].likelihood
