"""One call of `fit`: the stages of a method on Lightning Fabric, with checkpoints."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pocketbayes.base import atomic
from pocketbayes.base.errors import UnknownNameError, UserError, warn
from pocketbayes.base.process_group import ProcessGroup
from pocketbayes.base.progress import Display
from pocketbayes.base.randomness import Randomness, Redirection
from pocketbayes.base.run_folder import CHECKPOINT_FILE, METRICS_FILE, MODEL_FILE
from pocketbayes.base.seeds import derive_seed, rank_seed, seed_generators, turn_seed
from pocketbayes.data import Info
from pocketbayes.data.batches import batches, size_of, steps_per_epoch
from pocketbayes.files import network_file as artifact
from pocketbayes.likelihoods import Likelihood, default_likelihood
from pocketbayes.methods import Method, Stage
from pocketbayes.network import Net, Network, members
from pocketbayes.posteriors.health import FirstStds, Health, measure_health, tell_health
from pocketbayes.training import checkpoint
from pocketbayes.training.averages import Averages
from pocketbayes.training.checkpoint import Progress, check_optimizer, check_progress, check_random, part
from pocketbayes.training.checks import (
    ROLLBACKS,
    NotFiniteError,
    Signals,
    Snapshot,
    TrainingError,
    fingerprint,
    not_finite_member,
)
from pocketbayes.training.loop import Loop
from pocketbayes.training.settings import Training, begun_otherwise, resolve_accelerator

MAX_CPU_PROCESSES = 8
"""Number of processes that any CPU may run; more need as many cores."""

STAGE_SCHEDULES = "stages may set the schedule"
"""A mark in checkpoints: earlier versions trained every stage with the schedule of the run."""


@dataclass
class FitRun:
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
    signals: Signals
    given_likelihood: Likelihood | None
    info: Info | None = None
    at: Progress = field(default_factory=Progress)
    best: Mapping[str, Any] | None = None
    asked: bool = False
    redirection: Redirection = field(init=False)
    averages: Averages = field(init=False)

    def __post_init__(self) -> None:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        launched = int(os.environ.get("LOCAL_WORLD_SIZE", self.base.devices))
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
        # Buffers are synchronised once per stage, since indices are too large for every step. torch 2.14 renamed the
        # option.
        known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {switch: False}
        ddp = DDPStrategy(timeout=timedelta(seconds=self.base.timeout), **options)
        try:
            self.fabric = Fabric(
                accelerator=resolve_accelerator(self.base.accelerator),
                devices=launched,
                num_nodes=nodes,
                strategy=ddp if launched * nodes > 1 else "auto",
                precision=self.base.precision,  # type: ignore[arg-type]
            )
        except (ValueError, RuntimeError) as error:
            asked = f"accelerator={self.base.accelerator!r}, devices={launched}, precision={self.base.precision!r}"
            raise UserError(f"cannot train with {asked}: {error}") from error
        cores = os.cpu_count() or 1
        if self.fabric.device.type == "cpu" and launched > max(cores, MAX_CPU_PROCESSES):
            raise UserError(f"devices={launched} are too many for a CPU of {cores} cores: each is a process of its own")
        self.fabric.launch()
        self.fabric.barrier()  # a process that fails below must not leave before the others arrive
        self.team = ProcessGroup(self.fabric.global_rank, self.fabric.world_size)
        self.signals.patient = self.team.size > 1
        if self.base.batch_size < self.team.size:
            raise UserError(f"batch_size={self.base.batch_size} is too small for {self.team.size} processes")
        self.examples = size_of(self.train)
        self.randomness = Randomness(self.seed)

    # -- what stages may use ------------------------------------------------------------------------------------------

    def batches(self, shuffle: bool = False, turn: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Return one pass over the training data, in their own order or shuffled by the seed and the turn."""
        seed = turn_seed(self.seed, turn) if shuffle else None
        for x, y in batches(self.train, self.base.batch_size, shuffle_seed=seed, workers=self.base.workers):
            yield x.to(self.fabric.device), y.to(self.fabric.device)

    def note(self, **figures: Any) -> None:
        """Record figures and show them as a line."""
        self.record({"stage": self.stage.name, **figures})
        self.bar.line("  ".join([self.stage.name, *(f"{name}={value}" for name, value in figures.items())]))

    # -- stages -------------------------------------------------------------------------------------------------------

    def all_stages(self, resume: bool) -> Net:
        """Train all stages from the start or the checkpoint."""
        stages = list(self.method.stages(self.model))
        for name in self.base.stages:
            if all(name != stage.name for stage in stages):
                raise UnknownNameError("stage", name, [stage.name for stage in stages])
        found = None
        if resume and self.folder:
            found = checkpoint.read(self.folder, partial(self._check, stages), remove=self.fabric.is_global_zero)
        if found is None:
            net = self.method.start(self.model)
            for network in members(net):
                if self.given_likelihood is not None:
                    network.likelihood = copy.deepcopy(self.given_likelihood)
                elif network.likelihood is None:
                    network.likelihood = default_likelihood(self.train, self.info)
            self._seed_rank(self.seed)
            tree = None
        else:
            self.at, tree = found
            self._check_asked(tree.get("asked", {}))
            if STAGE_SCHEDULES not in tree.get("asked", {}):
                self.chosen |= {"schedule"}
            net, self.best = self._rebuild(tree["net"]), tree["best"]
        self._tidy()
        for number in range(self.at.stage, len(stages)):
            self.at.stage, self.stage = number, stages[number]
            net = self._one_stage(net, stages[number], tree)
            tree = None
            self.at = Progress(stage=number + 1, lines=self.at.lines)
            self.best = None
        self._check_finite(net)
        each = []
        for network in members(net):
            network.info, network.method = self.info, self.method.name
            network.health = measure_health(network.posterior, network.first_stds)
            each.append(network.health)
        if self.folder and self.fabric.is_global_zero:
            artifact.save(net, self.folder / MODEL_FILE)
        if self.fabric.is_global_zero:
            tell_health(Health.average(each), self.bar.line)
        return net.eval()

    def _rebuild(self, described: Mapping[str, Any]) -> Net:
        """Return the network in a checkpoint."""
        plain = self.model.to_module() if isinstance(self.model, Network) else self.model
        return artifact.rebuild(described, plain)

    def _check(self, stages: Sequence[Stage], at: Progress, tree: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the run cannot resume from a checkpoint, naming the part at fault."""
        with part("progress"):
            check_progress(at, len(stages))
        with part("net"):
            net = self._rebuild(tree["net"])
            if (bad := not_finite_member(net)) is not None:
                raise ValueError(f"a weight of {bad!r} is not finite")
        with part("best"):
            if tree["best"] is not None:
                self._rebuild(tree["best"])
        with part("optimizer"):
            stage = stages[at.stage]
            network = stage.trained_network(net)
            check_optimizer(tree["optimizer"], self._optimizer(stage, network))
        with part("averages"):
            Averages(network).load(tree.get("averages"))
        with part("random"):
            check_random(tree["random"])

    def _asked(self) -> dict[str, Any]:
        """Return the settings besides training that a resumed run must share."""
        method = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.method))  # function addresses differ between processes
        return {"method": method, "seed": self.seed, "training examples": self.examples}

    def _check_asked(self, before: Mapping[str, Any]) -> None:
        """Reject resuming a different run."""
        if before:
            for name, value in self._asked().items():
                if before.get(name, value) != value:
                    raise begun_otherwise(self.folder, name, before[name], value)
            self.base.check_resumes(before["training"], before["epochs"], self.folder)

    def _training(self, stage: Stage) -> Training:
        """Return the settings of a stage."""
        settings = {name: value for name, value in stage.settings.items() if name not in self.chosen}
        epochs = {} if stage.epochs is None else {"epochs": stage.epochs}
        own = self.base.stages.get(stage.name, {})
        return self.base.replace({**settings, **epochs, **own, **stage.fixed})

    def _optimizer(self, stage: Stage, network: Network) -> torch.optim.Optimizer:
        """Build the optimiser of a stage: the method's own, or that of the settings."""
        training = self._training(stage)
        steps = training.epochs * steps_per_epoch(self.train, training.batch_size)
        own = (stage.method or self.method).make_optimizer(network, training.lr, steps, self.examples)
        return training.make_optimizer(network, steps) if own is None else own

    def _one_stage(self, net: Net, stage: Stage, tree: Mapping[str, Any] | None) -> Net:
        training = self._training(stage)
        net = net.to(self.fabric.device)
        if not self.at.begun:
            before = {id(network): network.first_stds for network in members(net)}
            known = next(iter(before.values())) if len(before) == 1 else None
            net = self._with_equal_draws(stage.begin, net)
            for network in members(net):
                first = network.first_stds or before.get(id(network)) or known
                network.first_stds = first or FirstStds.of(network.posterior)
            self.at.begun = True
        network = stage.trained_network(net)
        self.team.align(network)
        wrapped, optimizer = self.fabric.setup(network, self._optimizer(stage, network))
        self.averages = Averages(network, training.average)
        if tree is not None:
            optimizer.load_state_dict(tree["optimizer"])
            self.averages.load(tree.get("averages"))
            self._restore_random(tree["random"])
        loop = Loop(self, stage.method or self.method, net, network, wrapped, optimizer, training)
        good = Snapshot(network, optimizer, self.averages, self.at) if training.on_nan == "rollback" else None
        while self.at.epoch < training.epochs and not self._is_stale(training):
            try:
                loop.epoch()
            except NotFiniteError as error:  # noqa: PERF203 (once an epoch)
                if good is None or good.used == ROLLBACKS:
                    raise
                self.at = good.restore(network, optimizer, self.averages)
                self._tidy()
                self.bar.line(f"{error}; back to epoch {self.at.epoch}, rate x {self.at.plateau.factor:g}")
            else:
                good = good and Snapshot(network, optimizer, self.averages, self.at, good.used)
        self.averages.apply()
        if training.keep_best and self.best is not None:
            rebuilt = artifact.rebuild(self.best, network.to_module())
            network.load_state_dict(rebuilt.state_dict())
        first = network.first_stds
        net = self._with_equal_draws(stage.end, net)
        if isinstance(net, Network):
            net.first_stds = net.first_stds or first
        return net

    def _with_equal_draws(self, step: Callable[[Net, Any], Net] | None, net: Net) -> Net:
        """Run the beginning or end of a stage with the same draws on all processes."""
        if step is None or self.team.size == 1:
            return net if step is None else step(net, self)
        before = checkpoint.random_state()
        seed_generators(derive_seed(self.seed, self.at.stage, self.at.begun))
        net = step(net, self)
        checkpoint.set_random_state(before)
        return net

    def _is_stale(self, training: Training) -> bool:
        """Return whether the validation NLL has not improved for `stop_after` epochs."""
        return training.stop_after is not None and self.at.stale >= training.stop_after

    def _seed_rank(self, seed: int) -> None:
        """Seed the noise of this process, different from the others."""
        if self.team.rank:
            seed_generators(rank_seed(seed, self.team.rank))

    def _restore_random(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore the generators; with another number of processes, continue with new noise."""
        if len(states) == self.team.size:
            checkpoint.set_random_state(states[self.team.rank])
            return
        counts = f"the checkpoint has {len(states)} processes, this run {self.team.size}"
        warn(f"{counts}: it resumes, but not bit for bit")
        checkpoint.set_random_state(states[0])
        self._seed_rank(derive_seed(self.seed, self.at.stage, self.at.epoch, self.at.step))

    # -- records ------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, net: Net, optimizer: Any) -> None:
        """Write a checkpoint on rank 0, with every rank's random state."""
        if self.folder is None:
            return
        self._check_finite(net)
        self.team.average_batch_norm(net)
        states = self.team.gather(checkpoint.random_state())
        if self.fabric.is_global_zero:
            tree = {
                "net": artifact.describe(net),
                "optimizer": optimizer.state_dict(),
                "averages": self.averages.state(),
                "random": states,
                "best": self.best,
                "asked": {
                    **self._asked(),
                    "training": self.base.deciding(),
                    "epochs": self.base.epochs,
                    STAGE_SCHEDULES: True,
                },
            }
            checkpoint.write(self.folder, self.at, tree, self.base.checkpoints)
        self.fabric.barrier()

    def stop_if_asked(self, net: Net, optimizer: Any, before: Callable[[], None] = lambda: None) -> None:
        """Save and stop, after what comes before, if this process or one that it trains with received a signal."""
        if self.team.size == 1:
            self.asked = self.signals.asked is not None
        if self.asked:
            before()
            self.save_checkpoint(net, optimizer)
            raise KeyboardInterrupt(f"stopped by {self.signals.asked or 'a signal to another process'}")

    def reduce_nll(self, nll: float) -> float:
        """Return the mean NLL over processes, and exchange received signals."""
        if self.team.size == 1:
            return nll
        both = torch.tensor([nll, float(self.signals.asked is not None)], dtype=torch.float64)
        mean, asked = (self.team.sum(both.to(self.fabric.device)) / self.team.size).tolist()
        self.asked = asked > 0
        return float(mean)

    def check_ranks_agree(self, net: Net) -> None:
        """Raise `TrainingError` if weights, masks or assignments differ between processes."""
        if self.team.size == 1:
            return
        prints = self.team.gather(fingerprint(net))
        strays = [rank for rank, own in enumerate(prints) if own != prints[0]]
        if strays:
            where = f"stage {self.stage.name!r}, epoch {self.at.epoch + 1}"
            raise TrainingError(
                f"rank {strays[0]} differs from rank 0 in its weights after {where}: resume from the checkpoint"
            )

    def _check_finite(self, net: Net) -> None:
        """Raise `NotFiniteError` if a weight is NaN or infinite."""
        bad = not_finite_member(net)
        if bad is not None:
            raise NotFiniteError(
                f"a weight of {bad!r} is not finite after stage {self.stage.name!r}, epoch {self.at.epoch}: "
                f"lower lr ({self.base.lr} now) or set clip_norm; nothing was saved"
            )

    def record(self, row: dict[str, Any]) -> None:
        """Write a line of metrics."""
        if self.folder and self.fabric.is_global_zero:
            path = self.folder / METRICS_FILE
            with atomic.writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
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

    def _tidy(self) -> None:
        """Remove partial files of a killed run, and metrics written after the checkpoint."""
        if self.folder is None or not self.fabric.is_global_zero:
            return
        path = self.folder / METRICS_FILE
        for written in (path, self.folder / CHECKPOINT_FILE, self.folder / MODEL_FILE):
            atomic.remove_leftovers(written)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if len(lines) > self.at.lines:  # atomically, since a run may be killed here
            atomic.write_atomically(path, lambda file: file.write(b"".join(lines[: self.at.lines])))
