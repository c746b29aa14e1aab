"""Pooling and resizing: maxima select a variance, averages sum variances with squared weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation.moments.table import RULES, Rule, rule

# -- maxima -----------------------------------------------------------------------------------------------------------


def max_pool(pool: Callable[..., tuple[Tensor, Tensor]], axes: int, indices: bool) -> Rule:
    """Return the rule of a max-pool (co-pooling): the largest mean, and the variance at its position."""

    def propagate(input: Gaussian, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("return_indices", None)
        mean, index = pool(input.loc, *args, **kwargs)
        var = input.variance.flatten(-axes).gather(-1, index.flatten(-axes)).view(mean.shape)
        result = Gaussian(mean, var)
        return (result, index) if indices else result

    return propagate


for _axes in (1, 2, 3):
    for _kind in ("max_pool", "adaptive_max_pool"):
        _pool = getattr(F, f"{_kind}{_axes}d_with_indices")
        RULES[_pool] = max_pool(_pool, _axes, indices=True)
        rule(f"{_kind}{_axes}d")(max_pool(_pool, _axes, indices=False))


@rule("amax")
def amax(input: Gaussian, dim: Any = (), keepdim: bool = False) -> Gaussian:
    """Return the largest mean, and the variance at its position."""
    axes = [dim] if isinstance(dim, int) else list(dim) or list(range(input.ndim))
    axes = [axis % input.ndim for axis in axes]
    rest = [axis for axis in range(input.ndim) if axis not in axes]
    mean, var = (moment.permute(*rest, *axes).flatten(len(rest)) for moment in (input.loc, input.variance))
    mean, index = mean.max(-1)
    var = var.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    if keepdim:
        shape = [1 if axis in axes else size for axis, size in enumerate(input.shape)]
        mean, var = mean.reshape(shape), var.reshape(shape)
    return Gaussian(mean, var)


@rule("max")
def max_(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest mean with its variance, over everything or along an axis, or of two tensors."""
    if dim is None:
        return amax(input)
    if not isinstance(dim, int):
        return maximum(input, dim)
    mean, index = input.loc.max(dim, keepdim)
    picked = input.variance.gather(dim, index if keepdim else index.unsqueeze(dim))
    return torch.return_types.max((Gaussian(mean, picked if keepdim else picked.squeeze(dim)), index))


@rule("maximum")
def maximum(input: Any, other: Any) -> Gaussian:
    """Return the larger mean with its variance."""
    one, two = (x if isinstance(x, Gaussian) else Gaussian(x, torch.zeros_like(x)) for x in (input, other))
    return Gaussian(torch.maximum(one.loc, two.loc), torch.where(one.loc > two.loc, one.variance, two.variance))


# -- averages ---------------------------------------------------------------------------------------------------------


def weighted(var: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """Return the variance of a product of linear maps along the last axes, by squaring each map's entries.

    Args:
        var: Of the input.
        maps: One matrix (in, out) for each of the last axes.
    """
    for axis, matrix in zip(range(-len(maps), 0), maps):
        var = (var.movedim(axis, -1) @ matrix.square()).movedim(-1, axis)
    return var.contiguous()


def _eye(like: Tensor, axis: int) -> Tensor:
    """Return the identity on an axis, as a batch of one-dimensional images (size, 1, size)."""
    return torch.eye(like.shape[axis], dtype=like.dtype, device=like.device).unsqueeze(1)


def _per_axis(value: Any, axes: int) -> list[Any]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * axes if len(values) < axes else values


def average_pool(pool: Callable[..., Tensor], axes: int) -> Rule:
    """Return the rule of an average over windows: variance `sum(v) / k^2`, k what the average divides by."""

    def propagate(
        input: Gaussian,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Gaussian:
        settings = (kernel_size, stride, padding, ceil_mode, count_include_pad)
        if divisor_override is not None:
            mean, var = (pool(moment, *settings, divisor_override) for moment in (input.loc, input.variance))
            return Gaussian(mean, var / divisor_override)
        mean = pool(input.loc, *settings)
        kernels, pads = _per_axis(kernel_size, axes), _per_axis(padding, axes)
        if not ceil_mode and (count_include_pad or not any(pads)):
            return Gaussian(mean, pool(input.variance, *settings) / math.prod(kernels))
        strides = _per_axis(stride, axes) if stride else kernels
        maps = [
            F.avg_pool1d(_eye(input.loc, d), kernel, step, pad, ceil_mode, count_include_pad).squeeze(1)
            for d, kernel, step, pad in zip(range(-axes, 0), kernels, strides, pads)
        ]
        return Gaussian(mean, weighted(input.variance, maps))

    return propagate


def adaptive_average_pool(pool: Callable[..., Tensor], axes: int) -> Rule:
    """Return the rule of an adaptive average pool: variance `sum(v) / k^2`, k the size of each window."""

    def propagate(input: Gaussian, output_size: Any) -> Gaussian:
        mean = pool(input.loc, output_size)
        if all(input.shape[d] % mean.shape[d] == 0 for d in range(-axes, 0)):
            window = input.loc.numel() // max(mean.numel(), 1)
            return Gaussian(mean, pool(input.variance, output_size) / window)
        maps = [F.adaptive_avg_pool1d(_eye(input.loc, d), mean.shape[d]).squeeze(1) for d in range(-axes, 0)]
        return Gaussian(mean, weighted(input.variance, maps))

    return propagate


for _axes in (1, 2, 3):
    _name = f"avg_pool{_axes}d"
    rule(_name)(average_pool(getattr(F, _name), _axes))
    _name = f"adaptive_avg_pool{_axes}d"
    rule(_name)(adaptive_average_pool(getattr(F, _name), _axes))


@rule("interpolate", "upsample")
def interpolate(
    input: Gaussian,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Gaussian:
    """Resize: variances are summed with squared weights; "nearest" copies them."""
    rest: dict[str, Any] = {
        "align_corners": align_corners,
        "recompute_scale_factor": recompute_scale_factor,
        "antialias": antialias,
    }
    mean = F.interpolate(input.loc, size, scale_factor, mode, **rest)
    if mode in ("nearest", "nearest-exact"):
        return Gaussian(mean, F.interpolate(input.variance, size, scale_factor, mode, **rest))
    axes = input.ndim - 2
    if mode == "area":
        return adaptive_average_pool(getattr(F, f"adaptive_avg_pool{axes}d"), axes)(input, mean.shape[2:])  # type: ignore[no-any-return]
    factors = [None] * axes if scale_factor is None else _per_axis(scale_factor, axes)
    maps = []
    for d, factor in zip(range(-axes, 0), factors):
        line = _eye(input.loc, d).unsqueeze(-1)  # an image of width 1, since bicubic takes images only
        where = {"size": (mean.shape[d], 1)} if factor is None else {"scale_factor": (factor, 1.0)}
        flat = "bicubic" if mode == "bicubic" else "bilinear"
        maps.append(F.interpolate(line, **where, mode=flat, **rest).flatten(1))
    return Gaussian(mean, weighted(input.variance, maps))
