"""Vision transformers at their published size by moments: a pass, its gradients and a training step."""

from __future__ import annotations

import math

import pytest
import torch

import pocketbayes as pb

CLASSES = 200
"""Tiny-ImageNet's."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-s", "vit-b"])
def test_moments_train_a_vision_transformer_at_224(name: str) -> None:
    torch.manual_seed(0)
    net = pb.bayesianize(pb.models.build(name, classes=CLASSES), pb.VDP(std_init=1e-3))
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical()
    x, y = torch.randn(1, 3, 224, 224), torch.tensor([7])
    optimizer = pb.Training(optimizer="sgd", lr=0.01, momentum=0.0).make_optimizer(net.train())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        output = net(x)
        assert isinstance(output, pb.Gaussian)
        assert output.shape == (1, CLASSES)
        assert bool((output.variance > 0).all())
        loss = net.likelihood.nll(output, y) + net.kl() * 1e-9
        loss.backward()
        for parameter in net.posterior.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.isfinite().all())
            assert float(parameter.grad.abs().sum()) > 0
        optimizer.step()
        losses.append(float(loss.detach()))
    assert math.isfinite(losses[1])
    assert losses[1] < losses[0]
    with torch.no_grad():
        plain = net.eval().to_module()(x)
        torch.testing.assert_close(net(x).loc, plain, rtol=1e-3, atol=1e-4)
