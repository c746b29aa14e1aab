"""The rule tables: moments of what local and flipout draw, and when a weight must not stay Gaussian."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.gaussian import Gaussian, noise_like, safe_sqrt
from pocketbayes.posteriors.model_call import Call

DRAWS = 100_000


def network(model: nn.Module, propagation: str, std: float = 0.3, bayesian_bias: bool = False) -> pb.Network:
    """The model with every std different, around `std`."""
    net = pb.bayesianize(model, pb.MeanFieldVI(bayesian_bias=bayesian_bias))
    assert isinstance(net, pb.Network)
    mean = net.posterior.moments()[0]
    net.posterior = MeanField(net.layout, mean, std * (0.5 + torch.rand_like(mean)))
    net.propagation = propagation
    return net


def draws(net: pb.Network, x: Tensor, count: int) -> Tensor:
    """Outputs (count, ...) for one batch, each by noise of its own."""
    with torch.no_grad():
        net(x)  # plans, before vmap
        return torch.vmap(lambda _: net(x), randomness="different")(torch.zeros(count))


def assert_moments(outputs: Tensor, mean: Tensor, var: Tensor) -> None:
    """Within 6 standard errors: of independent normal outputs for the variance, twice that for others."""
    outputs, mean, var, count = outputs.double(), mean.double(), var.double(), len(outputs)
    error = (outputs.mean(0) - mean).abs()
    assert bool((error <= 6 * (var / count).sqrt() + 1e-6).all()), float(error.max())
    torch.testing.assert_close(outputs.var(0), var, rtol=12 * (2 / count) ** 0.5, atol=1e-9)


def closed_form(net: pb.Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """op(x, M) and op(x^2, V), for a network of one layer."""
    std = net.posterior.moments()[1].detach()
    plain, squared = net.to_module(), net.to_module()
    for parameter in squared.parameters():
        parameter.data.zero_()
    net.layout.write(squared, std.square())
    with torch.no_grad():
        return plain(x), squared(x.square())


LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1, stride=2), (2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 4, 4)),
    "conv2d groups dilation": (lambda: nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding=2), (4, 4, 4)),
    "conv2d same": (lambda: nn.Conv2d(2, 2, 3, padding="same"), (2, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (2, 3, 3)),
}


@pytest.mark.parametrize("bayesian_bias", [False, True])
@pytest.mark.parametrize("propagation", ["sample", "local", "flipout"])
@pytest.mark.parametrize("layer", LAYERS)
def test_local_marginals_are_the_closed_form(layer: str, propagation: str, bayesian_bias: bool) -> None:
    make, shape = LAYERS[layer]
    net = network(make(), propagation, bayesian_bias=bayesian_bias)
    x = torch.randn(1, *shape)
    assert_moments(draws(net, x, DRAWS if layer == "linear" else 10_000), *closed_form(net, x))


@pytest.mark.parametrize("propagation", ["local", "flipout"])
@pytest.mark.parametrize("layer", ["linear", "conv2d"])
def test_local_examples_have_independent_noise(layer: str, propagation: str) -> None:
    make, shape = LAYERS[layer]
    net = network(make(), propagation)
    outputs = draws(net, torch.randn(shape).expand(2, *shape), 10_000).flatten(2)
    outputs = (outputs - outputs.mean(0)) / outputs.std(0)
    correlation = (outputs[:, 0] * outputs[:, 1]).mean(0)
    assert float(correlation.abs().max()) < 6 / 10_000**0.5


def test_sample_shares_weights_within_a_batch() -> None:
    net = network(nn.Linear(5, 4), "sample")
    output = net(torch.randn(5).expand(2, 5))
    torch.testing.assert_close(output[0], output[1])


def test_flipout_keeps_the_correlation_of_positions() -> None:
    """Equal patches give equal outputs under one weight draw, batched or not; local noise does not know it."""
    x = torch.ones(2, 3, 3)
    for batch in (x, x[None]):
        net = network(nn.Conv2d(2, 2, 1), "flipout")
        output = net(batch).detach().flatten(-2)
        assert float((output - output[..., :1]).abs().max()) < 1e-6
        with net.using("local"):
            output = net(batch).detach().flatten(-2)
        assert float((output - output[..., :1]).abs().max()) > 1e-3


def test_flipout_flips_inputs_and_outputs() -> None:
    """With one input the noise of equal examples differs by a sign per output; with one output by more than that."""
    with torch.no_grad():
        net = network(nn.Linear(1, 400), "flipout")
        one, two = net(torch.ones(2, 1)) - net.to_module()(torch.ones(1, 1))
        ratio = one / two
        torch.testing.assert_close(ratio.abs(), torch.ones(400), rtol=1e-2, atol=1e-2)
        assert abs(float(ratio.mean())) < 6 / 400**0.5
        net = network(nn.Linear(400, 1), "flipout")
        one, two = net(torch.ones(2, 400)) - net.to_module()(torch.ones(1, 400))
        assert abs(float(one / two)) != pytest.approx(1, rel=1e-2)


class Tied(nn.Module):
    """The same matrix twice, once transposed, with biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3)
        self.decode = nn.Linear(3, 3)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class Twice(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class Double(torch.autograd.Function):
    """x -> x W^T in a function with a backward pass of its own, which knows nothing of noise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return F.linear(x, weight)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Hidden(nn.Module):
    """A weight that only an autograd.Function sees, or no tensor function at all, as in an extension."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.outer = nn.Linear(3, 2)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return self.outer(Double.apply(x, self.inner.weight))
        with torch._C.DisableTorchFunctionSubclass():
            x = F.linear(x, self.inner.weight)
        return self.outer(x)


class Functional(nn.Module):
    """A layer of the user's own: keyword arguments, and a use that is not a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.other_weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(weight=self.other_weight, input=x @ self.weight)


PLANS = {
    "tied": (Tied, {"encode.weight": False}),
    "twice": (Twice, {"layer.weight": False}),
    "function": (lambda: Hidden("function"), {"inner.weight": False, "outer.weight": True}),
    "extension": (lambda: Hidden("extension"), {"inner.weight": False, "outer.weight": True}),
    "functional": (Functional, {"weight": False, "other_weight": True}),
}


@pytest.mark.parametrize("propagation", ["local", "flipout"])
@pytest.mark.parametrize("case", PLANS)
def test_plan_draws_every_weight_but_those_used_once_by_a_rule(case: str, propagation: str) -> None:
    make, expected = PLANS[case]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        net = network(make(), propagation)
        with mode():
            plan = net.plan_for(net.propagation, torch.randn(2, 3))
        assert dict(zip((slot.name for slot in net.layout.slots), plan)) == expected


@pytest.mark.parametrize("bayesian_bias", [False, True])
@pytest.mark.parametrize("propagation", ["local", "flipout"])
@pytest.mark.parametrize("case", PLANS)
def test_drawn_weights_have_the_variance_of_weight_samples(case: str, propagation: str, bayesian_bias: bool) -> None:
    """Correlated uses (W twice) and hidden uses would come out wrong if each use drew anew, or none did."""
    net = network(PLANS[case][0](), propagation, bayesian_bias=bayesian_bias)
    x = torch.randn(1, 3)
    outputs = draws(net, x, 50_000).double()
    net.propagation = "sample"
    sampled = draws(net, x, 50_000).double()
    torch.testing.assert_close(outputs.var(0), sampled.var(0), rtol=0.1, atol=1e-6)
    error = 6 * (2 * sampled.var(0) / 50_000).sqrt()
    assert bool(((outputs.mean(0) - sampled.mean(0)).abs() <= error).all())


@pytest.mark.parametrize("propagation", ["local", "flipout"])
@pytest.mark.parametrize("case", PLANS)
def test_gradients_reach_every_mean_and_std(case: str, propagation: str) -> None:
    net = network(PLANS[case][0](), propagation, bayesian_bias=True)
    net(torch.randn(4, 3)).square().sum().backward()
    for parameter in net.posterior.parameters():
        for slot, grad in zip(net.layout.slots, net.layout.views(parameter.grad)):
            assert bool(grad.isfinite().all()), slot.name
            assert float(grad.abs().max()) > 0, slot.name


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "flipout"])
@pytest.mark.parametrize("std", [0.0, 1e-30])
def test_rules_without_noise_have_no_nan_gradients(propagation: str, std: float) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    net = network(model, propagation, std, bayesian_bias=True)
    x = torch.zeros(2, 1, 4, 4, requires_grad=True)  # zero inputs: the variance is 0 whatever the stds
    net(x).square().sum().backward()
    assert bool(x.grad.isfinite().all())
    gradients = [parameter.grad for parameter in net.posterior.parameters() if parameter.grad is not None]
    assert len(gradients) == (1 if propagation == "mean" else 2)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_local_gradient_of_mean_and_variance() -> None:
    """E y^2 = m^2 + v: its gradient by the mean over draws, against the closed form."""
    net = network(nn.Linear(3, 1, bias=False), "local").double()
    x = torch.randn(3, dtype=torch.float64)
    net(x.expand(DRAWS, 3)).square().mean().backward()
    mean, std = (m.detach() for m in net.posterior.moments())
    torch.testing.assert_close(net.posterior.mean.grad, 2 * (mean @ x) * x, rtol=0.05, atol=0.02)
    slope = torch.sigmoid(net.posterior.rho.detach())  # of softplus
    torch.testing.assert_close(net.posterior.rho.grad, 2 * std * x.square() * slope, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("propagation", ["local", "flipout"])
def test_local_keeps_channels_last_and_its_moments(propagation: str) -> None:
    net = network(nn.Conv2d(2, 3, 3), propagation).to(memory_format=torch.channels_last)
    x = torch.randn(2, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    output = net(x)
    assert output.is_contiguous(memory_format=torch.channels_last)
    assert not output.is_contiguous()
    if propagation == "local":
        outputs = net(x[:1].expand(10_000, 2, 6, 6).contiguous(memory_format=torch.channels_last)).detach()
        mean, var = closed_form(net, x[:1])
        assert_moments(outputs, mean[0], var[0])


def test_noise_follows_the_memory_format_and_is_standard_normal() -> None:
    like = torch.empty(64, 8, 12, 12).contiguous(memory_format=torch.channels_last)
    noise = noise_like(like)
    assert noise.shape == like.shape
    assert noise.stride() == like.stride()
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02


def test_safe_sqrt_is_exact_and_flat_at_zero() -> None:
    var = torch.tensor([0.0, 1e-30, 4.0], requires_grad=True)
    root = safe_sqrt(var)
    torch.testing.assert_close(root.detach(), torch.tensor([0.0, 1e-15, 2.0]))
    root.sum().backward()
    torch.testing.assert_close(var.grad, torch.tensor([0.0, 5e14, 0.25]))


@pytest.mark.parametrize("propagation", ["local", "flipout"])
def test_local_half_precision_keeps_small_stds(propagation: str) -> None:
    """In float16 1e-4 squared is 0 and 300 squared is infinite."""
    net = network(nn.Linear(4, 3, bias=False), propagation)
    net.posterior = MeanField(net.layout, torch.zeros(12), torch.full((12,), 1e-4))
    x = torch.tensor([[300.0, 1.0, 1.0, 1.0]])
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = draws(net, x, 4000).double()
    torch.testing.assert_close(outputs.std(0), torch.full((1, 3), 0.03, dtype=torch.float64), rtol=0.1, atol=0)


def test_plan_reports_a_changed_flow() -> None:
    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, how: str = "once") -> Tensor:
            if how == "once":
                return self.layer(x)
            if how == "twice":
                return self.layer(self.layer(x))
            return F.linear(self.layer.weight, x) if how == "as input" else x @ self.layer.weight

    x = torch.randn(3, 3)
    for how in ("twice", "as input", "otherwise"):
        net = network(Flow(), "local")
        net(x)
        with pytest.raises(RuntimeError, match="flow changed since its first call"):
            net(x, how=how)
        net.forget_plan()
        assert net(x, how=how).shape == (3, 3)
        assert net.plan_for(net.propagation, Call((x,), {"how": how})) == (False,)


def test_gaussian_reads_as_its_mean() -> None:
    mean, std = torch.randn(2, 3), torch.rand(2, 3)
    gaussian = Gaussian(mean, std=std)
    assert gaussian.shape == (2, 3)
    assert len(gaussian) == 2
    assert torch.equal(gaussian.loc, mean)
    assert torch.equal(gaussian.stddev, std)
    torch.testing.assert_close(gaussian.variance, std.square())
    torch.testing.assert_close(Gaussian(mean, std.square()).stddev, std)
    with pytest.raises(ValueError, match="either var or std"):
        Gaussian(mean, std, std=std)
