"""Methods: one file each, and the registry of their names."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import METHODS, Method, Stage, Start, TrainingContext, VariationalMethod
from pocketbayes.methods.deterministic import Deterministic
from pocketbayes.methods.ensemble import Ensemble
from pocketbayes.methods.int8 import Int8
from pocketbayes.methods.ivon import IVON
from pocketbayes.methods.laplace import Laplace
from pocketbayes.methods.masked import MaskedVI
from pocketbayes.methods.mcdropout import MCDropout
from pocketbayes.methods.meanfield import MeanFieldVI
from pocketbayes.methods.pbn import PBN
from pocketbayes.methods.rank1 import Rank1VI
from pocketbayes.methods.rigl import RigL
from pocketbayes.methods.ssvi import SSVI
from pocketbayes.methods.swag import SWAG
from pocketbayes.methods.variational_dropout import VariationalDropout
from pocketbayes.methods.vdp import VDP, FullCovarianceVDP
from pocketbayes.methods.weight_sharing import WeightSharing

METHODS.update(
    {
        "map": Deterministic,
        "ensemble": Ensemble,
        "mc-dropout": MCDropout,
        "swag": SWAG,
        "laplace": Laplace,
        "bbb": partial(MeanFieldVI, propagation="sample"),
        "lrt": partial(MeanFieldVI, propagation="local"),
        "flipout": partial(MeanFieldVI, propagation="flipout"),
        "ivon": IVON,
        "rank1": Rank1VI,
        "sparse-vd": VariationalDropout,
        "mbnn": MaskedVI,
        "int8": Int8,
        "2dgbnn": WeightSharing,
        "pbn": PBN,
        "ssvi": SSVI,
        "rigl": RigL,
        "vdp": VDP,
        "vdp-full": FullCovarianceVDP,
    }
)


class _Callable(ModuleType):
    """This package, which is also the public function `pb.methods()`."""

    def __call__(self) -> tuple[str, ...]:
        """Return the registry names of all methods."""
        return tuple(METHODS)


sys.modules[__name__].__class__ = _Callable

__all__ = [
    "IVON",
    "METHODS",
    "PBN",
    "SSVI",
    "SWAG",
    "VDP",
    "Deterministic",
    "Ensemble",
    "FullCovarianceVDP",
    "Int8",
    "Laplace",
    "MCDropout",
    "MaskedVI",
    "MeanFieldVI",
    "Method",
    "Rank1VI",
    "RigL",
    "Stage",
    "Start",
    "TrainingContext",
    "VariationalDropout",
    "VariationalMethod",
    "WeightSharing",
    "make",
]


def make(name: str, **settings: Any) -> Method:
    """Return the method of that registry name with these settings."""
    kind = METHODS[name]
    try:
        method: Method = kind(**settings)
    except TypeError as error:
        raise UserError(f"method {name!r}: {error}") from None
    return method
