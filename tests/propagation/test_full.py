"""Full-covariance propagation: rules against brute force or Monte Carlo, correlations, and errors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import likelihoods
from pocketbayes.posteriors.base import softplus_inverse
from pocketbayes.posteriors.gaussian import Correlated, Gaussian
from pocketbayes.propagation import MOMENTS_FULL
from pocketbayes.propagation.full.table import NoFullRuleError, TooLargeError

DRAWS = 100_000


def correlated(*shape: int, groups: int = 1, seed: int = 0) -> Correlated:
    """Return random means and covariances of order 1."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape[1:]).numel() // groups
    root = torch.randn(shape[0], groups, size, size, generator=generator, dtype=torch.float64) / size**0.5
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Correlated(mean, root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64), rules=MOMENTS_FULL)


def weight(*shape: int, seed: int = 1) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64), rules=MOMENTS_FULL)


def first_order(function: Callable[[Tensor], Tensor], x: Correlated) -> Tensor:
    """Return J S J^T of every example."""
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: function(row[None])[0]))(torch.Tensor(x.loc))
    jacobian = jacobian.flatten(1, jacobian.ndim - x.ndim).flatten(2)
    return jacobian @ x.covariance @ jacobian.mT


def test_full_covariance_has_the_blocks_on_its_diagonal() -> None:
    x = correlated(2, 6, groups=3)
    expected = torch.stack([torch.block_diag(*blocks) for blocks in x.blocks])
    assert torch.equal(x.covariance, expected)
    assert torch.equal(x.variance, expected.diagonal(dim1=1, dim2=2))


IMAGES = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "leaky relu": F.leaky_relu,
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "overlapping max_pool2d": lambda x: F.max_pool2d(x, 3, 1, padding=1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (1, 3)),
    "mean": lambda x: x.mean((2, 3)),
    "sum": lambda x: x.sum(-1),
    "pad": lambda x: F.pad(x, (1, 0, 2, 1)),
    "flatten": lambda x: x.flatten(1),
    "batch_norm": lambda x: F.batch_norm(x, torch.ones(4).double(), 2 * torch.ones(4).double(), eps=0.1),
    "scale and shift": lambda x: 3 - (2 * x + 1) / 4,
    "plain convolution": lambda x: F.conv2d(x, torch.linspace(-1, 1, 72).double().view(2, 4, 3, 3), stride=2),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("groups", [1, 2, 4], ids=["full", "pairs of channels", "channels"])
def test_full_covariance_of_image_operations_follows_jacobians(name: str, groups: int) -> None:
    x = correlated(2, 4, 4, 4, groups=groups)
    result = IMAGES[name](x)
    torch.testing.assert_close(result.loc, IMAGES[name](torch.Tensor(x.loc)))
    torch.testing.assert_close(result.covariance, first_order(IMAGES[name], x))


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_full_covariance_of_softmax_follows_its_jacobian(function: Callable[..., Tensor]) -> None:
    x = correlated(3, 5)
    torch.testing.assert_close(function(x, 1).covariance, first_order(lambda z: function(z, 1), x))


CONVOLUTIONS = {
    "plain": {},
    "stride and padding": {"stride": 2, "padding": 1},
    "dilation": {"dilation": (2, 1), "padding": (0, 1)},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("random_input", [False, True], ids=["plain input", "random input"])
def test_full_covariance_of_a_convolution_matches_draws(name: str, random_input: bool) -> None:
    """10^5 draws of kernel, bias and input; within a channel and between channels."""
    settings = CONVOLUTIONS[name]
    x = correlated(1, 2, 5, 5, groups=2) if random_input else None
    plain = torch.Tensor(correlated(1, 2, 5, 5).loc)
    kernel, bias = weight(3, 2, 3, 3), weight(3, seed=4)
    result = F.conv2d(plain if x is None else x, kernel, bias, **settings)
    torch.manual_seed(0)
    root = None if x is None else torch.linalg.cholesky(x.covariance[0])
    outputs = []
    for _ in range(10):
        count = DRAWS // 10
        kernels = kernel.loc + kernel.stddev * torch.randn(count, *kernel.shape, dtype=torch.float64)
        biases = bias.loc + bias.stddev * torch.randn(count, 3, dtype=torch.float64)
        images = plain.expand(count, -1, -1, -1)
        if root is not None:
            images = x.loc + (torch.randn(count, 50, dtype=torch.float64) @ root.T).view(count, 2, 5, 5)
        drawn = F.conv2d(
            images.reshape(1, count * 2, 5, 5), kernels.flatten(0, 1), biases.flatten(), groups=count, **settings
        )
        outputs.append(drawn.view(count, -1))
    expected = torch.cat(outputs).T.cov()
    scale = expected.diagonal().sqrt()
    assert float(((result.covariance[0] - expected) / scale / scale[:, None]).abs().max()) < 0.03
    torch.testing.assert_close(torch.cat(outputs).mean(0), result.loc.flatten(), atol=0.1, rtol=0)


def test_full_covariance_of_a_linear_layer_matches_draws() -> None:
    x, matrix = correlated(1, 6, groups=2), weight(4, 6)
    result = F.linear(x, matrix, weight(4, seed=3))
    bias = weight(4, seed=3)
    torch.manual_seed(0)
    inputs = x.loc + torch.randn(DRAWS, 6, dtype=torch.float64) @ torch.linalg.cholesky(x.covariance[0]).T
    matrices = matrix.loc + matrix.stddev * torch.randn(DRAWS, 4, 6, dtype=torch.float64)
    draws = (matrices @ inputs.unsqueeze(2)).squeeze(2) + bias.stddev * torch.randn(DRAWS, 4, dtype=torch.float64)
    expected = draws.T.cov()
    scale = expected.diagonal().sqrt()
    assert float(((result.covariance[0] - expected) / scale / scale[:, None]).abs().max()) < 0.03


def small_network(model: nn.Module, std: float) -> pb.Network:
    net = pb.bayesianize(model, pb.FullCovarianceVDP(bayesian_bias=True))
    with torch.no_grad():
        net.posterior.rho.fill_(float(softplus_inverse(torch.tensor(std))))
    return net


def test_full_covariance_beats_the_diagonal_after_pooling() -> None:
    """A kernel's draw moves all positions of a channel together, so pooling hardly averages it out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    net = small_network(model, 0.02)
    x = 1 + 0.3 * torch.rand(1, 1, 8, 8)
    with torch.no_grad():
        pooled = []
        hook = net.model[2].register_forward_hook(lambda *args: pooled.append(args[2]))
        with net.using("moments"):
            diagonal = net(x)
        full = net(x)
        hook.remove()
        with net.using("sample"):
            draws = torch.stack([net(x)[0] for _ in range(5000)])
    expected = draws.T.cov()
    torch.testing.assert_close(full.covariance[0], expected, rtol=0.1, atol=0.04 * float(expected.diagonal().max()))
    assert float((full.stddev[0] / draws.std(0)).mean()) == pytest.approx(1, abs=0.03)
    assert isinstance(pooled[-1], Correlated)
    between = pooled[1].variance.flatten() / pooled[-1].variance.flatten()
    assert float(between[between.isfinite()].max()) < 0.1  # the diagonal rule loses nine tenths of the variance
    assert float((diagonal.stddev / full.stddev).mean()) < 0.97


def test_full_covariance_of_lenet5_matches_weight_samples() -> None:
    torch.manual_seed(0)
    net = small_network(pb.models.build("lenet5"), 0.005)
    x = torch.rand(1, 1, 28, 28)
    flat = "flatten"
    seen: dict[str, Tensor] = {}
    net.model.get_submodule(flat).register_forward_hook(lambda *args: seen.update({net.propagation: args[2]}))
    with torch.no_grad():
        full = net(x).stddev
        with net.using("moments"):
            net(x)
        with net.using("sample"):
            draws = [(net(x), seen["sample"]) for _ in range(600)]
    sampled = torch.stack([logits for logits, _ in draws]).std(0)
    assert float((full / sampled).mean()) == pytest.approx(1, abs=0.06)
    features = torch.stack([hidden[0] for _, hidden in draws])
    correlation = features.T.corrcoef().nan_to_num()
    expected = seen["moments-full"].covariance[0]
    scale = expected.diagonal().sqrt().clamp_min(1e-9)
    error = expected / scale / scale[:, None] - correlation
    moving = (scale > 1e-6) & (features.std(0) > 1e-6)
    away = ~torch.eye(400, dtype=torch.bool) & moving & moving[:, None]
    assert float(correlation[away].abs().mean()) > 0.05  # which diagonal propagation takes for 0
    assert float(error[away].abs().mean()) < 0.06


def test_full_without_variance_is_the_plain_model() -> None:
    torch.manual_seed(0)
    model = pb.models.build("lenet5").double()
    net = pb.bayesianize(model, pb.Deterministic())
    x = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    with net.using("moments-full"):
        output = net(x)
    assert float(output.variance.detach().abs().max()) == 0
    torch.testing.assert_close(output.loc, model(x))
    output.loc.square().sum().backward()
    model(x).square().sum().backward()
    flat = torch.cat([model.get_parameter(slot.name).grad.flatten() for slot in net.layout.slots])
    (stored,) = net.posterior.parameters()
    torch.testing.assert_close(stored.grad, flat)


def test_full_covariance_has_the_right_gradients() -> None:
    x, kernel, head = correlated(1, 2, 4, 4, groups=2), weight(2, 2, 2, 2), weight(2, 8)

    def spread(mean: Tensor, var: Tensor, blocks: Tensor) -> Tensor:
        images = Correlated(torch.Tensor(x.loc), blocks, rules=MOMENTS_FULL)
        hidden = F.max_pool2d(F.conv2d(images, Gaussian(mean, var, rules=MOMENTS_FULL), padding=1).relu(), 2)
        return F.linear(hidden.flatten(1), head).covariance

    values = tuple(value.detach().clone().requires_grad_() for value in (kernel.loc, kernel.variance, x.blocks))
    assert torch.autograd.gradcheck(spread, values)


def test_full_losses_are_expectation_and_density() -> None:
    output, target = correlated(4, 3), torch.tensor([0, 2, 1, 1])
    output = Correlated(output.loc, 0.1 * output.blocks)
    torch.manual_seed(0)
    roots = torch.linalg.cholesky(output.covariance)
    draws = output.loc + (roots @ torch.randn(100_000, 4, 3, 1, dtype=torch.float64)).squeeze(-1)
    expected = F.cross_entropy(draws.flatten(0, 1), target.repeat(100_000))
    assert float(pb.Categorical().nll(output, target)) == pytest.approx(float(expected), rel=1e-2)
    soft = torch.softmax(Correlated(output.loc, output.blocks, rules=MOMENTS_FULL), 1)
    noise = likelihoods.VARIANCE_FLOOR * torch.eye(3, dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(torch.Tensor(soft.loc), soft.covariance + noise)
    loss = pb.Categorical(gaussian_loss="gaussian-nll").nll(output, target)
    torch.testing.assert_close(loss, -density.log_prob(F.one_hot(target, 3).double()).mean())


def test_full_covariance_includes_input_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    net = pb.bayesianize(model, pb.VDP(covariance="full", input_var=0.3, std_init=1e-6))
    x = torch.rand(1, 1, 4, 4)
    jacobian = torch.func.jacrev(model)(x).reshape(2, 16)
    torch.testing.assert_close(net(x).covariance[0], 0.3 * jacobian @ jacobian.T, rtol=1e-4, atol=1e-6)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return x + self.two(x)


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (Residual(), (2, 4), "sum of two random tensors"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (2, 4), r"layer_norm.*'1' \(LayerNorm\)"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), (2, 2, 4, 4), "groups"),
        (nn.Linear(4, 4), (2, 3, 4), "rows share the weights"),
    ],
    ids=["residual sum", "layer norm", "groups", "tokens"],
)
def test_full_covariance_names_unknown_operations(model: nn.Module, shape: tuple[int, ...], said: str) -> None:
    net = pb.bayesianize(copy.deepcopy(model), pb.FullCovarianceVDP())
    with pytest.raises(NoFullRuleError, match=said):
        net(torch.randn(shape))


def test_full_covariance_refuses_a_large_layer_early() -> None:
    net = pb.bayesianize(nn.Sequential(nn.Conv2d(3, 64, 3, padding=1)), pb.FullCovarianceVDP())
    with pytest.raises(TooLargeError, match=r"GiB, more than 1 GiB, for 8 examples.*'0' \(Conv2d\).*batch_size"):
        net(torch.randn(8, 3, 64, 64))


def test_full_covariance_refuses_exact_activations() -> None:
    with pytest.raises(pb.UserError, match="taylor"):
        pb.VDP(covariance="full", activation="exact")


def test_full_covariance_predicts_in_chunks() -> None:
    """More images than memory could hold at once."""
    net = small_network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), 0.01)
    x = torch.rand(35, 1, 4, 4)
    together = pb.predict(net, x)
    torch.testing.assert_close(together.probs, pb.predict(net, x, batch_size=5).probs)
