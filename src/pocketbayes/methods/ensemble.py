"""Deep ensembles: several networks, each trained on its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from pocketbayes.errors import UserError
from pocketbayes.layout import Layout
from pocketbayes.methods.base import DerivedMethod, Method, Run, Stage
from pocketbayes.network import Mixture, Net, Network, members


@dataclass(frozen=True, kw_only=True)
class Ensemble(DerivedMethod):
    """p(y | x) = mean over the members of p(y | x, member) (Lakshminarayanan et al. 2017).

    Members differ in their first weights, the order of the data and the noise of their method. Of any method: five
    mean-field networks are `Ensemble(method="lrt")`, MultiSWAG is `Ensemble(method="swag")`.

    Attributes:
        members: How many networks.
        reinitialise: Gives all members but the first fresh weights, through the `reset_parameters` of the model's
            layers. False starts every member from the given weights, as from a checkpoint.
        method: What each is trained by: a method, or its registry name.
    """

    name = "ensemble"
    members: int = 5
    reinitialise: bool = True
    method: Method | str = "map"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 1:
            raise UserError(f"members must be at least 1, not {self.members}")
        if isinstance(self.base, Ensemble):
            raise UserError("an ensemble of ensembles is one ensemble with more members")

    def init(self, model: nn.Module) -> Mixture:
        """The members, untrained."""
        return self._mixture(model, self.base.init)

    def start(self, model: nn.Module) -> Mixture:
        """The members as their method's training starts."""
        return self._mixture(model, self.base.start)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """All stages of the first member, then of the second, ..."""
        return [
            replace(
                stage,
                name=f"member {number + 1} {stage.name}",
                method=stage.method or self.base,
                begin=_on_member(number, stage.begin),
                network=_network_of_member(number, stage.network),
                end=_on_member(number, stage.end),
            )
            for number in range(self.members)
            for stage in self.base.stages(model)
        ]

    def _mixture(self, model: nn.Module, make: Callable[[nn.Module], Net]) -> Mixture:
        if self.reinitialise and isinstance(model, Network):
            raise UserError("a trained Network has no fresh weights: give the plain model, or reinitialise=False")
        networks = []
        for number in range(self.members):
            fresh = self.reinitialise and number > 0
            network = make(reinitialised(model) if fresh else copy.deepcopy(model))
            assert isinstance(network, Network)
            networks.append(network)
        return Mixture(networks)


def reinitialised(model: nn.Module) -> nn.Module:
    """A copy with fresh weights, drawn from a stream of their own.

    The global stream may well stand where it stood when the model was made: the same seed would make the same weights.

    Raises:
        UserError: If a layer's weight stays as it was, for its module has no `reset_parameters`.
    """
    fresh = copy.deepcopy(model)
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
    layout = Layout.of(model)
    for slot, old, new in zip(layout.slots, layout.views(layout.read(model)), layout.views(layout.read(fresh))):
        if torch.equal(old, new):
            raise UserError(
                f"{slot.name!r} cannot be initialised anew: its module has no reset_parameters that changes it; add "
                "one, or set reinitialise=False"
            )
    return fresh


Step = Callable[[Net, Run], Net]


def _on_member(number: int, step: Step | None) -> Step | None:
    """The step of one network as a step of the mixture."""
    if step is None:
        return None

    def apply(net: Net, run: Run) -> Net:
        networks = members(net)
        changed = step(networks[number], run)
        assert isinstance(changed, Network)
        networks[number] = changed
        return Mixture(networks)

    return apply


def _network_of_member(number: int, network: Callable[[Net], Network]) -> Callable[[Net], Network]:
    return lambda net: network(members(net)[number])
