"""A trained network as a file: `save` and `load`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pocketbayes import container, models, objective, posteriors, priors
from pocketbayes.data import Info
from pocketbayes.errors import UserError
from pocketbayes.layout import Layout
from pocketbayes.network import Mixture, Net, Network

KIND = "network"


def save(net: Net, path: str | Path) -> int:
    """Writes the network, everything that prediction needs; returns the file's size in bytes."""
    return container.write(path, describe(net), KIND)


def load(path: str | Path, model: nn.Module | None = None) -> Net:
    """Reads a network.

    Args:
        path: A file that `save` wrote.
        model: A model of the same architecture; needed only if the network was not made of a model known by name.
    """
    return rebuild(read(path), model, str(path))


def read(path: str | Path) -> dict[str, Any]:
    """The tree in a file that `save` wrote, for which no model is needed."""
    tree: dict[str, Any] = container.read(path, KIND)
    return tree


def describe(net: Net) -> dict[str, Any]:
    """The network as a tree of tensors and plain values."""
    if isinstance(net, Mixture):
        return {"networks": [describe(network) for network in net]}
    spec = models.spec_of(net.model)
    return {
        "model": None if spec is None else {"name": spec.name, "args": dict(spec.args)},
        "model_class": type(net.model).__name__,
        "layout": net.layout.to_json(),
        "state": dict(net.model.state_dict()),
        "posterior": _module(net.posterior),
        "prior": _module(net.prior),
        "likelihood": None if net.likelihood is None else _module(net.likelihood),
        "propagation": net.propagation,
        "input_var": net.input_var,
        "data": None if net.info is None else asdict(net.info),
    }


def rebuild(tree: Mapping[str, Any], model: nn.Module | None = None, source: str = "the file") -> Net:
    """The network that `describe` described."""
    try:
        if "networks" in tree:
            return Mixture([_rebuild_one(item, model, source) for item in tree["networks"]])
        return _rebuild_one(tree, model, source)
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(f"{source} does not describe a network: {error}") from error


def _rebuild_one(tree: Mapping[str, Any], model: nn.Module | None, source: str) -> Network:
    layout = Layout.from_json(tree["layout"])
    posterior_, prior, likelihood = tree["posterior"], tree["prior"], tree["likelihood"]
    posterior = posteriors.restore(posterior_["name"], layout, posterior_["tensors"], posterior_["config"])
    if (found := len(posterior.moments()[0])) != layout.size:
        raise UserError(f"{source} has a posterior over {found} weights and a layout of {layout.size}")
    module = _module_for(tree, model, source)
    layout.check(module)
    net = Network(
        module,
        posterior,
        prior=priors.restore(prior["name"], prior["config"], prior["tensors"]),
        likelihood=likelihood and objective.restore(likelihood["name"], likelihood["config"], likelihood["tensors"]),
        propagation=tree["propagation"],
        input_var=tree.get("input_var", 0.0),
    )
    net.info = None if tree.get("data") is None else Info(**tree["data"])
    _load_points(net.model, tree["state"], source)
    return net.eval()


def _module(module: Any) -> dict[str, Any]:
    return {"name": module.name, "config": module.config(), "tensors": dict(module.state_dict())}


def _module_for(tree: Mapping[str, Any], model: nn.Module | None, source: str) -> nn.Module:
    if model is not None:
        return copy.deepcopy(model)
    if tree["model"] is None:
        raise UserError(
            f"{source} was made of a {tree['model_class']} that pocketbayes cannot build by name: "
            "pass one as model= (on the command line, train a model from `pocketbayes list models`)"
        )
    return models.build(tree["model"]["name"], **tree["model"]["args"])


def _load_points(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    own = model.state_dict()
    for name in [*own, *state]:
        if name not in state or name not in own:
            raise UserError(f"{name!r} is in {'the model' if name in own else source} only: not the same architecture")
        if own[name].shape != state[name].shape:
            raise UserError(
                f"{name!r} has shape {tuple(own[name].shape)} in the model, {tuple(state[name].shape)} in {source}"
            )
    model.load_state_dict(dict(state))
