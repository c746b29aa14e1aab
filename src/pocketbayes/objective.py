"""What training minimises: NLL + beta KL / N, its two terms always kept apart."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pocketbayes.errors import UnknownNameError, UserError


class Likelihood(nn.Module, ABC):
    """p(y | output): the noise model of the data."""

    name: ClassVar[str]

    @abstractmethod
    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """-log p(target | output) in nats, the mean over the batch."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What, with the module's tensors, rebuilds the likelihood."""


class Categorical(Likelihood):
    """Softmax classes, for one label per example (n, classes) or per pixel (n, classes, h, w)."""

    name = "categorical"

    def __init__(self, class_weights: Tensor | None = None, ignore_index: int | None = None) -> None:
        """Args: class_weights: (classes,) weights of the loss; ignore_index: a label that does not count."""
        super().__init__()
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", class_weights)
        self.ignore_index = ignore_index

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """-log softmax(output)[target], weighted by class where weights are given: the mean over labels that count."""
        if target.is_floating_point():  # probabilities in place of labels, as mixing of images makes them
            return F.cross_entropy(output, target, weight=self.class_weights)
        ignore = -100 if self.ignore_index is None else self.ignore_index
        total = F.cross_entropy(output, target, weight=self.class_weights, ignore_index=ignore, reduction="sum")
        counted = target != ignore
        weights = (
            counted if self.class_weights is None else self.class_weights[torch.where(counted, target, 0)] * counted
        )
        return total / weights.sum().clamp(min=1e-12)  # a batch in which nothing counts has the loss 0, not 0 / 0

    def config(self) -> dict[str, Any]:
        """The ignored label."""
        return {"ignore_index": self.ignore_index}


class GaussianNoise(Likelihood):
    """y ~ N(output, noise^2); the noise is learned, predicted by the network, or given.

    With `noise="predicted"` the output's last axis holds the means, then as many raw noise values:
    noise = softplus(raw) + 1e-6.
    """

    name = "gaussian"

    def __init__(self, noise: Literal["learned", "predicted"] | float = "learned", raw: Tensor | None = None) -> None:
        super().__init__()
        if not (noise in ("learned", "predicted") or (isinstance(noise, (int, float)) and noise > 0)):
            raise UserError(f"noise must be 'learned', 'predicted' or a positive std, not {noise!r}")
        self.noise = noise
        if noise == "learned":
            self.raw = nn.Parameter(torch.tensor(math.log(math.expm1(0.5))) if raw is None else raw.clone())

    def moments(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the noise std of every target."""
        if self.noise == "predicted":
            if output.ndim < 2 or output.shape[-1] % 2:
                raise UserError(
                    "noise='predicted' needs outputs (n, ..., 2 k), k means and then k noise values, "
                    f"not {tuple(output.shape)}"
                )
            mean, raw = output.chunk(2, dim=-1)
            return mean, F.softplus(raw) + 1e-6
        if self.noise == "learned":
            return output, (F.softplus(self.raw) + 1e-6).expand_as(output)
        return output, torch.full_like(output, float(self.noise))

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """log(noise) + (y - mean)^2 / (2 noise^2) + log(2 pi) / 2, summed over a target's entries."""
        mean, noise = self.moments(output)
        target = match_target(mean, target)
        each = noise.log() + 0.5 * ((target - mean) / noise).square() + 0.5 * math.log(2 * math.pi)
        return each.sum() / len(mean)

    def config(self) -> dict[str, Any]:
        """Where the noise comes from."""
        return {"noise": self.noise}


def match_target(mean: Tensor, target: Tensor) -> Tensor:
    """The target in the mean's shape: (n,) beside (n, 1) would otherwise silently broadcast to (n, n)."""
    if [size for size in target.shape if size != 1] != [size for size in mean.shape if size != 1]:
        raise UserError(f"targets of shape {tuple(target.shape)} do not fit outputs of shape {tuple(mean.shape)}")
    return target.reshape(mean.shape)


LIKELIHOODS: dict[str, type[Likelihood]] = {cls.name: cls for cls in (Categorical, GaussianNoise)}


def restore(name: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Likelihood:
    """The likelihood that `name`, `config()` and the module's tensors describe."""
    if name not in LIKELIHOODS:
        raise UnknownNameError("likelihood", name, LIKELIHOODS)
    return LIKELIHOODS[name](**config, **tensors)


Annealing = Literal["constant", "linear-up", "linear-down", "warm-up"]


def kl_weight(progress: float, beta: float, annealing: Annealing = "constant", start: float | None = None) -> float:
    """Beta at a point of training.

    constant: beta. linear-up, linear-down: from `start` (0, or 0.2 as in PBN) to beta at the end. warm-up:
    beta min(2 progress, 1), as in SSVI.

    Args:
        progress: The fraction of the epochs that are over, in [0, 1].
        beta: The final weight.
        annealing: The shape of the way there.
        start: The weight at progress 0 of the linear shapes.
    """
    if annealing == "constant":
        return beta
    if annealing == "warm-up":
        return beta * min(2 * progress, 1.0)
    if annealing in ("linear-up", "linear-down"):
        first = start if start is not None else (0.0 if annealing == "linear-up" else 0.2)
        return first + (beta - first) * progress
    raise UnknownNameError("annealing", annealing, ("constant", "linear-up", "linear-down", "warm-up"))
