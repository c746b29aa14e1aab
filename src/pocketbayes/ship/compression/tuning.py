"""Training of coded weights: straight-through, with assignments that move and pay for their length.

The values under the codes are trained by the gradients of the coded weights, and codes are renewed every few steps, so
that a weight may change its code and pays for its length. The codebook stays: new centres would move every boundary,
and with it many codes whose errors others have made good. The teacher is the network itself
before coding: its answers to augmented and mixed inputs, so no targets are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.batch_norm import batch_norms_to_eval
from pocketbayes.data.augment import random_crop, random_flip
from pocketbayes.data.batches import as_source, batches, size_of
from pocketbayes.files import container
from pocketbayes.network import Network
from pocketbayes.plane.codes import Codebook
from pocketbayes.ship.compression.coding import AnyCodebook, Weights

BATCH_SIZE = 96
RATE = 1e-3
"""Learning rate of the values, in standard deviations of all of them."""
POINT_RATE = 1e-3
WARMUP = 10
RENEWAL = 5
"""Steps between renewals of the codes."""
SAVING = 50
"""Steps between checkpoints."""
KIND = "tuning"


def tune(
    weights: Weights,
    codebook: AnyCodebook,
    values: Tensor,
    start: Network,
    train: Any,
    steps: int,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    on_step: Callable[[float], object] = lambda loss: None,
) -> Network:
    """Train a coded network to answer like the one it came from.

    Args:
        weights: The weights of the network before coding, which is the teacher.
        codebook: Of the coded network.
        values: (n,) the values that were coded, in units of the codebook.
        start: The coded network.
        train: Training data; targets are not used, except that whole numbers mean classes.
        steps: Steps of `BATCH_SIZE` examples.
        seed: Of order, augmentation and mixing.
        checkpoint: A file from which training resumes and to which it is saved every `SAVING` steps.
        on_step: Told the loss of each step.

    Returns:
        The trained network, coded.
    """
    if not isinstance(codebook, Codebook):
        raise TypeError("codes in the plane are not trained")
    teacher = weights.network
    target = teacher.posterior.moments()[0].detach()
    latent = nn.Parameter(values.clone())
    points = [parameter for parameter in start.model.parameters() if parameter.requires_grad]
    rate = RATE * float(values.std())
    groups = [{"params": [latent], "lr": rate}, {"params": points, "lr": POINT_RATE}]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    state = _State(latent, points, optimizer, codebook)
    first = state.load(checkpoint)
    index = state.codebook.assign(latent.detach())
    start.train()
    batch_norms_to_eval(start.model)  # the statistics were corrected; those of mixed inputs would be others
    with torch.random.fork_rng(devices=[]):
        stream = _stream(train, seed, first)
        for step in range(first, steps):
            torch.manual_seed(hash((seed, step)))  # also for data sets that augment
            x, y = next(stream)
            x = _varied(x.to(target.device), train)
            factor = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group, base in zip(optimizer.param_groups, (rate, POINT_RATE)):
                group["lr"] = base * factor
            if step % RENEWAL == 0:
                index = state.codebook.assign(latent.detach())
            coded = state.codebook.centres[index] + (latent - latent.detach())
            with torch.no_grad():
                wanted = teacher.run_at(target, x)
            loss = difference(start.run_at(coded * weights.factor, x), wanted, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            on_step(float(loss.detach()))
            if (step + 1) % SAVING == 0:
                state.save(checkpoint, step + 1)
    made = weights.build(state.codebook, state.codebook.assign(latent.detach()))
    made.model.load_state_dict(start.model.state_dict())
    return made.eval()


def difference(outputs: Tensor, wanted: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy to the teacher's classes, or the squared error in units of the teacher's variance."""
    if y.is_floating_point():
        return F.mse_loss(outputs, wanted) / wanted.var().clamp(min=1e-12)
    return F.cross_entropy(outputs, wanted.softmax(1))


class _State:
    """What a checkpoint holds."""

    def __init__(
        self, latent: nn.Parameter, points: list[nn.Parameter], optimizer: torch.optim.Adam, codebook: Codebook
    ) -> None:
        self.latent, self.points, self.optimizer, self.codebook = latent, points, optimizer, codebook

    def save(self, path: Path | None, step: int) -> None:
        if path is None:
            return
        tree = {
            "step": step,
            "latent": self.latent.detach(),
            "points": [point.detach() for point in self.points],
            "moments": [dict(self.optimizer.state[p]) for p in (self.latent, *self.points)],
            "centres": self.codebook.centres,
            "bits": self.codebook.bits,
        }
        container.write(path, tree, KIND)

    @torch.no_grad()
    def load(self, path: Path | None) -> int:
        """Return the number of steps that have been taken."""
        if path is None or not path.is_file():
            return 0
        tree = container.read(path, KIND)
        for parameter, value in zip((self.latent, *self.points), (tree["latent"], *tree["points"])):
            parameter.copy_(value)
        for parameter, moments in zip((self.latent, *self.points), tree["moments"]):
            self.optimizer.state[parameter] = moments
        self.codebook = replace(self.codebook, centres=tree["centres"], bits=tree["bits"])
        return int(tree["step"])


def _stream(train: Any, seed: int, first: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches without end, from step `first` on."""
    source = as_source(train)
    size = min(BATCH_SIZE, size_of(source))
    per_epoch = -(-size_of(source) // size)
    epoch, skipped = divmod(first, per_epoch)
    while True:
        yield from batches(source, size, shuffle_seed=seed + epoch, start=skipped)
        epoch, skipped = epoch + 1, 0


def _varied(x: Tensor, train: Any) -> Tensor:
    """Shift and flip images that are not augmented yet, and mix half of the inputs with one another."""
    if not x.is_floating_point():
        return x
    if x.ndim == 4 and getattr(train, "augment", None) is None and min(x.shape[2:]) >= 8:
        x = random_flip(random_crop(x, min(x.shape[2:]) // 8, "zero"))
    half = len(x) // 2
    share = torch.rand(half, *[1] * (x.ndim - 1)).to(x)
    mixed = share * x[:half] + (1 - share) * x[:half][torch.randperm(half).to(x.device)]
    return torch.cat([mixed, x[half:]])
