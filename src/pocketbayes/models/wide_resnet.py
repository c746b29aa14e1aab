"""Wide residual networks (Zagoruyko and Komodakis 2016) for 32x32 images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.models.layers import conv, named


class PreActivationBlock(nn.Module):
    """Residual block `x + body(relu(bn(x)))`; if the size changes, a 1x1 convolution of `relu(bn(x))` replaces `x`."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, out_channels, stride=stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = conv(out_channels, out_channels)
        same = (in_channels, stride) == (out_channels, 1)
        self.shortcut = None if same else conv(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, smaller by the block's stride."""
        active = F.relu(self.bn1(x))
        out = self.conv2(self.drop(F.relu(self.bn2(self.conv1(active)))))
        skip = x if self.shortcut is None else self.shortcut(active)
        total: Tensor = out + skip
        return total


def wide_resnet(depth: int, width: int, in_channels: int = 3, classes: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """Build a wide ResNet: `depth = 6 n + 4`, three stages of n blocks, 16, 32 and 64 times `width` channels."""
    if depth < 10 or depth % 6 != 4:
        raise UserError(f"wrn: depth {depth} is not 6 n + 4; take 10, 16, 22, 28, 34 or 40")
    stages: dict[str, nn.Module] = {}
    channels = 16
    for i in range(3):
        out_channels = (16 << i) * width
        first = PreActivationBlock(channels, out_channels, 2 if i else 1, dropout)
        rest = (PreActivationBlock(out_channels, out_channels, 1, dropout) for _ in range(depth // 6 - 1))
        stages[f"layer{i + 1}"] = nn.Sequential(first, *rest)
        channels = out_channels
    return named(
        conv1=conv(in_channels, 16),
        **stages,
        bn=nn.BatchNorm2d(channels),
        relu=nn.ReLU(),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        linear=nn.Linear(channels, classes),
    )
