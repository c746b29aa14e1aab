"""Checks that stop a run or warn: signals, NaN or infinity, ranks that disagree, unsuitable models."""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.digests import digest_tensors
from pocketbayes.base.errors import UserError, warn
from pocketbayes.base.process_group import LostProcessError
from pocketbayes.base.randomness import Randomness
from pocketbayes.network import Net, Network, members
from pocketbayes.posteriors.layout import evaluating
from pocketbayes.training.averages import Averages
from pocketbayes.training.checkpoint import Progress

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ROLLBACKS = 5
SLOWER = 0.5


class TrainingError(UserError):
    """Training that cannot continue: NaN or infinite values, or ranks that disagree."""


class NotFiniteError(TrainingError):
    """NaN or infinity in loss, gradient or weights."""


class Signals:
    """Handler of Ctrl-C and SIGTERM that lets a run finish its step and save; a second signal stops it at once.

    Attributes:
        asked: The name of the received signal, if any.
        patient: Ignore a second signal, since launchers forward signals that processes received already.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.patient = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        """Install the signal handlers, which Python allows only in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the handlers, except after a lost process, when SIGTERM must not cut off the message."""
        if isinstance(error, LostProcessError):
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and not self.patient:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name


def not_finite(network: Network, *, gradients: bool = False) -> str | None:
    """Return the first layer with a NaN or infinite value or gradient, or None."""
    for name, parameter in network.named_parameters():
        values = parameter.grad if gradients else parameter.detach()
        if values is None or bool(values.isfinite().all()):
            continue
        if values.shape == (network.layout.size,):  # one number per weight, so name the weight
            first = int((~values.isfinite()).nonzero()[0])
            return next(slot.name for slot in network.layout.slots if slot.start <= first < slot.stop)
        return name.removeprefix("model.")
    return None


def gradient_norm(network: Network) -> Tensor | None:
    """Return the norm of all gradients together, on their device; None if there are none."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients) if gradients else None


def fingerprint(net: nn.Module) -> str:
    """Return a hash of all parameters and buffers, equal on ranks that agree."""
    return digest_tensors(sorted(net.state_dict().items()))


def not_finite_member(net: Net) -> str | None:
    """Return the first layer of any member that holds NaN or infinity."""
    return next((bad for network in members(net) if (bad := not_finite(network)) is not None), None)


class Snapshot:
    """A valid state to roll back to, with half the learning rate."""

    def __init__(self, network: Network, optimizer: Any, averages: Averages, at: Progress, used: int = 0) -> None:
        self.weights = copy.deepcopy(network.state_dict())
        self.moments = copy.deepcopy(optimizer.state_dict())
        self.averages = copy.deepcopy(averages.state())
        self.at = copy.deepcopy(at)
        self.used = used

    def restore(self, network: Network, optimizer: Any, averages: Averages) -> Progress:
        """Restore the state and return its progress, with a lower learning rate each time."""
        self.used += 1
        network.load_state_dict(self.weights)
        optimizer.load_state_dict(copy.deepcopy(self.moments))
        averages.load(self.averages)
        self.at.plateau.factor *= SLOWER
        return copy.deepcopy(self.at)


def warn_of_odd_model(network: Network, x: Tensor) -> None:
    """Warn if a model cannot be trained as intended.

    With two inputs at the posterior mean it looks for weights that affect the output but get no gradient, so that only
    the prior would train them, and for probabilities instead of logits.
    """
    model, layout, likelihood = network.model, network.layout, network.likelihood
    means = network.posterior.weight_means().detach()
    x = x[:2].to(means.dtype) if x.is_floating_point() else x[:2]
    with Randomness(0).redirected(), evaluating(model):
        weights = [view.clone().requires_grad_() for view in layout.views(means)]
        with torch.enable_grad():
            output = layout.run(model, weights, x)
        if not isinstance(output, Tensor):
            return
        reached: Sequence[Tensor | None] = [None] * len(weights)
        if output.requires_grad:
            reached = torch.autograd.grad(output.sum(), weights, allow_unused=True)
        cut = [slot for slot, gradient in zip(layout.slots, reached) if gradient is None]
        if cut:
            moved = [weight + (gradient is None) for weight, gradient in zip(weights, reached)]
            with torch.no_grad():
                depends = not torch.equal(layout.run(model, moved, x), output)
    if cut and depends:
        others = f" and {len(cut) - 1} others" if len(cut) > 1 else ""
        warn(
            f"the output depends on {cut[0].name!r}{others} but has no gradient there (no_grad, detach or rounding in "
            "the model?): only the prior trains them; freeze them with "
            "requires_grad_(False), or leave them out with select="
        )
    classifies = getattr(likelihood, "task", "classification") == "classification"
    if classifies and output.ndim > 1 and bool((output >= 0).all()):
        totals = output.sum(1)
        if torch.allclose(totals, torch.ones_like(totals), atol=1e-4):
            warn("the model's outputs look like probabilities: the likelihood expects logits, so remove the softmax")
