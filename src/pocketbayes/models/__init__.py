"""Plain networks by name: our own zoo, `torchvision:NAME`, `timm:NAME` and what you `register`.

These are the plain architectures of the papers; any other `nn.Module` can be made Bayesian too.
"""

from pocketbayes.models.bounded import build_bounded
from pocketbayes.models.registry import (
    ModelSpec,
    argument_names,
    build,
    build_for,
    constructor,
    names,
    register,
    spec_of,
)
from pocketbayes.models.weights import load_weights

__all__ = [
    "ModelSpec",
    "argument_names",
    "build",
    "build_bounded",
    "build_for",
    "constructor",
    "load_weights",
    "names",
    "register",
    "spec_of",
]
