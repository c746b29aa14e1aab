"""The scikit-learn estimators: scikit-learn's checks, and meaningful uncertainty."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import pocketbayes as pb

CANNOT_PASS: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "rows are drawn in proportion to their weights, so that training "
    "on a row of weight two and on two rows agree in expectation, not bit for bit",
}
"""Checks that an estimator cannot pass, with the reason."""
ROUNDED_CHECKS = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")
"""Checks with a tolerance of 1e-7, below single-precision rounding across batches."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@parametrize_with_checks(
    [pb.PocketClassifier(epochs=20, samples=3), pb.PocketRegressor(epochs=20, samples=3)],
    expected_failed_checks=lambda _: CANNOT_PASS,
)
def test_estimator_passes_scikit_learns_checks(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if check.func.__name__ in ROUNDED_CHECKS:

        def compare(one: Any, two: Any, **_: Any) -> None:
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)

        for name in ("assert_allclose", "assert_allclose_dense_sparse"):
            monkeypatch.setattr(estimator_checks, name, compare)
    check(estimator)


def test_import_does_not_load_scikit_learn() -> None:
    loaded = "print('sklearn' in sys.modules)"
    script = f"import sys, pocketbayes as pb; {loaded}; pb.PocketRegressor; {loaded}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'PocketClusterer'"):
        _ = pb.PocketClusterer


def test_classifier_learns_iris_by_its_names(learning_seed: int) -> None:
    data = load_iris()
    names = data.target_names[data.target]
    estimator = pb.PocketClassifier(epochs=30, samples=5, random_state=learning_seed)
    assert cross_val_score(estimator, data.data, names, cv=3).min() > 0.9
    estimator.fit(data.data, names)
    assert estimator.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    probs = estimator.predict_proba(data.data)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert (estimator.classes_[probs.argmax(axis=1)] == estimator.predict(data.data)).all()
    prediction = estimator.predictive(data.data)
    torch.testing.assert_close(prediction.epistemic + prediction.aleatoric, prediction.entropy, atol=1e-5, rtol=1e-4)


def line(n: int = 100, scale: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Y = 1000 + scale (3 x + noise of std 0.5)."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (n, 1))
    return x, 1000 + scale * (3 * x[:, 0] + 0.5 * random.normal(size=n))


def test_regressor_finds_the_line_and_its_noise(learning_seed: int) -> None:
    x, y = line(200, seed=learning_seed)
    estimator = pb.PocketRegressor(epochs=60, random_state=learning_seed).fit(x, y)
    mean, std = estimator.predict(np.array([[-0.5], [0.5]]), return_std=True)
    np.testing.assert_allclose(mean, [998.5, 1001.5], atol=0.3)
    np.testing.assert_allclose(std, 0.5, atol=0.12)
    inside = np.abs(y - estimator.predict(x)) < 1.96 * estimator.predict(x, return_std=True)[1]
    assert 0.85 < inside.mean() <= 1


@pytest.mark.filterwarnings("ignore:feature 0 of x")
def test_regressor_is_less_certain_far_from_the_data(learning_seed: int) -> None:
    x, y = line(seed=learning_seed)
    estimator = pb.PocketRegressor(epochs=60, random_state=learning_seed).fit(x, y)
    prediction = estimator.predictive(np.array([[0.0], [8.0]]))
    assert float(prediction.epistemic[1]) > 2 * float(prediction.epistemic[0])
    total = prediction.epistemic**2 + prediction.aleatoric**2
    torch.testing.assert_close(prediction.std**2, total, rtol=1e-5, atol=0)  # float32 inside


def test_regressor_is_independent_of_target_units() -> None:
    (x, small), (_, large) = line(40), line(40, scale=100.0)
    one, two = (pb.PocketRegressor(epochs=3, random_state=0).fit(x, y) for y in (small, large))
    np.testing.assert_allclose((two.predict(x) - 1000) / 100, one.predict(x) - 1000, atol=1e-3)
    entropies = [estimator.predictive(x).entropy for estimator in (one, two)]
    torch.testing.assert_close(
        entropies[1] - entropies[0], torch.full_like(entropies[0], np.log(100)), atol=1e-4, rtol=0
    )


def test_regressor_takes_several_targets(learning_seed: int) -> None:
    x, y = line(seed=learning_seed)
    both = np.stack([y, -y], axis=1)
    mean, std = pb.PocketRegressor(epochs=30, random_state=learning_seed).fit(x, both).predict(x, return_std=True)
    assert mean.shape == std.shape == (100, 2)
    assert np.corrcoef(mean[:, 0], mean[:, 1])[0, 1] < -0.9


@pytest.mark.parametrize("method", ["ssvi", "rigl", "bbb", "vdp"])
def test_regressor_learns_in_twenty_epochs(method: str, learning_seed: int) -> None:
    x = np.random.RandomState(learning_seed).randn(300, 5)
    y = 10 * x[:, 0] - 5 * x[:, 1] * (x[:, 2] > 0)
    estimator = pb.PocketRegressor(method, epochs=20, random_state=learning_seed).fit(x[:200], y[:200])
    assert estimator.score(x[200:], y[200:]) > 0.5


def test_classifier_takes_methods_and_models(learning_seed: int) -> None:
    def wide(features: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(features, 9), torch.nn.Tanh(), torch.nn.Linear(9, outputs))

    x, y = load_iris(return_X_y=True)
    for options in (
        {"method": "map"},
        {"method": pb.MeanFieldVI(propagation="local")},
        {"model": wide},
        {"model": "lenet300"},
    ):
        estimator = clone(pb.PocketClassifier(epochs=15, samples=2, random_state=learning_seed, **options)).fit(x, y)
        assert estimator.score(x, y) > 0.8
    assert isinstance(estimator.net_, pb.Network)
    with pytest.raises(pb.UserError, match="unknown method 'bayes'"):
        pb.PocketClassifier("bayes").fit(x, y)


def test_estimator_repeats_answers_for_a_random_state() -> None:
    x, y = line(30)
    before, numbers, plain = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    one, two, other = (pb.PocketRegressor(epochs=2, random_state=seed).fit(x, y).predict(x) for seed in (1, 1, 2))
    assert (one == two).all()
    assert (one != other).any()
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numbers).all()  # noqa: NPY002
    assert random.getstate() == plain


def test_estimator_pickles() -> None:
    x, y = line(30)
    estimator = pb.PocketRegressor(epochs=1).fit(x, y)
    assert (pickle.loads(pickle.dumps(estimator)).predict(x) == estimator.predict(x)).all()


def test_estimator_refuses_an_image_model_for_a_table() -> None:
    with pytest.raises(pb.UserError, match=r"does not accept inputs \(\d+, 4\)"):
        pb.PocketClassifier(model="lenet5", epochs=1).fit(*load_iris(return_X_y=True))


def test_estimator_saved_network_answers_in_original_units(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal([100, -3], [20, 0.1], (80, 2))
    y = np.stack([1000 + 5 * x[:, 0], x[:, 1]], axis=1)
    regressor = pb.PocketRegressor(epochs=5, random_state=0).fit(x, y)
    pb.save(regressor.net_, tmp_path / "net.pocket")
    net = pb.load(tmp_path / "net.pocket")
    inputs = pb.data.scale_inputs(torch.from_numpy(x).float(), net.info)
    answer = pb.predict(net, inputs, seed=regressor._seed)
    back = answer.mean.numpy() * np.array(net.info.target_std) + np.array(net.info.target_mean)
    np.testing.assert_allclose(back, regressor.predict(x), rtol=1e-4, atol=1e-3)
    classifier = pb.PocketClassifier(epochs=1, random_state=0).fit(x, np.where(x[:, 0] > 100, "high", "low"))
    assert classifier.net_.info.class_names == ("high", "low")


def test_estimator_grid_search_sets_method_parameters() -> None:
    from sklearn.model_selection import GridSearchCV

    data = load_iris()
    estimator = pb.PocketClassifier("bbb", epochs=3, samples=2, random_state=0)
    search = GridSearchCV(estimator, {"method__beta": [0.1, 1.0], "epochs": [3]}, cv=2).fit(data.data, data.target)
    assert search.best_estimator_.method.beta == search.best_params_["method__beta"]
    assert estimator.method == "bbb"
    assert clone(search.best_estimator_).get_params()["method__beta"] == search.best_params_["method__beta"]
    with pytest.raises(ValueError, match="method__gamma is not a parameter of method 'bbb'"):
        estimator.set_params(method__gamma=1)


def test_estimator_sample_and_class_weights_matter(learning_seed: int) -> None:
    generator = np.random.default_rng(learning_seed)
    X = np.concatenate([generator.normal(0, 1, (90, 1)), generator.normal(1, 1, (30, 1))])
    y = np.repeat([0, 1], [90, 30])
    made = {"epochs": 40, "samples": 5, "random_state": learning_seed}
    plain = pb.PocketClassifier(**made).fit(X, y).predict_proba(X)[:, 1].mean()
    rows = pb.PocketClassifier(**made).fit(X, y, np.where(y == 1, 3.0, 1.0)).predict_proba(X)[:, 1].mean()
    balanced = pb.PocketClassifier(class_weight="balanced", **made).fit(X, y).predict_proba(X)[:, 1].mean()
    assert plain + 0.1 < rows
    assert plain + 0.1 < balanced
    with pytest.raises(ValueError, match="negative"):
        pb.PocketClassifier(epochs=1).fit(X, y, -np.ones(120))


def test_estimator_ignores_rows_without_weight(learning_seed: int) -> None:
    X, y = np.linspace(-1, 1, 60)[:, None], np.linspace(-1, 1, 60)
    X[30:], y[30:] = 1e6, 1e6
    weights = np.repeat([1.0, 0.0], 30)
    estimator = pb.PocketRegressor(epochs=60, samples=5, random_state=learning_seed).fit(X, y, weights)
    assert np.abs(estimator.predict(X[:30]) - y[:30]).max() < 0.3


@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_estimator_early_stopping_ends_before_the_epochs(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learning_seed: int
) -> None:
    monkeypatch.setattr("pocketbayes.ship.estimator.fit", partial(pb.fit, out=tmp_path))
    generator = np.random.default_rng(learning_seed)
    X, y = generator.normal(size=(80, 3)), generator.normal(size=80)  # nothing to learn
    estimator = pb.PocketRegressor(
        noise=noise, epochs=500, early_stopping=True, n_iter_no_change=3, samples=2, random_state=learning_seed
    )
    assert estimator.fit(X, y).predict(X).shape == (80,)
    assert 3 < len((tmp_path / "metrics.jsonl").read_text().splitlines()) < 250
    with pytest.raises(ValueError, match="validation_fraction"):
        pb.PocketRegressor(early_stopping=True, validation_fraction=2.0).fit(X, y)


def test_estimator_predicted_noise_follows_the_data(learning_seed: int) -> None:
    generator = np.random.default_rng(learning_seed)
    X = generator.uniform(-1, 1, (400, 1))
    y = generator.normal(size=400) * np.where(X[:, 0] > 0, 1.0, 0.1)
    settings = {"epochs": 30, "samples": 5, "random_state": learning_seed}
    estimator = pb.PocketRegressor(noise="predicted", **settings).fit(X, y)
    _, std = estimator.predict(np.array([[-0.5], [0.5]]), return_std=True)
    assert std[1] > 2 * std[0]
    one_std = pb.PocketRegressor(**settings).fit(X, y)
    nll = [_gaussian_nll(y, *each.predict(X, return_std=True)) for each in (estimator, one_std)]
    assert nll[0] < nll[1] - 0.2  # about 0.5 in theory


def _gaussian_nll(y: Any, mean: Any, std: Any) -> float:
    return float(np.mean(0.5 * ((y - mean) / std) ** 2 + np.log(std)))
