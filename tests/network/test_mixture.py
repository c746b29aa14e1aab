"""Mixtures: weighted predictions against brute force, files, and errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.files import pocket
from pocketbayes.network import Mixture

WEIGHTS = (0.5, 0.3, 0.2)


def trained(method: pb.Method | str, seed: int, **settings: Any) -> pb.Network:
    torch.manual_seed(seed)
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=1, batch_size=16, seed=seed, progress=False, **settings)
    assert isinstance(net, pb.Network)
    return net


def entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.log()).sum(-1)


def test_mixture_of_points_weighs_probabilities() -> None:
    networks = [trained("map", seed) for seed in range(3)]
    x = tiny_data()[0]
    found = pb.predict(Mixture(networks, WEIGHTS), x)
    each = torch.stack([pb.predict(network, x).probs for network in networks])
    share = torch.tensor(WEIGHTS)[:, None, None]
    probs = (share * each).sum(0)
    aleatoric = (share[..., 0] * entropy(each)).sum(0)
    torch.testing.assert_close(found.probs, probs)
    torch.testing.assert_close(found.std, (share * (each - probs).square()).sum(0).sqrt())
    torch.testing.assert_close(found.aleatoric, aleatoric)
    torch.testing.assert_close(found.epistemic, entropy(probs) - aleatoric, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("propagation", ["sample", "moments", "linear"])
def test_mixture_of_posteriors_is_the_sum_of_its_members(propagation: str) -> None:
    """Uses the law of total variance, and entropies of the members' predictions."""
    networks = [trained(pb.MeanFieldVI(std_init=0.2), seed) for seed in range(3)]
    x = tiny_data()[0]
    settings: dict[str, Any] = {"propagation": propagation, "readout": "probit"}
    found = pb.predict(Mixture(networks, WEIGHTS), x, 3 * 200, **settings)
    each = [pb.predict(network, x, 200, seed=number, **settings) for number, network in enumerate(networks)]
    share = torch.tensor(WEIGHTS)
    probs = torch.einsum("k,knc->nc", share, torch.stack([one.probs for one in each]))
    within = torch.stack([one.std.square() + (one.probs - probs).square() for one in each])
    loose = {"rtol": 0.1, "atol": 0.02} if propagation == "sample" else {}
    torch.testing.assert_close(found.probs, probs, **loose)
    torch.testing.assert_close(found.std, torch.einsum("k,knc->nc", share, within).sqrt(), **loose)
    torch.testing.assert_close(
        found.aleatoric, torch.einsum("k,kn->n", share, torch.stack([one.aleatoric for one in each])), **loose
    )
    torch.testing.assert_close(found.entropy, found.aleatoric + found.epistemic)


def test_mixture_of_point_and_gaussian_members_keeps_shares() -> None:
    """A deterministic member has one pass and a posterior thirty; their weights stay the same."""
    point, gaussian = trained("map", 0), trained(pb.VDP(), 1)
    x = tiny_data()[0]
    found = pb.predict(Mixture([point, gaussian]), x, readout="probit")
    one, two = pb.predict(point, x), pb.predict(gaussian, x, readout="probit")
    torch.testing.assert_close(found.probs, (one.probs + two.probs) / 2)
    spread = (two.std.square() + (one.probs - found.probs).square() + (two.probs - found.probs).square()) / 2
    torch.testing.assert_close(found.std, spread.sqrt())
    mixed = pb.predict(Mixture([point, trained(pb.MeanFieldVI(std_init=1e-4), 0)]), x, 40)
    assert mixed.probs is not None


def test_mixture_of_regressions_uses_each_members_noise() -> None:
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    networks = []
    for noise in (0.3, 1.0, 2.0):
        net = pb.bayesianize(nn.Linear(4, 1), "map")
        net.likelihood = pb.GaussianNoise(noise)
        networks.append(net)
    mixture = Mixture(networks, WEIGHTS)
    found = pb.predict(mixture, x)
    means = torch.stack([pb.predict(network, x).mean for network in networks])
    share, noises = torch.tensor(WEIGHTS)[:, None, None], torch.tensor([0.3, 1.0, 2.0])[:, None, None]
    mean = (share * means).sum(0)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.aleatoric.square(), (share * noises.square()).sum(0).expand_as(mean))
    torch.testing.assert_close(found.epistemic.square(), (share * (means - mean).square()).sum(0))
    density = (share * torch.distributions.Normal(means, noises).log_prob(y).exp()).sum(0)
    measures = pb.evaluate(mixture, (x, y))
    assert measures["log_likelihood_samples"] == pytest.approx(float(density.log().mean()), rel=1e-5)


def test_mixture_weights_survive_a_file(tmp_path: Path) -> None:
    networks = [trained("map", seed) for seed in range(3)]
    net, x = Mixture(networks, WEIGHTS), tiny_data()[0]
    pb.save(net, tmp_path / "a.pocket")
    again = pb.load(tmp_path / "a.pocket", tiny_model())
    assert isinstance(again, Mixture)
    assert again.weights == WEIGHTS
    assert torch.equal(pb.predict(again, x).probs, pb.predict(net, x).probs)


def test_mixture_of_two_architectures_loads_with_a_model_each(tmp_path: Path) -> None:
    x, y = tiny_data()
    wide = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 9), nn.ReLU(), nn.Linear(9, int(y.max()) + 1))
    net = Mixture([trained("map", 0), pb.bayesianize(wide, "map")])
    pb.save(net, tmp_path / "a.pocket")
    again = pb.load(tmp_path / "a.pocket", [tiny_model(), wide])
    assert torch.equal(pb.predict(again, x).probs, pb.predict(net, x).probs)
    with pytest.raises(pb.UserError, match="3 models for 2 networks"):
        pb.load(tmp_path / "a.pocket", [wide] * 3)


def test_mixture_with_a_zero_weight_does_not_ask_that_member() -> None:
    networks = [trained("map", seed) for seed in range(2)]
    x = tiny_data()[0]
    torch.testing.assert_close(pb.predict(Mixture(networks, [1, 0]), x).probs, pb.predict(networks[0], x).probs)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5, 0.4], "sum to 1, not to 0.9"),
        ([1.0], "1 weights for 2"),
        ([1.5, -0.5], "not negative"),
        ([math.nan, 1.0], "finite"),
    ],
)
def test_mixture_refuses_wrong_weights(weights: list[float], message: str) -> None:
    net = pb.bayesianize(tiny_model(), "map")
    with pytest.raises(pb.UserError, match=message):
        Mixture([net, net], weights)


def test_onnx_of_a_weighted_mixture_agrees(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    networks = [trained("map", seed) for seed in range(3)]
    net, x = Mixture(networks, WEIGHTS), tiny_data()[0]
    pb.export_onnx(net, tmp_path / "a.onnx", mode="mean", example=x)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    probs = session.run(["probs"], {"x": x.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(probs), pb.predict(net, x).probs, rtol=1e-4, atol=1e-6)


def test_mixture_file_names_its_damaged_member(tmp_path: Path) -> None:
    path = tmp_path / "a.pocket"
    nets = [pb.bayesianize(pb.models.build("mlp", in_features=64, out_features=10, hidden=[32]), "map") for _ in "abc"]
    net = Mixture(nets, WEIGHTS)
    pb.save(net, path)
    places = pocket.sizes(path)
    whole, start = bytearray(path.read_bytes()), 0
    for name, size in places.items():
        if name.startswith("1."):
            break
        start += size
    whole[start + 5] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(pb.UserError, match=r"damaged in member 2 of 3.*skip_damaged=True"):
        pb.load(path)
    with pytest.warns(UserWarning, match="damaged in member 2 of 3: using the others"):
        rest = pb.load(path, skip_damaged=True)
    assert isinstance(rest, Mixture)
    assert rest.weights == pytest.approx((0.5 / 0.7, 0.2 / 0.7))
    x = torch.randn(3, 64)
    torch.testing.assert_close(
        pb.predict(rest, x).probs, pb.predict(Mixture([nets[0], nets[2]], rest.weights), x).probs
    )
    whole[-3] ^= 0xFF  # the last member too
    path.write_bytes(whole)
    with pytest.warns(UserWarning, match="member 2 and 3"):
        assert len(pb.load(path, skip_damaged=True)) == 1


def test_predict_holds_one_decoded_member_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [pb.bayesianize(nn.Linear(4, 3), pb.MeanFieldVI()) for _ in "abc"]
    net, x = Mixture(nets), torch.randn(6, 4)
    counts: list[int] = []
    original = type(nets[0].posterior).moments

    def counting(posterior: Any) -> Any:
        counts.append(sum(bool(own.posterior._held) for own in nets))
        return original(posterior)

    monkeypatch.setattr(type(nets[0].posterior), "moments", counting)
    small = pb.predict(net, x, 6, batch_size=2)
    decoded, most = len(counts), max(counts)
    counts.clear()
    large = pb.predict(net, x, 6, batch_size=2, low_memory=False)
    torch.testing.assert_close(small.probs, large.probs)
    assert most == 0  # nothing of another member is held while one is decoded
    assert max(counts) == 2
    assert len(counts) < decoded
