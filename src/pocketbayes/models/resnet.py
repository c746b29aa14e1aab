"""Residual networks: ResNet-20/32/56 and a small one for CIFAR, ResNet-18/50/101 with three stems, wide ResNets.

ResNets are chains `stem, layer1, layer2, ..., pool, classifier`. Names in the state dict are torchvision's, except for
the classifier of ResNet-20/32/56, which is `linear` as in common checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.models.layers import conv, dropout_or_none, named

Shortcut = Callable[[int, int, int], nn.Module]


class SubsampleAndPad(nn.Module):
    """He et al.'s option A, a shortcut without parameters: every `stride`-th pixel, and zeros for the new channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (out_channels - in_channels) // 2
        self.after = out_channels - in_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Return the input at the size of the block's output."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Build He et al.'s option B, a shortcut by a 1x1 convolution."""
    return nn.Sequential(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


class Block(nn.Module):
    """Residual block `relu(body(x) + shortcut(x))`; the body is 3x3 + 3x3 or, as a bottleneck, 1x1 + 3x3 + wide 1x1.

    The first 3x3 convolution has the stride, as in torchvision.
    """

    def __init__(self, in_channels: int, width: int, stride: int, bottleneck: bool, shortcut: Shortcut) -> None:
        super().__init__()
        basic = ((width, 3, stride), (width, 3, 1))
        plan = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)) if bottleneck else basic
        self.depth = len(plan)
        channels = in_channels
        for i, (out_channels, kernel, step) in enumerate(plan, 1):
            self.add_module(f"conv{i}", conv(channels, out_channels, kernel, step))
            self.add_module(f"bn{i}", nn.BatchNorm2d(out_channels))
            channels = out_channels
        same = (in_channels, stride) == (channels, 1)
        self.downsample = nn.Identity() if same else shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, smaller by the block's stride."""
        out = x
        for i in range(1, self.depth + 1):
            out = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(out))
            out = F.relu(out) if i < self.depth else out
        return F.relu(out + self.downsample(x))


def residual_network(
    stem: nn.Conv2d,
    stages: Sequence[tuple[int, int, int]],
    *,
    classes: int,
    dropout: float,
    pool: nn.Module | None = None,
    bottleneck: bool = False,
    shortcut: Shortcut = projection,
    classifier: str = "fc",
) -> nn.Sequential:
    """Build a network: a stem, stages (width, depth, first stride), global pooling, dropout, a linear classifier."""
    layers: dict[str, nn.Module] = {}
    channels = stem.out_channels
    for i, (width, depth, stride) in enumerate(stages, 1):
        out_channels = 4 * width if bottleneck else width
        first = Block(channels, width, stride, bottleneck, shortcut)
        rest = (Block(out_channels, width, 1, bottleneck, shortcut) for _ in range(depth - 1))
        layers[f"layer{i}"] = nn.Sequential(first, *rest)
        channels = out_channels
    return named(
        conv1=stem,
        bn1=nn.BatchNorm2d(stem.out_channels),
        relu=nn.ReLU(),
        maxpool=pool,
        **layers,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        drop=dropout_or_none(dropout),
        **{classifier: nn.Linear(channels, classes)},
    )


def resnet_cifar(depth: int, in_channels: int = 3, classes: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """Build ResNet-20, -32 or -56 of He et al. for 32x32 images: `depth = 6 n + 2`, widths 16, 32, 64."""
    if depth < 8 or depth % 6 != 2:
        raise UserError(f"resnet: depth {depth} is not 6 n + 2; take 20, 32, 44, 56 or 110")
    n = depth // 6
    return residual_network(
        conv(in_channels, 16),
        [(16, n, 1), (32, n, 2), (64, n, 2)],
        classes=classes,
        dropout=dropout,
        shortcut=SubsampleAndPad,
        classifier="linear",
    )


def resnet_small(in_channels: int = 3, classes: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """Build the PBN paper's small ResNet for CIFAR-10 and SVHN, 0.17 million weights.

    The paper gives a 3x3 stem of stride 2, a 2x2 max-pool, four blocks of two 3x3 convolutions, "stride 2 then 1", and
    features 16/32/64. Four blocks of stride 2 would reduce the 8x8 map to nothing, and three widths do not fit four
    blocks. We read it as 16 features in the stem, two blocks of 32 and two of 64, each pair with stride 2, then 1; the
    last map is 2x2. Shortcuts are projections.
    """
    return residual_network(
        conv(in_channels, 16, stride=2),
        [(32, 2, 2), (64, 2, 2)],
        classes=classes,
        dropout=dropout,
        pool=nn.MaxPool2d(2),
    )


STEMS: dict[str, tuple[int, int, bool]] = {"imagenet": (7, 2, True), "cifar": (3, 1, False), "pbn": (7, 1, False)}
"""Kernel, stride, and whether a max-pool follows."""


def resnet(
    depths: Sequence[int],
    bottleneck: bool,
    stem: str = "imagenet",
    in_channels: int = 3,
    classes: int = 1000,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Build ResNet-18, -50 or -101 of He et al. with torchvision's names.

    `stem="imagenet"` is the original: 7x7, stride 2, max-pool. For 32x32 images, `"cifar"`: 3x3, stride 1, no pool, and
    `"pbn"`: 7x7, stride 1, no pool, as in the PBN paper.
    """
    check_choice("stem", stem, STEMS)
    kernel, stride, pooled = STEMS[stem]
    return residual_network(
        conv(in_channels, 64, kernel, stride),
        [(64 << i, depth, 2 if i else 1) for i, depth in enumerate(depths)],
        classes=classes,
        dropout=dropout,
        pool=nn.MaxPool2d(3, stride=2, padding=1) if pooled else None,
        bottleneck=bottleneck,
    )


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
