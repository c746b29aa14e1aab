"""Settings of training, the optimiser they ask for, and its learning rate over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.network import Network
from pocketbayes.training.optimizers import STD_TRAVEL, SGDWithAdamStds, parameter_groups

FREE = (
    "epochs", "accelerator", "devices", "strategy", "timeout", "workers", "val_samples", "checkpoint_epochs",
    "checkpoint_steps", "checkpoints", "on_nan", "tensorboard",
)  # fmt: skip
"""What a resumed run may change: how long, where and how safely it runs, not what a step is."""

MAX_STD_LR = 0.1
"""The largest rate that is chosen for the stds, however few steps there are."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained, whatever the method.

    Attributes:
        epochs: Passes over the data, in a stage that does not set its own.
        batch_size: Examples per optimiser step, over all processes.
        optimizer: "adamw" or "sgd".
        lr: Learning rate of means and point parameters.
        std_lr: Learning rate of the parameters that set the stds; None for `lr`, or as much
            as lets `log std` move by about 6 over the stage, however few steps it has.
        std_optimizer: "adam", whatever the means' optimiser, or "same" for that of the means.
        momentum: Of SGD.
        weight_decay: On means and point parameters, never on stds.
        schedule: "constant", "cosine", "milestones" or "plateau".
        milestones: Epochs at which the rate is multiplied by `gamma`.
        gamma: The factor of milestones and plateau.
        patience: Epochs without a better loss (validation's, if there is any) before plateau lowers the rate.
        warmup_epochs: Epochs over which the rate rises linearly from 0.
        clip_norm: Largest norm of the gradient.
        freeze_batch_norm: Normalises by the running statistics in training too, as prediction does. A draw that shifts
            a whole layer, as shared draws do, is then felt; batch statistics would hide it.
        sync_batch_norm: Normalises by the statistics of all processes' examples, as one process would by its batch, at
            two exchanges a layer and pass; else each by those of its own part, and running statistics are averaged.
        accumulate: Parts into which a batch is split to save memory; the step is the same.
        precision: Lightning Fabric's name for it, such as "32-true", "bf16-mixed" or "16-mixed".
        channels_last: Images in that memory format. On a CPU convolutions of few channels are up to a fifth faster, of
            many a little slower (docs/cost.md); a model that calls `view` on their outputs fails.
        accelerator: "auto", "cpu", "cuda", ...
        devices: Devices on this machine; torchrun's own number where it launched the process.
        strategy: "ddp": every process holds the whole network. "fsdp", which would share it out, is refused.
        timeout: Seconds that processes which train together wait for one another before they give up.
        workers: Processes that load data.
        val_samples: Passes per example in validation.
        keep_best: Returns the network of the epoch with the lowest validation NLL, not the last.
        stop_after: Epochs without a lower validation NLL after which a stage ends early; None for never.
        checkpoint_epochs: Epochs between checkpoints.
        checkpoint_steps: Steps between checkpoints within an epoch; None for none.
        checkpoints: How many of them are kept, for the case that the newest is damaged.
        on_nan: "stop" when loss or gradient is not finite, or "rollback" to the last epoch's end with half the rate.
        tensorboard: Writes the metrics for TensorBoard too.
        stages: Settings of single stages by name, such as `{"shared": {"lr": 1e-5}}`, which go before all others.
    """

    epochs: int = 10
    batch_size: int = 128
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    std_lr: float | None = None
    std_optimizer: Literal["adam", "same"] = "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "milestones", "plateau"] = "constant"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    patience: int = 10
    warmup_epochs: float = 0.0
    clip_norm: float | None = None
    freeze_batch_norm: bool = False
    sync_batch_norm: bool = False
    accumulate: int = 1
    precision: str = "32-true"
    channels_last: bool = False
    accelerator: str = "auto"
    devices: int = 1
    strategy: Literal["ddp"] = "ddp"
    timeout: float = 60.0
    workers: int = 0
    val_samples: int = 5
    keep_best: bool = False
    stop_after: int | None = None
    checkpoint_epochs: int = 1
    checkpoint_steps: int | None = None
    checkpoints: int = 2
    on_nan: Literal["stop", "rollback"] = "stop"
    tensorboard: bool = False
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for f in fields(self):
            value, kinds = getattr(self, f.name), {"int": Integral, "float": Real}
            kind = kinds.get(str(f.type).removesuffix(" | None"))
            optional = value is None and str(f.type).endswith(" | None")
            if kind is None or optional:
                continue
            if not isinstance(value, kind):
                what = "a whole number" if kind is Integral else "a number"
                raise UserError(f"{f.name} must be {what}, not {value!r}")
            plain = int(value) if isinstance(value, Integral) else float(value)  # numpy's numbers, for example
            if isinstance(plain, int) and not -(1 << 63) <= plain < 1 << 63:
                raise UserError(f"{f.name} must be below 2**63")
            object.__setattr__(self, f.name, plain)
        for name in ("batch_size", "accumulate", "val_samples", "checkpoint_epochs", "checkpoints", "devices"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.stop_after is not None and self.stop_after < 1:
            raise UserError(f"stop_after must be at least 1 epoch or None, not {self.stop_after}")
        if self.epochs < 0 or not self.lr > 0:
            raise UserError(f"epochs must not be negative and lr must be positive, not {self.epochs} and {self.lr}")
        if self.strategy != "ddp":
            raise UserError(
                f"strategy={self.strategy!r}: posteriors are flat vectors that every process holds whole, so only "
                "'ddp' trains them; docs/scale.md says what fits on a device, docs/adr/0008 how sharding will work"
            )
        if not self.timeout > 0:
            raise UserError(f"timeout must be positive, not {self.timeout}")
        if self.sync_batch_norm and self.accumulate > 1:
            raise UserError("sync_batch_norm needs accumulate=1: processes could not agree on the parts of a batch")
        if self.optimizer not in ("adamw", "sgd"):
            raise UnknownNameError("optimizer", self.optimizer, ("adamw", "sgd"))
        if self.std_optimizer not in ("adam", "same"):
            raise UnknownNameError("std_optimizer", self.std_optimizer, ("adam", "same"))
        if self.schedule not in ("constant", "cosine", "milestones", "plateau"):
            raise UnknownNameError("schedule", self.schedule, ("constant", "cosine", "milestones", "plateau"))
        if self.schedule == "milestones" and not self.milestones:
            raise UserError("schedule='milestones' needs milestones=, the epochs at which the rate falls")
        if self.on_nan not in ("stop", "rollback"):
            raise UnknownNameError("on_nan", self.on_nan, ("stop", "rollback"))
        for settings in self.stages.values():
            replace(self, stages={}).but(settings)

    def but(self, settings: Mapping[str, Any]) -> Training:
        """Return these settings with some changed.

        Raises:
            UserError: If a name is not a setting.
        """
        known = {f.name for f in fields(self)}
        for name in settings:
            if name not in known:
                raise UnknownNameError("training setting", name, known)
        return replace(self, **settings)

    def check_resumes(self, before: Mapping[str, str], epochs: int, folder: object) -> None:
        """Raise `UserError` if a run in the folder was begun with other `deciding()` settings, or for more epochs."""
        for name, value in self.deciding().items():
            if before.get(name, value) != value:
                raise begun_otherwise(folder, name, before[name], value)
        if self.epochs < epochs:
            raise UserError(
                f"{folder} was begun for {epochs} epochs, not {self.epochs}: resume it for as many or more, or choose "
                "another folder"
            )

    def deciding(self) -> dict[str, str]:
        """Return the settings that a resumed run must share, as text."""
        return {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.name not in FREE}

    def make_optimizer(self, network: Network, steps: int | None = None) -> torch.optim.Optimizer:
        """Build the optimiser: one group for means and points, one for what sets the stds.

        Args:
            network: The network to train.
            steps: The steps of the stage, from which an unset `std_lr` follows; None for `lr`.
        """
        chosen = self.lr
        if steps is not None:
            by_sgd = self.optimizer == "sgd" and self.std_optimizer == "adam"  # whose rates are on another scale
            chosen = max(min(STD_TRAVEL / max(steps, 1), MAX_STD_LR), 0.0 if by_sgd else self.lr)
        groups = parameter_groups(network, self.lr, chosen if self.std_lr is None else self.std_lr, self.weight_decay)
        for group in groups:
            group["base_lr"] = group["lr"]
        stds = groups[1]["params"] if len(groups) > 1 else []
        # In one pass over the values: up to five times as fast. It reads them in the order of memory, whatever their
        # strides, so all must be contiguous; and it rescales 16-bit gradients itself, when they have been clipped.
        fused = self.precision != "16-mixed" and all(_can_be_fused(p) for group in groups for p in group["params"])
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, fused=fused)
        if stds and self.std_optimizer == "adam":
            return SGDWithAdamStds(groups, stds, lr=self.lr, momentum=self.momentum, fused=fused)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=fused)

    def rate_factor(self, epoch: float) -> float:
        """Return the learning rate over its base after `epoch` epochs (plateau's own factor is `Plateau`'s)."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        if self.schedule == "cosine":
            done = (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if self.schedule == "milestones":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return 1.0


def begun_otherwise(folder: object, what: str, before: object, now: object) -> UserError:
    """Return what a run says that cannot be resumed with another setting."""
    return UserError(
        f"{folder} was begun with {what}={before}, not {now}: resume it as it was, or choose another folder"
    )


def _can_be_fused(parameter: Tensor) -> bool:
    return parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point() and parameter.is_contiguous()


@dataclass
class Plateau:
    """Lowers the rate when the loss has not improved for a while."""

    factor: float = 1.0
    best: float = math.inf
    waited: int = 0

    def after_epoch(self, loss: float, training: Training) -> None:
        """Take note of an epoch's loss."""
        if training.schedule != "plateau":
            return
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
            if self.waited > training.patience:
                self.factor, self.waited = self.factor * training.gamma, 0
