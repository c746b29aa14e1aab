"""Gradients of absent weights, by which sparse training chooses the weights to add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.base.batch_norm import frozen_batch_norm
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.base.randomness import forked
from pocketbayes.network import Network
from pocketbayes.posteriors.csr import SparseMatrix

Batch = Sequence[tuple[Tensor, Tensor]]
"""A batch, split into parts that fit memory."""


@dataclass
class DenseGradients:
    """Gradients with respect to all weights; those of absent weights decide which are added.

    Attributes:
        net: The network in training, which is not changed.
        batches: Returns the same batches at every call.
        at: Where the gradient is taken: at a new "sample" of the weights for every batch, or at the "mean".
        team: Processes over which gradients are averaged; their first batches are parts of one.
        weight: The weight of this process's part, 1 if all have the same size.
        nll: The first batch's NLL, after a gradient was taken.
    """

    net: Network
    batches: Callable[[], Iterable[Batch]]
    at: str
    team: ProcessGroup = ALONE
    weight: float = 1.0
    nll: float = float("nan")

    def gradients(self, layerwise: bool = False) -> Iterator[Tensor]:
        """Compute sum_k |g_k| over the batches, slot by slot of the layout.

        Args:
            layerwise: Run separate passes per layer, with the same draws, so that only one layer's gradient (and one
                dense weight) is in memory; otherwise all gradients come from the same passes.
        """
        slots = range(len(self.net.layout.slots))
        groups = [[number] for number in slots] if layerwise else [list(slots)]
        for group in groups:
            with forked(enabled=group is not groups[-1]):
                yield from self._of(group)

    def _of(self, group: Sequence[int]) -> list[Tensor]:
        """Return the gradients of some slots."""
        totals: list[Tensor] = []
        for number, batch in enumerate(self.batches()):
            gradients, nll = self._of_batch(group, batch)
            if self.team.size > 1:
                fraction = (1.0 if number else self.weight) / self.team.size
                gradients = [self.team.sum(gradient.mul_(fraction)) for gradient in gradients]
            sizes = [gradient.abs_() for gradient in gradients]
            if not number:
                totals, self.nll = sizes, nll
            else:
                for total, size in zip(totals, sizes):
                    total += size
        return totals

    def _of_batch(self, group: Sequence[int], batch: Batch) -> tuple[list[Tensor], float]:
        """Return the gradient of a batch's mean NLL, summed over its parts, and this NLL."""
        net, likelihood = self.net, self.net.likelihood
        assert likelihood is not None
        dtype = next(net.posterior.parameters()).dtype
        parts = [(x.to(dtype) if x.is_floating_point() else x, y) for x, y in batch]
        with torch.no_grad(), frozen_batch_norm(net.model), net.using(self.at):
            weights = net.weights(parts[0][0])
        for number in group:
            weight = weights[number]
            weights[number] = (weight.dense() if isinstance(weight, SparseMatrix) else weight.detach()).requires_grad_()
        leaves = [weights[number] for number in group]
        size, total = sum(len(y) for _, y in parts), 0.0
        sums: list[Tensor] = []
        for x, y in parts:
            with frozen_batch_norm(net.model):
                output = net.layout.run(net.model, weights, x)
            nll = likelihood.nll(output, y) * (len(y) / size)
            found = [gradient.flatten() for gradient in torch.autograd.grad(nll, leaves)]
            sums = [one + other for one, other in zip(sums, found)] if sums else found
            total += float(nll.detach())
        return sums, total
