"""`describe`: record preprocessing and class names in a network, for files and graphs that read images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pocketbayes.base.errors import UserError, first_line
from pocketbayes.data import Info
from pocketbayes.data.description import make_info, read_transform
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Net, Network, members
from pocketbayes.posteriors.model_call import MODEL_ERRORS


def describe(
    net: Net,
    transform: Any = None,
    classes: Sequence[str] | int | None = None,
    input_shape: Sequence[int] | None = None,
) -> Net:
    """Record the preprocessing and class names of a network; arguments that are None change nothing.

    `pb.save` and `pb.export_onnx` store them: `pocketbayes predict net.pocket photo.png` then prepares images as in
    training and prints class names. `pb.fit` does this automatically for data sets of torchvision and timm.

    Args:
        net: A network or mixture, which is changed.
        transform: The preprocessing at test time: a transform of torchvision or timm, timm's data configuration, or an
            image processor of transformers.
        classes: The class names in the order of the outputs, or their number.
        input_shape: The shape of one input, such as (3, 224, 224); required if no transform gives it.

    Returns:
        The same network.

    Raises:
        UserError: If the transform cannot be read, or shape or classes do not fit the network.
    """
    networks = members(net)
    task = "classification" if task_of(networks[0].likelihood) == "classification" else "regression"
    prepared = None if transform is None else read_transform(transform)
    if isinstance(classes, str):
        raise UserError(f"classes={classes!r} is one name: give a list of names, in the order of the outputs")
    info = make_info("described", task, prepared, input_shape, classes, networks[0].info)  # type: ignore[arg-type]
    _check_fits(networks[0], info)
    for network in networks:
        network.info = info
    return net


def _check_fits(network: Network, info: Info) -> None:
    """Run the network once at its mean and reject a wrong input shape or number of classes."""
    x = torch.zeros(2, *info.input_shape, device=network.device)
    try:
        with torch.no_grad(), network.using("mean"):
            outputs = network(x).shape[1]
    except MODEL_ERRORS as error:
        raise UserError(f"the network does not take inputs of shape {info.input_shape}: {first_line(error)}") from error
    if info.classes is not None and outputs != info.classes:
        raise UserError(f"{info.classes} classes given, but the network has {outputs} outputs")
