"""Training of coded networks: code some of the weights, train the rest to compensate, and code more.

A fraction of each layer's columns is coded with error feedback; the other weights then learn, by exact gradients, to
compensate the rest of the error (as in incremental network quantisation, Zhou et al. 2017). At the end all weights are
coded, and only the codebook's centres, biases and normalisation learn. Codes never change once chosen, so training does
not undo the feedback, unlike straight-through training. The teacher is the network before coding: its predictions for
augmented and mixed inputs replace targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.base.batch_norm import batch_norms_to_eval
from pocketbayes.base.randomness import Randomness
from pocketbayes.base.seeds import derive_seed, repeat_seed
from pocketbayes.data.batches import as_source, batches, size_of
from pocketbayes.data.model_inputs import Inputs, ModelInput
from pocketbayes.data.pixels import random_crop
from pocketbayes.files import container
from pocketbayes.methods.recalibration import batch_norm_statistics, batch_norms, correct_statistics
from pocketbayes.network import Network
from pocketbayes.posteriors import from_moments
from pocketbayes.ship.compression.coding import (
    BFLOAT16_BITS,
    AnyCodebook,
    Weights,
    round_mantissa,
    with_posterior,
)

BATCH_SIZE = 96
WEIGHT_RATE = 1e-3
"""Learning rate of the weights, in units of their std; larger ones undo the feedback."""
CENTRE_RATE = 1e-2
"""Learning rate of the centres, in the same units."""
POINT_RATE = 1e-3
WARMUP_STEPS = 10
CODED_FRACTIONS = (0.5, 0.75, 0.9, 1.0)
"""The fraction of columns that are coded from the start of each stage."""
TEMPERATURE = 2.0
"""Temperature of both networks' predictions, since a confident teacher teaches little."""
SIZE_PER_SHIFT = 16
"""Image size divided by the largest shift."""
STEPS_BETWEEN_CHECKPOINTS = 50
"""Steps between checkpoints."""
KIND = "tuning"


def retrain(
    weights: Weights,
    codebook: AnyCodebook,
    train: Any,
    calibration: Sequence[Any],
    steps: int,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    on_step: Callable[[float], object] = lambda loss: None,
) -> Network:
    """Code a network step by step and train it to match the original.

    Args:
        weights: The weights of the network, which is the teacher.
        codebook: The codebook.
        train: Training data; of the targets only the type is used, integers for classes.
        calibration: Batches for correcting batch norm after each coding.
        steps: Steps of `BATCH_SIZE` examples.
        seed: Seed of order, augmentation and mixing.
        checkpoint: A file from which training resumes and to which it is saved every `STEPS_BETWEEN_CHECKPOINTS` steps.
        on_step: Called with the loss of each step.

    Returns:
        The trained, coded network with corrected batch norm.
    """
    teacher = weights.network
    target = teacher.posterior.moments()[0].detach()
    student = _Student.of(weights, codebook)
    rates = WEIGHT_RATE * float(target.std()), POINT_RATE, CENTRE_RATE * float(weights.scaled.std())
    groups = [[student.latent], student.points, [student.centres]]
    optimizer = torch.optim.Adam([{"params": group} for group in groups], betas=(0.9, 0.99))
    first = student.load(checkpoint, optimizer)
    old = batch_norm_statistics([teacher], calibration)[1][0] if batch_norms(teacher) else []
    randomness = Randomness(seed)
    with randomness.redirected():
        stream = _stream(train, seed, first)
        for step in range(first, steps):
            while student.stage < len(CODED_FRACTIONS) and step >= steps * student.stage // len(CODED_FRACTIONS):
                student.code_more(codebook)
                if old:
                    own = batch_norm_statistics([student.net], calibration)[1][0]
                    correct_statistics(student.net, own, teacher, old)
            randomness.manual_seed(derive_seed(seed, step))  # also for data sets that augment
            x, y = next(stream)
            x = _varied(x.to(target.device), train)
            factor = _rate_factor(step, steps)
            for group, base in zip(optimizer.param_groups, rates):
                group["lr"] = base * factor
            with torch.no_grad():
                wanted = teacher.run_at(target, x)
            loss = distillation_loss(student.net.run_at(student.values(), x), wanted, y)
            optimizer.zero_grad()
            loss.backward()
            student.step(optimizer)
            on_step(float(loss.detach()))
            if (step + 1) % STEPS_BETWEEN_CHECKPOINTS == 0:
                student.save(checkpoint, optimizer, step + 1)
    centres = round_mantissa(student.centres.detach(), BFLOAT16_BITS)
    made = weights.build(replace(codebook, centres=centres), student.index)
    made.model.load_state_dict(student.net.model.state_dict())
    return made.eval()


def _rate_factor(step: int, steps: int) -> float:
    """Return a cosine over the stages in which weights learn, and another one over the last stage."""
    last = steps * (len(CODED_FRACTIONS) - 1) // len(CODED_FRACTIONS)
    start, stop = (0, last) if step < last else (last, steps)
    return min(1.0, (step - start + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * (step - start) / (stop - start)))


def distillation_loss(outputs: Tensor, wanted: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy to the teacher's classes, or the squared error in units of the teacher's variance."""
    if y.is_floating_point():
        return F.mse_loss(outputs, wanted) / wanted.var().clamp(min=1e-12)
    soft = (wanted / TEMPERATURE).softmax(1)
    return TEMPERATURE**2 * F.cross_entropy(outputs / TEMPERATURE, soft)


@dataclass
class _Student:
    """A partly coded network.

    Attributes:
        weights: The teacher's weights.
        net: The network, with the weights `latent`.
        latent: The values of all weights, (n,), decoded where there is a code.
        centres: The centres of the codebook, (K,), which learn once every weight has a code.
        index: The codes, (n,), -1 where there is none yet.
        stage: The number of codings so far.
    """

    weights: Weights
    net: Network
    latent: nn.Parameter
    centres: nn.Parameter
    index: Tensor
    stage: int = 0

    @classmethod
    def of(cls, weights: Weights, codebook: AnyCodebook) -> _Student:
        posterior = from_moments(weights.network.layout, weights.mean)
        net = with_posterior(weights.network, posterior).train()
        batch_norms_to_eval(net.model)  # keep the corrected statistics: those of mixed inputs differ
        (latent,) = posterior.parameters()
        index = torch.full_like(latent, -1, dtype=torch.long)
        return cls(weights, net, latent, nn.Parameter(codebook.centres.clone()), index)

    def values(self) -> Tensor:
        """Return the weights with which the network runs."""
        if self.stage < len(CODED_FRACTIONS):
            return self.latent
        return self.centres[self.index] * self.weights.factor

    @property
    def points(self) -> list[nn.Parameter]:
        """The trained parameters outside the posterior."""
        return [parameter for parameter in self.net.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def code_more(self, codebook: AnyCodebook) -> None:
        """Code the columns of the next stage."""
        share = (CODED_FRACTIONS[self.stage - 1] if self.stage else 0.0, CODED_FRACTIONS[self.stage])
        self.index, values = self.weights.code(codebook, self.latent, share, self.index)
        self.latent.copy_(values)
        self.stage += 1

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimiser step that leaves coded weights unchanged."""
        held = self.latent.clone()
        optimizer.step()
        self.latent.copy_(torch.where(self.index >= 0, held, self.latent))

    def _trained(self) -> list[nn.Parameter]:
        return [self.latent, *self.points, self.centres]

    def _tensors(self) -> dict[str, Tensor]:
        """Return everything but the optimiser's state."""
        own = {"latent": self.latent, "centres": self.centres, "index": self.index}
        return {**own, **self.net.model.state_dict(prefix="model.")}

    def save(self, path: Path | None, optimizer: torch.optim.Optimizer, step: int) -> None:
        if path is None:
            return
        tree = {
            "step": step,
            "stage": self.stage,
            "tensors": {name: tensor.detach() for name, tensor in self._tensors().items()},
            "moments": [dict(optimizer.state[p]) for p in self._trained()],
        }
        container.write(path, tree, KIND)

    @torch.no_grad()
    def load(self, path: Path | None, optimizer: torch.optim.Optimizer) -> int:
        """Restore the state in a file and return the number of finished steps."""
        if path is None or not path.is_file():
            return 0
        tree = container.read(path, KIND)
        for name, tensor in self._tensors().items():
            tensor.copy_(tree["tensors"][name])
        for parameter, moments in zip(self._trained(), tree["moments"]):
            optimizer.state[parameter] = moments
        self.stage = int(tree["stage"])
        return int(tree["step"])


def _stream(train: Any, seed: int, first: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches without end, from step `first` on."""
    source = as_source(train)
    size = min(BATCH_SIZE, size_of(source))
    per_epoch = -(-size_of(source) // size)
    epoch, skipped = divmod(first, per_epoch)
    while True:
        yield from batches(source, size, shuffle_seed=repeat_seed(seed, epoch), start=skipped)
        epoch, skipped = epoch + 1, 0


def _varied(x: ModelInput, train: Any) -> ModelInput:
    """Shift images, unless the data set augments them, and mix half of the inputs in pairs."""
    if isinstance(x, Inputs) or not x.is_floating_point():
        return x
    if x.ndim == 4 and getattr(train, "augment", None) is None:
        x = random_crop(x, min(x.shape[2:]) // SIZE_PER_SHIFT, "zero")
    half = len(x) // 2
    share = torch.rand(half, *[1] * (x.ndim - 1)).to(x)
    mixed = share * x[:half] + (1 - share) * x[:half][torch.randperm(half).to(x.device)]
    return torch.cat([mixed, x[half:]])
