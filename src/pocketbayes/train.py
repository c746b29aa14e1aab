"""One training loop for every method, on Lightning Fabric."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from pocketbayes import artifact, checkpoint, container, methods
from pocketbayes.batches import as_source, batches, info_of, seed_generators, size_of
from pocketbayes.checkpoint import Progress
from pocketbayes.errors import UnknownNameError, UserError
from pocketbayes.guards import ROLLBACKS, NotFiniteError, Signals, Snapshot, TrainingError, fingerprint, finite_net
from pocketbayes.loop import Loop
from pocketbayes.methods import Method, Stage
from pocketbayes.network import Net, Network, members
from pocketbayes.objective import Categorical, GaussianNoise, Likelihood
from pocketbayes.progress import Display, Show, display
from pocketbayes.training import Plateau, Training

MODEL_FILE = "model.pocket"
METRICS_FILE = "metrics.jsonl"


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
    with display(progress) as bar, Signals() as signals:
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
            signals=signals,
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
    signals: Signals
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
        seed_generators(self.seed)
        if found is None:
            net = self.method.start(self.model)
            for network in members(net):
                if self.given_likelihood is not None or network.likelihood is None:
                    network.likelihood = copy.deepcopy(self.given_likelihood) or self._default_likelihood()
            if self.fabric.global_rank:
                seed_generators(self.seed + 7919 * self.fabric.global_rank)
            tree = None
        else:
            self.at, tree = found
            plain = self.model.to_module() if isinstance(self.model, Network) else self.model
            net = artifact.rebuild(tree["net"], plain)
            self.best = tree["best"]
        self._tidy()
        for number in range(self.at.stage, len(stages)):
            self.at.stage, self._stage = number, stages[number]
            net = self._one_stage(net, stages[number], tree)
            tree = None
            self.at = Progress(stage=number + 1, lines=self.at.lines)
            self.best = None
        for network in members(net):
            network.info, network.method = self.info or network.info, self.method.name
        self._check_finite(net)
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
        loop = Loop(self, stage.method or self.method, net, network, wrapped, optimizer, training)
        good = Snapshot(network, optimizer, self.at) if training.on_nan == "rollback" else None
        while self.at.epoch < training.epochs:
            try:
                loop.epoch()
            except NotFiniteError as error:  # noqa: PERF203 (once an epoch)
                if good is None or good.used == ROLLBACKS:
                    raise
                self.at = good.restore(network, optimizer)
                self.bar.line(f"{error}; back to epoch {self.at.epoch}, rate x {self.at.plateau.factor:g}")
            else:
                good = good and Snapshot(network, optimizer, self.at, good.used)
        if training.keep_best and self.best is not None:
            rebuilt = artifact.rebuild(self.best, network.to_module())
            network.load_state_dict(rebuilt.state_dict())
        return stage.end(net, self) if stage.end else net

    # -- records ------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, net: Net, optimizer: Any) -> None:
        """Writes where the run is, on rank 0, with every rank's random state."""
        if self.folder is None:
            return
        self._check_finite(net)
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
            checkpoint.write(self.folder, self.at, tree, self.base.checkpoints)
        self.fabric.barrier()

    def stop_if_asked(self, net: Net, optimizer: Any) -> None:
        """Saves and stops if a signal came. Ranks would stop at different steps: there the last checkpoint counts."""
        if self.signals.asked is None:
            return
        if self.fabric.world_size == 1:
            self.save_checkpoint(net, optimizer)
        raise KeyboardInterrupt(f"stopped by {self.signals.asked}")

    def check_ranks_agree(self, net: Net) -> None:
        """Raises: TrainingError: If weights, masks or assignments differ between processes."""
        if self.fabric.world_size == 1:
            return
        prints: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(prints, fingerprint(net))
        strays = [rank for rank, own in enumerate(prints) if own != prints[0]]
        if strays:
            where = f"stage {self._stage.name!r}, epoch {self.at.epoch + 1}"
            raise TrainingError(
                f"rank {strays[0]} has other weights than rank 0 after {where}: resume from the checkpoint"
            )

    def _check_finite(self, net: Net) -> None:
        """Raises: NotFiniteError: If the network must not be saved."""
        bad = finite_net(net)
        if bad is not None:
            raise NotFiniteError(
                f"a weight of {bad!r} is not finite after stage {self._stage.name!r}, epoch {self.at.epoch}: "
                f"lower lr ({self.base.lr} now) or set clip_norm; nothing was saved"
            )

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

    def _tidy(self) -> None:
        """Removes what a killed run left half written, and lines that were written after the checkpoint."""
        if self.folder is None or not self.fabric.is_global_zero:
            return
        path = self.folder / METRICS_FILE
        for written in (path, self.folder / checkpoint.FILE, self.folder / MODEL_FILE):
            container.remove_leftovers(written)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if len(lines) > self.at.lines:  # in one step: a run may be killed here too
            container.write_atomically(path, lambda file: file.write(b"".join(lines[: self.at.lines])))

    def _default_likelihood(self) -> Likelihood:
        if self.info is not None:
            if self.info.task == "regression":
                return GaussianNoise("learned")
            return Categorical(ignore_index=self.info.ignore_index)
        _, y = next(batches(self.train, 1))
        return GaussianNoise("learned") if y.is_floating_point() else Categorical()


def bayesianize(model: nn.Module, method: Method | str = "bbb", **settings: Any) -> Net:
    """Makes a model Bayesian by a method, untrained; the model itself stays as it is."""
    method = methods.make(method, **settings) if isinstance(method, str) else method
    net = method.init(model).eval()
    for network in members(net):
        network.method = method.name
    return net


__all__ = ["Plateau", "Training", "TrainingError", "bayesianize", "fit"]
