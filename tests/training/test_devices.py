"""Steps and passes on a device without values: whatever asks the device for a number raises an error there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pocketbayes as pb


@pytest.mark.parametrize("propagation", ["sample", "flipout"])
@pytest.mark.parametrize("prior_std", [None, 0.3])
def test_fit_step_never_waits_for_the_device(propagation: str, prior_std: float | None) -> None:
    method = pb.MeanFieldVI(propagation=propagation, prior_std=prior_std)
    net = pb.bayesianize(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method).train()
    net(torch.randn(2, 6))  # the first call looks at the model's flow, once
    net = net.to("meta")
    x, y = torch.randn(4, 6, device="meta"), torch.zeros(4, dtype=torch.long, device="meta")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + net.kl() / 100).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.is_meta for p in net.posterior.parameters())
    with pytest.raises(RuntimeError):
        net.kl().item()
