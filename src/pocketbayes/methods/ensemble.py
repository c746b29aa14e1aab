"""Deep ensembles: several networks, each trained on its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.base.shard import Shard
from pocketbayes.data.batches import seed_generators
from pocketbayes.methods.base import DerivedMethod, Method, Run, Stage
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Ensemble(DerivedMethod):
    """Networks trained apart that answer together (Lakshminarayanan et al. 2017).

    p(y | x) = mean over the members of p(y | x, member).

    Members differ in their first weights, the order of the data and the noise of their method. Of any method: five
    mean-field networks are `Ensemble(method="lrt")`, MultiSWAG is `Ensemble(method="swag")`.

    Attributes:
        members: How many networks.
        reinitialise: Gives all members but the first fresh weights, through the `reset_parameters` of the model's
            layers. False starts every member from the given weights, as from a checkpoint.
        method: What each is trained by: a method, or its registry name.
        shard: "i/N": trains only every N-th member, from the i-th on, as one of N independent jobs. In one process it
            trains them as if it trained all: the networks of all jobs, put together by `merged`, are that ensemble.
    """

    name = "ensemble"
    members: int = 5
    reinitialise: bool = True
    method: Method | str = "map"
    shard: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 1:
            raise UserError(f"members must be at least 1, not {self.members}")
        if self._job.of > self.members:
            raise UserError(f"shard {self.shard}: an ensemble of {self.members} makes no more than {self.members} jobs")
        if isinstance(self.base, Ensemble):
            raise UserError("an ensemble of ensembles is one ensemble with more members")

    def init(self, model: nn.Module) -> Mixture:
        """The members, untrained."""
        return self._mixture(model, self.base.init)

    def start(self, model: nn.Module) -> Mixture:
        """The members as their method's training starts."""
        return self._mixture(model, self.base.start)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """All stages of the first member, then of the second, ...; those of other jobs' members do nothing."""
        stages = []
        for number in range(self.members):
            for place, stage in enumerate(self.base.stages(model)):
                named = replace(
                    stage,
                    name=f"member {number + 1} {stage.name}",
                    method=stage.method or self.base,
                    network=_network_of_member(number, stage.network),
                )
                if self._job.takes(number):
                    begin = _on_member(number, stage.begin)
                    begin = begin if place else _on_own_noise(number, begin)
                    stages.append(replace(named, begin=begin, end=_on_member(number, stage.end)))
                else:
                    stages.append(replace(named, fixed={"epochs": 0}, begin=None, end=None))
        if self.shard is not None:
            stages.append(Stage("members", fixed={"epochs": 0}, network=lambda net: members(net)[0], end=self._own))
        return stages

    @property
    def _job(self) -> Shard:
        return Shard() if self.shard is None else Shard.parse(self.shard)

    def _own(self, net: Net, run: Run) -> Net:
        """The members of this job alone."""
        return Mixture([network for number, network in enumerate(members(net)) if self._job.takes(number)])

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


def merged(jobs: Sequence[Net]) -> Mixture:
    """One ensemble of the members that N jobs trained, in the order of their shards 1/N, ..., N/N."""
    found = [members(net) for net in jobs]
    count = sum(len(own) for own in found)
    if [len(own) for own in found] != [len(range(number, count, len(found))) for number in range(len(found))]:
        raise UserError(
            f"jobs of {', '.join(str(len(own)) for own in found)} members are not the shards of one ensemble"
        )
    return Mixture([found[number % len(found)][number // len(found)] for number in range(count)])


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
        return Mixture(networks, net.weights if isinstance(net, Mixture) else None)

    return apply


def _on_own_noise(number: int, step: Step | None) -> Step:
    """The step after seeding the noise of a member, so that it does not depend on the members before it."""

    def apply(net: Net, run: Run) -> Net:
        seed_generators(hash((run.seed, number)) & 0x7FFFFFFF)
        return net if step is None else step(net, run)

    return apply


def _network_of_member(number: int, network: Callable[[Net], Network]) -> Callable[[Net], Network]:
    return lambda net: network(members(net)[number])
