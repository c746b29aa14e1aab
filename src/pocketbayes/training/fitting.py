"""`fit` trains a model with a method; `bayesianize` only makes it Bayesian."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from pocketbayes import methods, models
from pocketbayes.base.arguments import check_path, check_seed
from pocketbayes.base.errors import UserError
from pocketbayes.base.progress import Show, display
from pocketbayes.base.run_folder import hold
from pocketbayes.base.seeds import seed_generators
from pocketbayes.data import Info
from pocketbayes.data.batches import Data, as_source, describe_training
from pocketbayes.data.validate import check_tables
from pocketbayes.likelihoods import Likelihood
from pocketbayes.methods import SWAG, Deterministic, Laplace, Method, VariationalMethod
from pocketbayes.network import Net, Network, members
from pocketbayes.posteriors.health import FirstStds
from pocketbayes.training.checks import Signals, TrainingError
from pocketbayes.training.posthoc import with_curvature_stds
from pocketbayes.training.run import FitRun
from pocketbayes.training.settings import Training
from pocketbayes.training.tuning import tune_steps


def fit(
    method: Method | str,
    model: nn.Module,
    train: Data,
    *,
    val: Data | None = None,
    epochs: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    likelihood: Likelihood | None = None,
    info: Info | None = None,
    training: Training | None = None,
    progress: Show = None,
    tune: bool = False,
    **settings: Any,
) -> Net:
    """Train a model with all stages of a method.

    Args:
        method: A method, or its registry name.
        model: Any module, which is copied and not changed, or a Network to continue from.
        train: A data set, a DataLoader or a pair (x, y).
        val: Validation data, of the same kinds.
        epochs: Epochs of the method's main stage.
        seed: Seed of initial noise, data order and all draws.
        out: A folder for checkpoints, metrics and the trained network (`model.pocket`); an older run in it is replaced.
        resume: Resume bit for bit from the folder's checkpoint, if there is one.
        likelihood: The noise model; None for categorical or Gaussian with learned noise, depending on the targets.
        info: The description of the data stored in the network; by default read from the data, if they are one of our
            data sets or of torchvision or timm. See also `describe`.
        training: The settings of training.
        progress: False for none. By default a bar and a line per epoch on a terminal, lines with the time left
            elsewhere; "bar" for the bar only.
        tune: Measure a few steps with and without `channels_last`, bfloat16 where the processor has it, and a compiled
            model; take the fastest and report it. Without it, results do not depend on the machine's speed.
        **settings: Single settings of `Training`, such as `lr=1e-3`.

    Returns:
        The trained network, or a mixture of networks, in evaluation mode.
    """
    method = _method(method, model)
    folder = None if out is None else check_path(out, "out=")
    if not isinstance(training, Training | None):
        raise UserError(f"training= takes pb.Training(...), not {training!r}; single settings go to fit by name")
    if epochs is not None:
        settings["epochs"] = epochs
    for name in settings.keys() - {field.name for field in fields(Training)}:
        if hasattr(method, name):
            raise UserError(f"{name} is a setting of the method: give {type(method).__name__}({name}=...) to fit")
    base = (training or Training()).replace(settings)
    chosen = set(settings) | (set(vars(base)) if training else set())
    _refuse_what_does_nothing(base, settings, with_val=val is not None, with_out=out is not None, resume=resume)
    _check_likelihood(likelihood)
    if tune:
        with display(progress) as bar:
            choice, line = tune_steps(method, model, as_source(train), base, folder, resume)
            bar.line(line)
        settings, base = {**settings, **choice}, base.replace(choice)
    if isinstance(method, methods.Ensemble) and method.workers:
        from pocketbayes.training.workers import fit_members

        given = {"val": val, "likelihood": likelihood, "info": info, "training": training, **settings}
        given["seed"] = check_seed(seed)
        return fit_members(fit, method, model, train, out=folder, resume=resume, progress=progress, settings=given)
    source, validation = as_source(train), None if val is None else as_source(val)
    check_tables(source, validation, guessed=source is not train)
    info = info or describe_training(source, validation, model.info if isinstance(model, Network) else None)
    seed = check_seed(seed)
    with display(progress) as bar, Signals() as signals:
        run = FitRun(
            method=method,
            model=model,
            train=source,
            val=validation,
            seed=seed,
            folder=folder,
            base=base,
            chosen=frozenset(chosen),
            bar=bar,
            signals=signals,
            given_likelihood=likelihood,
            info=info,
        )
        again = "resume the run from its last checkpoint" if out else "start the run again"
        with run.team.guarded(again), run.randomness.redirected() as run.redirection, ExitStack() as locks:
            if folder is not None:
                run.team.first(lambda: locks.enter_context(hold(folder)))
            seed_generators(seed)
            return run.all_stages(resume)


def _refuse_what_does_nothing(
    base: Training, settings: Mapping[str, Any], *, with_val: bool, with_out: bool, resume: bool
) -> None:
    """Reject settings whose prerequisites are missing."""
    if resume and not with_out:
        raise UserError("resume=True needs out=, the folder of the interrupted run")
    if base.tensorboard and not with_out:
        raise UserError("tensorboard=True needs out=, the folder for its files")
    if settings.get("milestones") and base.schedule != "milestones":
        raise UserError("milestones= needs schedule='milestones'")
    if settings.get("keep_best") and not with_val:
        raise UserError("keep_best=True needs val=, to measure which epoch is best")
    if settings.get("stop_after") is not None and not with_val:
        raise UserError("stop_after= needs val=, to measure when training no longer helps")


def _check_likelihood(likelihood: Any) -> None:
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        what = f"the class {likelihood.__name__}" if isinstance(likelihood, type) else repr(likelihood)
        raise UserError(f"likelihood must be an instance such as pb.Categorical() or pb.GaussianNoise(), not {what}")


def _method(method: Any, model: Any, **settings: Any) -> Method:
    """Check both arguments and return the method."""
    for value, what, example in ((method, "method", "pb.MeanFieldVI()"), (model, "model", "MyModel()")):
        if isinstance(value, type):
            raise UserError(f"the {what} is the class {value.__name__}: give an instance, such as {example}")
    if isinstance(model, str) and model in models.names():
        raise UserError(f"the model is the name {model!r}: build it with pb.models.build({model!r}, ...)")
    if isinstance(method, nn.Module) or isinstance(model, (Method, str)):
        raise UserError("method and model seem to be swapped: fit(method, model, data), bayesianize(model, method)")
    if settings and isinstance(method, Method):
        raise UserError(f"{', '.join(settings)}: the method is an instance already; use {type(method).__name__}()")
    if not isinstance(method, (Method, str)) or not isinstance(model, nn.Module):
        raise UserError(f"expected a method and a torch module, not {type(method).__name__}, {type(model).__name__}")
    if meta := next((name for name, tensor in model.state_dict().items() if tensor.is_meta), None):
        raise UserError(f"the model's {meta} lies on the meta device, where tensors have no values: build it elsewhere")
    return methods.make(method, **settings) if isinstance(method, str) else method


def bayesianize(
    model: nn.Module,
    method: Method | str = "bbb",
    *,
    data: Data | None = None,
    val: Data | None = None,
    examples: float | None = None,
    delta: float | None = None,
    seed: int = 0,
    progress: Show = None,
    **settings: Any,
) -> Net:
    """Make a model Bayesian with a method, without training; the model itself is not changed.

    Args:
        model: A module, or a Network trained by another method.
        method: A method, or its registry name.
        data: Data like the model's training data, for stds from the curvature of the likelihood, `1 / sqrt(N h +
            delta)`; required by "laplace" and "swag". None for the method's initial stds.
        val: Data for choosing delta by NLL; None for `data`.
        examples: N, the number of examples that the model was trained on; None for the size of `data`.
        delta: The prior precision; None for the best of a grid by NLL.
        seed: Seed of all draws.
        progress: As in `fit`; shown only after two seconds.
        **settings: Settings of a method given by name.
    """
    method = _method(method, model, **settings)
    if data is None:
        for name, value in {"val": val, "examples": examples, "delta": delta}.items():
            if value is not None:
                raise UserError(f"{name}= needs data=, for stds from curvature")
        if isinstance(method, Laplace | SWAG):
            raise UserError(
                f"{method.name} needs data for its stds: pb.bayesianize(model, {method.name!r}, data=train), or "
                "pb.fit to train the model as well"
            )
        net = method.init(model).eval()
        for network in members(net):
            network.first_stds = FirstStds.of(network.posterior)
    elif isinstance(method, Laplace | SWAG):
        start = model if isinstance(model, Network) else Deterministic().init(model)
        return fit(method, start, data, seed=seed, progress=progress)
    elif isinstance(method, VariationalMethod):
        net = with_curvature_stds(
            method, model, data, val=val, examples=examples, delta=delta, seed=seed, progress=progress
        )
    else:
        raise UserError(f"{method.name!r} has no stds to estimate: omit data=")
    for network in members(net):
        network.method = method.name
    return net


__all__ = ["TrainingError", "bayesianize", "fit"]
