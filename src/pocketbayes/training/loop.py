"""The epochs and steps of one stage of training."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pocketbayes.base.batch_norm import batch_norms_to_eval, frozen_batch_norm, has_batch_norm
from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import JointBatchNorm
from pocketbayes.base.progress import time_left
from pocketbayes.base.seeds import derive_seed
from pocketbayes.data.batches import batches, share, steps_per_epoch
from pocketbayes.files import network_file as artifact
from pocketbayes.inference.evaluation import evaluate, loss_of
from pocketbayes.likelihoods import Categorical, check_target
from pocketbayes.methods import Method
from pocketbayes.network import Net, Network
from pocketbayes.propagation.base import check_output
from pocketbayes.training.checks import NotFiniteError, gradient_norm, not_finite, warn_of_odd_model
from pocketbayes.training.compiling import calling, compiled_call
from pocketbayes.training.figures import Number, StepFigures, read, steps_between_reads
from pocketbayes.training.settings import Training

if TYPE_CHECKING:
    from pocketbayes.training.run import FitRun

SHOWN = ("stage", "epoch", "loss", "nll", "kl", "swapped", "val_accuracy", "val_nll", "val_ece", "val_rmse", "val_miou")
"""Columns of the metrics file that the line of an epoch shows."""


BATCH_NORM_SINGLE_VALUE_ERROR = "Expected more than 1 value per channel"  # as torch says it


@dataclass
class Loop:
    """The epochs and steps of one stage."""

    run: FitRun
    method: Method
    net: Net
    network: Network
    wrapped: Any
    optimizer: Any
    training: Training
    begun: float = field(default_factory=time.monotonic)
    done: int = 0
    draws_nothing: bool = False
    """Whether neither likelihood nor KL drew random numbers in the epoch's first step."""
    unread: list[StepFigures] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Compile the model if asked; read numbers at once where it is free, or processes exchange them anyway."""
        several = self.run.team.size > 1
        self.steps_between_reads = 1 if several else steps_between_reads(self.run.fabric.device)
        self.compiled = compiled_call(self.network) if self.training.compile else None

    def epoch(self) -> None:
        """Train from the current step to the end of the epoch."""
        run, at = self.run, self.run.at
        steps = steps_per_epoch(run.train, self.training.batch_size)
        self.net.train()
        epochs = self.training.epochs
        run.bar.begin(f"{run.stage.name} epoch {at.epoch + 1}/{epochs}, batch", steps, (epochs - at.epoch - 1) * steps)
        run.bar.advance(at.step)
        self.draws_nothing, self.has_batch_norm = False, has_batch_norm(self.network)
        if self.training.freeze_batch_norm:
            batch_norms_to_eval(self.network)
        for x, y in batches(
            run.train,
            self.training.batch_size,
            shuffle_seed=derive_seed(run.seed, at.stage, at.epoch),
            start=at.step,
            rank=run.team.rank,
            world=run.team.size,
            workers=self.training.workers,
        ):
            x = x.to(run.fabric.device)
            if self.training.channels_last and x.ndim == 4:
                x = x.to(memory_format=torch.channels_last)
            part = share(run.train, self.training.batch_size, at.step, run.team.rank, run.team.size)
            self.step(x, y.to(run.fabric.device), at.epoch * steps + at.step, steps, part)
            at.step += 1
            if (at.stage, at.epoch, at.step) == (0, 0, 1) and run.team.rank == 0:
                warn_of_odd_model(self.network, x)
            every = self.training.checkpoint_steps
            if every and at.step % every == 0 and at.step < steps:
                self._read()
                run.save_checkpoint(self.net, self.optimizer)
            if at.step < steps:
                run.stop_if_asked(self.net, self.optimizer, self._read)
        self._read()
        self._close_epoch(at.step)

    def step(self, x: Tensor, y: Tensor, index: int, steps: int, part: float) -> None:
        """Take one optimiser step: the mean NLL over samples and parts of the batch, plus beta KL / N.

        Args:
            x: The inputs of this process's part of the batch.
            y: Their targets.
            index: The number of finished steps of the stage.
            steps: The steps of an epoch.
            part: The weight of this process's part of the batch.
        """
        run, method = self.run, self.method
        progress = index / steps
        self._set_rate(progress + 1 / steps if progress < self.training.warmup_epochs else progress)
        self.optimizer.zero_grad()
        parts = list(zip(x.chunk(self.training.accumulate), y.chunk(self.training.accumulate)))
        total = steps * self.training.epochs
        beta = method.kl_weight(min(run.at.epoch / max(self.training.epochs, 1), 1.0))
        replace_step = run.stage.step or method.replace_step
        replaced = replace_step(self.network, run, parts, self.optimizer.optimizer, index, total, part)
        run.redirection.drew = False
        with run.redirection.suspended(self.draws_nothing):
            nlls = self._backward_nll(parts, part) if replaced is None else [replaced * part]
            if run.team.size > 1:
                nlls = [run.reduce_nll(sum(map(float, nlls)))]
            kl = self.network.kl() if beta else None  # with weight 0 it is measured once per epoch
            self.draws_nothing = not run.redirection.drew
        with run.redirection.suspended():
            if replaced is None and kl is not None and kl.requires_grad:
                run.fabric.backward(kl * (beta / run.examples))
            divergence, norm = None if kl is None else kl.detach(), gradient_norm(self.network)
            self.unread.append(StepFigures(run.at.step, nlls, divergence, beta, run.examples, norm))
            if len(self.unread) >= self.steps_between_reads:
                self._read()
            if replaced is not None:
                run.averages.restart()
                return
            if self.training.clip_norm is not None:
                limit = self.training.clip_norm  # what is not finite is found by `_read`
                run.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=limit, error_if_nonfinite=False)
            self.optimizer.step()
            run.averages.update()
        (run.stage.after_step or method.after_step)(self.network, self.optimizer.optimizer, index, total)

    def _read(self) -> None:
        """Take the figures of the steps since the last time into the epoch's sums.

        Raises:
            NotFiniteError: If the loss or a gradient is NaN or infinite.
        """
        at, unread = self.run.at, read(self.unread)
        self.unread.clear()
        for figures in unread:
            row = figures.row()
            if not figures.finite:
                self._complain(figures.step, row["nll"], row.get("kl", 0.0))
            at.sums = {name: at.sums.get(name, 0.0) + value for name, value in row.items()}
            self.run.bar.advance(1, **row)

    def _complain(self, step: int, nll: float, kl: float) -> None:
        """Raise `NotFiniteError` with the step, the layer and the likely cause."""
        run, at = self.run, self.run.at
        weights, gradient = not_finite(self.network), not_finite(self.network, gradients=True)
        what = "the gradient" if math.isfinite(nll + kl) else "the loss"
        layer = f", first in layer {weights or gradient!r}" if weights or gradient else ""
        cause = (
            "the weights diverged before" if weights
            else "an output or a target is not finite" if not math.isfinite(nll)
            else "a std or the prior is out of range" if not math.isfinite(kl)
            else "the step before was too large"
        )  # fmt: skip
        raise NotFiniteError(
            f"{what} is not finite at stage {run.stage.name!r}, epoch {at.epoch + 1}, step {step + 1}{layer}: NLL "
            f"{nll:.4g}, KL {kl:.4g}; likely {cause}; lower lr ({self.training.lr} now), set clip_norm, check the data"
        )

    def _backward_nll(self, parts: Sequence[tuple[Tensor, Tensor]], weight: float) -> list[Number]:
        """Add the gradient of the weighted mean NLL, part by part and sample by sample, with one pass in memory.

        The weight is that of this process's part of the batch. Returns the parts of the NLL.
        """
        run, size = self.run, sum(len(inputs) for inputs, _ in parts)
        samples = self.method.train_samples if self.network.is_random else 1
        paired = self.method.antithetic and self.network.is_random
        if paired and samples == 1 and not self.has_batch_norm:  # batch norm needs the whole batch
            parts = [half for inputs, targets in parts for half in zip(inputs.chunk(2), targets.chunk(2))]
        synced = self.training.sync_batch_norm and run.team.size > 1
        joint = JointBatchNorm(run.team, counted=weight > 0) if synced else nullcontext()
        nlls: list[Number] = []
        noise: Tensor | None = None
        passes = [(sample, *part) for part in parts for sample in range(samples)]
        for index, (sample, inputs, targets) in enumerate(passes):
            if paired:
                opposite = None if noise is None or index % 2 == 0 else -noise
                noise = self.network.posterior.new_noise(run.randomness) if opposite is None else opposite
            with (
                frozen_batch_norm(self.network) if sample else nullcontext(),
                run.fabric.no_backward_sync(self.wrapped, enabled=index < len(passes) - 1),
            ):
                # The network uses the run's generators itself; the rest of a pass draws nothing.
                with run.redirection.suspended(), joint:
                    output = self._output(inputs, noise)
                nll = self._nll(output, targets) * (weight * len(inputs) / size / samples)
                with run.redirection.suspended():
                    run.fabric.backward(nll)
            nlls.append(nll.detach())
        return nlls

    def _output(self, inputs: Tensor, noise: Tensor | None) -> Tensor:
        try:
            with (
                calling(self.network, self.compiled),
                self.network.using(noise=noise, randomness=self.run.randomness),
            ):
                return check_output(self.wrapped(inputs))
        except ValueError as error:
            if BATCH_NORM_SINGLE_VALUE_ERROR not in str(error):
                raise
            raise UserError(
                f"batch norm cannot train on the last batch of {len(inputs)} example: "
                "choose another batch_size, or set freeze_batch_norm=True"
            ) from error

    def _nll(self, output: Tensor, target: Tensor) -> Tensor:
        likelihood = self.network.likelihood
        assert likelihood is not None
        shape = tuple(output.shape)
        if not shape or shape[0] != len(target) or (isinstance(likelihood, Categorical) and len(shape) < 2):
            wanted = "(batch, classes, ...)" if isinstance(likelihood, Categorical) else "(batch, ...)"
            raise UserError(f"the model returns shape {shape} for a batch of {len(target)}: expected {wanted}")
        try:
            return likelihood.nll(output, target)
        except (IndexError, RuntimeError):
            check_target(likelihood, shape, target)  # which names a label that does not fit
            raise

    def _set_rate(self, epoch: float) -> None:
        factor = self.training.rate_factor(epoch) * self.run.at.plateau.factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor

    def _close_epoch(self, steps: int) -> None:
        run, at = self.run, self.run.at
        run.team.average_batch_norm(self.network)
        if run.stage.after_epoch is None:
            noted = self.method.after_epoch(self.network, run.stage.name, at.epoch)
        else:
            noted = run.stage.after_epoch(self.network, at.epoch)
        with torch.no_grad():
            kl = {} if "kl" in at.sums else {"kl": float(self.network.kl())}
        row: dict[str, Any] = {"stage": run.stage.name, "epoch": at.epoch + 1}
        row |= {name: total / max(steps, 1) for name, total in at.sums.items()} | kl
        row["lr"] = self.optimizer.param_groups[0]["lr"]
        row |= noted or {}
        at.stale += 1
        loss = row["loss"] if run.val is None else self._validate(row)
        at.plateau.after_epoch(loss, self.training)
        at.epoch, at.step, at.sums = at.epoch + 1, 0, {}
        run.record(row)
        run.check_ranks_agree(self.net)
        cells = [f"{k} {row[k]:<8.4g}" if k != "stage" else row[k] for k in SHOWN if k in row]
        self.done += 1
        left = (time.monotonic() - self.begun) / self.done * (self.training.epochs - at.epoch)
        run.bar.line("  ".join([*cells, *([time_left(left)] if at.epoch < self.training.epochs else [])]))
        if at.epoch % self.training.checkpoint_epochs == 0 or at.epoch == self.training.epochs:
            run.save_checkpoint(self.net, self.optimizer)
        run.stop_if_asked(self.net, self.optimizer)

    def _validate(self, row: dict[str, Any]) -> float:
        """Add the validation measures of the averaged network to a row, keep it if it is the best, return its NLL."""
        run, at = self.run, self.run.at
        assert run.val is not None
        with run.averages.applied():
            measures = evaluate(self.network, run.val, samples=self.training.val_samples, seed=run.seed, team=run.team)
            row |= {f"val_{name}": value for name, value in measures.items()}
            loss = loss_of(measures)
            if loss < at.best:
                at.best, at.stale = loss, 0
                if self.training.keep_best:  # training keeps updating these tensors, so copy them
                    run.best = copy.deepcopy(artifact.describe(self.network))
        return loss
