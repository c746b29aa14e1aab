"""One training loop for every method, on Lightning Fabric."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pocketbayes import artifact, checkpoint, methods
from pocketbayes.batches import as_source, batches, info_of, size_of, steps_per_epoch
from pocketbayes.checkpoint import Progress
from pocketbayes.data import validate_batch
from pocketbayes.errors import UnknownNameError, UserError
from pocketbayes.evaluate import evaluate
from pocketbayes.methods import Method, Stage
from pocketbayes.network import Net, Network, frozen_batch_norm, members
from pocketbayes.objective import Categorical, GaussianNoise, Likelihood
from pocketbayes.progress import Display, Show, display
from pocketbayes.training import Plateau, Training

MODEL_FILE = "model.pocket"
METRICS_FILE = "metrics.jsonl"
SHOWN = ("stage", "epoch", "loss", "nll", "kl", "swapped", "val_accuracy", "val_nll", "val_ece", "val_rmse", "val_miou")
"""What the line of an epoch shows of its row in the metrics file."""


class TrainingError(UserError):
    """Training cannot go on: the loss is not a number."""


def fit(
    method: Method | str,
    model: nn.Module,
    train: Any,
    *,
    val: Any = None,
    epochs: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    progress: Show = None,
    **settings: Any,
) -> Net:
    """Trains a model by a method: all its stages, one loop.

    Args:
        method: A method, or its registry name.
        model: Any module, copied and left as it is; or a Network to go on from.
        train: A data set, a DataLoader or a pair (x, y).
        val: Validation data, of the same kinds.
        epochs: Epochs of the method's main stage.
        seed: Of initial noise, data order and every draw.
        out: A folder for checkpoints, metrics and the trained network (`model.pocket`).
        resume: Goes on from the folder's checkpoint, if there is one, bit for bit.
        likelihood: The noise model; None for categorical or Gaussian with learned noise, as the targets are.
        training: Settings of the loop.
        progress: Shows a bar and a line an epoch; None for yes on a terminal, "bar" for the bar alone.
        **settings: Single settings of `Training`, such as `lr=1e-3`.

    Returns:
        The trained network, or a mixture of networks, in evaluation mode.
    """
    method = methods.make(method) if isinstance(method, str) else method
    if epochs is not None:
        settings["epochs"] = epochs
    base = (training or Training()).but(settings)
    chosen = set(settings) | (set(vars(base)) if training else set())
    if resume and out is None:
        raise UserError("resume=True needs out=, the folder of the interrupted run")
    with display(progress) as bar:
        run = _Run(
            method=method,
            model=model,
            train=as_source(train),
            val=None if val is None else as_source(val),
            seed=seed,
            folder=None if out is None else Path(out),
            base=base,
            chosen=frozenset(chosen),
            bar=bar,
            given_likelihood=likelihood,
        )
        return run.all_stages(resume)


@dataclass
class _Run:
    """One call of `fit`."""

    method: Method
    model: nn.Module
    train: TorchDataset | DataLoader
    val: TorchDataset | DataLoader | None
    seed: int
    folder: Path | None
    base: Training
    chosen: frozenset[str]
    bar: Display
    given_likelihood: Likelihood | None
    at: Progress = field(default_factory=Progress)
    best: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        from lightning_fabric import Fabric

        launched = int(os.environ.get("LOCAL_WORLD_SIZE", self.base.devices))
        try:
            self.fabric = Fabric(
                accelerator=self.base.accelerator,
                devices=launched,
                num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
                strategy="ddp" if launched > 1 else "auto",
                precision=self.base.precision,  # type: ignore[arg-type]
            )
        except (ValueError, RuntimeError) as error:
            asked = f"accelerator={self.base.accelerator!r}, devices={launched}, precision={self.base.precision!r}"
            raise UserError(f"cannot train with {asked}: {error}") from error
        self.fabric.launch()
        self.examples = size_of(self.train)
        self.info = info_of(self.train)

    # -- what stages may use ------------------------------------------------------------------------------------------

    def batches(self, shuffle: bool = False, turn: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the training data, in their own order or one that the seed and the turn decide."""
        seed = (self.seed + 1_000_003 * turn) & 0x7FFFFFFF if shuffle else None
        for x, y in batches(self.train, self.base.batch_size, shuffle_seed=seed, workers=self.base.workers):
            yield x.to(self.fabric.device), y.to(self.fabric.device)

    def note(self, **figures: Any) -> None:
        """Records figures and shows them as a line."""
        self._record({"stage": self._stage.name, **figures})
        self.bar.line("  ".join([self._stage.name, *(f"{name}={value}" for name, value in figures.items())]))

    # -- stages -------------------------------------------------------------------------------------------------------

    def all_stages(self, resume: bool) -> Net:
        """Trains all stages, from the start or from the checkpoint."""
        stages = list(self.method.stages(self.model))
        names = [stage.name for stage in stages]
        for name in self.base.stages:
            if name not in names:
                raise UnknownNameError("stage", name, names)
        found = checkpoint.read(self.folder) if resume and self.folder else None
        torch.manual_seed(self.seed)
        if found is None:
            net = self.method.start(self.model)
            for network in members(net):
                if self.given_likelihood is not None or network.likelihood is None:
                    network.likelihood = copy.deepcopy(self.given_likelihood) or self._default_likelihood()
            if self.fabric.global_rank:
                torch.manual_seed(self.seed + 7919 * self.fabric.global_rank)
            tree = None
        else:
            self.at, tree = found
            plain = self.model.to_module() if isinstance(self.model, Network) else self.model
            net = artifact.rebuild(tree["net"], plain)
            self.best = tree["best"]
        self._truncate_metrics()
        for number in range(self.at.stage, len(stages)):
            self.at.stage, self._stage = number, stages[number]
            net = self._one_stage(net, stages[number], tree)
            tree = None
            self.at = Progress(stage=number + 1, lines=self.at.lines)
            self.best = None
        for network in members(net):
            network.info = self.info or network.info
        if self.folder and self.fabric.is_global_zero:
            artifact.save(net, self.folder / MODEL_FILE)
        return net.eval()

    def _one_stage(self, net: Net, stage: Stage, tree: Mapping[str, Any] | None) -> Net:
        settings = {name: value for name, value in stage.settings.items() if name not in self.chosen}
        epochs = {} if stage.epochs is None else {"epochs": stage.epochs}
        own = self.base.stages.get(stage.name, {})
        training = self.base.but({**settings, **epochs, **own, **stage.fixed})
        net = net.to(self.fabric.device)
        if not self.at.begun:
            net = stage.begin(net, self) if stage.begin else net
            self.at.begun = True
        network = stage.network(net)
        wrapped, optimizer = self.fabric.setup(network, training.make_optimizer(network))
        if tree is not None:
            optimizer.load_state_dict(tree["optimizer"])
            checkpoint.set_random_state(tree["random"][self.fabric.global_rank])
        loop = _Loop(self, stage.method or self.method, net, network, wrapped, optimizer, training)
        while self.at.epoch < training.epochs:
            loop.epoch()
        if training.keep_best and self.best is not None:
            rebuilt = artifact.rebuild(self.best, network.to_module())
            network.load_state_dict(rebuilt.state_dict())
        return stage.end(net, self) if stage.end else net

    # -- records ------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, net: Net, optimizer: Any) -> None:
        """Writes where the run is, on rank 0, with every rank's random state."""
        if self.folder is None:
            return
        states = [checkpoint.random_state()]
        if self.fabric.world_size > 1:
            everyone: list[Any] = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(everyone, states[0])
            states = everyone
        if self.fabric.is_global_zero:
            tree = {
                "net": artifact.describe(net),
                "optimizer": optimizer.state_dict(),
                "random": states,
                "best": self.best,
            }
            checkpoint.write(self.folder, self.at, tree)
        self.fabric.barrier()

    def _record(self, row: dict[str, Any]) -> None:
        if self.folder and self.fabric.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / METRICS_FILE).open("a") as file:
                file.write(json.dumps(row) + "\n")
            if self.base.tensorboard:
                self._tensorboard(row)
        self.at.lines += 1

    def _tensorboard(self, row: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(self.folder)) as writer:
            for name, value in row.items():
                if isinstance(value, float):
                    writer.add_scalar(f"{row['stage']}/{name}", value, row.get("epoch", 0))

    def _truncate_metrics(self) -> None:
        """Drops lines that were written after the checkpoint."""
        if self.folder is None or not self.fabric.is_global_zero:
            return
        path = self.folder / METRICS_FILE
        if path.exists():
            kept = path.read_text().splitlines(keepends=True)[: self.at.lines]
            path.write_text("".join(kept))

    def _default_likelihood(self) -> Likelihood:
        if self.info is not None:
            if self.info.task == "regression":
                return GaussianNoise("learned")
            return Categorical(ignore_index=self.info.ignore_index)
        _, y = next(batches(self.train, 1))
        return GaussianNoise("learned") if y.is_floating_point() else Categorical()


@dataclass
class _Loop:
    """The epochs and steps of one stage."""

    run: _Run
    method: Method
    net: Net
    network: Network
    wrapped: Any
    optimizer: Any
    training: Training

    def epoch(self) -> None:
        """From the step where the run stands to the end of the epoch."""
        run, at = self.run, self.run.at
        steps = steps_per_epoch(run.train, self.training.batch_size)
        run.bar.begin(f"{run._stage.name} {at.epoch + 1}/{self.training.epochs}", steps)
        run.bar.advance(at.step)
        self.net.train()
        for x, y in batches(
            run.train,
            self.training.batch_size,
            shuffle_seed=hash((run.seed, at.stage, at.epoch)) & 0x7FFFFFFF,
            start=at.step,
            rank=run.fabric.global_rank,
            world=run.fabric.world_size,
            workers=self.training.workers,
        ):
            figures = self.step(x.to(run.fabric.device), y.to(run.fabric.device), at.epoch * steps + at.step, steps)
            at.step += 1
            at.sums = {name: at.sums.get(name, 0.0) + value for name, value in figures.items()}
            run.bar.advance(1, **figures)
            every = self.training.checkpoint_steps
            if every and at.step % every == 0 and at.step < steps:
                run.save_checkpoint(self.net, self.optimizer)
        self._close_epoch(at.step)

    def step(self, x: Tensor, y: Tensor, index: int, steps: int) -> dict[str, float]:
        """One optimiser step: the mean NLL over samples and parts of the batch, plus beta KL / N."""
        run, method = self.run, self.method
        if run.info is not None:
            validate_batch(x, y, run.info)
        progress = index / steps
        self._set_rate(progress + 1 / steps if progress < self.training.warmup_epochs else progress)
        beta = method.kl_weight(min(run.at.epoch / max(self.training.epochs, 1), 1.0))
        self.optimizer.zero_grad()
        parts = list(zip(x.chunk(self.training.accumulate), y.chunk(self.training.accumulate)))
        total = steps * self.training.epochs
        replaced = method.replace_step(self.network, run, parts, self.optimizer.optimizer, index, total)
        nll = self._backward_nll(parts) if replaced is None else replaced
        kl = self.network.kl()
        if replaced is None and beta and kl.requires_grad:
            run.fabric.backward(kl * (beta / run.examples))
        figures = {"nll": nll, "kl": float(kl.detach())}
        figures = {"loss": nll + beta * figures["kl"] / run.examples, **figures}
        if not math.isfinite(figures["loss"]):
            raise TrainingError(
                f"the loss is not finite at stage {run._stage.name!r}, epoch {run.at.epoch + 1}, step {run.at.step + 1}"
                f": NLL {nll}, KL {figures['kl']}; lower lr ({self.training.lr} now), set clip_norm, or check the data"
            )
        if replaced is not None:
            return figures
        if self.training.clip_norm is not None:
            run.fabric.clip_gradients(self.wrapped, self.optimizer, max_norm=self.training.clip_norm)
        self.optimizer.step()
        method.after_step(self.network, self.optimizer.optimizer, index, total)
        return figures

    def _backward_nll(self, parts: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Adds the gradient of the mean NLL, part by part and sample by sample: memory holds one pass."""
        run, samples = self.run, self.method.train_samples if self.network.is_random else 1
        size = sum(len(inputs) for inputs, _ in parts)
        total = 0.0
        noise: Tensor | None = None
        for part, (inputs, targets) in enumerate(parts):
            for sample in range(samples):
                if self.method.antithetic and samples > 1:
                    noise = -noise if sample % 2 and noise is not None else self._draw_noise()
                last = part == len(parts) - 1 and sample == samples - 1
                with (
                    frozen_batch_norm(self.network, sample > 0),
                    self.network.using(noise=noise),
                    run.fabric.no_backward_sync(self.wrapped, enabled=not last),
                ):
                    output = self.wrapped(inputs)
                    nll = self._nll(output, targets) * (len(inputs) / size / samples)
                    run.fabric.backward(nll)
                total += float(nll.detach())
        return total

    def _nll(self, output: Tensor, target: Tensor) -> Tensor:
        likelihood = self.network.likelihood
        assert isinstance(likelihood, Likelihood)
        try:
            return likelihood.nll(output, target)
        except IndexError as error:
            raise UserError(f"labels do not fit the model's {output.shape[1]} outputs: {error}") from None

    def _draw_noise(self) -> Tensor:
        return torch.randn(self.network.posterior.noise_size, device=self.run.fabric.device)

    def _set_rate(self, epoch: float) -> None:
        factor = self.training.rate_factor(epoch) * self.run.at.plateau.factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor

    def _close_epoch(self, steps: int) -> None:
        run, at = self.run, self.run.at
        noted = self.method.after_epoch(self.network, run._stage.name, at.epoch)
        row: dict[str, Any] = {"stage": run._stage.name, "epoch": at.epoch + 1}
        row |= {name: total / max(steps, 1) for name, total in at.sums.items()}
        row["lr"] = self.optimizer.param_groups[0]["lr"]
        row |= noted or {}
        if run.val is not None:
            measures = evaluate(self.network, run.val, samples=self.training.val_samples, seed=run.seed)
            row |= {f"val_{name}": value for name, value in measures.items()}
        loss = row.get("val_nll", -row.get("val_log_likelihood", -row["loss"]))
        if self.training.keep_best and run.val is not None and loss < at.best:
            at.best, run.best = loss, copy.deepcopy(artifact.describe(self.network))  # the tensors go on moving
        at.plateau.after_epoch(loss, self.training)
        at.epoch, at.step, at.sums = at.epoch + 1, 0, {}
        run._record(row)
        run.bar.line("  ".join(f"{k} {row[k]:<8.4g}" if k != "stage" else row[k] for k in SHOWN if k in row))
        if at.epoch % self.training.checkpoint_epochs == 0 or at.epoch == self.training.epochs:
            run.save_checkpoint(self.net, self.optimizer)


def bayesianize(model: nn.Module, method: Method | str = "bbb", **settings: Any) -> Net:
    """Makes a model Bayesian by a method, untrained; the model itself stays as it is."""
    method = methods.make(method, **settings) if isinstance(method, str) else method
    return method.init(model).eval()


__all__ = ["Plateau", "Training", "TrainingError", "bayesianize", "fit"]
