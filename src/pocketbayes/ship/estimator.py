"""scikit-learn's `fit`, `predict` and `predict_proba` over `pocketbayes.fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler
from typing_extensions import Self

from pocketbayes import models
from pocketbayes.base.naming import naming_arguments
from pocketbayes.data.batches import as_source
from pocketbayes.data.dataset import collate
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.prediction import predict
from pocketbayes.likelihoods import Categorical, GaussianNoise, Likelihood
from pocketbayes.methods import METHODS, Method, make
from pocketbayes.network import Net, members
from pocketbayes.training import checkpoint
from pocketbayes.training.fitting import fit

Array = npt.NDArray[Any]
MakeModel = Callable[[int, int], nn.Module]
FIRST_STD_SCALE = 0.3
"""First std of methods given by name, relative to the weights: tables are small, training is short, and wider stds
would not shrink in time and inflate the predicted std."""


@dataclass(repr=False, eq=False)
class _PocketEstimator(BaseEstimator):
    """The base of both estimators.

    Features and regression targets are standardised internally.
    """

    method: str | Method = "bbb"
    model: str | MakeModel | None = None
    _: KW_ONLY
    epochs: int = 100
    batch_size: int = 32
    lr: float = 1e-2
    samples: int = 30
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters, and with `deep` those of the method as `method__beta` and so on."""
        params: dict[str, Any] = super().get_params(deep=False)
        if deep and (isinstance(self.method, Method) or (isinstance(self.method, str) and self.method in METHODS)):
            method = self._method()
            params |= {f"method__{each.name}": getattr(method, each.name) for each in fields(method)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `method__beta=0.1` sets one of the method, which may be given by its name."""
        nested = {name: params.pop(name) for name in list(params) if name.startswith("method__")}
        super().set_params(**params)
        if nested:
            known = {f"method__{each.name}" for each in fields(self._method())}
            for name in nested.keys() - known:
                raise ValueError(
                    f"{name} is not a parameter of method {self._method().name!r}: {', '.join(sorted(known))}"
                )
            self.method = replace(
                self._method(), **{name.removeprefix("method__"): value for name, value in nested.items()}
            )
        return self

    def _method(self) -> Method:
        if not isinstance(self.method, str):
            return self.method
        method = make(self.method)
        return make(self.method, std_scale=FIRST_STD_SCALE) if getattr(method, "std_scale", 0) is None else method

    def _fit(
        self, X: Array, y: Array, outputs: int, likelihood: Likelihood, sample_weight: Array | None, **known: Any
    ) -> None:
        """Train on features and on targets that are class numbers (n,) or real numbers (n, targets).

        Args:
            X: The original features.
            y: Targets, standardised.
            outputs: Of the model.
            likelihood: The noise model.
            sample_weight: One positive weight per row, or None. Rows are drawn in proportion to their weights, so that
                the expected loss is the weighted one.
            **known: Further fields of `Info` for the network.
        """
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._mean, self._std = X.mean(axis=0), _spread(X)
        rows = np.random.default_rng(self._seed).permutation(len(X))
        held_out = self._held_out(len(X))
        val, kept = rows[:held_out], np.sort(rows[held_out:])
        train: Any = as_source((self._inputs(X[kept]), torch.from_numpy(y[kept])))
        if sample_weight is not None:
            made = torch.Generator().manual_seed(self._seed)
            sampler = WeightedRandomSampler(sample_weight[kept].tolist(), len(kept), generator=made)
            train = DataLoader(train, self.batch_size, sampler=sampler, collate_fn=collate)
        before = checkpoint.random_state()  # of torch, numpy and Python, restored for the caller
        try:
            torch.manual_seed(self._seed)
            self.net_: Net = naming_arguments(fit)(
                self._method(),
                self._make_model(outputs),
                train,
                val=(self._inputs(X[val]), torch.from_numpy(y[val])) if held_out else None,
                epochs=self.epochs,
                batch_size=self.batch_size,
                lr=self.lr,
                schedule="constant" if held_out else "cosine",
                keep_best=bool(held_out),
                stop_after=self.n_iter_no_change if held_out else None,
                likelihood=likelihood,
                seed=self._seed,
                progress=None if self.verbose else False,
            )
        finally:
            checkpoint.set_random_state(before)
        for network in members(self.net_):  # a saved network also takes the original units
            assert network.info is not None
            mean, std = (tuple(values.tolist()) for values in (self._mean, self._std))
            network.info = replace(network.info, mean=mean, std=std, **known)

    def _held_out(self, rows: int) -> int:
        """Return the number of validation rows."""
        if not self.early_stopping:
            return 0
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, not {self.validation_fraction}")
        count = max(1, round(self.validation_fraction * rows))
        if count >= rows:
            raise ValueError(f"early_stopping=True needs more than the {rows} rows there are")
        return count

    def _make_model(self, outputs: int) -> nn.Module:
        features: int = self.n_features_in_
        if self.model is None or isinstance(self.model, str):
            return models.build_for(self.model or "mlp", (features,), outputs)
        return self.model(features, outputs)

    def _inputs(self, X: Array) -> torch.Tensor:
        return torch.from_numpy(((X - self._mean) / self._std).astype(np.float32))

    def _predict(self, X: Any) -> Prediction:
        check_is_fitted(self)
        checked = validate_data(self, X, reset=False, dtype=np.float64)
        return naming_arguments(predict)(self.net_, self._inputs(checked), self.samples, seed=self._seed)


@dataclass(repr=False, eq=False)
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
        class_weight: A weight in the loss for each label, "balanced" for the inverse of their frequencies, or None.
        early_stopping: Hold out some rows for validation, stop when their NLL no longer falls, and keep the best
            network; the learning rate then stays constant.
        validation_fraction: The fraction of rows held out by `early_stopping`.
        n_iter_no_change: Epochs without a lower validation NLL after which `early_stopping` stops.
        random_state: Seed of initial weights, data order and every draw.
        verbose: Show progress on a terminal.

    Attributes:
        net_: The trained network.
        classes_: The labels.
        n_features_in_: The number of features.
    """

    class_weight: Mapping[Any, float] | str | None = field(default=None, kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on features (n, features) and labels (n,), optionally with a weight per row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        X, y, sample_weight = _weighted_rows(X, y, sample_weight)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, the labels have one class: {self.classes_[0]!r}"
            )
        weights = None
        if self.class_weight is not None:
            weights = torch.from_numpy(compute_class_weight(self.class_weight, classes=self.classes_, y=y)).float()
        names = tuple(map(str, self.classes_))
        self._fit(
            X, numbers.astype(np.int64), len(names), Categorical(weights), sample_weight, classes=len(names),
            class_names=names,
        )  # fmt: skip
        return self

    def predict(self, X: Any) -> Array:
        """Return the most probable label of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each label, averaged over the posterior, (n, classes)."""
        probs = self.predictive(X).mean.cpu().numpy().astype(np.float64)
        normalised: Array = probs / probs.sum(axis=1, keepdims=True)
        return normalised

    def predictive(self, X: Any) -> Prediction:
        """Return probabilities with their total, epistemic and aleatoric uncertainty."""
        return self._predict(X)


@dataclass(repr=False, eq=False)
class PocketRegressor(RegressorMixin, _PocketEstimator):
    """A Bayesian neural network as a regressor of scikit-learn, with Gaussian noise.

    It takes the parameters of `PocketClassifier`, except `class_weight`, and one more.

    Parameters:
        noise: "learned" for one std, "predicted" for one that the network predicts for each row (heteroscedastic), or
            a given std in units of the standardised targets.

    Attributes:
        net_: The trained network.
        n_features_in_: The number of features.
    """

    noise: Literal["learned", "predicted"] | float = field(default="learned", kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on features (n, features) and targets (n,) or (n, targets), optionally with a weight per row."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y, sample_weight = _weighted_rows(X, y, sample_weight)
        targets = y.reshape(len(y), -1).astype(np.float64)
        self._flat = y.ndim == 1
        self._target_mean, self._target_std = targets.mean(axis=0), _spread(targets)
        scaled = ((targets - self._target_mean) / self._target_std).astype(np.float32)
        known = {"target_mean": tuple(self._target_mean.tolist()), "target_std": tuple(self._target_std.tolist())}
        outputs = targets.shape[1] * (2 if self.noise == "predicted" else 1)
        self._fit(X, scaled, outputs, GaussianNoise(self.noise), sample_weight, **known)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the mean of each row's target, and with `return_std` its std, noise included."""
        prediction = self.predictive(X)
        mean, std = (moment.cpu().numpy().astype(np.float64) for moment in (prediction.mean, prediction.std))
        if self._flat:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    def predictive(self, X: Any) -> Prediction:
        """Return mean and std with epistemic and aleatoric parts, (n, targets), in the unit of the targets."""
        raw = self._predict(X)
        mean, std = (torch.from_numpy(moment).to(raw.mean.device) for moment in (self._target_mean, self._target_std))
        scaled = {name: getattr(raw, name) * std for name in ("std", "epistemic", "aleatoric")}
        return replace(raw, mean=raw.mean * std + mean, entropy=raw.entropy + std.log(), **scaled)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


def _weighted_rows(X: Array, y: Array, weight: Any) -> tuple[Array, Array, Array | None]:
    """Check the weights and drop rows of weight zero, which must not affect means and stds either."""
    if weight is None:
        return X, y, None
    checked: Array = _check_sample_weight(weight, X, dtype=np.float64)
    if (checked < 0).any():
        raise ValueError("sample_weight must not be negative")
    rows = checked > 0
    if not rows.any():
        raise ValueError("sample_weight is zero for every row")
    return X[rows], y[rows], checked[rows]


def _spread(values: Array) -> Array:
    """Return the std of each column; 1 for a constant column."""
    std: Array = values.std(axis=0)
    return np.where(std > 0, std, 1.0)
