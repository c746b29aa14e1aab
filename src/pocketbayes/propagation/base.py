"""Propagations of uncertainty through a network, registered by name."""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.randomness import Randomness
from pocketbayes.base.registry import Registry
from pocketbayes.base.seeds import pass_seed
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import Correlated, Gaussian, RuleTable
from pocketbayes.posteriors.model_call import Call
from pocketbayes.propagation.readout import Readout

if TYPE_CHECKING:
    from pocketbayes.network import Network

MAX_SAMPLES = 1_000_000
"""Largest number of passes, since the list of their seeds must fit memory."""
CLASSES = "'predicted', 'margin', 'top-<k>', 'all' or 'covariance'"


@dataclass(frozen=True)
class Ask:
    """The settings of a prediction.

    Attributes:
        samples: Number of passes, if passes differ.
        propagation: The name of the propagation; None for the network's own.
        seed: Seed of all draws.
        batch_size: Inputs per batch.
        readout: How Gaussian logits become probabilities.
        classes: For "linear", the logits whose variance is computed.
        variance_scale: A factor for the variance of Gaussian outputs.
        adaptive: True, or a rule that stops before all passes are done.
        noise: The weights' noise in a single pass; None for new noise.
        randomness: The generators of a single pass; None for torch's global generator.
    """

    samples: int = 30
    propagation: str | None = None
    seed: int = 0
    batch_size: int = 256
    readout: Readout = "sample"
    classes: str = "predicted"
    variance_scale: float = 1.0
    adaptive: Any = None
    noise: Tensor | None = field(default=None, compare=False, repr=False)
    randomness: Randomness | None = field(default=None, compare=False, repr=False)

    def checked(self) -> Ask:
        """Check the settings and convert numbers of numpy and torch to Python's.

        Raises:
            UserError: If one of them is out of range.
        """
        whole = {name: _whole(name, getattr(self, name)) for name in ("samples", "batch_size", "seed")}
        for name in ("samples", "batch_size"):
            if whole[name] < 1:
                raise UserError(f"{name} must be at least 1, not {whole[name]}")
        if whole["samples"] > MAX_SAMPLES:
            raise UserError(f"samples must be at most {MAX_SAMPLES}, not {whole['samples']}: each is a whole pass")
        if not -(2**63) <= whole["seed"] < 2**63:
            raise UserError(f"seed must be less than 2**63 in size, not {self.seed}")
        if self.readout not in get_args(Readout):
            raise UnknownNameError("readout", str(self.readout), get_args(Readout))
        check_classes(self.classes)
        scale = self.variance_scale
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not (math.isfinite(scale) and scale >= 0):
            raise UserError(f"variance_scale must be a finite number of at least 0, not {scale!r}")
        if self.propagation is not None:
            find_propagation(self.propagation)
        return replace(self, samples=whole["samples"], batch_size=whole["batch_size"], seed=whole["seed"])


def _whole(name: str, value: Any) -> int:
    """Convert an integer of Python, numpy or torch to Python's."""
    try:
        if not isinstance(value, bool):
            return int(value.__index__())
    except (AttributeError, TypeError):
        pass
    raise UserError(f"{name} must be a whole number, not {value!r}")


def check_classes(classes: Any) -> None:
    """Reject a value of `classes` that the delta method does not support."""
    known = ("predicted", "margin", "all", "covariance")
    if not isinstance(classes, str) or (classes not in known and not re.fullmatch(r"top-[1-9]\d*", classes)):
        raise UserError(f"classes must be {CLASSES}, not {classes!r}")


class Propagation(ABC):
    """A propagation of weight uncertainty to the outputs; a subclass with a `name` is registered under it.

    A subclass defines `run`, one pass: `net.posterior` supplies weights, `net.run_with(weights, x)` runs the model.
    """

    name: ClassVar[str]
    draws: ClassVar[bool] = False
    """Whether two passes differ, so that a prediction takes several."""
    predicts_by: ClassVar[str | None] = None
    """The default propagation for predictions of networks trained with this one, if different."""
    differentiable: ClassVar[bool] = True
    """Whether outputs, with their variances, have gradients with respect to the inputs."""
    exports: ClassVar[bool] = True
    """Whether torch's exporter can trace a pass."""
    examples: ClassVar[int | None] = None
    """Largest number of examples per pass, if memory limits it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and not inspect.isabstract(cls):
            PROPAGATIONS.join(cls.name, cls())

    @abstractmethod
    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run one pass.

        Args:
            net: The network, its model stripped of the weights that the posterior covers.
            x: The input; a `Call` if the model takes several arguments.
            ask: The settings, including the generators of the pass.

        Returns:
            The model's output, or a `Gaussian` if the pass gives the distribution of the outputs.
        """

    def passes(self, net: Network, x: ModelInput, ask: Ask, numbers: Sequence[int]) -> Iterator[Tensor]:
        """Yield the outputs of the numbered passes: (s, n, ...) for s passes at a time, or Gaussians (n, ...)."""
        for number in numbers:
            output = self._in_parts(net, x, ask, number)
            yield output if isinstance(output, Gaussian) else output[None]

    def _in_parts(self, net: Network, x: ModelInput, ask: Ask, number: int) -> Tensor:
        """Run the numbered pass, in parts if memory requires it."""
        ask = replace(ask, randomness=Randomness(pass_seed(ask.seed, number)))
        if self.examples is None or len(x) <= self.examples:
            return check_output(net.answer(x, ask), len(x))
        parts = [check_output(net.answer(part, ask), len(part)) for part in x.split(self.examples)]
        blocks = [part.blocks for part in parts if isinstance(part, Correlated)]
        if len(blocks) < len(parts):
            return torch.cat(parts)
        return Correlated(torch.cat([part.loc for part in parts if isinstance(part, Gaussian)]), torch.cat(blocks))


PROPAGATIONS: Registry[Propagation] = Registry("propagation")
"""Every propagation by name, including those of users."""


find_propagation = PROPAGATIONS.__getitem__


def check_output(output: object, examples: int | None = None) -> Tensor:
    """Return a model's output."""
    if not isinstance(output, Tensor):
        raise UserError(
            f"the model returns a {type(output).__name__}, not a tensor: wrap it in a module whose forward returns the "
            "logits or predictions alone"
        )
    if examples is not None and (not output.ndim or len(output) != examples):
        raise UserError(
            f"the model returns shape {tuple(output.shape)} for a batch of {examples}: expected (batch, ...)"
        )
    return output


class WeightPropagation(Propagation):
    """Propagations that run the model once with plain, sparse or Gaussian weights."""

    @abstractmethod
    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table of operations that accept weights other than plain tensors."""

    @abstractmethod
    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return the weights of one pass, one per slot of the layout."""

    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run the model with these weights."""
        return net.run_with(self.weights(net, x, ask), x)

    def matrices(self, net: Network, x: Any) -> list[int]:
        """Return the slots whose weights may be sparse matrices, because a single linear operation uses each."""
        slots = net.posterior.matrix_slots()
        return [number for number in slots if net.plan_for(self.name, x)[number]] if slots else []


class Ruled(WeightPropagation):
    """Propagations with Gaussian weights and a rule table for operations on them."""

    table: ClassVar[RuleTable]

    def rules(self, posterior: Posterior) -> RuleTable:
        """Return the table for the weights of a posterior."""
        return self.table

    def run(self, net: Network, x: Any, ask: Ask) -> Any:
        """Run the model with Gaussian weights and, if the table does not draw, noise in the inputs."""
        weights = self.weights(net, x, ask)
        if net.input_var and not self.table.draws:
            args, kwargs = Call.unpack(x)
            x = Call((self.table.noisy(args[0], net.input_var), *args[1:]), kwargs)
        return net.run_with(weights, x)

    def weights(self, net: Network, x: Any, ask: Ask) -> list[Tensor]:
        """Return Gaussians, and draws for weights whose use no rule covers."""
        posterior, table = net.posterior, self.rules(net.posterior).drawing_from(ask.randomness)
        matrices = self.matrices(net, x) if table.takes_matrices else []
        if table.draws and not posterior.noise_size:
            return posterior.mean_slots(matrices)
        stays = net.plan_for(self.name, x)
        weights: list[Tensor] = [*posterior.gaussian_slots(table, matrices)]
        if all(stays):
            return weights
        drawn = posterior.sample_slots(posterior.new_noise(ask.randomness))
        return [gaussian if stay else value for stay, gaussian, value in zip(stays, weights, drawn)]
