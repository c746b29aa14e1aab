"""Means and stds as small integers with scales per channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.base import Posterior
from pocketbayes.posteriors.coding import Coding
from pocketbayes.posteriors.layout import Layout

SIGMA_BITS = (8, 4, 2, 1)


class Quantized(Posterior):
    """For channel c, `mean = scale_c q` with q in -127..127 and `std = low_c + step_c s` with s in 0..2^bits - 1.

    A channel is a row of the weight's first axis, which is the output channel except in transposed convolutions; a
    vector is one channel. The integers are int8 and uint8 tensors (8 / bits codes of stds per byte) and are decoded to
    floats only during a pass.
    """

    name = "quantized"
    # Scales and levels per channel are few, so a file stores them all with the precision of means.
    tensors: ClassVar = {
        "means": Coding("mean", ("weights",), low=-127, dtype=torch.int8),
        "scale": Coding("mean", ("channels",), low=0, trained=False),
        "stds": Coding("std", ("packed stds",), dtype=torch.uint8),
        "low": Coding("mean", ("channels",), low=0, trained=False),
        "step": Coding("mean", ("channels",), low=0, trained=False),
    }

    def __init__(
        self, layout: Layout, means: Tensor, scale: Tensor, stds: Tensor, low: Tensor, step: Tensor, sigma_bits: int
    ) -> None:
        """Take codes of means (n,), packed codes of stds, and three numbers per channel, as from `quantize`."""
        super().__init__(layout)
        self.sigma_bits = check_sigma_bits(sigma_bits)
        self.means: Tensor
        self.scale: Tensor
        self.stds: Tensor
        self.low: Tensor
        self.step: Tensor
        for name, value in {"means": means, "scale": scale, "stds": stds, "low": low, "step": step}.items():
            self.register_buffer(name, value.detach().clone())

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the numbers of weights, channels and bytes of packed stds."""
        channels = sum(slot.shape[0] if len(slot.shape) > 1 else 1 for slot in layout.slots)
        packed = -(-layout.size * check_sigma_bits(config["sigma_bits"]) // 8)
        return {"weights": layout.size, "channels": channels, "packed stds": packed}

    @classmethod
    def quantize(cls, layout: Layout, mean: Tensor, std: Tensor, sigma_bits: int = 8) -> Self:
        """Quantise means and stds to the nearest codes.

        Means: `scale = max |mean| / 127`, error at most scale / 2. Stds: equally spaced levels from the channel's
        smallest to its largest, error at most step / 2. With one bit the two levels are the root mean squares of the
        stds below and above the channel's mean, which preserves the mean variance of the channel.
        """
        check_sigma_bits(sigma_bits)
        parts = [_quantize_rows(m, s, sigma_bits) for m, s in zip(rows(layout, mean), rows(layout, std))]
        means, scale, codes, low, step = (torch.cat(column) for column in zip(*parts))
        return cls(layout, means, scale, pack(codes, sigma_bits), low, step, sigma_bits)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the codes times their channels' scales."""
        means = rows(self.layout, self.means)
        codes = rows(self.layout, unpack(self.stds, self.sigma_bits, self.layout.size))
        channels = [len(part) for part in means]
        scale, low, step = (each[:, None].split(channels) for each in (self.scale, self.low, self.step))
        mean = torch.cat([(q * s).flatten() for q, s in zip(means, scale)])
        std = torch.cat([torch.addcmul(lo, q, st).flatten() for q, lo, st in zip(codes, low, step)])
        return mean, std

    def stored(self) -> dict[str, int]:
        """Return the counts of codes and scales."""
        return {"means": self.means.numel(), "stds": self.layout.size, "scales": 3 * self.scale.numel()}


def rows(layout: Layout, flat: Tensor) -> list[Tensor]:
    """Return a flat vector as one (channels, weights per channel) view per slot."""
    return [view.view(view.shape[0] if view.ndim > 1 else 1, -1) for view in layout.views(flat)]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes (n,) of `bits` bits, 8 / bits to a byte, the first in the lowest bits; the last byte is padded."""
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -len(codes) % per_byte)).view(-1, per_byte)
    packed = padded[:, 0].clone()
    for place in range(1, per_byte):
        packed |= padded[:, place] << (bits * place)
    return packed


def unpack(packed: Tensor, bits: int, size: int) -> Tensor:
    """Return the first `size` codes as uint8, the inverse of `pack`."""
    if bits == 8:
        return packed
    # Divide, because torch's ONNX exporter does not handle shifts of bytes correctly.
    places = torch.tensor([2**place for place in range(0, 8, bits)], dtype=torch.uint8, device=packed.device)
    codes: Tensor = (packed[:, None] // places) % 2**bits
    return codes.flatten()[:size]


def check_sigma_bits(bits: int) -> int:
    """Return the number of bits, or raise an error that lists the supported ones."""
    if bits not in SIGMA_BITS:
        raise UserError(f"sigma_bits must be one of {', '.join(map(str, SIGMA_BITS))}, not {bits!r}")
    return bits


def _quantize_rows(mean: Tensor, std: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return codes and scales of means, and codes, lowest levels and steps of stds, for the rows of one slot."""
    scale = mean.abs().amax(1) / 127
    codes = _steps(mean, scale[:, None]).clamp(-127, 127)
    levels = 2**bits - 1
    low, high = std.amin(1), std.amax(1)
    if bits == 1:
        above = std > std.mean(1, keepdim=True)
        low, high = _rms(std, ~above, low), _rms(std, above, high)
        std_codes = above
    else:
        std_codes = _steps(std - low[:, None], (high - low)[:, None] / levels).clamp(0, levels)
    step = (high - low) / levels
    return codes.to(torch.int8).flatten(), scale, std_codes.to(torch.uint8).flatten(), low, step


def _steps(values: Tensor, step: Tensor) -> Tensor:
    """Return the nearest whole number of steps; 0 where the step is 0."""
    return torch.where(step > 0, values / torch.where(step > 0, step, 1), 0).round()


def _rms(values: Tensor, chosen: Tensor, otherwise: Tensor) -> Tensor:
    """Compute sqrt of the mean square of each row's chosen values; `otherwise` where there are none."""
    count = chosen.sum(1)
    mean_square = (values.square() * chosen).sum(1) / count.clamp(min=1)
    return torch.where(count > 0, mean_square.sqrt(), otherwise)
