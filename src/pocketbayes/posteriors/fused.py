"""Draws and KL divergences of independent Gaussians in few passes over memory, with `std = softplus(rho)`.

A training step with many weights and few examples is bound by memory: with torch's operations, a draw and a KL with
their gradients allocate a dozen tensors of all weights, and the first touch of new memory costs ten times the
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 2**18
"""Weights per block on a CPU: few enough for its cache, many enough to hide the cost of a call."""
SERIES_RHO = (-80.0, -2.0)
"""Range of rho for series in the std: at a std of 0.127 the error of `softplus` is 1e-8; below -80 `sigmoid` is 0."""


def in_eager_mode() -> bool:
    """Return whether operations are neither traced nor transformed by `torch.func`."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def blocks(*tensors: Tensor) -> Iterator[Sequence[Tensor]]:
    """Yield views of the tensors (n,) block by block on a CPU; whole on devices where each call is a kernel."""
    if len(tensors[0]) <= BLOCK or tensors[0].device.type != "cpu":
        yield tensors
    else:
        yield from zip(*(tensor.split(BLOCK) for tensor in tensors))


def softplus(rho: Tensor) -> Tensor:
    """Compute log(1 + exp(rho)), (n,), to single precision and without gradients.

    With s = p / (2 - p), p = sigmoid(rho), it is `2 s (1 + s^2/3 + s^4/5 + ...)`. Where all stds of a block are small,
    as they usually are, three terms are exact at a tenth of the time of torch's log1p.
    """
    if rho.device.type != "cpu" or rho.dtype != torch.float32:
        return F.softplus(rho)
    result = torch.empty_like(rho)
    for raw, out in blocks(rho, result):
        if not _series_hold(raw):
            out.copy_(F.softplus(raw))
            continue
        torch.sigmoid(raw, out=out).div_(2 - out)
        square = out * out
        out.mul_((square * 0.4).add_(2 / 3).mul_(square).add_(2))
    return result


def _series_hold(rho: Tensor) -> bool:
    """Return whether series in the std are exact; only on a CPU, where this does not synchronise."""
    if rho.device.type != "cpu" or rho.dtype != torch.float32:
        return False
    low, high = rho.aminmax()
    return SERIES_RHO[0] <= float(low) and float(high) <= SERIES_RHO[1]


class Draw(torch.autograd.Function):
    """`mean + softplus(rho) noise`."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, rho: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Take the stds without gradients."""
        ctx.save_for_backward(rho, noise)
        return torch.addcmul(mean, std, noise)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of mean and rho."""
        rho, noise = ctx.saved_tensors
        of_rho = torch.empty_like(rho)
        for raw, values, given, out in blocks(rho, noise, gradient, of_rho):
            torch.sigmoid(raw, out=out).mul_(values).mul_(given)
        return gradient, of_rho, None, None


class NormalKL(torch.autograd.Function):
    """KL(N(mean, softplus(rho)^2) || N(0, s_l^2)) with one prior variance per layer."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, rho: Tensor, std: Tensor, sizes: Sequence[int], variance: float | None
    ) -> Tensor:
        """Sum in nats.

        Args:
            ctx: Autograd's.
            mean: Means (n,) minus those of the prior.
            rho: (n,).
            std: softplus(rho), without gradients.
            sizes: The number of weights in each layer.
            variance: s^2; None for the optimum of each layer, `mean(mean^2 + std^2)`.
        """
        wide = wide_type(std)
        counts = torch.tensor(sizes, device=std.device)
        of_means, of_stds = (_layer_squares(tensor, sizes).to(wide) for tensor in (mean, std))
        squares = of_means + of_stds
        if variance is None:
            precisions = torch.where(squares > 0, counts / squares, 1.0)
        else:
            precisions = torch.full_like(squares, 1 / variance)
        ctx.save_for_backward(mean, rho, std, precisions.to(std.dtype))
        ctx.sizes = sizes
        if _series_hold(rho):  # log std = rho - std/2 - std^2/24 + std^4/2880 - ..., since rho = log(exp(std) - 1)
            logs = rho.sum().to(wide) - std.sum().to(wide) / 2 - of_stds.sum() / 24
        else:
            logs = torch.stack([stds.log().sum() for (stds,) in blocks(std)]).sum(dtype=wide)
        total: Tensor = 0.5 * (precisions * squares - counts * (precisions.log() + 1)).sum() - logs
        return total.to(std.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients of mean and rho; optimal variances contribute none (envelope theorem)."""
        mean, rho, std, precisions = ctx.saved_tensors
        of_mean, of_rho = torch.empty_like(mean), torch.empty_like(rho)
        layers = zip(*(tensor.split(ctx.sizes) for tensor in (mean, std, of_mean, of_rho)))
        for scale, (means, stds, out_mean, out_rho) in zip((gradient * precisions).unbind(), layers):
            torch.mul(means, scale, out=out_mean)
            torch.mul(stds, scale, out=out_rho)
        for raw, stds, out in blocks(rho, std, of_rho):
            out.sub_(gradient / stds).mul_(raw.sigmoid())
        return of_mean, of_rho, None, None, None


def _layer_squares(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return each layer's sum of squares."""
    return torch.stack([torch.stack([(b * b).sum() for (b,) in blocks(part)]).sum() for part in values.split(sizes)])


def wide_type(tensor: Tensor) -> torch.dtype:
    """Return the type of sums: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def normal_kl(mean: Tensor, std: Tensor, variance: float) -> Tensor:
    """Sum KL(N(mean, std^2) || N(0, variance)) in float64, which stays accurate where the terms cancel."""
    wide = wide_type(std)
    squares, logs = [], []
    for block in blocks(mean, std):
        means, stds = (part.to(wide) for part in block)
        squares.append(torch.dot(means, means) + torch.dot(stds, stds))
        logs.append(_sum_of_logs(stds) if wide is not std.dtype else stds.log().sum())
    total: Tensor = 0.5 / variance * torch.stack(squares).sum() - torch.stack(logs).sum()
    return (total + 0.5 * std.numel() * (math.log(variance) - 1)).to(std.dtype)


def _sum_of_logs(values: Tensor) -> Tensor:
    """Sum the logs of float64 values in the range of float32, four at a time as the log of their product."""
    size = len(values) // 4
    first, second, third, fourth, rest = values.split([size, size, size, size, len(values) - 4 * size])
    total: Tensor = (first * second * third * fourth).log().sum() + rest.log().sum()
    return total
