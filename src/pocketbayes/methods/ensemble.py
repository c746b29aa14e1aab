"""Deep ensembles: several networks trained independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.base.model_lock import copy_model
from pocketbayes.base.randomness import forked
from pocketbayes.base.seeds import derive_seed, seed_generators
from pocketbayes.methods.base import DerivedMethod, Method, Stage, TrainingContext
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.layout import Layout

MAX_MEMBERS = 1000


@dataclass(frozen=True, kw_only=True)
class Ensemble(DerivedMethod):
    """A deep ensemble: independently trained networks whose predictions are averaged (Lakshminarayanan et al. 2017).

    `p(y | x)` is the mean over the members of `p(y | x, member)`.

    Members differ in their initial weights, the order of the data and the noise of their method. Any method works: five
    mean-field networks are `Ensemble(method="lrt")`, MultiSWAG is `Ensemble(method="swag")`.

    Attributes:
        members: The number of networks.
        reinitialise: Give all members but the first new initial weights, by `reset_parameters` of the model's layers.
            False starts every member from the given weights, as from a checkpoint.
        method: The method of the members, or its registry name.
        workers: Members to train in parallel, each as a job on Ray; 0 for one after another in this process. The result
            is the same.
        address: The address of a running Ray cluster; None for processes on this machine.
    """

    name = "ensemble"
    members: int = 5
    reinitialise: bool = True
    method: Method | str = "map"
    workers: int = field(default=0, repr=False, compare=False)
    address: str | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.members <= MAX_MEMBERS:
            raise UserError(f"members must lie between 1 and {MAX_MEMBERS}, not {self.members}")
        if self.workers < 0:
            raise UserError(f"workers must not be negative, not {self.workers}")
        if self.address is not None and not self.workers:
            raise UserError("address= of a Ray cluster needs workers=, the number of members to train in parallel")
        if isinstance(self.base, Ensemble):
            raise UserError("an ensemble of ensembles is one ensemble with more members")

    def init(self, model: nn.Module) -> Mixture:
        """Return the members, untrained."""
        return self._mixture(model, self.base.init)

    def start(self, model: nn.Module) -> Mixture:
        """Return the members as their method's training starts."""
        return self._mixture(model, self.base.start)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return all stages of the first member, then of the second, ..."""
        return [stage for number in range(self.members) for stage in self.member_stages(model, number, number)]

    def member_stages(self, model: nn.Module, number: int, place: int) -> list[Stage]:
        """Return the stages of a member at an index of the mixture."""
        stages = []
        for index, stage in enumerate(self.base.stages(model)):
            begin = _on_member(place, stage.begin)
            stages.append(
                replace(
                    stage,
                    name=f"member {number + 1} {stage.name}",
                    method=stage.method or self.base,
                    network=partial(_member, place),
                    begin=begin if index else _on_own_noise(number, begin),
                    end=_on_member(place, stage.end),
                )
            )
        return stages

    def member(self, number: int) -> EnsembleMember:
        """Return the method that trains a member alone, exactly as within the ensemble."""
        return EnsembleMember(ensemble=replace(self, workers=0, address=None), number=number)

    def _mixture(self, model: nn.Module, make: Callable[[nn.Module], Net]) -> Mixture:
        if self.reinitialise and isinstance(model, Network):
            raise UserError("a trained Network cannot be reinitialised: give the plain model, or reinitialise=False")
        networks = []
        for number in range(self.members):
            fresh = self.reinitialise and number > 0
            network = make(reinitialised(model) if fresh else copy_model(model))
            assert isinstance(network, Network)
            networks.append(network)
        return Mixture(networks)


@dataclass(frozen=True, kw_only=True)
class EnsembleMember(Method):
    """One member of an ensemble, trained alone bit for bit as within it; a mixture of one."""

    name = "ensemble"
    ensemble: Ensemble
    number: int

    def init(self, model: nn.Module) -> Mixture:
        """Return the member, untrained."""
        return Mixture([members(self.ensemble.init(model))[self.number]])

    def start(self, model: nn.Module) -> Mixture:
        """Return the member as its method's training starts."""
        return Mixture([members(self.ensemble.start(model))[self.number]])

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return its stages between empty ones, since the index of a stage decides the order of its data."""
        stages: list[Stage] = []
        for number in range(self.ensemble.members):
            for stage in self.ensemble.member_stages(model, number, 0):
                own = number == self.number
                stages.append(stage if own else replace(stage, fixed={"epochs": 0}, begin=None, end=None))
        return stages


def reinitialised(model: nn.Module) -> nn.Module:
    """Return a copy with new initial weights, drawn from a separate generator.

    The global generator may be in the state in which the model was made, which would give the same weights.
    """
    fresh = copy_model(model)
    seed = int(torch.randint(2**62, ()))
    with forked(seed):
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
    layout = Layout.of(model)
    for slot, old, new in zip(layout.slots, layout.views(layout.read(model)), layout.views(layout.read(fresh))):
        if torch.equal(old, new):
            raise UserError(
                f"{slot.name!r} cannot be reinitialised: its module has no reset_parameters that changes it; add "
                "one, or set reinitialise=False"
            )
    return fresh


Step = Callable[[Net, TrainingContext], Net]


def _on_member(number: int, step: Step | None) -> Step | None:
    """Apply a network's step to a member of the mixture."""
    if step is None:
        return None

    def apply(net: Net, run: TrainingContext) -> Net:
        networks = members(net)
        changed = step(networks[number], run)
        assert isinstance(changed, Network)
        networks[number] = changed
        return Mixture(networks, net.weights if isinstance(net, Mixture) else None)

    return apply


def _on_own_noise(number: int, step: Step | None) -> Step:
    """Seed a member's noise before its step, so that it is independent of the members before it."""

    def apply(net: Net, run: TrainingContext) -> Net:
        seed_generators(derive_seed(run.seed, number))
        return net if step is None else step(net, run)

    return apply


def _member(number: int, net: Net) -> Network:
    return members(net)[number]
