"""Predictions compared with stacked passes; seeds, batches, modes, threads, mixtures."""

from __future__ import annotations

import math
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.base.errors import UserError
from pocketbayes.inference.prediction import run_passes
from pocketbayes.propagation import Ask

FIELDS = ("mean", "std", "entropy", "epistemic", "aleatoric", "probs")


def classifier(propagation: str = "sample", seed: int = 0) -> pb.Network:
    torch.manual_seed(seed)
    net = pb.bayesianize(tiny_model(), pb.MeanFieldVI(std_init=0.3))
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical()
    net.propagation = propagation
    return net


def regressor(noise: Any, outputs: int = 2) -> pb.Network:
    net = pb.bayesianize(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs)), pb.MeanFieldVI(std_init=0.3))
    assert isinstance(net, pb.Network)
    net.likelihood = pb.GaussianNoise(noise)
    return net


def recorded(net: pb.Network | pb.Mixture, x: Tensor, **settings: Any) -> tuple[pb.Prediction, Tensor]:
    """Return the prediction and all its passes."""
    outputs: list[Tensor] = []
    networks = list(net) if isinstance(net, pb.Mixture) else [net]
    handles = [network.register_forward_hook(lambda *call: outputs.append(call[2].double())) for network in networks]
    prediction = pb.predict(net, x, **settings)
    for handle in handles:
        handle.remove()
    return prediction, torch.stack(outputs)


def assert_same(one: pb.Prediction, two: pb.Prediction) -> None:
    for name in FIELDS:
        a, b = getattr(one, name), getattr(two, name)
        assert (a is None and b is None) or torch.equal(a, b), name


def assert_classes(prediction: pb.Prediction, logits: Tensor) -> None:
    """Check a prediction against the definitions, on passes (s, n, classes, ...)."""
    probs = logits.softmax(2)
    mean = probs.mean(0)
    total = -(mean * mean.log()).sum(1)
    expected = -(probs * probs.log()).sum(2).mean(0)
    assert prediction.probs is not None
    for found, value in (
        (prediction.probs, mean),
        (prediction.mean, mean),
        (prediction.std, probs.std(0, unbiased=False)),
        (prediction.entropy, total),
        (prediction.aleatoric, expected),
        (prediction.epistemic, total - expected),
    ):
        torch.testing.assert_close(found.double(), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("propagation", ["sample", "local", "flipout"])
def test_predict_summarises_all_passes_of_a_classifier(propagation: str) -> None:
    prediction, logits = recorded(classifier(), tiny_data(10)[0], samples=7, propagation=propagation)
    assert logits.shape == (7, 10, 3)
    assert_classes(prediction, logits)


def test_predict_summarises_classes_per_pixel() -> None:
    net = pb.bayesianize(nn.Conv2d(1, 4, 3), pb.MeanFieldVI(std_init=0.5))
    prediction, logits = recorded(net, torch.randn(3, 1, 6, 5), samples=6)
    assert logits.shape == (6, 3, 4, 4, 3)
    assert prediction.entropy.shape == (3, 4, 3)
    assert_classes(prediction, logits)


def test_predict_extreme_logits_give_finite_uncertainty() -> None:
    net = classifier()
    net.posterior.mean.data.mul_(1e4)
    prediction = pb.predict(net, tiny_data(10)[0], samples=5)
    assert all(bool(getattr(prediction, name).isfinite().all()) for name in FIELDS)
    assert bool((prediction.epistemic >= 0).all())


@pytest.mark.parametrize("noise", [0.4, "learned", "predicted"])
def test_predict_summarises_all_passes_of_a_regression(noise: Any) -> None:
    net = regressor(noise)
    prediction, outputs = recorded(net, torch.randn(9, 3), samples=7)
    mean, noise_std = net.likelihood.moments(outputs)
    mean, noise_std = mean.detach(), noise_std.detach().double()
    assert prediction.probs is None
    assert prediction.mean.shape == (9, 1 if noise == "predicted" else 2)
    epistemic, aleatoric = mean.var(0, unbiased=False), noise_std.square().mean(0)
    std = (epistemic + aleatoric).sqrt()
    for found, value in (
        (prediction.mean, mean.mean(0)),
        (prediction.epistemic, epistemic.sqrt()),
        (prediction.aleatoric, aleatoric.sqrt()),
        (prediction.std, std),
        (prediction.entropy, D.Normal(0.0, std).entropy()),
    ):
        torch.testing.assert_close(found.detach().double(), value, rtol=1e-5, atol=1e-6)


def test_predict_log_density_is_that_of_the_mixture_of_passes() -> None:
    net, x, y = regressor(0.4), torch.randn(9, 3), torch.randn(9, 2)
    _, outputs = recorded(net, x, samples=5)
    passes = run_passes(net, x, Ask(samples=5), target=y)
    expected = torch.logsumexp(D.Normal(outputs, 0.4).log_prob(y.double()), 0)
    torch.testing.assert_close(passes.log_density.double(), expected, rtol=1e-5, atol=1e-5)
    found = pb.evaluate(net, (x, y), samples=5)["log_likelihood_samples"]
    assert found == pytest.approx(float((expected - math.log(5)).mean()), rel=1e-4)


def test_predict_keeps_a_small_variance_beside_a_large_mean() -> None:
    """Sums of squares in float32 would lose it."""
    net = pb.bayesianize(nn.Linear(1, 1), pb.MeanFieldVI())
    net.posterior = pb.posteriors.MeanField(net.layout, torch.zeros(1), torch.tensor([1e-2]))
    net.model.bias.data.fill_(1e4)
    net.likelihood = pb.GaussianNoise(1e-3)
    prediction = pb.predict(net, torch.ones(1, 1), samples=400)
    assert float(prediction.epistemic) == pytest.approx(1e-2, rel=0.2)


def test_predict_depends_on_the_seed_alone() -> None:
    net, x = classifier(), tiny_data(10)[0]
    one = pb.predict(net, x, 4, seed=3)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert_same(one, pb.predict(net, x, 4, seed=3))
    assert torch.equal(before, torch.get_rng_state())
    other = pb.predict(net, x, 4, seed=4)
    assert float((one.mean - other.mean).abs().max()) > 1e-3


def test_predict_passes_differ_within_and_between_seeds() -> None:
    net, x = classifier(), tiny_data(4)[0]
    passes = torch.cat([recorded(net, x, samples=10, seed=seed)[1] for seed in range(3)]).flatten(1)
    distances = torch.cdist(passes, passes) + torch.eye(30) * 1e3
    assert float(distances.min()) > 1e-3


@pytest.mark.parametrize("batch_size", [1, 3, 10, 100])
def test_predict_is_independent_of_the_batch_size(batch_size: int) -> None:
    net, x = classifier(), tiny_data(10)[0]
    whole, parts = pb.predict(net, x, 5), pb.predict(net, x, 5, batch_size=batch_size)
    for name in FIELDS:
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), rtol=1e-4, atol=1e-5)


def test_predict_leaves_the_network_unchanged() -> None:
    net = classifier("local").train()
    net.model.norm.eval()
    buffers = [buffer.clone() for buffer in net.buffers()]
    pb.predict(net, tiny_data(10)[0], 3)
    assert net.training
    assert net.model.training
    assert not net.model.norm.training
    assert net.propagation == "local"
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), buffers))
    assert all(p.grad is None for p in net.parameters())
    with pytest.raises(RuntimeError):
        pb.predict(net, torch.randn(2, 1, 9, 9), 3)
    assert net.model.training
    assert not net.model.norm.training
    assert net.propagation == "local"


def test_predict_runs_in_evaluation_mode() -> None:
    class Mode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            assert not torch.is_grad_enabled()
            return self.layer(x)

    net = pb.bayesianize(Mode(), pb.MeanFieldVI()).train()
    assert pb.predict(net, torch.randn(3, 2), 2).mean.shape == (3, 2)


def test_predict_in_eight_threads_equals_one() -> None:
    net, x = classifier(), tiny_data(10)[0]
    jobs = [(seed, how) for seed in range(8) for how in ("sample", "local", "mean")]
    serial = [pb.predict(net, x, 4, how, seed=seed) for seed, how in jobs]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(lambda job: pb.predict(net, x, 4, job[1], seed=job[0], batch_size=256), jobs))
    for one, two in zip(serial, threaded):
        assert_same(one, two)
    assert torch.equal(state, torch.get_rng_state())
    assert net.propagation == "sample"


def test_predict_takes_one_pass_without_randomness() -> None:
    x = tiny_data(10)[0]
    prediction, outputs = recorded(classifier(), x, samples=30, propagation="mean")
    assert len(outputs) == 1
    assert float(prediction.std.max()) == 0
    assert float(prediction.epistemic.max()) == 0
    _, outputs = recorded(pb.bayesianize(tiny_model(), pb.Deterministic()), x, samples=30)
    assert len(outputs) == 1


@pytest.mark.parametrize(("trained", "used"), [("local", "sample"), ("flipout", "sample"), ("mean", "mean")])
def test_predict_samples_weights_after_local_training(trained: str, used: str) -> None:
    net, x = classifier(trained), tiny_data(10)[0]
    assert_same(pb.predict(net, x, 3), pb.predict(net, x, 3, used))


def test_predict_divides_the_passes_of_a_mixture() -> None:
    nets = [classifier(seed=seed) for seed in range(3)]
    x = tiny_data(10)[0]
    for samples, passes in ((1, 3), (3, 3), (4, 6), (6, 6)):
        prediction, logits = recorded(pb.Mixture(nets), x, samples=samples)
        assert len(logits) == passes
        assert_classes(prediction, logits)


def test_predict_weighs_members_of_a_mixture_equally() -> None:
    """A deterministic member runs once but has the same weight as the others."""
    random, fixed = classifier(seed=1), classifier("mean", seed=2)
    x = tiny_data(10)[0]
    prediction, logits = recorded(pb.Mixture([fixed, random]), x, samples=8)
    assert len(logits) == 5
    assert_classes(prediction, torch.cat([logits[:1].expand(4, *logits.shape[1:]), logits[1:]]))
    _, logits = recorded(pb.Mixture([fixed, classifier("mean", seed=3)]), x, samples=8)
    assert len(logits) == 2


def test_predict_does_not_keep_passes() -> None:
    """Memory does not grow with samples: at most two outputs exist at a time."""
    net, alive, most = classifier(), [], 0

    def watch(module: nn.Module, args: object, output: Tensor) -> None:
        nonlocal most
        alive.append(weakref.ref(output))
        most = max(most, sum(ref() is not None for ref in alive))

    net.register_forward_hook(watch)
    pb.predict(net, tiny_data(10)[0], 50, batch_size=5)
    assert len(alive) == 100
    assert most <= 2


def test_predict_reads_arrays_of_other_types() -> None:
    net, x = classifier(), tiny_data(10)[0]
    expected = pb.predict(net, x, 3)
    assert_same(expected, pb.predict(net, x.double().numpy(), 3))
    assert_same(expected, pb.predict(net, x.double(), 3))
    tokens = pb.bayesianize(nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3)), pb.MeanFieldVI())
    assert pb.predict(tokens, torch.randint(5, (6, 2)), 2).mean.shape == (6, 3)
    bare = pb.bayesianize(nn.Linear(2, 2, bias=False).double(), pb.MeanFieldVI())
    assert pb.predict(bare, torch.randn(3, 2), 2).mean.shape == (3, 2)


def test_predict_names_mistakes() -> None:
    net, x = classifier(), tiny_data(10)[0]
    with pytest.raises(UserError, match="x is empty"):
        pb.predict(net, x[:0])
    with pytest.raises(UserError, match="samples must be at least 1, not 0"):
        pb.predict(net, x, 0)
    with pytest.raises(UserError, match="unknown propagation 'locale'"):
        pb.predict(net, x, propagation="locale")
    with pytest.raises(UserError, match="predicts classes, but the targets"):
        pb.evaluate(net, (x, torch.randn(10)))
    with pytest.raises(UserError, match="predicts real numbers, but the targets"):
        pb.evaluate(regressor(0.1), (torch.randn(4, 3), torch.arange(4)))


def test_predict_names_a_model_whose_output_is_not_a_tensor() -> None:
    net = pb.bayesianize(nn.LSTM(4, 3, batch_first=True), "bbb")
    with pytest.raises(pb.UserError, match="the model returns a tuple, not a tensor: wrap it"):
        pb.predict(net, torch.zeros(2, 5, 4))


def test_predict_refuses_one_input_without_a_batch() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    net = pb.fit("map", nn.Linear(3, 2), (x, y), epochs=1, progress=False)
    with pytest.raises(pb.UserError, match=r"one input \(3,\), not a batch \(n, ...\): give x\[None\]"):
        pb.predict(net, x[0])
    assert pb.predict(net, x[:1]).mean.shape == (1, 2)


def test_predict_compares_wrong_inputs_with_training_data() -> None:
    data = torch.randn(20, 6), torch.arange(20) % 3
    net = pb.fit(pb.MeanFieldVI(), nn.Linear(6, 3), data, epochs=1, progress=False)
    with pytest.raises(pb.UserError, match=r"inputs \(2, 7\).*trained on \(6,\)"):
        pb.predict(net, torch.randn(2, 7))
    with pytest.raises(pb.UserError, match=r"torch.uint8.*real numbers"):
        pb.predict(net, torch.ones(2, 6, dtype=torch.uint8))


def test_evaluate_takes_labels_of_any_integer_type() -> None:
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    start = nn.Linear(4, 3)
    net, expected = (pb.fit(pb.MeanFieldVI(), start, (x, own), epochs=1, progress=False) for own in (y.int(), y))
    assert_same(pb.predict(net, x), pb.predict(expected, x))
    with pytest.warns(UserWarning, match=r"one-hot targets.*argmax"):
        pb.fit(pb.MeanFieldVI(), nn.Linear(4, 3), (x, torch.eye(3)[y]), epochs=1, progress=False)
    with pytest.raises(pb.UserError, match=r"for classes give integers"):
        pb.fit(pb.MeanFieldVI(), nn.Linear(4, 3), (x, y.float()), epochs=1, progress=False)


@pytest.mark.parametrize("pixels", [False, True])
def test_predict_reports_answers_that_are_not_finite(pixels: bool) -> None:
    model = torch.nn.Conv2d(3, 2, 1) if pixels else torch.nn.Linear(3, 2)
    net = pb.bayesianize(model, pb.MeanFieldVI())
    x = torch.zeros(5, 3, 2, 2) if pixels else torch.zeros(5, 3)
    x[3] = torch.nan
    with pytest.warns(UserWarning, match=r"1 of 5 inputs are not finite, first for x\[3\]: its input"):
        answer = pb.predict(net, x, samples=2)
    assert answer.entropy[:3].isfinite().all()
    with torch.no_grad():
        net.posterior.mean.fill_(torch.inf)
    with pytest.warns(UserWarning, match="weights"):
        pb.predict(net, torch.ones_like(x), samples=2)


def test_predict_names_a_wrong_network_or_input(tmp_path: Path) -> None:
    net = pb.bayesianize(torch.nn.Linear(3, 2), pb.MeanFieldVI())
    x = torch.zeros(4, 3)
    for wrong in (lambda: pb.predict(torch.nn.Linear(3, 2), x), lambda: pb.predict(x, net)):  # type: ignore[arg-type]
        with pytest.raises(pb.UserError, match=r"expected a Network, not a (Linear|Tensor)"):
            wrong()
    with pytest.raises(pb.UserError, match="read_inputs"):
        pb.predict(net, "cat.png")
    with pytest.raises(pb.UserError, match="expected a Network"):
        pb.save(torch.nn.Linear(3, 2), tmp_path / "x.pocket")  # type: ignore[arg-type]
