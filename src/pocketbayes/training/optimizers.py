"""Parameter groups and optimisers with a separate learning rate and rule for stds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.network import Net, members

STD_TRAVEL = 6.0
"""Distance that `log std` can move in a stage at the automatic rate of the stds."""


def parameter_groups(net: Net, lr: float, std_lr: float | None = None, weight_decay: float = 0.0) -> list[dict]:
    """Return parameter groups for your own optimiser: means and points, then stds without weight decay.

    Args:
        net: A network or mixture.
        lr: The learning rate of means and point parameters.
        std_lr: The learning rate of the stds' parameters; None for `lr`. They are on a logarithmic scale and need an
            Adam-like optimiser, since steps of SGD are too small.
        weight_decay: The weight decay of means and point parameters.
    """
    if not lr > 0 or not (std_lr is None or std_lr > 0):
        raise UserError(f"lr and std_lr must be positive, not {lr} and {std_lr}")
    stds = [parameter for network in members(net) for parameter in network.posterior.std_parameters()]
    special = {id(parameter) for parameter in stds}
    others = [p for p in net.parameters() if id(p) not in special and p.requires_grad]
    groups = [{"params": others, "lr": lr, "weight_decay": weight_decay}]
    if stds:
        groups.append({"params": stds, "lr": lr if std_lr is None else std_lr, "weight_decay": 0.0})
    return groups


class SGDWithAdamStds(torch.optim.SGD):
    """SGD for means and points, Adam for stds.

    Gradients of stds are often orders of magnitude smaller than those of means, so that SGD hardly moves them; Adam's
    steps are independent of that scale. Groups with `adam=True` are stds.
    """

    def __init__(self, groups: list[dict], stds: list[Tensor], *, lr: float, momentum: float, fused: bool) -> None:
        """Take the groups; those with `stds` use Adam."""
        special = {id(parameter) for parameter in stds}
        rule = {**torch.optim.AdamW(stds).defaults, "fused": fused}
        marked = [{**rule, **group, "adam": any(id(p) in special for p in group["params"])} for group in groups]
        super().__init__(marked, lr=lr, momentum=momentum, fused=fused)
        self._adam = torch.optim.AdamW(stds, fused=fused)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of each rule."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["adam"]]
            loss = super().step(closure)
            self._adam.state, self._adam.param_groups = self.state, [group for group in groups if group["adam"]]
            self._adam.step()
        finally:
            self.param_groups = groups
        return loss
