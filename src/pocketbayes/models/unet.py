"""U-Net (Ronneberger et al. 2015) with batch norm and bilinear up-sampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.models.layers import conv, named


def double_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with batch norm and ReLU."""
    return named(
        conv1=conv(in_channels, out_channels),
        bn1=nn.BatchNorm2d(out_channels),
        act1=nn.ReLU(),
        conv2=conv(out_channels, out_channels),
        bn2=nn.BatchNorm2d(out_channels),
        act2=nn.ReLU(),
    )


class UNet(nn.Module):
    """U-Net with logits per pixel: max-pooling down, bilinear up-sampling with skip connections up.

    Images may have any size: their last row and column are repeated up to a multiple of `2 ** (len(widths) - 1)`, and
    the logits are cropped.

    Args:
        widths: Channels from the finest to the coarsest level.
        in_channels: Channels of the images.
        classes: Number of logits per pixel.
    """

    def __init__(self, widths: Sequence[int], in_channels: int = 3, classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(double_conv(a, b) for a, b in pairwise([in_channels, *widths]))
        self.up = nn.ModuleList(double_conv(a + b, a) for a, b in reversed(list(pairwise(widths))))
        self.head = nn.Conv2d(widths[0], classes, 1)
        self.multiple = 2 ** (len(widths) - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to logits (batch, classes, height, width)."""
        height, width = x.shape[-2:]
        right, below = -width % self.multiple, -height % self.multiple
        if right or below:
            x = F.pad(x, (0, right, 0, below), mode="replicate")
        skips = [self.down[0](x)]
        for block in self.down[1:]:
            skips.append(block(F.max_pool2d(skips[-1], 2)))
        out = skips.pop()
        for block in self.up:
            out = F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=False)
            out = block(torch.cat([skips.pop(), out], dim=1))
        logits: Tensor = self.head(out)
        return logits[..., :height, :width] if right or below else logits
