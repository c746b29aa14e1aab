"""Plain networks by name: our own zoo, `torchvision:NAME` and `timm:NAME`.

Nothing in here is Bayesian: any `nn.Module` can be made so, and these are the ones the papers use.
"""

from pocketbayes.models.bounded import build_bounded
from pocketbayes.models.registry import ModelSpec, argument_names, build, build_for, constructor, names, spec_of
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
    "spec_of",
]
