"""Parameter groups and optimisers in which stds learn at a rate, and by a rule, of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.network import Net, members

STD_TRAVEL = 6.0
"""How far the rate that is chosen for the stds lets `log std` move in a stage of constant rate, one unit a step."""


def parameter_groups(net: Net, lr: float, std_lr: float | None = None, weight_decay: float = 0.0) -> list[dict]:
    """Return parameter groups for an optimiser of one's own: means and points, then stds, which never decay.

    Args:
        net: A network or mixture.
        lr: The rate of means and point parameters.
        std_lr: The rate of the parameters that set the stds; None for `lr`. They are on a logarithmic scale, so an
            Adam-like optimiser suits them: steps of SGD are too small to move them.
        weight_decay: The decay of means and point parameters.
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

    The gradient of a std is that of the noise it scales, often orders of magnitude below that of the means, so that at
    SGD's rate it never moves. Adam's steps do not depend on that scale. Groups with `adam=True` are stds.
    """

    def __init__(self, groups: list[dict], stds: list[Tensor], *, lr: float, momentum: float, fused: bool) -> None:
        """Take the groups, of which those that hold `stds` are given to Adam."""
        special = {id(parameter) for parameter in stds}
        rule = {**torch.optim.AdamW(stds).defaults, "fused": fused}
        marked = [{**rule, **group, "adam": any(id(p) in special for p in group["params"])} for group in groups]
        super().__init__(marked, lr=lr, momentum=momentum, fused=fused)
        self._adam = torch.optim.AdamW(stds, fused=fused)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of each rule; the state of both is this optimiser's."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["adam"]]
            loss = super().step(closure)
            self._adam.state, self._adam.param_groups = self.state, [group for group in groups if group["adam"]]
            self._adam.step()
        finally:
            self.param_groups = groups
        return loss
