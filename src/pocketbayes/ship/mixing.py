"""`mixture`: one predictor from separately trained networks."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from pocketbayes.base.arguments import checked_shares
from pocketbayes.base.errors import UserError, first_line, warn
from pocketbayes.base.model_lock import copy_model
from pocketbayes.base.run_folder import MODEL_FILE
from pocketbayes.data import Info
from pocketbayes.data.batches import Data, as_source, batches
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.data.validate import checked_inputs
from pocketbayes.files import container, network_file
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.inference.health import MIN_SHARED_COSINE, cosines
from pocketbayes.likelihoods import task_of
from pocketbayes.models import load_weights
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.layout import evaluating
from pocketbayes.training import checkpoint
from pocketbayes.training.checks import not_finite
from pocketbayes.training.fitting import bayesianize

Part = Network | Mixture | nn.Module | str | Path
ERROR_RATIO, ERROR_MARGIN = 2.0, 0.03
"""A member is far worse than the rest if its error exceeds `ratio * median + margin`."""


def mixture(
    parts: Sequence[Part],
    weights: Sequence[float] | None = None,
    *,
    model: nn.Module | None = None,
    data: Data | None = None,
    samples: int = 10,
) -> Mixture:
    """Combine trained networks of one task: `p(y | x) = sum_k weight_k p(y | x, network_k)`.

    Args:
        parts: Trained models, networks, mixtures, or paths of run folders, checkpoints and .pocket files. Their
            architectures may differ. Networks are used directly, plain models are copied.
        weights: The weight of each part, with sum 1; None for equal weights of all networks.
        model: The architecture of files that do not name it, and of checkpoints of plain weights.
        data: Data to compare the members on; a member that is far worse than the rest raises a warning.
        samples: Passes per member of that comparison.

    Raises:
        UserError: If the members do not fit together, or if one holds NaN or infinity.
    """
    listed = isinstance(parts, Iterable) and not isinstance(parts, (str, Path, nn.Module, Mapping))
    if not listed or not (parts := list(parts)):
        raise UserError("a mixture needs a list of at least one network, model, run folder or file")
    if weights is not None:
        checked_shares(weights, len(parts))
    nets = [_read(part, model) for part in parts]
    names = [name for part, net in zip(parts, nets) for name in _names(part, net)]
    networks = [network for net in nets for network in members(net)]
    for number, (name, network) in enumerate(zip(names, networks), 1):
        if (bad := not_finite(network)) is not None:
            raise UserError(f"member {number} ({name}): a weight of {bad!r} is NaN or infinite; leave it out")
    networks = _without_own_temperatures(_with_known_data(networks, names))
    found = Mixture(networks, _flat_weights(nets, weights)).eval()
    _check_outputs(found, names, data)
    _warn_of_copies(found, names)
    if data is not None:
        _warn_of_weak(found, names, data, samples)
    return found


def _read(part: Part, model: nn.Module | None) -> Net:
    if isinstance(part, (Network, Mixture)):
        return part
    if isinstance(part, nn.Module):
        return bayesianize(part, "map")
    if not isinstance(part, (str, Path)):
        raise UserError(f"a member must be a network, a model or a path, not a {type(part).__name__}")
    path = Path(part)
    if path.is_dir():
        finished = path / MODEL_FILE
        if finished.is_file():
            return network_file.load(finished, model)
        if not (begun := checkpoint.files(path)):
            raise UserError(f"{path} holds neither {MODEL_FILE} nor a checkpoint: give a run's folder")
        warn(f"{path} is an unfinished run: its last checkpoint is used")
        path = begun[0]
    if path.suffix == ".pocket" or not path.is_file():
        return network_file.load(path, model)
    if path.name.startswith("checkpoint") and path.suffix == ".safetensors":
        return network_file.rebuild(container.read(path, checkpoint.KIND)["net"], model, str(path))
    if model is None:
        raise UserError(f"{path} holds weights alone: pass the model they belong to as model=")
    own = copy_model(model)
    load_weights(own, path)
    return bayesianize(own, "map")


def _names(part: Part, net: Net) -> list[str]:
    """Return the names of a part's members in messages."""
    name = str(part) if isinstance(part, (str, Path)) else type(members(net)[0].model).__name__
    return [name] if isinstance(net, Network) else [f"{name}, {number}" for number in range(1, len(net) + 1)]


def _flat_weights(nets: Sequence[Net], weights: Sequence[float] | None) -> list[float] | None:
    """Return the weight of every network from those of the parts, which may be mixtures themselves."""
    if weights is None and all(isinstance(net, Network) or net.weights is None for net in nets):
        return None
    count = sum(len(members(net)) for net in nets)
    parts = [len(members(net)) / count for net in nets] if weights is None else list(weights)
    return [
        weight * share / len(members(net))
        for weight, net in zip(parts, nets)
        for share in (net.shares() if isinstance(net, Mixture) else [1.0])
    ]


def _with_known_data(networks: Sequence[Network], names: Sequence[str]) -> list[Network]:
    """Give networks without a data description that of the others."""
    known = [(number, network.info) for number, network in enumerate(networks) if network.info is not None]
    for (first, info), (number, other) in itertools.pairwise(known):
        if (difference := _difference(info, other)) is not None:
            what, own, others = difference
            raise UserError(
                f"members {first + 1} ({names[first]}) and {number + 1} ({names[number]}) differ in {what}: {own} and "
                f"{others}; the members of a mixture must share task and inputs"
            )
    real = [task_of(network.likelihood) != "classification" for network in networks]
    if any(real) and not all(real):
        one, two = real.index(True), real.index(False)
        raise UserError(
            f"member {one + 1} ({names[one]}) predicts real numbers, member {two + 1} ({names[two]}) classes: "
            "a plain model of a regression needs net.likelihood = pb.GaussianNoise(...)"
        )
    if not known:
        return list(networks)
    filled = []
    for network in networks:
        if network.info is None:
            network = copy.deepcopy(network)
            network.info = known[0][1]
        filled.append(network)
    return filled


def _without_own_temperatures(networks: Sequence[Network]) -> list[Network]:
    """Remove the networks' calibration unless it is the same for all."""
    if all(network.calibration == networks[0].calibration for network in networks):
        return list(networks)
    warn("the members' temperatures are not valid for a mixture and were removed: fit one with pb.calibrate(net, val)")
    plain = []
    for network in networks:
        if network.calibration is not None:
            network = copy.deepcopy(network)
            network.calibration = network.conformal = None
        plain.append(network)
    return plain


def _difference(one: Info, two: Info) -> tuple[str, object, object] | None:
    """Return the first difference of two data descriptions, and both values."""
    compared = {
        "task": "task",
        "classes": "number of classes",
        "class_names": "class names",
        "input_shape": "input size",
        "mean": "preprocessing (mean)",
        "std": "preprocessing (std)",
        "crop_fraction": "preprocessing (crop)",
        "ignore_index": "ignored label",
        "target_mean": "target mean",
        "target_std": "target std",
    }
    for name, words in compared.items():
        own, other = getattr(one, name), getattr(two, name)
        if name == "class_names" and (own is None or other is None):
            continue
        if own != other:
            return words, own, other
    return None


def _check_outputs(net: Mixture, names: Sequence[str], data: Data | None) -> None:
    """Reject members that do not accept the inputs of the others or have other output shapes."""
    info = members(net)[0].info
    if info is None and data is None:
        return  # checked in predictions
    example = next(iter(batches(as_source(data), 1)))[0] if info is None else torch.zeros(1, *info.input_shape)
    x = checked_inputs(example)
    shapes: dict[tuple[int, ...], int] = {}
    for number, network in enumerate(members(net)):
        try:
            with torch.no_grad(), evaluating(network):
                output = network.run_at(network.posterior.moments()[0], network.place(x))
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"member {number + 1} ({names[number]}) does not take inputs {_input_words(x)}: {first_line(error)}"
            ) from error
        shapes.setdefault(tuple(output.shape[1:]), number)
    if len(shapes) > 1:
        (own, first), (other, second), *_ = shapes.items()
        raise UserError(
            f"members {first + 1} ({names[first]}) and {second + 1} ({names[second]}) predict {_words(own)} and "
            f"{_words(other)} numbers: a mixture needs the same classes or targets"
        )


def _input_words(x: ModelInput) -> str:
    return str(tuple(x.shape[1:])) if isinstance(x, Tensor) else "of these names"


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _warn_of_copies(net: Mixture, names: Sequence[str]) -> None:
    close = {pair: cosine for pair, cosine in cosines(members(net)).items() if cosine > MIN_SHARED_COSINE}
    if close:
        (one, two), cosine = max(close.items(), key=lambda item: item[1])
        what = (
            "are the same network"
            if cosine > 1 - 1e-6
            else f"share their initial weights (cosine of their weights {cosine:.2f})"
        )
        warn(
            f"members {one + 1} ({names[one]}) and {two + 1} ({names[two]}) {what}: they improve a mixture less than "
            "independent ones"
        )


def _warn_of_weak(net: Mixture, names: Sequence[str], data: Data, samples: int) -> None:
    """Warn of members that are far worse than the rest on some data, with the figures."""
    measures = [evaluate(network, data, samples=samples) for network in members(net)]
    errors = [_error(each) for each in measures]
    for number, (error, own) in enumerate(zip(errors, measures)):
        others = errors[:number] + errors[number + 1 :]
        if others and not error <= ERROR_RATIO * statistics.median(others) + ERROR_MARGIN:
            what = "error" if "accuracy" in own else "RMSE"
            warn(
                f"member {number + 1} ({names[number]}) is far worse than the rest: {what} {error:.3g}, "
                f"{statistics.median(others):.3g} as the median of the others; leave it out or lower its weight"
            )


def _error(measures: Mapping[str, float]) -> float:
    return 1 - measures["accuracy"] if "accuracy" in measures else measures["rmse"]
