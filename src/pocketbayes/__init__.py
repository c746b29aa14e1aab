"""Bayesian neural networks that are small to store and cheap to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pocketbayes import data, models
from pocketbayes.base.errors import UserError
from pocketbayes.base.naming import name_arguments_of
from pocketbayes.data import Info as DataInfo
from pocketbayes.files.network_file import load, save
from pocketbayes.inference import curves, explain, metrics
from pocketbayes.inference.adaptive import fit_stopping
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.calibration import calibrate, fit_conformal, fit_variance_scale
from pocketbayes.inference.describing import describe
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.inference.health import health
from pocketbayes.inference.prediction import predict
from pocketbayes.inference.stopping import Stopping
from pocketbayes.inference.suite import evaluate_suite
from pocketbayes.likelihoods import Categorical, GaussianNoise, Likelihood
from pocketbayes.methods import (
    IVON,
    PBN,
    SSVI,
    SWAG,
    VDP,
    Deterministic,
    Ensemble,
    FullCovarianceVDP,
    Int8,
    Laplace,
    MaskedVI,
    MCDropout,
    MeanFieldVI,
    Method,
    Rank1VI,
    RigL,
    VariationalDropout,
    WeightSharing,
)
from pocketbayes.methods.fixed_draws import fix_draws
from pocketbayes.methods.recalibration import recalibrate
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors import Census, Posterior
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.posteriors.health import Health
from pocketbayes.posteriors.layout import Layout
from pocketbayes.propagation import Ask, Propagation, register_moment_rule
from pocketbayes.reporting import report
from pocketbayes.ship.compression import compress
from pocketbayes.ship.hub import from_pretrained, push_to_hub, save_pretrained
from pocketbayes.ship.mixing import mixture
from pocketbayes.ship.onnx import export_onnx
from pocketbayes.training.beta_search import search_beta
from pocketbayes.training.fitting import bayesianize, fit
from pocketbayes.training.settings import Training, parameter_groups

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pocketbayes.ship.estimator import PocketClassifier, PocketRegressor

    def methods() -> tuple[str, ...]:
        """Return the registry names of all methods."""
else:

    def __getattr__(name: str) -> Any:
        """Import the estimators on first use, since scikit-learn is slow to import."""
        if name in ("PocketClassifier", "PocketRegressor"):
            from pocketbayes.ship import estimator

            return getattr(estimator, name)
        raise AttributeError(f"module 'pocketbayes' has no attribute {name!r}")


def kl(net: Net) -> Tensor:
    """Compute KL(q || prior) in nats, the sum over all random weights, neither averaged nor scaled."""
    members(net)  # reject anything else
    return net.kl()


def census(net: Net) -> Census:
    """Count the values that the network stores."""
    members(net)  # reject anything else
    return net.census()


__all__ = [
    "IVON",
    "PBN",
    "SSVI",
    "SWAG",
    "VDP",
    "Ask",
    "Categorical",
    "Census",
    "DataInfo",
    "Deterministic",
    "Ensemble",
    "FullCovarianceVDP",
    "Gaussian",
    "GaussianNoise",
    "Health",
    "Int8",
    "Laplace",
    "Layout",
    "Likelihood",
    "MCDropout",
    "MaskedVI",
    "MeanFieldVI",
    "Method",
    "Mixture",
    "Network",
    "PocketClassifier",
    "PocketRegressor",
    "Posterior",
    "Prediction",
    "Propagation",
    "Rank1VI",
    "RigL",
    "Stopping",
    "Training",
    "UserError",
    "VariationalDropout",
    "WeightSharing",
    "bayesianize",
    "calibrate",
    "census",
    "compress",
    "curves",
    "data",
    "describe",
    "evaluate",
    "evaluate_suite",
    "explain",
    "export_onnx",
    "fit",
    "fit_conformal",
    "fit_stopping",
    "fit_variance_scale",
    "fix_draws",
    "from_pretrained",
    "health",
    "kl",
    "load",
    "methods",
    "metrics",
    "mixture",
    "models",
    "parameter_groups",
    "predict",
    "push_to_hub",
    "recalibrate",
    "register_moment_rule",
    "report",
    "save",
    "save_pretrained",
    "search_beta",
]

name_arguments_of(__name__)
