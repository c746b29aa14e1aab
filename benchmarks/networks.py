"""Networks that several benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import pocketbayes as pb

VIT = {"image_size": 28, "patch_size": 7, "in_channels": 1, "classes": 10}


def classifier(model: nn.Module, method: pb.Method) -> pb.Network:
    """Return the initial network of a method for classification."""
    net = pb.bayesianize(model, method)
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical()
    return net


def pretrained_resnet20(weights: Path) -> nn.Module:
    """Return ResNet-20 for CIFAR-10 with the weights of a checkpoint."""
    model = pb.models.build("resnet20")
    pb.models.load_weights(model, weights)
    return model


def trained_vit(train: Any) -> pb.Network:
    """Return a deterministic ViT-Ti after two epochs on MNIST images."""
    torch.manual_seed(0)
    model = pb.models.build("vit-ti", **VIT)
    net = pb.fit("map", model, train, epochs=2, batch_size=64, lr=3e-4, schedule="cosine", progress=False)
    assert isinstance(net, pb.Network)
    return net
