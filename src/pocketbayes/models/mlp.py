"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.models.layers import dropout_or_none, named

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def mlp(
    in_features: int,
    out_features: int,
    hidden: Sequence[int] = (50,),
    batch_norm: bool = False,
    dropout: float = 0.0,
    activation: str = "relu",
) -> nn.Sequential:
    """Build linear layers with activations between; inputs of any shape are flattened to `in_features`."""
    check_choice("activation", activation, ACTIVATIONS)
    if not isinstance(hidden, Sequence) or not all(type(width) is int and width > 0 for width in hidden):
        raise UserError(f"model 'mlp': hidden is a list of widths, such as [50], not {hidden!r}")
    layers: dict[str, nn.Module | None] = {"flatten": nn.Flatten()}
    for i, width in enumerate(hidden, 1):
        layers[f"linear{i}"] = nn.Linear(in_features, width)
        layers[f"bn{i}"] = nn.BatchNorm1d(width) if batch_norm else None
        layers[f"act{i}"] = ACTIVATIONS[activation]()
        layers[f"drop{i}"] = dropout_or_none(dropout)
        in_features = width
    return named(**layers, head=nn.Linear(in_features, out_features))
