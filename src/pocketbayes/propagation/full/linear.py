"""Linear layers and convolutions: exact covariances for independent weights and a correlated input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Correlated, Gaussian, mean_of
from pocketbayes.propagation.full.table import RULES, check_size, refused, whole_channels
from pocketbayes.propagation.moments.table import rule


@rule("linear", rules=RULES)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Correlated:
    """Compute `Cov(y_j, y_k) = M_j S M_k^T + [j = k] (V_j (diag S + m^2) + v_b)`."""
    if input.ndim != 2:
        raise refused(f"linear on inputs of shape {tuple(input.shape)}, whose rows share the weights")
    _check_input(input)
    m, M = mean_of(input), mean_of(weight)
    mean = F.linear(m, M, mean_of(bias))
    own = torch.zeros_like(mean)
    if isinstance(weight, Gaussian):
        own = F.linear(m.square() + (input.variance if isinstance(input, Correlated) else 0), weight.variance)
    if isinstance(bias, Gaussian):
        own = own + bias.variance
    if not isinstance(input, Correlated):
        return Correlated(mean, own[..., None, None])
    groups, size = input.blocks.shape[1:3]
    check_size(mean, len(mean), mean.shape[1], max(mean.shape[1], groups * size))
    by_block = M.view(-1, groups, size).transpose(0, 1)  # (g, out, k)
    half = (by_block @ input.blocks).transpose(1, 2).flatten(2)  # (b, out, d)
    return Correlated(mean, (half @ M.T + torch.diag_embed(own)).unsqueeze(1))


@rule("conv2d", rules=RULES)
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Correlated:
    """Compute the covariance of a convolution's outputs.

    `Cov(y_op, y_o'p') = M_o S M_o'^T + [o = o'] (sum_r V_or (S + m m^T) at (p + r, p' + r) + v_b)` over taps r. All
    positions share a draw of the kernel, so the outputs of a channel are correlated; those of different channels are
    correlated only through random inputs.
    """
    if groups != 1 or isinstance(padding, str) or input.ndim != 4:
        raise refused("conv2d with groups, with padding by name or without a batch axis")
    _check_input(input)
    stride, padding, dilation = (2 * (v,) if isinstance(v, int) else tuple(v) for v in (stride, padding, dilation))
    m, M = mean_of(input), mean_of(weight)
    mean = F.conv2d(m, M, mean_of(bias), stride, padding, dilation)
    examples, channels, height, width = mean.shape
    positions = height * width
    check_size(mean, examples, channels, positions**2)
    own = torch.zeros(examples, channels, positions, positions, dtype=mean.dtype, device=mean.device)
    if isinstance(weight, Gaussian):
        V = weight.variance.flatten(1)
        patches = F.unfold(m, weight.shape[2:], dilation, padding, stride).unsqueeze(1)  # (b, 1, taps, p)
        own = (patches * V[..., None]).mT @ patches
        if isinstance(input, Correlated):
            pairs = _pairs(input, weight.shape[2:], mean.shape[2:], stride, padding, dilation)
            own = own + (V @ pairs.reshape(examples, V.shape[1], -1)).view_as(own)
    if isinstance(bias, Gaussian):
        own = own + bias.variance[:, None, None]
    if not isinstance(input, Correlated):
        return Correlated(mean, own)
    size = channels * positions
    check_size(mean, examples, size, max(size, input.loc[0].numel()))

    def run(rows: Tensor, kernel: Tensor) -> Tensor:
        return F.conv2d(rows, kernel, None, stride, padding, dilation)

    whole = _both_sides(run, input, M, size) + _block_diagonal(own)
    return Correlated(mean, whole.unsqueeze(1))


RULES[torch.conv2d] = conv2d


def _check_input(input: Tensor) -> None:
    if isinstance(input, Gaussian) and not isinstance(input, Correlated):
        raise refused("a linear operation on a random weight in place of an input")


def _both_sides(run: Any, input: Correlated, kernel: Tensor, size: int) -> Tensor:
    """Return A S A^T (b, size, size) with A the matrix of the convolution, by convolving S's rows and columns."""
    blocks = whole_channels(input)
    examples, count, entries, _ = blocks.shape
    image = input.shape[2:]
    halves = []
    for number, part in enumerate(kernel.chunk(count, dim=1)):
        rows = blocks[:, number].reshape(examples * entries, -1, *image)
        halves.append(run(rows, part).reshape(examples, entries, size))
    half = torch.cat(halves, 1).mT  # (b, size, d)
    whole: Tensor = run(half.reshape(examples * size, *input.shape[1:]), kernel)
    return whole.reshape(examples, size, size)


def _pairs(input: Correlated, kernel: Any, out: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Return a view of S at (p + r, p' + r) within each channel, (b, c, taps, taps, h, w, h, w)."""
    blocks = whole_channels(input)
    examples, count, _, _ = blocks.shape
    channels, height, width = input.shape[1:]
    each = channels // count
    inside = blocks.view(examples, count, each, height * width, each, height * width).diagonal(dim1=2, dim2=4)
    inside = inside.movedim(-1, 2).reshape(examples, channels, height, width, height, width)
    down, across = padding
    if down or across:
        inside = F.pad(inside, (across, across, down, down) * 2)
    inside = inside.contiguous()
    check_size(inside, examples, channels, kernel[0] * kernel[1], (out[0] * out[1]) ** 2)
    b, c, y, x, y2, x2 = inside.stride()
    taps = ((y + y2) * dilation[0], (x + x2) * dilation[1])
    steps = (y * stride[0], x * stride[1], y2 * stride[0], x2 * stride[1])
    return inside.as_strided((examples, channels, *kernel, *out, *out), (b, c, *taps, *steps))


def _block_diagonal(own: Tensor) -> Tensor:
    """Return (b, c p, c p) from one block (p, p) for each channel."""
    examples, channels, positions, _ = own.shape
    whole = torch.diag_embed(own.permute(0, 2, 3, 1), dim1=1, dim2=3)  # (b, c, p, c, p)
    return whole.reshape(examples, channels * positions, channels * positions)
