"""Masked Bayesian networks: units are removed by Metropolis-Hastings moves of a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Stage, TrainingContext
from pocketbayes.methods.meanfield import MeanFieldVI
from pocketbayes.network import Net, Network
from pocketbayes.posteriors.layout import Layout, evaluating
from pocketbayes.posteriors.sparse import Sparse


@dataclass(frozen=True, kw_only=True)
class MaskedVI(MeanFieldVI):
    """A mean-field network with a binary mask over its hidden units, drawn by Metropolis-Hastings (Kong et al. 2023).

    `p(mask | data) ~ p(data | mask) exp(-penalty |mask|)`. Mean-field VI is trained first; then a chain proposes to
    remove or restore units, and the weights of units removed at its end are exactly 0.

    Departures from mBNN: weights come from variational inference, in the paper from Hamiltonian Monte Carlo between
    moves; the likelihood of a move is estimated on one batch at the posterior mean; proposals are uniform; the chain
    ends in one mask, which is stored sparsely with its stds.

    Attributes:
        penalty: Cost per hidden unit in nats; None for the logarithm of the number of examples.
        moves: The number of proposals; None for four per hidden unit.
    """

    propagation: Literal["sample", "local", "flipout"] = "local"
    penalty: float | None = None
    moves: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty is not None and not self.penalty >= 0:
            raise UserError(f"penalty must not be negative, not {self.penalty}")
        if self.moves is not None and self.moves < 0:
            raise UserError(f"moves must not be negative, not {self.moves}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The registry name."""
        return "mbnn"

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return mean-field training followed by the draw of the mask."""
        (train,) = super().stages(model)
        return (Stage(train.name, begin=train.begin, end=self._mask),)

    def _mask(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        unit = hidden_units(net.layout).to(net.device)
        x, y = next(run.batches(shuffle=True))
        penalty = math.log(max(run.examples, 2)) if self.penalty is None else self.penalty
        with torch.no_grad(), evaluating(net):
            mean, std = net.posterior.moments()
            kept = draw_mask(net, mean, unit, (x, y), run.examples, penalty, self.moves, run.seed)
            index = kept.nonzero().flatten()
            posterior = Sparse(net.layout, index, mean[index], std[index])
        run.note(kept_weights=len(index), density=round(len(index) / len(mean), 6))
        return net.with_posterior(posterior)


def hidden_units(layout: Layout) -> Tensor:
    """Return the hidden unit of every weight, -1 for those of the last layer, (n,)."""
    parts, first = [], 0
    last = layout.slots[-1].name.rpartition(".")[0]
    for slot in layout.slots:
        if slot.name.rpartition(".")[0] == last or len(slot.shape) < 2:
            parts.append(torch.full((slot.size,), -1))
        else:
            parts.append(first + torch.arange(slot.shape[0]).repeat_interleave(slot.size // slot.shape[0]))
            first += slot.shape[0]
    return torch.cat(parts)


def draw_mask(
    net: Network,
    mean: Tensor,
    unit: Tensor,
    batch: tuple[Tensor, Tensor],
    examples: int,
    penalty: float,
    moves: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Return which weights are present after a chain of moves that each remove or restore one unit.

    Args:
        net: The network, in evaluation mode.
        mean: The weights, (n,).
        unit: The unit of every weight (see `hidden_units`).
        batch: The batch for estimating the likelihood.
        examples: The number of training examples, to which the estimate is scaled.
        penalty: Cost per unit in nats.
        moves: The number of proposals; None for four per unit.
        seed: Seed of the proposals.
    """
    likelihood = net.likelihood
    assert likelihood is not None, "a mask needs a likelihood"
    x, y = batch
    units = int(unit.max()) + 1 if len(unit) else 0
    alive = torch.ones(units + 1, dtype=torch.bool, device=mean.device)  # the last entry is for weights without a unit

    def loss(mask: Tensor) -> float:
        return examples * float(likelihood.nll(net.run_at(mean * mask[unit], x), y)) + penalty * float(mask.sum())

    generator = torch.Generator().manual_seed(seed)  # the same on every rank and device
    now = loss(alive)
    for _ in range((4 * units if moves is None else moves) if units else 0):
        proposal = alive.clone()
        proposal[int(torch.randint(units, (), generator=generator))] ^= True
        then = loss(proposal)
        if math.log(max(float(torch.rand((), generator=generator)), 1e-300)) < now - then:
            alive, now = proposal, then
    return alive[unit]
