"""Stds from curvature, the diagonal of the Fisher information, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.likelihoods import Categorical, Likelihood, task_of
from pocketbayes.network import Network
from pocketbayes.posteriors import MeanField, Partial, Posterior, RowStds, Sparse
from pocketbayes.posteriors.base import softplus_inverse
from pocketbayes.posteriors.layout import evaluating

CHUNK = 8
"""Examples whose gradients are summed before squaring; fewer give better estimates at more passes."""


def diagonal_curvature(
    network: Network,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    chunk: int = CHUNK,
    seed: int = 0,
    on_chunk: Callable[[int], object] | None = None,
) -> tuple[Tensor, int]:
    """Return the mean over examples of `(d log p(y~ | x) / dw)^2`, (n,), and the number of examples.

    The labels y~ are drawn from the network's predictions, so this is the diagonal of the Fisher information and, for
    classes and Gaussian noise, of the generalised Gauss-Newton matrix. Gradients at drawn labels have mean 0 and are
    independent between examples, so the squared sum over a few examples has the expectation of the sum of squares: one
    backward pass serves `chunk` examples, with the memory of training and for any layer.

    Args:
        network: A network, with classes if it has no likelihood; the curvature is measured at its posterior mean.
        batches: Pairs (x, y) on the network's device, of which only x is used.
        chunk: Examples per backward pass.
        seed: Seed of the labels.
        on_chunk: Called with the number of examples after each backward pass, for progress.
    """
    likelihood = network.likelihood or Categorical()
    with torch.no_grad():
        mean = network.posterior.moments()[0].clone()
    total, examples = torch.zeros_like(mean), 0
    generator = torch.Generator(device=mean.device).manual_seed(seed)
    with evaluating(network):
        for x, _ in batches:
            for part in x.split(chunk):
                flat = mean.clone().requires_grad_()
                output = network.run_at(flat, part)
                loss = likelihood.nll(output, _draw_targets(likelihood, output.detach(), generator)) * len(part)
                total += torch.autograd.grad(loss, flat)[0].square()
                examples += len(part)
                if on_chunk:
                    on_chunk(len(part))
    if not examples:
        raise UserError("no data to measure curvature on")
    if not bool(total.isfinite().all()):
        raise UserError("the curvature is not finite: the network's outputs overflow on these data; check its inputs")
    return total / examples, examples


def _draw_targets(likelihood: Likelihood, output: Tensor, generator: torch.Generator) -> Tensor:
    """Draw targets from the network's predictive distribution."""
    if not bool(output.isfinite().all()):
        raise UserError("no curvature: the network's outputs are not finite; its weights or inputs are too large")
    task = task_of(likelihood)
    if task == "classification":
        probs = output.float().softmax(1).movedim(1, -1)
        drawn = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        return drawn.view(probs.shape[:-1])
    if task == "regression":
        mean, noise = likelihood.moments(output)
        return mean + noise * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    raise UserError(f"curvature needs classes or Gaussian noise, not {type(likelihood).__name__}")


def curvature_stds(curvature: Tensor, examples: float, delta: float | Tensor) -> Tensor:
    """Return `1 / sqrt(N h + delta)`."""
    if not bool((torch.as_tensor(delta) > 0).all()):
        raise UserError(f"delta, the prior precision, must be positive, not {delta}")
    return (examples * curvature + delta).rsqrt()


@torch.no_grad()
def set_stds(posterior: Posterior, std: Tensor) -> None:
    """Set the stds of a posterior's random weights from `std`, (n,)."""
    if isinstance(posterior, Partial | Sparse) and posterior.rho is not None:
        posterior.rho.copy_(softplus_inverse(std[posterior.index.long()]))
    elif isinstance(posterior, MeanField):
        posterior.rho.copy_(softplus_inverse(std))
    elif isinstance(posterior, RowStds):
        posterior.rho.copy_(softplus_inverse(posterior.row_means(std)))
    else:
        raise UserError(
            f"the storage {posterior.name!r} cannot take stds from curvature: use mean-field, partial, sparse or shared"
        )
