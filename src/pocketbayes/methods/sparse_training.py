"""Training with few weights from the first step to the last: what sparse methods share."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UnknownNameError, UserError
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
    """Gradient steps on the present weights, and now and then a swap: some leave, as many others come in with mean 0.

    The weights with the lowest score leave. Those absent ones come in to which the loss has the largest |gradient|;
    this dense gradient lives in the swap step only, which takes the place of an optimiser step.

    Attributes:
        density: The fraction of weights that are present, exactly, at every step.
        distribution: How they are shared out over the layers: "uniform", "erdos-renyi" or "erdos-renyi-kernel", whose
            layers each keep their number; or "global", where layers compete.
        dense_first: Keeps the first layer dense, outside the count.
        dense_last: Keeps the last layer dense, outside the count.
        first_choice: The weights that are present at first: "random" ones, or the "largest" of a trained model.
        static: Keeps the first choice for ever: the control.
        swap_every: Steps from swap to swap; "auto" for a fifteenth of the run, at most 100.
        swap_until: The fraction of training after which no more are swapped.
        swap_fraction: The fraction of present weights in the first swap; it falls by a cosine to 0 at `swap_until`.
        addition: Where the gradient is taken: at "sampled" weights, at the "mean", or "averaged": the mean of its size
            over batches with fresh weights each.
        addition_batches: The batches of "averaged".
        addition_layerwise: Takes this gradient one layer at a time, in as many passes: for memory, not for time.
        mean_init: "model" for the model's own values; "scaled" for these over the square root of their layer's density,
            by which the outputs of an untrained model keep their size (Evci et al. 2022; the largest weights of a
            trained model keep their values); or the std of normal values around 0, which only networks with
            normalisation layers can grow from.
        kernel: How linear layers multiply: "csr", "dense" or "auto" (see `Sparse`).
    """

    density: float = 0.1
    distribution: Distribution = "uniform"
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
    mean_init: float | Literal["model", "scaled"] = "model"
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
        if self.first_choice not in ("random", "largest"):
            raise UnknownNameError("first_choice", self.first_choice, ("random", "largest"))
        if self.addition not in ("sampled", "mean", "averaged"):
            raise UnknownNameError("addition", self.addition, ("sampled", "mean", "averaged"))
        if not (
            self.mean_init in ("model", "scaled") or (isinstance(self.mean_init, (int, float)) and self.mean_init >= 0)
        ):
            raise UserError(f"mean_init must be a std, 'model' or 'scaled', not {self.mean_init!r}")

    # -- what a sparse method decides ---------------------------------------------------------------------------------

    @abstractmethod
    def first_std(self, mean: Tensor, counts: Sequence[int]) -> Tensor | None:
        """Return the stds that weights with these means start with, `counts` of each layer; None for point values."""

    @abstractmethod
    def scores(self, posterior: Sparse) -> Tensor:
        """Return (s,) scores of the present weights; the lowest leave."""

    @abstractmethod
    def added_std(self, posterior: Sparse, kept: Tensor, added: Tensor) -> Tensor | None:
        """Return the stds that weights come in with; None for point values.

        Args:
            posterior: The posterior before the swap.
            kept: Places of the present weights that stay.
            added: Positions of the new ones.
        """

    @abstractmethod
    def make_network(self, start: Start, posterior: Sparse) -> Network:
        """Return the network around the posterior."""

    # -- the start ----------------------------------------------------------------------------------------------------

    def init(self, model: nn.Module) -> Network:
        """Choose the present weights of every layer; a sparse network keeps its choice."""
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
        """Return the places of a layer's first weights."""
        if self.first_choice == "largest":
            return largest(weights.abs(), count)
        return torch.randperm(len(weights), device=weights.device)[:count]

    def _again(self, trained: Sparse) -> Sparse:
        """Return the same weights, with stds if the method has stds."""
        mean, std = trained.mean.detach(), trained.present_std()
        first = self.first_std(mean, [stop - start for start, stop in trained.spans()])
        kept = first if first is None or std is None else std
        return Sparse(trained.layout, trained.index, mean, kept, self.kernel)

    def _dense(self, layout: Layout) -> list[bool]:
        """Return the slots of the first and the last layer, if these stay dense."""
        owners = [slot.name.rpartition(".")[0] for slot in layout.slots]
        kept = {owners[0]} if self.dense_first else set()
        kept |= {owners[-1]} if self.dense_last else set()
        return [owner in kept for owner in owners]

    # -- swaps --------------------------------------------------------------------------------------------------------

    def fraction(self, step: int, steps: int) -> float:
        """Compute a/2 (1 + cos(pi t / T)) in a swap step, else 0; t the steps that are over, T the end of swapping."""
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
        """Return a swap, every `swap_every` steps."""
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
        """Swap a fraction of the present weights; return how many.

        Args:
            posterior: Changed in place.
            gradient: (n,) the size of the loss's gradient to every weight, present and absent; or slot by slot.
            fraction: Of each layer's present weights, or of all, as `distribution` says.
            optimizer: Its state follows the weights, cleared for new ones.
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
        """Return the slots, neighbours, within which weights compete."""
        if self.distribution != "global":
            return [[number] for number in range(len(layout.slots))]
        free = [number for number, dense in enumerate(self._dense(layout)) if not dense]
        return [free] if free else []

    def _passes(
        self, net: Network, run: TrainingContext, batch: Batch, step: int, weight: float = 1.0
    ) -> DenseGradients:
        """Return the step's batch, or with others in an order of the step's own."""

        def batches() -> Iterator[Batch]:
            yield batch
            if self.addition == "averaged" and self.addition_batches > 1:
                others = run.batches(shuffle=True, turn=step)
                yield from ([pair] for pair in itertools.islice(others, self.addition_batches - 1))

        return DenseGradients(net, batches, "mean" if self.addition == "mean" else "sample", run.team, weight)

    # -- records ------------------------------------------------------------------------------------------------------

    def after_epoch(self, net: Network, stage: str, epoch: int) -> Mapping[str, Any]:
        """Return how many weights have been swapped so far.

        How dense every layer is, and which multiply by sparse kernels.
        """
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
    """Return the `count` largest gradients to absent weights of a slot.

    (all, if there are fewer), and their positions.
    """
    slot, (first, last) = posterior.layout.slots[number], posterior.spans()[number]
    absent = gradient.flatten().clone()
    absent[posterior.index[first:last].long() - slot.start] = -1
    places = largest(absent, min(count, slot.size - (last - first)))
    return absent[places], slot.start + places
