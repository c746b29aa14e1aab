"""The contract of methods, checked for each row of the case table."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from cases import CASES, Case, tiny_data, tiny_model, untrained
from pocketbayes.network import members
from pocketbayes.training import checkpoint

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def fitted(case: Case, **settings: object) -> pb.network.Net:
    return pb.fit(case.make(), tiny_model(), tiny_data(), epochs=2, batch_size=16, lr=1e-2, progress=False, **settings)


def test_every_registered_method_has_a_case() -> None:
    assert {case.name for case in CASES} == set(pb.methods())


@each_case
def test_convert_leaves_the_callers_model_unchanged(case: Case) -> None:
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    pb.fit(case.make(), model, tiny_data(), epochs=1, batch_size=16, progress=False)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@each_case
def test_convert_leaves_a_given_network_unchanged(case: Case) -> None:
    if case.name == "ensemble":
        pytest.skip("its members start afresh")
    given = pb.fit(pb.Deterministic(), tiny_model(), tiny_data(), epochs=1, batch_size=16, progress=False)
    given.info = pb.data.Info("mine", "classification", 3, ("a", "b", "c"), tuple(tiny_data()[0].shape[1:]))
    before, likelihood = copy.deepcopy(given.state_dict()), given.likelihood
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tiny_data()), batch_size=16)
    net = pb.fit(case.make(), given, loader, epochs=1, likelihood=pb.Categorical(), progress=False)
    assert all(torch.equal(given.state_dict()[name], before[name]) for name in before)
    assert given.likelihood is likelihood
    assert all(network.info == given.info for network in members(net))
    assert all(network.method == case.name for network in members(net))


@each_case
def test_moments_have_one_mean_and_std_per_weight(case: Case) -> None:
    for network in members(fitted(case)):
        mean, std = network.posterior.moments()
        assert mean.shape == std.shape == (network.layout.size,)
        assert bool((std >= 0).all())
        assert bool(mean.isfinite().all() and std.isfinite().all())


@each_case
def test_draws_have_the_moments(case: Case) -> None:
    if not case.exact_moments:
        pytest.skip("the storage says that its moments are marginal approximations")
    network = members(fitted(case))[0]
    with torch.no_grad():
        mean, std = network.posterior.moments()
        draws = torch.stack([network.posterior.sample() for _ in range(4000)])
    error = (draws.mean(0) - mean).abs()
    assert bool((error <= 6 * std / 4000**0.5 + 1e-6).all())
    torch.testing.assert_close(draws.std(0), std, rtol=0.1, atol=1e-6)


@each_case
def test_draw_is_a_function_of_its_noise(case: Case) -> None:
    network = members(fitted(case))[0]
    noise = torch.randn(network.posterior.noise_size)
    assert torch.equal(network.posterior.sample(noise), network.posterior.sample(noise))


@each_case
def test_draws_in_a_batch_equal_single_draws(case: Case) -> None:
    """For all weights, and for one layer."""
    network = members(fitted(case))[0]
    posterior, slot = network.posterior, network.layout.slots[-1]
    noise = torch.randn(3, posterior.noise_size)
    each = torch.stack([posterior.sample(row) for row in noise])
    torch.testing.assert_close(posterior.draws(noise), each)
    torch.testing.assert_close(posterior.draws(noise, slot.start, slot.stop), each[:, slot.start : slot.stop])


@each_case
def test_fit_lowers_the_loss(case: Case, learning_seed: int) -> None:
    model, data = tiny_model(learning_seed), tiny_data(seed=learning_seed)
    settings = {"batch_size": 16, "lr": 1e-2, "progress": False, "seed": learning_seed}
    net = pb.fit(case.make(), model, data, epochs=5, **settings)
    start = untrained(case, learning_seed)
    for network in members(start):
        network.likelihood = pb.Categorical()
    assert pb.evaluate(net, data)["nll"] < pb.evaluate(start, data)["nll"]


@each_case
def test_kl_is_finite_and_zero_only_for_points(case: Case) -> None:
    net = fitted(case)
    kl = pb.kl(net).detach()
    assert kl.shape == ()
    assert bool(kl.isfinite())
    if float(kl) == 0 and case.has_kl:
        assert all(bool((network.posterior.moments()[1] == 0).all()) for network in members(net))


@each_case
def test_save_and_load_predict_bit_for_bit(case: Case, tmp_path: Path) -> None:
    net = fitted(case)
    x = tiny_data()[0]
    size = pb.save(net, tmp_path / "net.pocket")
    assert size == (tmp_path / "net.pocket").stat().st_size
    again = pb.load(tmp_path / "net.pocket", tiny_model())
    for field in ("probs", "entropy", "epistemic", "aleatoric", "mean", "std"):
        assert torch.equal(getattr(pb.predict(net, x, 4), field), getattr(pb.predict(again, x, 4), field)), field


@each_case
def test_predict_is_independent_of_the_batch_size(case: Case) -> None:
    net = fitted(case)
    x = tiny_data()[0]
    whole, parts = pb.predict(net, x, 4), pb.predict(net, x, 4, batch_size=7)
    torch.testing.assert_close(whole.probs, parts.probs)


@each_case
def test_predict_uncertainty_adds_up(case: Case) -> None:
    prediction = pb.predict(fitted(case), tiny_data()[0], 8)
    assert prediction.probs is not None
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(48))
    torch.testing.assert_close(prediction.aleatoric + prediction.epistemic, prediction.entropy, atol=1e-5, rtol=1e-4)


@each_case
def test_census_counts_every_value(case: Case) -> None:
    net = fitted(case)
    census = pb.census(net)
    weights = sum(network.layout.size for network in members(net))
    assert census.weights == weights
    assert census.points == len(members(net)) * (3 + 3 * 4 + 1 + 3)  # biases, batch norm and its statistics, head bias
    assert census.memory_bytes >= sum(p.numel() * p.element_size() for p in net.parameters())
    assert 0 <= census.random <= weights


@each_case
def test_deepcopy_answers_the_same(case: Case) -> None:
    net = fitted(case)
    x = tiny_data()[0]
    assert torch.equal(pb.predict(net, x, 3).mean, pb.predict(copy.deepcopy(net), x, 3).mean)


@each_case
def test_fit_with_the_same_seed_gives_the_same_network(case: Case) -> None:
    one, two = fitted(case, seed=3).state_dict(), fitted(case, seed=3).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@each_case
@pytest.mark.parametrize("when", ["early", "late"])
def test_fit_resumes_an_interrupted_run_bit_for_bit(
    case: Case, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the run right after a checkpoint, in the first or last stage, and resumes from the file."""
    settings = {"checkpoint_steps": 2, "seed": 5}
    write, count, stop = checkpoint.write, 0, -1

    class StoppedError(Exception):
        pass

    def write_and_count(*args: object) -> None:
        nonlocal count
        write(*args)
        count += 1
        if count == stop:
            raise StoppedError

    monkeypatch.setattr(checkpoint, "write", write_and_count)
    whole = fitted(case, out=tmp_path / "whole", **settings)
    count, stop = 0, 3 if when == "early" else count - 1
    with pytest.raises(StoppedError):
        fitted(case, out=tmp_path / "parts", **settings)
    resumed = fitted(case, out=tmp_path / "parts", resume=True, **settings)
    one, two = whole.state_dict(), resumed.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", "parts")]
    assert lines[0] == lines[1]


@each_case
def test_projected_gradient_has_the_variance_of_draws(case: Case) -> None:
    """Compares with g . w over draws of w, for shared and correlated draws too."""
    network = members(fitted(case))[0]
    gradient = torch.randn(3, network.layout.size)
    with torch.no_grad():
        var = network.posterior.project(gradient).square().sum(1)
        draws = torch.stack([network.posterior.sample() for _ in range(4000)]) @ gradient.T
    torch.testing.assert_close(var, draws.var(0), rtol=0.15, atol=1e-9)


@each_case
@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "flipout", "moments", "moments-exact"])
def test_propagations_all_reach_the_means(case: Case, propagation: str) -> None:
    network = members(untrained(case))[0]
    x = tiny_data()[0]
    with network.using(propagation):
        output = network(x)
    assert output.shape == (48, 3)
    if not case.trainable:
        return
    output = output.loc + output.variance if isinstance(output, pb.Gaussian) else output
    output.square().sum().backward()
    reached = [p.grad for p in network.posterior.parameters() if p.grad is not None]
    assert any(float(grad.abs().sum()) > 0 for grad in reached)


@each_case
@pytest.mark.parametrize("propagation", ["moments", "linear"])
def test_predict_works_without_sampling(case: Case, propagation: str) -> None:
    net = fitted(case)
    x, y = tiny_data()
    prediction = pb.predict(net, x, propagation=propagation)
    assert prediction.probs is not None
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(48))
    torch.testing.assert_close(prediction.aleatoric + prediction.epistemic, prediction.entropy, atol=1e-5, rtol=1e-4)
    random = any(bool((network.posterior.moments()[1] > 0).any()) for network in members(net))
    assert bool((prediction.std > 0).any()) == (random or len(members(net)) > 1)
    assert pb.evaluate(net, (x, y), propagation=propagation)["nll"] < 2
