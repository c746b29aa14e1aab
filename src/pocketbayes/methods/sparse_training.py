"""Sparse training from the first step to the last, shared by SSVI and RigL."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.methods.addition import Batch, DenseGradients
from pocketbayes.methods.base import Method, Start, TrainingContext
from pocketbayes.methods.sensitivity import largest
from pocketbayes.methods.sparsity import Distribution, layer_counts
from pocketbayes.network import Network
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.sparse import Kernel, Sparse, carry

SWAPS_OF_A_SHORT_RUN, LONGEST_SWAP_INTERVAL = 15, 100


@dataclass(frozen=True, kw_only=True)
class SparseTraining(Method):
    """Gradient steps on the present weights, with periodic swaps of present for absent weights.

    A swap removes the weights with the lowest scores and adds, with mean 0, the absent weights with the largest
    |gradient|. This dense gradient exists only in the swap step, which replaces an optimiser step.

    Attributes:
        density: The exact fraction of present weights at every step.
        distribution: Their distribution over layers: "uniform" as in SSVI's paper, "erdos-renyi" or
            "erdos-renyi-kernel", which keep more of small layers, with a fixed number per layer, or "global", where
            layers compete.
        dense_first: Keep the first layer dense, outside the count.
        dense_last: Keep the last layer dense, outside the count.
        first_choice: The initially present weights: "random", or the "largest" of a trained model.
        static: Never swap, as a control.
        swap_every: Steps between swaps; "auto" for a fifteenth of the run, at most 100.
        swap_until: The fraction of training after which swaps end.
        swap_fraction: The fraction of present weights in the first swap; it falls by a cosine to 0 at `swap_until`.
        addition: Where the gradient is taken: at "sampled" weights, at the "mean", or "averaged" over batches with new
            samples each.
        addition_batches: The number of batches of "averaged".
        addition_layerwise: Compute this gradient one layer at a time in separate passes, to save memory.
        mean_init: "model" for the model's values; "scaled" for these divided by the square root of their layer's
            density, which preserves the scale of an untrained model's outputs (Evci et al. 2022; the largest weights of
            a trained model keep their values); or the std of normal values around 0, which only works for networks with
            normalisation layers.
        kernel: How linear layers multiply: "csr", "dense" or "auto" (see `Sparse`).
    """

    density: float = 0.1
    distribution: Distribution = "erdos-renyi-kernel"
    dense_first: bool = False
    dense_last: bool = False
    first_choice: Literal["random", "largest"] = "random"
    static: bool = False
    swap_every: int | Literal["auto"] = "auto"
    swap_until: float = 0.75
    swap_fraction: float = 0.3
    addition: Literal["sampled", "mean", "averaged"] = "sampled"
    addition_batches: int = 5
    addition_layerwise: bool = False
    mean_init: float | Literal["model", "scaled"] = "scaled"
    kernel: Kernel = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_counts([(1, 1)], self.density, self.distribution)
        if self.swap_every != "auto" and not (isinstance(self.swap_every, int) and self.swap_every >= 1):
            raise UserError(f"swap_every must be a number of steps of at least 1, or 'auto', not {self.swap_every!r}")
        if self.addition_batches < 1:
            raise UserError(f"addition_batches must be at least 1, not {self.addition_batches}")
        for name in ("swap_until", "swap_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        check_choice("first_choice", self.first_choice, ("random", "largest"))
        check_choice("addition", self.addition, ("sampled", "mean", "averaged"))
        if not (
            self.mean_init in ("model", "scaled") or (isinstance(self.mean_init, (int, float)) and self.mean_init >= 0)
        ):
            raise UserError(f"mean_init must be a std, 'model' or 'scaled', not {self.mean_init!r}")

    # -- hooks of sparse methods --------------------------------------------------------------------------------------

    @abstractmethod
    def first_std(self, mean: Tensor, counts: Sequence[int]) -> Tensor | None:
        """Return the stds that weights with these means start with, `counts` of each layer; None for point values."""

    @abstractmethod
    def scores(self, posterior: Sparse) -> Tensor:
        """Return the scores (s,) of the present weights; the lowest are removed."""

    @abstractmethod
    def added_std(self, posterior: Sparse, kept: Tensor, added: Tensor) -> Tensor | None:
        """Return the stds of added weights; None for point values."""

    @abstractmethod
    def make_network(self, start: Start, posterior: Sparse) -> Network:
        """Return the network around the posterior."""

    # -- the start ----------------------------------------------------------------------------------------------------

    def init(self, model: nn.Module) -> Network:
        """Choose the present weights of every layer; a sparse network keeps its weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        if isinstance(model, Network) and isinstance(model.posterior, Sparse):
            return self.make_network(start, self._again(model.posterior))
        layout, device = start.layout, start.mean.device
        counts = layer_counts(
            [slot.shape for slot in layout.slots], self.density, self.distribution, self._dense(layout)
        )
        places = [
            slot.start + self._chosen(start.mean[slot.start : slot.start + slot.size], count).sort().values
            for slot, count in zip(layout.slots, counts)
        ]
        index = torch.cat(places)
        if isinstance(self.mean_init, str):
            mean = start.mean[index]
            if self.mean_init == "scaled" and self.first_choice == "random":
                mean = mean * _scales(layout, counts, mean)
        else:
            mean = self.mean_init * torch.randn(len(index), dtype=start.mean.dtype, device=device)
        return self.make_network(start, Sparse(layout, index, mean, self.first_std(mean, counts), self.kernel))

    def _chosen(self, weights: Tensor, count: int) -> Tensor:
        """Return the positions of a layer's initial weights."""
        if self.first_choice == "largest":
            return largest(weights.abs(), count)
        return torch.randperm(len(weights), device=weights.device)[:count]

    def _again(self, trained: Sparse) -> Sparse:
        """Return the same weights, with stds if the method has them."""
        mean, std = trained.mean.detach(), trained.present_std()
        first = self.first_std(mean, [stop - start for start, stop in trained.spans()])
        kept = first if first is None or std is None else std
        return Sparse(trained.layout, trained.index, mean, kept, self.kernel)

    def _dense(self, layout: Layout) -> list[bool]:
        """Return which slots stay dense: the first and last layer, if requested."""
        owners = [slot.name.rpartition(".")[0] for slot in layout.slots]
        kept = {owners[0]} if self.dense_first else set()
        kept |= {owners[-1]} if self.dense_last else set()
        return [owner in kept for owner in owners]

    # -- swaps --------------------------------------------------------------------------------------------------------

    def fraction(self, step: int, steps: int) -> float:
        """Compute `a/2 (1 + cos(pi t / T))` in a swap step, else 0, with t finished steps and T the end of swapping."""
        end = self.swap_until * steps
        relative = min(max(steps // SWAPS_OF_A_SHORT_RUN, 1), LONGEST_SWAP_INTERVAL)
        every = relative if self.swap_every == "auto" else self.swap_every
        if self.static or step == 0 or step % every or step >= end:
            return 0.0
        return 0.5 * self.swap_fraction * (1 + math.cos(math.pi * step / end))

    def replace_step(
        self,
        net: Network,
        run: TrainingContext,
        batch: Batch,
        optimizer: torch.optim.Optimizer,
        step: int,
        steps: int,
        weight: float = 1.0,
    ) -> float | None:
        """Swap weights every `swap_every` steps."""
        fraction = self.fraction(step, steps)
        if not fraction:
            return None
        assert isinstance(net.posterior, Sparse)
        passes = self._passes(net, run, batch, step, weight)
        self.swap(net.posterior, passes.gradients(self.addition_layerwise), fraction, optimizer)
        return passes.nll

    def swap(
        self,
        posterior: Sparse,
        gradient: Tensor | Iterable[Tensor],
        fraction: float,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> int:
        """Swap a fraction of the present weights, and return their number.

        Args:
            posterior: The posterior, changed in place.
            gradient: (n,) magnitudes of the loss's gradient for all weights; or slot by slot.
            fraction: The fraction of present weights, per layer or in total, depending on `distribution`.
            optimizer: The optimiser, whose state follows the weights and is cleared for new ones.
        """
        layout, index = posterior.layout, posterior.index.long()
        scores, spans, pools = self.scores(posterior), posterior.spans(), self._pools(posterior.layout)
        removed, added = [index[:0]], [index[:0]]
        counts: dict[int, int] = {}
        for pool in pools:
            first, last = spans[pool[0]][0], spans[pool[-1]][1]
            absent = sum(layout.slots[number].size for number in pool) - (last - first)
            counts |= dict.fromkeys(pool, min(round(fraction * (last - first)), absent))
            removed.append(first + largest(-scores[first:last], counts[pool[0]]))
        slot_sizes = [slot.size for slot in layout.slots]
        each = gradient.split(slot_sizes) if isinstance(gradient, Tensor) else gradient
        best = [_best_absent(posterior, number, sizes, counts.get(number, 0)) for number, sizes in enumerate(each)]
        for pool in pools:
            sizes, places = (torch.cat([best[number][part] for number in pool]) for part in (0, 1))
            added.append(places[largest(sizes, counts[pool[0]])])
        gone, new = torch.cat(removed), torch.cat(added)
        stays = torch.ones_like(index, dtype=torch.bool)
        stays[gone] = False
        source = posterior.swap(gone, new, self.added_std(posterior, stays.nonzero().flatten(), new))
        for parameter in (posterior.mean, posterior.rho):
            state = optimizer.state.get(parameter, {}) if optimizer and parameter is not None else {}
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == source.shape:
                    state[key] = carry(value, source)
        return len(new)

    def _pools(self, layout: Layout) -> list[list[int]]:
        """Return the groups of slots within which weights compete."""
        if self.distribution != "global":
            return [[number] for number in range(len(layout.slots))]
        free = [number for number, dense in enumerate(self._dense(layout)) if not dense]
        return [free] if free else []

    def _passes(
        self, net: Network, run: TrainingContext, batch: Batch, step: int, weight: float = 1.0
    ) -> DenseGradients:
        """Return the step's batch, possibly followed by others in a shuffled order."""

        def batches() -> Iterator[Batch]:
            yield batch
            if self.addition == "averaged" and self.addition_batches > 1:
                others = run.batches(shuffle=True, turn=step)
                yield from ([pair] for pair in itertools.islice(others, self.addition_batches - 1))

        return DenseGradients(net, batches, "mean" if self.addition == "mean" else "sample", run.team, weight)

    # -- records ------------------------------------------------------------------------------------------------------

    def after_epoch(self, net: Network, stage: str, epoch: int) -> Mapping[str, Any]:
        """Return the number of swapped weights, the density of every layer, and which use sparse kernels."""
        posterior = net.posterior
        assert isinstance(posterior, Sparse)
        return {
            "swapped": int(posterior.swapped),
            "densities": posterior.densities(),
            "csr_products": posterior.fast_slots(),
        }


def _scales(layout: Layout, counts: Sequence[int], like: Tensor) -> Tensor:
    """Return `1 / sqrt(density)` of its layer for every present weight."""
    present = torch.tensor(counts, device=like.device)
    sizes = torch.tensor([slot.size for slot in layout.slots], device=like.device)
    return (sizes / present.clamp(min=1)).sqrt().to(like.dtype).repeat_interleave(present)


def _best_absent(posterior: Sparse, number: int, gradient: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` (or all) largest gradients of a slot's absent weights, and their positions."""
    slot, (first, last) = posterior.layout.slots[number], posterior.spans()[number]
    absent = gradient.flatten().clone()
    absent[posterior.index[first:last].long() - slot.start] = -1
    places = largest(absent, min(count, slot.size - (last - first)))
    return absent[places], slot.start + places
