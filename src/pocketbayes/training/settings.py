"""Settings of training, the optimiser and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal

import torch
from torch import Tensor

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.network import Net, Network, members

FREE = (
    "epochs", "accelerator", "devices", "strategy", "timeout", "workers", "val_samples", "checkpoint_epochs",
    "checkpoint_steps", "checkpoints", "on_nan", "tensorboard",
)  # fmt: skip
"""Settings that a resumed run may change, because they do not affect a step."""

AT_LEAST_ONE = (
    "batch_size", "accumulate", "val_samples", "checkpoint_epochs", "checkpoint_steps", "checkpoints", "devices",
    "stop_after",
)  # fmt: skip
POSITIVE = ("lr", "std_lr", "clip_norm", "timeout", "gamma")
NOT_NEGATIVE = ("epochs", "momentum", "weight_decay", "patience", "warmup_epochs", "workers")

STD_TRAVEL = 6.0
"""Distance that `log std` can move in a stage at the automatic rate of the stds."""
MAX_STD_LR = 0.1
"""The largest automatic learning rate of the stds."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of training, common to all methods.

    Attributes:
        epochs: Passes over the data, for stages that do not set their own.
        batch_size: Examples per optimiser step, over all processes.
        optimizer: "adamw" or "sgd".
        lr: Learning rate of means and point parameters.
        std_lr: Learning rate of the stds' parameters; None for `lr`, or more if the stage is short, so that `log std`
            can move by about 6.
        std_optimizer: "adam", or "same" for the optimiser of the means.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of means and point parameters, never of stds.
        schedule: "constant", "cosine", "milestones" or "plateau".
        milestones: Epochs at which the rate is multiplied by `gamma`.
        gamma: The factor of milestones and plateau.
        patience: Epochs without improvement of the (validation) loss before plateau lowers the rate.
        warmup_epochs: Epochs over which the rate rises linearly from 0.
        clip_norm: Largest norm of the gradient.
        average: Return, and validate, the average of the parameters over about the last sixteenth of the steps, in
            which the noise of steps and draws cancels as under a falling rate. Swaps of sparse methods start it anew.
        freeze_batch_norm: Use the running statistics in training, as in prediction. Batch statistics would hide a draw
            that shifts a whole layer, as shared draws do.
        sync_batch_norm: Use the statistics of all processes' examples, with two exchanges per layer and pass; otherwise
            each process uses its own, and running statistics are averaged.
        accumulate: Number of parts of a batch, to save memory; the step is the same.
        precision: Lightning Fabric's name for it, such as "32-true", "bf16-mixed" or "16-mixed".
        channels_last: Use this memory format for images. On a CPU, convolutions with few channels are up to 20 %
            faster, with many a little slower (docs/cost.md); models that call `view` on their outputs fail.
        compile: Compile the model by `torch.compile`, which takes a minute and may speed up steps.
        accelerator: "auto" for CUDA where there is one, else the CPU; "cpu", "cuda", ... Apple's "mps" lacks float64,
            which metrics need.
        devices: Number of devices on this machine; torchrun's number if it launched the process.
        strategy: "ddp", where every process holds the whole network; "fsdp" is not supported.
        timeout: Seconds that processes wait for one another.
        workers: Number of processes that load data.
        val_samples: Passes per example in validation.
        keep_best: Return the network of the epoch with the lowest validation NLL, not the last.
        stop_after: Epochs without a lower validation NLL after which a stage ends early; None for never.
        checkpoint_epochs: Epochs between checkpoints.
        checkpoint_steps: Steps between checkpoints within an epoch; None for none.
        checkpoints: Number of checkpoints to keep, in case the newest is damaged.
        on_nan: "stop" if loss or gradient is not finite, or "rollback" to the end of the last epoch at half the rate.
        tensorboard: Also write the metrics for TensorBoard.
        stages: Settings of single stages by name, such as `{"shared": {"lr": 1e-5}}`, which take precedence.
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
    average: bool = True
    freeze_batch_norm: bool = False
    sync_batch_norm: bool = False
    accumulate: int = 1
    precision: str = "32-true"
    channels_last: bool = False
    compile: bool = False
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
        self._check_ranges()
        if self.strategy != "ddp":
            raise UserError(
                f"strategy={self.strategy!r} is not supported: every process holds the whole posterior, so use 'ddp'; "
                "see docs/scale.md for what fits on a device"
            )
        if self.sync_batch_norm and self.accumulate > 1:
            raise UserError("sync_batch_norm needs accumulate=1, since processes may split a batch differently")
        check_choice("optimizer", self.optimizer, ("adamw", "sgd"))
        check_choice("std_optimizer", self.std_optimizer, ("adam", "same"))
        check_choice("schedule", self.schedule, ("constant", "cosine", "milestones", "plateau"))
        if self.schedule == "milestones" and not self.milestones:
            raise UserError("schedule='milestones' needs milestones=, the epochs at which the rate falls")
        check_choice("on_nan", self.on_nan, ("stop", "rollback"))
        if not isinstance(self.milestones, Sequence) or not all(isinstance(each, Real) for each in self.milestones):
            raise UserError(f"milestones must be a list of epochs, not {self.milestones!r}")
        if not isinstance(self.stages, Mapping) or not all(isinstance(each, Mapping) for each in self.stages.values()):
            raise UserError(
                f"stages must be settings by stage, such as {{'shared': {{'lr': 1e-5}}}}, not {self.stages!r}"
            )
        for settings in self.stages.values():
            replace(self, stages={}).replace(settings)

    def _check_ranges(self) -> None:
        """Reject numbers out of range, and NaN."""
        ranges = ((AT_LEAST_ONE, "at least 1"), (POSITIVE, "positive and finite"), (NOT_NEGATIVE, "0 or more"))
        for names, wanted in ranges:
            for name in names:
                value = getattr(self, name)
                if value is None:
                    continue
                inside = value >= 1 if names is AT_LEAST_ONE else value > 0 if names is POSITIVE else value >= 0
                if not (inside and value < math.inf):
                    raise UserError(f"{name} must be {wanted}, not {value}")
        if self.momentum >= 1:
            raise UserError(f"momentum must be below 1, not {self.momentum}")

    def replace(self, settings: Mapping[str, Any]) -> Training:
        """Return a copy with changed settings.

        Raises:
            UserError: If a name is not a setting.
        """
        known = {f.name for f in fields(self)}
        for name in settings:
            check_choice("training setting", name, known)
        return replace(self, **settings)

    def check_resumes(self, before: Mapping[str, str], epochs: int, folder: object) -> None:
        """Reject resuming a run that was started with other `deciding()` settings, or for more epochs."""
        for name, value in self.deciding().items():
            if before.get(name, value) != value:
                raise begun_otherwise(folder, name, before[name], value)
        if self.epochs < epochs:
            raise UserError(
                f"{folder} was started for {epochs} epochs, not {self.epochs}: resume it for as many, or choose "
                "another folder"
            )

    def deciding(self) -> dict[str, str]:
        """Return the settings that a resumed run must share, as text."""
        return {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.name not in FREE}

    def make_optimizer(self, network: Network, steps: int | None = None) -> torch.optim.Optimizer:
        """Build the optimiser, with one group for means and points and one for stds.

        Args:
            network: The network to train.
            steps: The number of steps of the stage, which determines the default `std_lr`; None for `lr`.
        """
        chosen = self.lr
        if steps is not None:
            by_sgd = self.optimizer == "sgd" and self.std_optimizer == "adam"  # SGD's rates have another scale
            chosen = max(min(STD_TRAVEL / max(steps, 1), MAX_STD_LR), 0.0 if by_sgd else self.lr)
        groups = parameter_groups(network, self.lr, chosen if self.std_lr is None else self.std_lr, self.weight_decay)
        for group in groups:
            group["base_lr"] = group["lr"]
        stds = groups[1]["params"] if len(groups) > 1 else []
        # Fused optimisers are up to five times faster. They read values in the order of memory, so all must be
        # contiguous, and they rescale 16-bit gradients themselves, after clipping.
        fused = self.precision != "16-mixed" and all(_can_be_fused(p) for group in groups for p in group["params"])
        if self.optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=self.lr, fused=fused)
        if stds and self.std_optimizer == "adam":
            return SGDWithAdamStds(groups, stds, lr=self.lr, momentum=self.momentum, fused=fused)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=fused)

    def rate_factor(self, epoch: float) -> float:
        """Return the factor of the learning rate after `epoch` epochs (for plateau, see `Plateau`)."""
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        if self.schedule == "cosine":
            done = (epoch - self.warmup_epochs) / max(self.epochs - self.warmup_epochs, 1e-9)
            return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        if self.schedule == "milestones":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return 1.0


def resolve_accelerator(name: str) -> str:
    """Return CUDA or the CPU for "auto", which Lightning resolves to Apple's MPS, a device without float64."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def begun_otherwise(folder: object, what: str, before: object, now: object) -> UserError:
    """Build the error for resuming with a changed setting."""
    return UserError(
        f"{folder} was started with {what}={before}, not {now}: resume it unchanged, or choose another folder"
    )


def _can_be_fused(parameter: Tensor) -> bool:
    return parameter.device.type in ("cpu", "cuda") and parameter.is_floating_point() and parameter.is_contiguous()


@dataclass
class Plateau:
    """A schedule that lowers the rate when the loss stops improving."""

    factor: float = 1.0
    best: float = math.inf
    waited: int = 0

    def after_epoch(self, loss: float, training: Training) -> None:
        """Update with an epoch's loss."""
        if training.schedule != "plateau":
            return
        if loss < self.best:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
            if self.waited > training.patience:
                self.factor, self.waited = self.factor * training.gamma, 0


def parameter_groups(net: Net, lr: float, std_lr: float | None = None, weight_decay: float = 0.0) -> list[dict]:
    """Return parameter groups for your own optimiser: means and points, then stds without weight decay.

    Args:
        net: A network or mixture.
        lr: The learning rate of means and point parameters.
        std_lr: The learning rate of the stds' parameters; None for `lr`. They are on a logarithmic scale and need an
            Adam-like optimiser, since steps of SGD are too small.
        weight_decay: The weight decay of means and point parameters.
    """
    if not lr > 0 or not (std_lr is None or std_lr > 0):
        raise UserError(f"lr and std_lr must be positive, not {lr} and {std_lr}")
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    stds = [parameter for network in members(net) for parameter in network.posterior.std_parameters()]
    special = {id(parameter) for parameter in stds}
    others = [parameter for parameter in trained if id(parameter) not in special]
    groups = [{"params": others, "lr": lr, "weight_decay": weight_decay}]
    if stds:
        groups.append({"params": stds, "lr": lr if std_lr is None else std_lr, "weight_decay": 0.0})
    return groups


class SGDWithAdamStds(torch.optim.SGD):
    """SGD for means and points, Adam for stds.

    Gradients of stds are often orders of magnitude smaller than those of means, so that SGD hardly moves them; Adam's
    steps are independent of that scale. Groups with `adam=True` are stds.
    """

    def __init__(self, groups: list[dict], stds: list[Tensor], *, lr: float, momentum: float, fused: bool) -> None:
        """Take the groups; those with `stds` use Adam."""
        special = {id(parameter) for parameter in stds}
        rule = {**torch.optim.AdamW(stds).defaults, "fused": fused}
        marked = [{**rule, **group, "adam": any(id(p) in special for p in group["params"])} for group in groups]
        super().__init__(marked, lr=lr, momentum=momentum, fused=fused)
        self._adam = torch.optim.AdamW(stds, fused=fused)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of each rule."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["adam"]]
            loss = super().step(closure)
            self._adam.state, self._adam.param_groups = self.state, [group for group in groups if group["adam"]]
            self._adam.step()
        finally:
            self.param_groups = groups
        return loss
