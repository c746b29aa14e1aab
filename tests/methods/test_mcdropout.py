"""Monte Carlo dropout: exact moments, masks, and dropout as local propagation."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.network import Network
from pocketbayes.posteriors.dropped import Dropped, input_units


def dropped(model: nn.Module, rate: float = 0.3, **settings: object) -> Network:
    net = pb.bayesianize(model, pb.MCDropout(rate=rate, **settings))
    assert isinstance(net, Network)
    return net


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_mcdropout_moments_are_those_of_all_masks() -> None:
    """Every mask of the four hidden units, weighted by its probability."""
    rate, posterior = 0.3, dropped(two_layers().double()).posterior
    assert posterior.noise_size == 4
    mean, second = 0.0, 0.0
    with torch.no_grad():
        for kept in itertools.product((0, 1), repeat=4):
            probability = torch.tensor([1 - rate if k else rate for k in kept]).double().prod()
            draw = posterior.sample(torch.tensor([5.0 if k else -5.0 for k in kept]).double())
            mean, second = mean + probability * draw, second + probability * draw.square()
        expected_mean, expected_std = posterior.moments()
    torch.testing.assert_close(mean, expected_mean)
    torch.testing.assert_close((second - mean.square()).clamp(min=0).sqrt(), expected_std, atol=1e-7, rtol=1e-5)
    assert float(expected_std[:12].max()) == 0  # the first layer
    torch.testing.assert_close(expected_std[12:], expected_mean[12:].abs() * (rate / (1 - rate)) ** 0.5)


def test_mcdropout_keeps_units_with_the_given_probability() -> None:
    posterior = dropped(two_layers(), rate=0.2).posterior
    with torch.no_grad():
        kept = torch.stack([posterior.sample()[12:16] != 0 for _ in range(4000)]).float().mean()
    assert abs(float(kept) - 0.8) < 4 * (0.16 / 16000) ** 0.5


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "tokens": (lambda: nn.Linear(6, 4), (5, 3, 6)),
    "conv": (lambda: nn.Conv2d(6, 4, 3), (5, 6, 7, 7)),
    "groups": (lambda: nn.Conv2d(6, 4, 3, groups=2), (5, 6, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(6, 12, 3, groups=6), (5, 6, 7, 7)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3), (5, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3), (5, 6, 7, 7)),
    "transposed groups": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (5, 6, 7, 7)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_mcdropout_draw_drops_the_layers_inputs(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    model = nn.ModuleList([nn.Linear(2, 2), layer])
    layout = pb.Layout.of(model)
    posterior = Dropped(layout, layout.read(model), 0.3, input_units(model, layout))
    assert posterior.noise_size == 6
    noise, x = torch.randn(6), torch.randn(shape)
    noise[0], noise[1] = -3.0, 3.0
    weight = layout.views(posterior.sample(noise))[1]
    mask = (noise > torch.special.ndtri(torch.tensor(0.3))).float() / 0.7
    axis = -1 if isinstance(layer, nn.Linear) else 1
    masked = x * mask.view([6 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    with torch.no_grad():
        expected = layer(masked)
        actual = torch.func.functional_call(layer, {"weight": weight}, x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_mcdropout_local_drops_inputs_per_example(name: str) -> None:
    """Mean and std of every output over many examples with the same input, against the exact ones of one mask."""
    make, shape = LAYERS[name]
    layer = make()
    net = dropped(nn.Sequential(Before(), layer))
    examples, rate = 20000, 0.3
    x = torch.randn(shape[1:])
    with torch.no_grad():
        draws = net(x.expand(examples, *shape[1:]))
        mean, nothing = layer(x[None])[0], layer(torch.zeros_like(x)[None])[0]
        var = torch.zeros_like(mean)
        for unit in range(6):
            alone, index = torch.zeros_like(x), (..., unit) if isinstance(layer, nn.Linear) else (unit,)
            alone[index] = x[index]
            var += (layer(alone[None])[0] - nothing).square() * rate / (1 - rate)
    assert float(((draws.mean(0) - mean).abs() / (var / examples).sqrt()).max()) < 5.5
    torch.testing.assert_close(draws.std(0), var.sqrt(), rtol=0.05, atol=1e-6)


class Before(nn.Module):
    """A model whose unused first layer is the one that is not dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * self.layer(x.new_zeros(1, 2)).sum()


def test_mcdropout_positions_share_their_examples_mask() -> None:
    net = dropped(nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 2, 1)), rate=0.5)
    with torch.no_grad():
        output = net(torch.ones(64, 1, 5, 5))
    assert float(output.flatten(2).std(2).max()) < 1e-6
    assert float(output[:, 0, 0, 0].std()) > 0.01


def test_mcdropout_rate_survives_zero_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].weight.data[:, 1:] = 0
    net = dropped(model, rate=0.5)
    with torch.no_grad():
        output = net(torch.ones(2000, 3))
    assert len(output[:, 0].unique()) == 2


def test_mcdropout_spares_input_layer_and_biases() -> None:
    units = [
        *input_units(model := two_layers(), pb.Layout.of(model, bayesian_bias=True)),
        *input_units(lstm := nn.ModuleList([nn.LSTM(3, 4), nn.Linear(4, 2)]), pb.Layout.of(lstm)),
    ]
    assert units == [(0, 0), (0, 0), (1, 4), (0, 0), (0, 0), (0, 0), (1, 4)]


def test_mcdropout_keeps_groups_of_weight_norm_convolutions() -> None:
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3, groups=2))
    model = nn.Sequential(nn.Conv2d(1, 4, 1), conv)
    assert input_units(model, pb.Layout.of(model)) == [(0, 0), (2, 2)]


def test_mcdropout_sample_and_local_have_one_distribution() -> None:
    net = dropped(two_layers(), rate=0.4)
    net.likelihood = pb.Categorical()
    x = torch.randn(4, 3)
    by_sample, by_local = (pb.predict(net, x, 2000, how) for how in ("sample", "local"))
    torch.testing.assert_close(by_sample.probs, by_local.probs, atol=0.02, rtol=0)
    torch.testing.assert_close(by_sample.std, by_local.std, atol=0.02, rtol=0)


def test_mcdropout_kl_is_zero() -> None:
    assert float(pb.kl(dropped(two_layers()))) == 0


def test_mcdropout_compiles_into_one_graph() -> None:
    net = dropped(two_layers())
    x = torch.randn(8, 3)
    net(x)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.manual_seed(1)
    one = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(one, net(x))


def test_mcdropout_names_mistakes() -> None:
    with pytest.raises(pb.UserError, match="dropout needs a second one"):
        pb.bayesianize(nn.Linear(3, 2), "mc-dropout")
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(pb.UserError, match="rate must lie between"):
            pb.MCDropout(rate=rate)
    with pytest.raises(pb.UserError, match="antithetic"):
        pb.MCDropout(antithetic=True, train_samples=2)
