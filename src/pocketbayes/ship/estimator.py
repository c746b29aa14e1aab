"""scikit-learn's `fit`, `predict` and `predict_proba` over `pocketbayes.fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn
from typing_extensions import Self

from pocketbayes import models
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.prediction import predict
from pocketbayes.methods import Method, make
from pocketbayes.network import Net, members
from pocketbayes.training import checkpoint
from pocketbayes.training.fitting import fit

Array = npt.NDArray[Any]
MakeModel = Callable[[int, int], nn.Module]


class _PocketEstimator(BaseEstimator):
    """What both estimators share.

    Features, and the targets of a regression, are standardised within: priors N(0, 1) mean little otherwise.
    """

    def __init__(
        self,
        method: str | Method = "bbb",
        model: str | MakeModel | None = None,
        *,
        epochs: int = 100,
        batch_size: int = 32,
        lr: float = 1e-2,
        samples: int = 30,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.samples = samples
        self.random_state = random_state
        self.verbose = verbose

    net_: Net
    n_features_in_: int

    def _fit(self, X: Array, y: Array, outputs: int, **known: Any) -> None:
        """Trains on features and on targets that are class numbers (n,) or real numbers (n, targets).

        Args:
            X: Features as they are.
            y: Targets, standardised.
            outputs: Of the model.
            **known: What else the network shall know of its data, by the names of `Info`.
        """
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._mean, self._std = X.mean(axis=0), _spread(X)
        method = make(self.method) if isinstance(self.method, str) else self.method
        before = checkpoint.random_state()  # of torch, numpy and Python, which the caller may go on with
        try:
            torch.manual_seed(self._seed)
            self.net_ = fit(
                method,
                self._make_model(outputs),
                (self._inputs(X), torch.from_numpy(y)),
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                schedule="cosine",
                seed=self._seed,
                progress=None if self.verbose else False,
            )
        finally:
            checkpoint.set_random_state(before)
        for network in members(self.net_):  # a saved network is asked in the original units too
            assert network.info is not None
            mean, std = (tuple(values.tolist()) for values in (self._mean, self._std))
            network.info = replace(network.info, mean=mean, std=std, **known)

    def _make_model(self, outputs: int) -> nn.Module:
        features = self.n_features_in_
        if self.model is None or isinstance(self.model, str):
            return models.build_for(self.model or "mlp", (features,), outputs)
        return self.model(features, outputs)

    def _inputs(self, X: Array) -> torch.Tensor:
        return torch.from_numpy(((X - self._mean) / self._std).astype(np.float32))

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=np.float64)
        return predict(self.net_, self._inputs(checked), self.samples, seed=self._seed)


class PocketClassifier(ClassifierMixin, _PocketEstimator):
    """A Bayesian neural network as a classifier of scikit-learn.

    Parameters:
        method: A method, or its registry name.
        model: A model's name, or a function that makes a module from (features, outputs); None for an MLP with one
            hidden layer.
        epochs: Passes over the data.
        batch_size: Examples per step.
        lr: Learning rate, which falls to 0 along a cosine.
        samples: Passes per prediction.
        random_state: Of initial weights, data order and every draw.
        verbose: Shows progress on a terminal.

    Attributes:
        net_: The trained network.
        classes_: The labels.
        n_features_in_: The number of features.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on features (n, features) and labels (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, the labels have one class: {self.classes_[0]!r}"
            )
        self._fit(X, numbers.astype(np.int64), len(self.classes_), class_names=tuple(map(str, self.classes_)))
        return self

    def predict(self, X: Any) -> Array:
        """The most probable label of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each label, averaged over the posterior, (n, classes)."""
        probs = self.predictive(X).mean.cpu().numpy().astype(np.float64)
        normalised: Array = probs / probs.sum(axis=1, keepdims=True)
        return normalised

    def predictive(self, X: Any) -> Prediction:
        """Probabilities with their total, epistemic and aleatoric uncertainty."""
        return self._predict(X)


class PocketRegressor(RegressorMixin, _PocketEstimator):
    """A Bayesian neural network as a regressor of scikit-learn, with Gaussian noise of a learned std.

    Parameters:
        method: A method, or its registry name.
        model: A model's name, or a function that makes a module from (features, targets); None for an MLP with one
            hidden layer.
        epochs: Passes over the data.
        batch_size: Examples per step.
        lr: Learning rate, which falls to 0 along a cosine.
        samples: Passes per prediction.
        random_state: Of initial weights, data order and every draw.
        verbose: Shows progress on a terminal.

    Attributes:
        net_: The trained network.
        n_features_in_: The number of features.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on features (n, features) and targets (n,) or (n, targets)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = y.reshape(len(y), -1).astype(np.float64)
        self._flat = y.ndim == 1
        self._target_mean, self._target_std = targets.mean(axis=0), _spread(targets)
        scaled = ((targets - self._target_mean) / self._target_std).astype(np.float32)
        known = {"target_mean": tuple(self._target_mean.tolist()), "target_std": tuple(self._target_std.tolist())}
        self._fit(X, scaled, targets.shape[1], **known)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of each row's target, and with `return_std` its std, noise included."""
        prediction = self.predictive(X)
        mean, std = (moment.cpu().numpy().astype(np.float64) for moment in (prediction.mean, prediction.std))
        if self._flat:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    def predictive(self, X: Any) -> Prediction:
        """Mean and std with epistemic and aleatoric parts, (n, targets), in the unit of the targets."""
        raw = self._predict(X)
        mean, std = (torch.from_numpy(moment).to(raw.mean.device) for moment in (self._target_mean, self._target_std))
        scaled = {name: getattr(raw, name) * std for name in ("std", "epistemic", "aleatoric")}
        return replace(raw, mean=raw.mean * std + mean, entropy=raw.entropy + std.log(), **scaled)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


def _spread(values: Array) -> Array:
    """The std of each column; 1 for a constant column."""
    std: Array = values.std(axis=0)
    return np.where(std > 0, std, 1.0)
