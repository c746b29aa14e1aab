"""Layers shared by several families of networks."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def named(**layers: nn.Module | None) -> nn.Sequential:
    """Chain layers under the given names in the state dict; those that are None are left out."""
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers.items() if layer is not None))


def dropout_or_none(rate: float) -> nn.Dropout | None:
    """Return a dropout layer, or None at rate 0, so that a network without dropout shows none."""
    return nn.Dropout(rate) if rate else None


def conv(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias (a batch norm follows), padded so that only the stride changes the size.

    Weights start from He's normal, which preserves the variance of gradients through ReLU layers.
    """
    layer = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
