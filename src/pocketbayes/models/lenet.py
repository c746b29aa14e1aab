"""LeCun's networks for small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.models.layers import named
from pocketbayes.models.mlp import mlp


def lenet300(
    in_features: int = 784, classes: int = 10, batch_norm: bool = False, dropout: float = 0.0
) -> nn.Sequential:
    """Build LeNet-300-100: two hidden layers on the flattened image."""
    return mlp(in_features, classes, hidden=(300, 100), batch_norm=batch_norm, dropout=dropout)


class PadTo(nn.Module):
    """Zero padding of images that are smaller than `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return images of at least `size` x `size`."""
        height, width = (max(self.size - side, 0) for side in x.shape[-2:])
        if not (height or width):
            return x
        return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))


def lenet5(in_channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build LeNet-5 with ReLU and max-pooling.

    Images of 28x28 are padded to 32x32.
    """
    return named(
        pad=PadTo(32),
        conv1=nn.Conv2d(in_channels, 6, 5),
        act1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        act2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * 5 * 5, 120),
        act3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        act4=nn.ReLU(),
        fc3=nn.Linear(84, classes),
    )
