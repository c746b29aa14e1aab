"""IVON: variational learning at the cost of Adam, with stds from the optimiser's curvature estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Stage
from pocketbayes.methods.meanfield import MeanFieldMethod, stds_at_begin
from pocketbayes.network import Network
from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.base import softplus_inverse
from pocketbayes.posteriors.fused import blocks, softplus
from pocketbayes.posteriors.priors import Empirical, Normal

LEARNING_RATE = 0.5
"""Default learning rate, on the scale of SGD with momentum, not of Adam."""
POINT_RATE, SQUARE_DECAY = 2e-2, 0.999
"""Largest rate of Adam's steps of parameters outside the posterior, in units of the learning rate, and the decay of
their squared gradients."""
MEMORIES = 3.0
"""Number of times that the curvature's average is renewed in a stage, for the default `hess_decay`."""
MAX_CHANGE = 0.1
"""The largest relative change of a weight's curvature in one step."""
MAX_SERIES_STD = 0.13
"""The largest std for which rho is computed by a series, four times faster."""
PRIOR_EVERY = 10
"""Steps between two updates of an empirical prior's variances."""


@dataclass(frozen=True, kw_only=True)
class IVON(MeanFieldMethod):
    """Improved variational online Newton (Shen et al. 2024, arXiv 2402.17641).

    `std = 1 / sqrt(c (h + d))` with `c = N / beta`, `d = 1 / (c prior_var)` and h a running average of the Hessian's
    diagonal, estimated from the gradients at drawn weights: `h^ = g (w - mean) / std^2`.

    It minimises the same `NLL + beta KL / N` as mean-field variational inference, by natural gradients without a
    gradient of the KL. Departures: parameters outside the posterior (biases, normalisation, noise) take steps of SGD,
    limited to those of Adam; the initial curvature follows from `std_init`; the prior may be empirical; a step moves a
    mean by at most one std and changes a curvature by at most a tenth; under local reparameterisation and flipout `h^`
    has the same expectation with less noise.

    Attributes:
        momentum: The decay of the gradients' average (the paper's beta_1).
        hess_decay: The decay of the curvature's average (beta_2); None for `1 - 3 / steps`, at least 0.99. The paper
            uses 0.99999 for about 10^5 steps.
    """

    name = "ivon"
    learns = "means by gradients, stds from the optimiser's curvature"
    std_scale: float = 0.2
    momentum: float = 0.9
    hess_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior == "scale-mixture":
            raise UserError("ivon needs a normal prior: set prior='empirical', 'normal' or 'pretrained'")
        if not self.beta:
            raise UserError("ivon needs beta > 0: without a KL there are no stds")
        if not (0 <= self.momentum < 1 and (self.hess_decay is None or 0 < self.hess_decay < 1)):
            raise UserError(
                f"momentum and hess_decay must lie between 0 and 1, not {self.momentum} and {self.hess_decay}"
            )

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return one stage, with a falling rate on SGD's scale; at a constant one the means diverge."""
        settings = {"lr": LEARNING_RATE, "schedule": "cosine"}
        return (Stage("train", begin=stds_at_begin(self.std_init, model), settings=settings),)

    def kl_weight(self, progress: float) -> float:
        """Return 0: the optimiser's step includes the KL."""
        return 0.0

    def make_optimizer(self, network: Network, lr: float, steps: int, examples: int) -> torch.optim.Optimizer:
        """Build the optimiser of means and stds."""
        assert self.beta is not None
        decay = 1 - min(MEMORIES / max(steps, 1), 0.01) if self.hess_decay is None else self.hess_decay
        return VariationalNewton(network, lr=lr, momentum=self.momentum, hess_decay=decay, count=examples / self.beta)


class VariationalNewton(torch.optim.Optimizer):
    """The optimiser of IVON for a mean-field posterior."""

    def __init__(self, network: Network, *, lr: float, momentum: float, hess_decay: float, count: float) -> None:
        """Take the network, the decays, and `count`, the number of examples divided by beta."""
        posterior, prior = network.posterior, network.prior
        if not isinstance(posterior, MeanField):
            raise UserError(f"ivon trains a mean and a std for each weight, not the storage {posterior.name!r}")
        assert isinstance(prior, Empirical | Normal)
        self.posterior, self.prior, self.count = posterior, prior, count
        self.sizes = [slot.size for slot in network.layout.slots]
        own = {id(posterior.mean), id(posterior.rho)}
        points = [p for p in network.parameters() if id(p) not in own and p.requires_grad]
        with torch.no_grad():
            std = posterior.moments()[1]
            if not bool((std > 0).all()):
                raise UserError("ivon needs a positive std for each weight to start from")
            first = [float((count * part.square()).reciprocal().mean()) for part in std.split(self.sizes)]
        shared = {"base_lr": lr, "lr": lr, "momentum": momentum, "steps": 0}
        groups = [
            {"params": [posterior.mean], **shared, "keeps": ("momentum",), "first_curvature": tuple(first)},
            {"params": [posterior.rho], **shared, "keeps": ("hess",), "hess_decay": hess_decay, "decay": ()},
            {"params": points, **shared, "keeps": ("momentum", "square")},
        ]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update curvature, means and stds from the gradients with respect to mean and rho."""
        assert closure is None, "the gradients are those of the draws that were made before"
        means, stds, points = self.param_groups
        for group in self.param_groups:
            group["steps"] += 1
        correction = 1 - means["momentum"] ** means["steps"]
        moving = [parameter for parameter in points["params"] if parameter.grad is not None]
        if moving:
            self._step_points(moving, points, correction)
        if self.posterior.mean.grad is not None:
            self._step_posterior(means, stds, correction)

    def _step_points(self, moving: list[Tensor], group: dict[str, Any], correction: float) -> None:
        """Take SGD's step, or Adam's where it is smaller: without a curvature SGD diverges where the loss is steep."""
        gradients = [parameter.grad for parameter in moving if parameter.grad is not None]
        averages, squares = ([self._average(p, name) for p in moving] for name in group["keeps"])
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        torch._foreach_mul_(squares, SQUARE_DECAY)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - SQUARE_DECAY)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, POINT_RATE * (1 - SQUARE_DECAY ** group["steps"]) ** 0.5)
        torch._foreach_clamp_min_(scales, 1.0)
        torch._foreach_addcdiv_(moving, averages, scales, -group["lr"] / correction)

    def _step_posterior(self, means: dict[str, Any], stds: dict[str, Any], correction: float) -> None:
        mean, rho, state = self.posterior.mean, self.posterior.rho, self.state[self.posterior.rho]
        assert mean.grad is not None
        assert rho.grad is not None
        drawn = stds["decay"]  # the decay of the stds that the gradients belong to
        if not drawn or (isinstance(self.prior, Empirical) and stds["steps"] % PRIOR_EVERY == 0):
            stds["decay"] = self._prior_decay(mean, softplus(rho))
            drawn = drawn or stds["decay"]
        if "hess" not in state:
            state["hess"] = softplus(rho).square_().mul_(self.count).reciprocal_()
            for part, decay in zip(state["hess"].split(self.sizes), drawn):
                part.sub_(decay)
        tensors = [mean, mean.grad, self._average(mean), rho, rho.grad, state["hess"]]
        if isinstance(self.prior, Normal) and self.prior.centre is not None:
            tensors.append(self.prior.centre)
        layers = zip(*(tensor.split(self.sizes) for tensor in tensors))
        for layer, old, decay, first in zip(layers, drawn, stds["decay"], means["first_curvature"]):
            step = _Step(
                count=self.count,
                drawn_decay=old,
                decay=decay,
                lag=1 - stds["hess_decay"],
                momentum=means["momentum"],
                correction=correction,
                rate=means["lr"] * first,
            )
            for block in blocks(*layer):
                step(*block)

    def _average(self, parameter: Tensor, name: str = "momentum") -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        average: Tensor = state[name]
        return average

    def _prior_decay(self, mean: Tensor, std: Tensor) -> tuple[float, ...]:
        """Return `1 / (c prior_var)` for each layer."""
        if isinstance(self.prior, Normal):
            return (1 / (self.count * self.prior.std**2),) * len(self.sizes)
        return tuple((self.count * self.prior.variances(mean, std)).reciprocal().tolist())


@dataclass(frozen=True)
class _Step:
    """An in-place step of one layer's weights."""

    count: float
    drawn_decay: float
    decay: float
    lag: float
    momentum: float
    correction: float
    rate: float

    def __call__(
        self,
        mean: Tensor,
        gradient: Tensor,
        average: Tensor,
        rho: Tensor,
        rho_gradient: Tensor,
        hess: Tensor,
        centre: Tensor | None = None,
    ) -> None:
        total = hess + self.drawn_decay
        std = (total * self.count).rsqrt_()
        # The chain rule gives rho the gradient g (w - mean) / std dstd/drho, and dstd/drho = sigmoid(rho).
        change = torch.addcdiv(hess, rho_gradient, rho.sigmoid().mul_(std), value=-1)
        bound = total * (MAX_CHANGE / self.lag)  # single estimates have heavy tails
        change.clamp_(bound.neg(), bound)
        hess.sub_(change, alpha=self.lag).addcdiv_(change.square_(), total, value=0.5 * self.lag * self.lag)
        # A negative curvature must stay above -d, even if d falls as an empirical prior widens.
        torch.add(hess.clamp_(min=-0.5 * self.decay), self.decay, out=total)
        average.lerp_(gradient, 1 - self.momentum)
        offset = mean if centre is None else mean - centre
        step = torch.add(average, offset, alpha=self.decay * self.correction)
        step.mul_(self.rate / self.correction).div_(total)
        torch.rsqrt(total.mul_(self.count), out=std)
        mean.sub_(step.clamp_(std.neg(), std))  # a noisy curvature near 0 would cause a huge step
        if std.device.type == "cpu" and float(std.max()) <= MAX_SERIES_STD:  # elsewhere this would synchronise
            # softplus(rho) = std; the series' next term, std^4 / 2880, is below 1e-7
            torch.log(std, out=rho).add_(std, alpha=0.5).addcmul_(std, std, value=1 / 24)
        else:
            rho.copy_(softplus_inverse(std))
