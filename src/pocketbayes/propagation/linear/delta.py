"""The delta method: `Var(y) = J Var(w) J^T` at the mean, with all correlations between weights and positions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.posteriors.layout import Layout, evaluating
from pocketbayes.propagation.base import check_classes, check_output
from pocketbayes.propagation.linear.gradients import Pass, looped_gradient
from pocketbayes.propagation.linear.taps import NotTappedError, TapPlan, make_plan

_MEMORY = 1 << 26
"""Largest number of values in memory: 256 MB in single precision."""
_ACTIVATIONS = 1 << 23
"""Largest number of layer inputs and outputs among them; the graph between layers takes several times as much."""

_PLANS: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], TapPlan | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Linearised:
    """The Gaussian output of a network linearised in its weights, known in part or in full.

    Attributes:
        mean: The output at the mean weights, (b, c) or (b, c, ...).
        variance: Of the requested outputs, (b, k); of the margin, (b, 1); of outputs per pixel, as `mean`.
        index: The requested outputs, (b, k); for the margin both, (b, 2).
        covariance: Between all outputs, (b, c, c), if requested.
        classes: The request.
    """

    mean: Tensor
    variance: Tensor
    index: Tensor
    covariance: Tensor | None
    classes: str

    def per_output(self) -> Tensor:
        """Return a variance for every output; those not requested get the mean of the others."""
        if self.variance.shape == self.mean.shape:
            return self.variance
        if self.classes == "margin":  # half of the difference's variance for each output
            return (0.5 * self.variance).expand_as(self.mean)
        rest = self.variance.mean(1, keepdim=True).expand_as(self.mean)
        return rest.scatter(1, self.index, self.variance)

    def gaussian(self) -> Gaussian:
        """Return the outputs as a Gaussian, with covariances if known."""
        if self.covariance is not None:
            return Correlated(self.mean, self.covariance[:, None])
        return Gaussian(self.mean, self.per_output())


def linearise(
    model: nn.Module, posterior: Posterior, x: Tensor, *, classes: str = "predicted", draws: int = 30, seed: int = 0
) -> Linearised:
    """Compute `Var(y_c) = sum_i (dy_c/dw_i)^2 var(w_i)` at the mean (PBN's Eq. 6 as a predictor).

    For weights that share a draw, as in a weight-shared network, gradients are summed before squaring; for correlated
    weights their covariance is used.

    Args:
        model: A model without the weights that the posterior covers.
        posterior: Any posterior; a deterministic one gives variance 0.
        x: Inputs (b, ...).
        classes: The outputs whose variance is computed: "predicted", the largest; "top-5", the five largest; "margin",
            the difference of the two largest; "all"; or "covariance", all with their covariances. Each output costs a
            backward pass; "predicted" and "margin" cost one.
        draws: The number of directional derivatives along draws of the weights, for outputs per pixel, which are too
            many for a gradient each; the relative error of the variance is sqrt(2 / draws).
        seed: Seed of those draws.
    """
    check_classes(classes)
    with torch.inference_mode(False), torch.no_grad(), evaluating(model):
        parts, start = [], 0
        while start < len(x):
            part, used = _chunk(model, posterior, x, start, classes, draws, seed)
            parts.append(part)
            start += used
    if len(parts) == 1:
        return parts[0]
    covariance = [part.covariance for part in parts if part.covariance is not None]
    return Linearised(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.variance for part in parts]),
        torch.cat([part.index for part in parts]),
        torch.cat(covariance) if covariance else None,
        classes,
    )


def _chunk(
    model: nn.Module, posterior: Posterior, x: Tensor, start: int, classes: str, draws: int, seed: int
) -> tuple[Linearised, int]:
    """Return the result for as many examples from `start` on as fit memory, and their number."""
    x = x[start:]
    mean, slots, independent = posterior.weight_means().detach(), posterior.random_slots(), posterior.independent
    span = posterior.layout.span(slots)
    plan = _plan(model, posterior.layout, mean, slots, x)
    gradients = 0 if plan and independent else 1
    if classes == "covariance":
        gradients = posterior.layout.run(model, mean, x[:1])[0].numel()
    size = plan.size if plan else 0
    per_example = size + gradients * (span[1] - span[0] if plan else posterior.layout.size)
    x = x[: max(1, min(_MEMORY // max(per_example, 1), _ACTIVATIONS // max(size, 1)))]
    state: Pass | None = None
    if plan is not None:
        with suppress(NotTappedError):
            state = Pass(model, posterior, mean, x, plan, span)
    output = check_output(state.output if state else posterior.layout.run(model, mean, x), len(x)).detach()
    if output.ndim != 2:
        return _by_derivatives(model, posterior, x, output, draws, seed, classes), len(x)
    return _by_gradients(model, posterior, x, state, output, classes), len(x)


def _plan(model: nn.Module, layout: Layout, mean: Tensor, slots: Sequence[int], x: Tensor) -> TapPlan | None:
    plans = _PLANS.setdefault(model, {})
    key = (*x.shape[1:], *slots)
    if key not in plans:
        plans[key] = make_plan(model, layout, mean, slots, x)
    return plans[key]


def _directions(output: Tensor, classes: str) -> tuple[list[Tensor], Tensor]:
    """Return the combinations (b, c) of outputs whose variances are computed, and the outputs' indices."""
    count = output.shape[1]
    everything = torch.arange(count, device=output.device).expand_as(output)
    if classes in ("all", "covariance") or count == 1:
        return [_one_hot(everything[:, c], output) for c in range(count)], everything
    wanted = 1 if classes == "predicted" else 2 if classes == "margin" else int(classes.removeprefix("top-"))
    index = output.topk(min(wanted, count), dim=1).indices
    each = [_one_hot(index[:, k], output) for k in range(index.shape[1])]
    return ([each[0] - each[1]] if classes == "margin" else each), index


def _one_hot(index: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(1, index[:, None], 1.0)


def _by_gradients(
    model: nn.Module, posterior: Posterior, x: Tensor, state: Pass | None, output: Tensor, classes: str
) -> Linearised:
    directions, index = _directions(output, classes)
    keeps = [True] * (len(directions) - 1) + [False]
    if state is not None and posterior.independent and classes != "covariance":
        variances = [state.variance(direction, keep) for direction, keep in zip(directions, keeps)]
        return Linearised(output, torch.stack(variances, 1), index, None, classes)

    ties = posterior.ties()

    def projections() -> Iterator[Tensor]:
        for direction, keep in zip(directions, keeps):
            if state and ties is not None:
                yield posterior.project_table(state.table_gradient(direction, *ties, keep))
            elif state:
                yield posterior.project(state.gradient(direction, keep), state.span[0])
            else:
                yield posterior.project(looped_gradient(model, posterior, x, direction))

    if classes != "covariance":  # one in memory at a time
        return Linearised(output, torch.stack([u.square().sum(1) for u in projections()], 1), index, None, classes)
    stacked = torch.stack(list(projections()), 1)
    covariance = stacked @ stacked.mT
    return Linearised(output, covariance.diagonal(dim1=1, dim2=2), index, covariance, classes)


def _by_derivatives(
    model: nn.Module, posterior: Posterior, x: Tensor, output: Tensor, draws: int, seed: int, classes: str
) -> Linearised:
    """Estimate the variance by the mean square of J (w - mean) over draws of w, for very many outputs."""
    if classes not in ("predicted", "all"):
        raise UserError(f"classes={classes!r} needs one row of outputs per example, not outputs {tuple(output.shape)}")
    mean = posterior.weight_means().detach()
    total = torch.zeros_like(output)
    generator = torch.Generator(mean.device).manual_seed(seed)
    for _ in range(draws):
        noise = torch.randn(posterior.noise_size, generator=generator, dtype=mean.dtype, device=mean.device)
        change = posterior.sample(noise).detach() - mean
        with warnings.catch_warnings():  # torch warns about its own scripted decompositions
            warnings.simplefilter("ignore", FutureWarning)
            moved = torch.func.jvp(lambda flat: posterior.layout.run(model, flat, x), (mean,), (change,))[1]
        total += moved.square()
    everything = torch.arange(output[0].numel(), device=output.device).expand(len(output), -1)
    return Linearised(output, total / draws, everything, None, classes)
