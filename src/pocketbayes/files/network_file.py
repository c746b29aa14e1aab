"""A trained network as a file: `save` and `load`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes import likelihoods as objective
from pocketbayes import models, posteriors
from pocketbayes.base.arguments import check_path
from pocketbayes.base.calibration import Calibration, Conformal
from pocketbayes.base.errors import UserError, warn
from pocketbayes.base.model_lock import copy_model
from pocketbayes.base.run_folder import MODEL_FILE
from pocketbayes.data import Info
from pocketbayes.files import container, packing, pocket
from pocketbayes.files.packing import Precision
from pocketbayes.files.pocket import damaged_members
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors import Posterior, priors
from pocketbayes.posteriors.health import FirstStds, Health
from pocketbayes.posteriors.layout import Layout

Models = nn.Module | Sequence[nn.Module] | None
KIND = "network"
MALFORMED = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError),
    *(RuntimeError, OverflowError, MemoryError, zlib.error),
)
"""Errors from a file with a valid frame but invalid contents."""


def save(net: Net, path: str | Path, *, precision: str | Precision = "lossless", keep_centre: bool = False) -> int:
    """Write all that prediction needs to a file, and return its size in bytes.

    Args:
        net: A network or mixture.
        path: The file, replaced atomically: an interrupted write leaves the old file or none.
        precision: "lossless" for the same predictions bit for bit; "bfloat16" or "int8" for means in two bytes or 256
            steps, coarser stds, and normalisation in two bytes; or a `Precision` for each.
        keep_centre: Keep the pretrained weights that a prior may be centred on, one value per weight. Prediction does
            not need them, but the KL of the loaded network does.
    """
    precision, path = Precision.of(precision), check_path(path, "the file")
    return Packed.of(net, precision, keep_centre=keep_centre).write(path)


@dataclass(frozen=True)
class Packed:
    """A network as the text and the parts of its file."""

    text: Mapping[str, Any]
    parts: Mapping[str, bytes]

    @classmethod
    def of(cls, net: Net, precision: str | Precision = "lossless", *, keep_centre: bool = False) -> Packed:
        """Pack a network, with the arguments of `save`."""
        return cls(*packing.pack(_without_centres(describe(net), keep_centre), precision))

    @cached_property
    def size(self) -> int:
        """The size of the file in bytes."""
        return len(pocket.assemble(self.text, self.parts))

    def write(self, path: str | Path) -> int:
        """Write the file; return its size."""
        return pocket.write(path, self.text, self.parts)

    @property
    def networks(self) -> int:
        """The number of networks."""
        return len(self.text["networks"])

    def first(self, count: int) -> Packed:
        """Return the mixture of the first `count` networks of a mixture."""
        return Packed(*packing.first_networks(self.text, self.parts, count))

    def unpack(self, model: Models = None) -> Net:
        """Rebuild the network as `load` does from the file."""
        return rebuild(packing.unpack(self.text, dict(self.parts)), model)


def load(path: str | Path, model: Models = None, *, skip_damaged: bool = False) -> Net:
    """Read a network.

    Args:
        path: A file written by `save`, or a run folder.
        model: A model of the same architecture, needed only if the network's model has no name in `pb.models`; a list
            of models, one per network, for a mixture of different architectures.
        skip_damaged: Skip damaged members of a mixture, with a warning that names them.

    Raises:
        UserError: If the file is missing, foreign, damaged or of another architecture.
    """
    return rebuild(read(path, skip_damaged=skip_damaged), model, str(path))


def read(path: str | Path, *, skip_damaged: bool = False) -> dict[str, Any]:
    """Read the tree in a file written by `save`, without building a model."""
    path = check_path(path, "the network")
    path = path / MODEL_FILE if path.is_dir() else path
    if pocket.format_of(path, pocket.read_header(path)[0]) == container.FORMAT:
        tree: dict[str, Any] = container.read(path, KIND)
        return tree
    skipped: list[int] = []
    try:
        text, parts = pocket.read(path)
    except pocket.DamagedFileError as error:
        text, parts, skipped = error.text, error.parts, damaged_members(error.text, error.parts)
        count = len(text["networks"]) if skipped else 0
        if len(skipped) == count:  # no member is known to be intact
            raise
        where = f"{str(path)!r} is damaged in member {' and '.join(str(n + 1) for n in skipped)} of {count}"
        if not skip_damaged:
            raise UserError(
                f"{where}: get another copy, or use the others with load(path, skip_damaged=True)"
            ) from error
        warn(f"{where}: using the others")
    try:
        return packing.unpack(text, parts, skipped)
    except MALFORMED as error:
        raise UserError(f"{str(path)!r} is not a readable pocketbayes file: {_reason(error)}") from error


def describe(net: Net) -> dict[str, Any]:
    """Return the network as a tree of tensors and JSON values."""
    if isinstance(net, Mixture):
        known = {"weights": None if net.weights is None else list(net.weights), "stopping": net.stopping}
        networks = [describe(network) for network in net]
        return {"networks": networks, **{name: value for name, value in known.items() if value is not None}}
    (net,) = members(net)
    propagation, first, state, spec = net.propagation, net.first_stds, net.points(), models.spec_of(net.model)
    return {
        **({} if first is None else {"first_stds": {"positions": first.positions, "stds": first.stds}}),
        **({} if net.health is None else {"health": asdict(net.health)}),
        "method": net.method,
        "model": None if spec is None else {"name": spec.name, "args": dict(spec.args)},
        "model_class": type(net.model).__name__,
        "state": state,
        "posterior": net.posterior.described(),
        "layout": net.layout.to_json(),
        "prior": net.prior.described(),
        "likelihood": None if net.likelihood is None else net.likelihood.described(),
        "propagation": propagation,
        "input_var": net.input_var,
        "data": None if net.info is None else net.info.to_json(),
        **({} if net.stopping is None else {"stopping": net.stopping}),
        **({} if net.calibration is None else {"calibration": asdict(net.calibration)}),
        **({} if net.conformal is None else {"conformal": net.conformal.to_json()}),
    }


def rebuild(tree: Mapping[str, Any], model: Models = None, source: str = "the file") -> Net:
    """Rebuild a network from the tree of `describe`."""
    try:
        if "networks" in tree:
            modules = _one_each(model, len(tree["networks"]))
            networks = [_rebuild_one(item, own, source) for item, own in zip(tree["networks"], modules)]
            mixture = Mixture(networks, tree.get("weights"))
            mixture.stopping = tree.get("stopping")
            return mixture
        if isinstance(model, Sequence):
            (model,) = _one_each(model, 1)
        return _rebuild_one(tree, model, source)
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(f"{source} does not describe a network: {error}") from error


def _one_each(model: Models, count: int) -> list[nn.Module | None]:
    """Return a model for each of `count` networks: the given ones, or one for all."""
    if not isinstance(model, Sequence):
        return [model] * count
    if len(model) != count:
        raise UserError(f"{len(model)} models for {count} networks: give one per network, or one for all")
    return list(model)


def posterior_in(network: Mapping[str, Any]) -> Posterior:
    """Rebuild the posterior of one network from the tree of `describe`, without a model."""
    layout, part = Layout.from_json(network["layout"]), network["posterior"]
    return posteriors.restore(part["name"], layout, part["tensors"], part["config"])


def _rebuild_one(tree: Mapping[str, Any], model: nn.Module | None, source: str) -> Network:
    posterior = posterior_in(tree)
    try:
        posterior.check()
    except UserError as error:
        raise UserError(f"{source} has {error}") from error
    for part in (tree["state"], *(own["tensors"] for own in (tree["prior"], tree["likelihood"]) if own)):
        _refuse_nan(part, source)
    prior = priors.restore(**tree["prior"])
    likelihood = None if tree["likelihood"] is None else objective.restore(**tree["likelihood"])
    info = None if tree.get("data") is None else Info.from_json(tree["data"])
    module = _module_for(tree, model, source).to(_float_type(posterior))
    posterior.layout.fill(module, tree["state"], source)
    net = Network(
        module,
        posterior,
        prior=prior,
        likelihood=likelihood,
        propagation=tree["propagation"],
        input_var=tree.get("input_var", 0.0),
    )
    net.method = None if tree.get("method") is None else str(tree["method"])
    net.info = info
    net.calibration = None if tree.get("calibration") is None else Calibration(**tree["calibration"])
    net.conformal = None if tree.get("conformal") is None else Conformal.from_json(tree["conformal"])
    net.stopping = tree.get("stopping")
    net.health = None if tree.get("health") is None else Health(**tree["health"])
    net.first_stds = None if tree.get("first_stds") is None else FirstStds(**tree["first_stds"])
    return net.to(net.device).eval()  # a given model may be on another device


def _float_type(posterior: Posterior) -> torch.dtype:
    """Return the float type of a posterior, which its model must share."""
    floats = (tensor.dtype for tensor in posterior.state_dict().values() if tensor.is_floating_point())
    return next(floats, torch.get_default_dtype())


def _without_centres(tree: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Remove what only training needs: the initial stds and the prior's centre."""
    if "networks" in tree:
        return {**tree, "networks": [_without_centres(network, keep) for network in tree["networks"]]}
    tree = {key: value for key, value in tree.items() if key != "first_stds"}
    prior = tree["prior"]
    if keep or "centre" not in prior["tensors"]:
        return tree
    tensors = {name: tensor for name, tensor in prior["tensors"].items() if name != "centre"}
    return {**tree, "prior": {**prior, "config": {**prior["config"], "centre_left_out": True}, "tensors": tensors}}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def _module_for(tree: Mapping[str, Any], model: nn.Module | None, source: str) -> nn.Module:
    if isinstance(model, type):
        raise UserError(f"model= is the class {model.__name__}: give an instance, such as {model.__name__}()")
    if model is not None:
        return copy_model(model)
    if tree["model"] is None:
        raise UserError(
            f"{source} was made from a {tree['model_class']}, not a model known by name: pass one as model=; for the "
            "command line, give your class a name with @pb.models.register(NAME), or use torchvision:NAME for one of "
            "torchvision's, and save pb.load(FILE, pb.models.build(NAME)) again (see `A model` in docs/extend.md)"
        )
    sizes = [tensor.numel() for tensor in tree["state"].values()]
    slots = tree["layout"]["slots"]
    tensors = len(sizes) + sum(len(slot["sites"]) for slot in slots)
    values = sum(sizes) + sum(math.prod(slot["shape"]) for slot in slots)  # tied weights are built once
    return models.build_bounded(tree["model"]["name"], tree["model"]["args"], tensors, values)


def _refuse_nan(tensors: Mapping[str, Tensor], source: str) -> None:
    """Reject NaN outside the posterior; infinity may be intended, as in a mask."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise UserError(f"{source} has NaN in {name!r}: get another copy, or train again")
