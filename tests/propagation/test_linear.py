"""The delta method: per-example gradients, variances, and readouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.shared import Shared
from pocketbayes.propagation.linear import delta as linear
from pocketbayes.propagation.linear.gradients import looped_gradient
from pocketbayes.propagation.linear.taps import make_plan
from pocketbayes.propagation.readout import read_out


def network_of(model: nn.Module, std: float = 0.02, **settings: Any) -> pb.Network:
    net = pb.bayesianize(model, pb.MeanFieldVI(std_init=std, **settings))
    with torch.no_grad():
        net.posterior.rho.add_(0.3 * torch.randn_like(net.posterior.rho))
    return net


def expected_variance(net: pb.Network, x: Tensor, direction: Tensor) -> Tensor:
    gradient = looped_gradient(net.model, net.posterior, x, direction)
    return (gradient * net.posterior.moments()[1]).square().sum(1).detach()


def plan_of(net: pb.Network, x: Tensor) -> Any:
    return make_plan(net.model, net.layout, net.posterior.weight_means(), net.posterior.random_slots(), x)


class SequenceFirst(nn.Module):
    """Attention that works on (tokens, batch, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.transpose(0, 1)
        return self.head(self.attention(tokens, tokens, tokens)[0].mean(0))


class Windows(nn.Module):
    """A model with windows that are folded into the batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        windows = self.layer(x.reshape(-1, 3, 4)).tanh()
        return self.head(windows.view(len(x), -1, 4).mean(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class ChangesItsInput(nn.Module):
    """A model that changes a layer's input in place after use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        out = self.second(hidden)
        hidden.add_(1.0)
        return out


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "mlp": (lambda: pb.models.build("mlp", in_features=6, out_features=3, hidden=(5,)), (4, 6), True),
    "lenet5": (lambda: pb.models.build("lenet5"), (3, 1, 28, 28), True),
    "resnet20": (lambda: pb.models.build("resnet20"), (3, 3, 16, 16), True),
    "vit": (lambda: pb.models.build("vit-ti", image_size=16, patch_size=8, depth=1, classes=3), (3, 3, 16, 16), True),
    "sequence first": (SequenceFirst, (3, 5, 4), True),
    "windows": (Windows, (3, 6, 4), True),
    "tied": (Tied, (3, 5), True),
    "strided, dilated, grouped": (
        lambda: convolutions(nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2), nn.Conv2d(6, 6, 3, groups=6)),
        (3, 4, 9, 9),
        True,
    ),
    "same padding": (
        lambda: convolutions(nn.Conv2d(2, 3, (5, 3), padding="same", dilation=(1, 2))),
        (3, 2, 5, 5),
        True,
    ),
    "view": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), View(), nn.Linear(27, 3)),
        (3, 2, 5, 5),
        True,
    ),
    "conv1d": (lambda: convolutions(nn.Conv1d(3, 4, 3, 2, padding=1)), (3, 3, 8), True),
    "conv3d": (lambda: convolutions(nn.Conv3d(1, 2, 2)), (3, 1, 3, 4, 3), True),
    "transposed": (lambda: convolutions(nn.ConvTranspose2d(2, 3, 2, 2)), (3, 2, 3, 3), True),
    "recurrent": (Recurrent, (3, 4, 3), False),
}


class View(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_linear_variance_agrees_with_single_gradients(name: str) -> None:
    make, shape, planned = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    model(x)
    net = network_of(model, bayesian_bias=True)
    assert (plan_of(net, x) is not None) == planned
    result = net.linear(x, "all")
    torch.testing.assert_close(result.mean, model(x).detach(), rtol=1e-4, atol=1e-5)
    for c in range(result.mean.shape[1]):
        direction = F.one_hot(torch.full((len(x),), c), result.mean.shape[1]).float()
        torch.testing.assert_close(result.variance[:, c], expected_variance(net, x, direction), rtol=1e-4, atol=1e-9)


def test_linear_computes_only_what_is_requested() -> None:
    net = network_of(pb.models.build("mlp", in_features=6, out_features=5, hidden=(7,)))
    x = torch.randn(9, 6)
    full, everything = net.linear(x, "covariance"), net.linear(x, "all")
    torch.testing.assert_close(full.covariance.diagonal(dim1=1, dim2=2), everything.variance)
    predicted, top = net.linear(x), net.linear(x, "top-3")
    torch.testing.assert_close(predicted.index, full.mean.argmax(1, keepdim=True))
    torch.testing.assert_close(predicted.variance, everything.variance.gather(1, predicted.index))
    torch.testing.assert_close(top.variance, everything.variance.gather(1, top.index))
    first, second = net.linear(x, "margin").index.T
    rows = torch.arange(9)
    cov = full.covariance
    expected = cov[rows, first, first] + cov[rows, second, second] - 2 * cov[rows, first, second]
    torch.testing.assert_close(net.linear(x, "margin").variance[:, 0], expected, rtol=1e-4, atol=1e-8)
    assert torch.equal(predicted.per_output(), predicted.variance.expand(9, 5))
    with pytest.raises(pb.UserError, match="classes must be"):
        net.linear(x, "best")


@pytest.mark.parametrize("limit", ["_MEMORY", "_ACTIVATIONS"])
def test_linear_is_independent_of_the_chunk_size(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    net = network_of(pb.models.build("lenet5"))
    x = torch.randn(5, 1, 28, 28)
    passes: list[int] = []
    net.model.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    for classes in ("top-2", "covariance"):
        whole = net.linear(x, classes)
        monkeypatch.setattr(linear, limit, 2 * net.layout.size if limit == "_MEMORY" else 1)
        passes.clear()
        parts = net.linear(x, classes)
        monkeypatch.undo()
        assert limit == "_MEMORY" or max(passes) == 1
        torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-4, atol=1e-9)


def test_linear_agrees_with_samples_at_small_noise() -> None:
    """A convolution's positions share their weights, which moments ignore."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net = network_of(model)
    x = torch.randn(4, 1, 10, 10)
    with torch.no_grad():
        draws = torch.stack([net(x) for _ in range(3000)])
        with net.using("linear"):
            output = net(x)
        with net.using("moments"):
            independent = net(x)
    torch.testing.assert_close(output.stddev, draws.std(0), rtol=0.08, atol=0)
    assert float((independent.stddev / draws.std(0)).mean()) < 0.85


def lowrank(net: pb.Network) -> Any:
    mean, std = (m.detach() for m in net.posterior.moments())
    return LowRank(net.layout, mean, std, 0.1 * torch.randn(len(mean), 3))


def shared(net: pb.Network, draw: str) -> Any:
    n = net.layout.size
    return Shared(
        net.layout,
        centres=torch.tensor([[0.3, 0.05], [-0.2, 0.1]]),
        factors=torch.tensor([[0.1, 0.0, 0.001], [0.2, 0.0, 0.001]]),
        index=torch.cat([torch.arange(n - 1) % 2, torch.tensor([2])]),
        outlier_mean=torch.tensor([0.7]),
        outlier_std=torch.tensor([0.3]),
        blend_index=torch.zeros(0, 2, dtype=torch.long),
        blend_alpha=torch.zeros(0, 2),
        draw=draw,
    )


@pytest.mark.parametrize("storage", ["lowrank", "shared", "shared-noise", "independent", "dropped"])
def test_linear_variance_of_correlated_weights_matches_draws(storage: str) -> None:
    """A linear model, so that first order is exact; the weights of an output move together."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4, bias=False)
    if storage == "dropped":  # its first layer is never dropped
        model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 4, bias=False))
    net = network_of(model)
    if storage == "dropped":
        posterior = pb.bayesianize(model, pb.MCDropout(rate=0.3)).posterior
    else:
        posterior = lowrank(net) if storage == "lowrank" else shared(net, storage)
    net = pb.Network(net.model, posterior).eval()
    x = torch.randn(3, 6)
    with torch.no_grad():
        draws = torch.stack([net(x) for _ in range(6000)])
    result = net.linear(x, "covariance")
    torch.testing.assert_close(result.variance, draws.var(0), rtol=0.1, atol=1e-4)
    assert result.covariance is not None
    centred = draws - draws.mean(0)
    empirical = torch.einsum("sbi,sbj->bij", centred, centred) / len(draws)
    scale = float(result.variance.max())
    torch.testing.assert_close(result.covariance, empirical, rtol=0.1, atol=0.05 * scale)


def test_linear_takes_tokens_and_deterministic_networks() -> None:
    net = network_of(Words())
    x = torch.randint(0, 7, (3, 5))
    direction = F.one_hot(net.linear(x).index[:, 0], 2).float()
    torch.testing.assert_close(net.linear(x).variance[:, 0], expected_variance(net, x, direction))
    point = pb.bayesianize(nn.Linear(3, 2), "map")
    assert bool((point.linear(torch.randn(4, 3)).variance == 0).all())


def test_linear_takes_outputs_per_pixel() -> None:
    """The variance of every pixel is known for a network that is linear in its weights."""
    net = network_of(nn.Conv2d(2, 3, 3, padding=1), std=0.1)
    x = torch.randn(2, 2, 6, 6)
    with net.using("moments"), torch.no_grad():
        expected = net(x).variance
    result = net.linear(x, draws=2000)
    torch.testing.assert_close(result.variance, expected, rtol=0.2, atol=0)
    with pytest.raises(pb.UserError, match="one row of outputs"):
        net.linear(x, "margin")


def test_linear_refuses_a_layer_whose_input_changes_later() -> None:
    with pytest.raises(pb.UserError, match="changed in place"):
        network_of(ChangesItsInput()).linear(torch.randn(3, 4))


def test_linear_keeps_mode_and_gradients() -> None:
    net = network_of(pb.models.build("lenet300", batch_norm=True)).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.randn(3, 1, 28, 28)
    with torch.inference_mode():
        net.linear(x)
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


# -- probabilities ----------------------------------------------------------------------------------------------------


def logits(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    root = scale * torch.randn(6, 4, 4, generator=generator)
    covariance = root @ root.mT
    return torch.randn(6, 4, generator=generator) * 2, covariance.diagonal(dim1=1, dim2=2), covariance


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("how", ["probit", "taylor", "sample"])
def test_readout_of_gaussian_logits_matches_draws(how: Any, correlated: bool) -> None:
    mean, var, covariance = logits(0.3)
    read = read_out(mean, var, covariance if correlated else None, how=how, draws=20_000)
    factor = torch.linalg.cholesky(covariance) if correlated else torch.diag_embed(var.sqrt())
    noise = torch.randn(100_000, 6, 4, 1)
    probs = (mean + (factor @ noise).squeeze(-1)).softmax(-1)
    torch.testing.assert_close(read.probs.sum(1), torch.ones(6))
    torch.testing.assert_close(read.probs, probs.mean(0), atol=0.06 if how == "probit" else 0.03, rtol=0)
    torch.testing.assert_close(read.var.sqrt(), probs.std(0), atol=0.07, rtol=0.1)
    information = torch.special.entr(probs.mean(0)).sum(1) - torch.special.entr(probs).sum(2).mean(0)
    torch.testing.assert_close(read.information, information, atol=0.06, rtol=0.25)


@pytest.mark.parametrize("correlated", [False, True])
def test_readout_does_not_depend_on_draws_in_memory(monkeypatch: pytest.MonkeyPatch, correlated: bool) -> None:
    mean, var, covariance = logits(0.3)
    together, single = [], []
    for results, values in ((together, 1 << 18), (single, 1)):
        monkeypatch.setattr("pocketbayes.propagation.readout.MAX_VALUES", values)
        read = read_out(mean, var, covariance if correlated else None, draws=31)
        results += [read.probs, read.var, read.information]
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["probit", "taylor", "sample"])
def test_readout_of_vague_logits_gives_probabilities(how: Any) -> None:
    mean, var, covariance = logits(30.0)
    for cov in (None, covariance):
        read = read_out(mean, var, cov, how=how)
        assert bool((read.probs >= 0).all())
        torch.testing.assert_close(read.probs.sum(1), torch.ones(6))
        assert bool((read.var <= read.probs * (1 - read.probs) + 1e-6).all())
        entropy = torch.special.entr(read.probs).sum(1)
        assert bool((read.information >= 0).all() and (read.information <= entropy + 1e-6).all())


@pytest.mark.parametrize("how", ["probit", "taylor", "sample"])
def test_readout_of_certain_logits_is_their_softmax(how: Any) -> None:
    mean, var, _ = logits(0.5)
    read = read_out(mean, torch.zeros_like(var), how=how)
    torch.testing.assert_close(read.probs, mean.softmax(1))
    assert float(read.var.max()) < 1e-6
    assert float(read.information.abs().max()) < 1e-5
    torch.testing.assert_close(read_out(mean + 5, var, how=how).probs, read_out(mean, var, how=how).probs)


@pytest.mark.parametrize("propagation", ["moments", "moments-exact", "linear"])
@pytest.mark.parametrize("readout", ["probit", "taylor", "sample"])
def test_linear_predictions_are_close_to_sampled_ones(propagation: str, readout: Any) -> None:
    torch.manual_seed(0)
    net = network_of(pb.models.build("mlp", in_features=6, out_features=3, hidden=(20,)), std=0.05)
    x = torch.randn(10, 6)
    sampled = pb.predict(net, x, samples=500)
    classes = "all" if propagation == "linear" else "predicted"
    one = pb.predict(net, x, 200, propagation, readout=readout, classes=classes)
    assert one.probs is not None
    torch.testing.assert_close(one.probs, sampled.probs, atol=0.02, rtol=0)
    torch.testing.assert_close(one.std, sampled.std, atol=0.01, rtol=0.2)
    torch.testing.assert_close(one.epistemic + one.aleatoric, one.entropy)
    torch.testing.assert_close(one.epistemic, sampled.epistemic, atol=2e-3, rtol=0.3)
    parts = pb.predict(net, x, 200, propagation, readout=readout, classes=classes, batch_size=4)
    torch.testing.assert_close(one.probs, parts.probs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("propagation", ["moments", "linear"])
@pytest.mark.parametrize("noise", ["learned", "predicted"])
def test_linear_predicts_regressions(propagation: str, noise: Any) -> None:
    torch.manual_seed(0)
    net = network_of(pb.models.build("mlp", in_features=4, out_features=2, hidden=(20,)), std=0.05)
    net.likelihood = pb.GaussianNoise(noise)
    x = torch.randn(12, 4)
    y = torch.randn(12, 1 if noise == "predicted" else 2)
    sampled, one = pb.predict(net, x, 1000), pb.predict(net, x, propagation=propagation)
    torch.testing.assert_close(one.mean, sampled.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(one.epistemic, sampled.epistemic, atol=0.01, rtol=0.15)
    torch.testing.assert_close(one.std.square(), one.epistemic.square() + one.aleatoric.square())
    measures = [pb.evaluate(net, (x, y), samples=300, propagation=p)["log_likelihood"] for p in ("sample", propagation)]
    assert measures[0] == pytest.approx(measures[1], abs=0.05)


def test_linear_predicts_segmentations() -> None:
    net = network_of(pb.models.build("unet-small", classes=3), std=0.01)
    x = torch.randn(2, 3, 16, 16)
    for propagation in ("moments", "linear"):
        prediction = pb.predict(net, x, 4, propagation)
        assert prediction.mean.shape == (2, 3, 16, 16)
        assert bool((prediction.std > 0).all())


def test_linear_mixtures_add_the_variance_between_networks() -> None:
    networks = [
        network_of(pb.models.build("mlp", in_features=4, out_features=3, hidden=(8,)), std=0.02) for _ in range(3)
    ]
    x = torch.randn(5, 4)
    for propagation in ("moments", "linear"):
        together = pb.predict(pb.Mixture(networks), x, propagation=propagation)
        single = [pb.predict(network, x, propagation=propagation) for network in networks]
        probs = torch.stack([one.probs for one in single])
        torch.testing.assert_close(together.probs, probs.mean(0))
        within = torch.stack([one.std.square() for one in single]).mean(0)
        torch.testing.assert_close(together.std.square(), within + probs.var(0, correction=0))
        assert bool((together.epistemic > torch.stack([one.epistemic for one in single]).mean(0)).all())


class Rounded(nn.Module):
    """A model without a gradient at its first layer."""

    def __init__(self, stop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.stop = nn.Linear(3, 4), nn.Linear(4, 2), stop

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.stop(self.first(x)))


@pytest.mark.parametrize("stop", [torch.round, torch.Tensor.detach, lambda h: torch.from_numpy(h.detach().numpy())])
def test_linear_names_uncertainty_without_a_gradient(stop: Callable[[Tensor], Tensor]) -> None:
    net = pb.bayesianize(Rounded(stop), pb.MeanFieldVI(std_init=0.1)).eval()
    with pytest.warns(UserWarning, match=r"no gradient of the output with respect to 'first.weight'"):
        net.linear(torch.randn(16, 3))


class WithoutGrad(Rounded):
    """A model that runs its first layer without autograd."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.first(x)
        return self.last(hidden)


def test_linear_names_a_layer_under_no_grad() -> None:
    net = pb.bayesianize(WithoutGrad(torch.round), pb.MeanFieldVI(std_init=0.1)).eval()
    x = torch.randn(16, 3)
    with pytest.warns(UserWarning, match=r"no gradient of the output with respect to 'first.weight'"):
        found = net.linear(x)
    hidden = torch.nn.functional.linear(
        x, *(t.detach() for t in (net.layout.views(net.posterior.weight_means())[0], net.model.first.bias))
    )
    torch.testing.assert_close(found.variance[:, 0], 0.01 * hidden.square().sum(1), rtol=1e-4, atol=1e-6)
