"""Moment rules, each against derivatives of the operation and against Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pocketbayes.posteriors.gaussian import Gaussian, mean_of
from pocketbayes.propagation import MOMENTS, MOMENTS_EXACT
from pocketbayes.propagation.moments.exact import gelu_moments, owens_t, relu_moments

DRAWS = 100_000


def gaussian(*shape: int, seed: int = 0, low: float | None = None) -> Gaussian:
    """Return a random tensor with moments of order 1; `low` is a lower bound of its means."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    mean = mean if low is None else low + mean.abs()
    return Gaussian(mean, 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64), rules=MOMENTS)


def plain(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def monte_carlo(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the function over draws of its Gaussian inputs."""

    def once(*noise: Tensor) -> Tensor:
        drawn = iter(noise)
        return function(*(x.loc + x.stddev * next(drawn) if isinstance(x, Gaussian) else x for x in inputs))

    count, total, squares = 10, 0, 0
    for _ in range(count):
        noise = [torch.randn(DRAWS // count, *x.shape, dtype=torch.float64) for x in inputs if isinstance(x, Gaussian)]
        values = torch.func.vmap(once)(*noise)
        total, squares = total + values.sum(0), squares + values.square().sum(0)
    mean = total / DRAWS
    return mean, squares / DRAWS - mean.square()


def expected_variance(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """sum_i (df/dx_i)^2 v_i + sum over pairs of inputs (d^2f/dx_i dy_j)^2 v_i v_j.

    Exact for sums of products of independent entries, where no derivative beyond these is left; the documented
    first-order formula for a function of one input, which has no pairs.
    """
    values = [torch.Tensor(mean_of(x)) for x in inputs]
    random = [i for i, x in enumerate(inputs) if isinstance(x, Gaussian)]
    var = torch.zeros(())
    for one in random:
        by_one = torch.func.jacrev(function, argnums=one)
        var = var + _contract(by_one(*values).square(), inputs[one].variance)
        for two in [i for i in random if i > one]:
            both = torch.func.jacrev(by_one, argnums=two)(*values).square()
            var = var + _contract(_contract(both, inputs[two].variance), inputs[one].variance)
    return var


def _contract(squares: Tensor, var: Tensor) -> Tensor:
    return squares.flatten(squares.ndim - var.ndim) @ var.flatten()


x = gaussian(2, 3, 6, 6)
mask = plain(3, 4) > 0
RULES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "linear": (F.linear, (gaussian(2, 5), gaussian(3, 5, seed=1), gaussian(3, seed=2))),
    "linear with plain weight": (F.linear, (gaussian(2, 5), plain(3, 5), plain(3))),
    "linear with plain input": (F.linear, (plain(2, 7, 5), gaussian(3, 5), plain(3))),
    "linear, random bias alone": (F.linear, (plain(2, 7, 5), plain(3, 5), gaussian(3))),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        (gaussian(2, 2, 4, 4), gaussian(3, 2, 3, 3), gaussian(3)),
    ),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, None, 1, 0, 1, 2), (gaussian(1, 2, 3, 3), gaussian(2, 1, 2, 2))),
    "conv1d": (lambda x, w: torch.conv1d(x, w, dilation=2), (gaussian(2, 2, 7), gaussian(3, 2, 2))),
    "conv3d": (torch.conv3d, (gaussian(1, 1, 3, 3, 3), gaussian(2, 1, 2, 2, 2))),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        (gaussian(1, 2, 3, 3), gaussian(2, 3, 2, 2), gaussian(3)),
    ),
    "matmul": (torch.matmul, (gaussian(2, 1, 3, 4), gaussian(2, 4, 2, seed=3))),
    "bmm with plain": (torch.bmm, (plain(2, 3, 4), gaussian(2, 4, 2))),
    "@": (lambda a, b: a @ b, (gaussian(3, 4), gaussian(4, seed=1))),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (gaussian(2, 2, 3), gaussian(2, 4, 3, seed=1))),
    "baddbmm": (
        lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=2.0),
        (gaussian(2, 3, 2), gaussian(2, 3, 4, seed=1), plain(2, 4, 2)),
    ),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=2), (plain(1, 3), plain(1, 3, seed=1), gaussian(2, 3))),
    "mul": (lambda a, b: a * b, (gaussian(2, 3), gaussian(3, seed=1))),
    "mul by plain": (lambda a, b: 2 * b * a, (gaussian(2, 3), plain(4, 1, 3))),
    "div by plain": (lambda a, b: a / b, (gaussian(2, 3), plain(2, 1))),
    "add": (lambda a, b: torch.add(a, b, alpha=3), (gaussian(2, 3), gaussian(3, seed=1))),
    "add plain": (lambda a, b: 1 + (a + b), (gaussian(1, 3), plain(4, 3))),
    "sub": (lambda a, b: a - b, (gaussian(2, 3), gaussian(2, 1, seed=1))),
    "rsub": (lambda a: 1 - a, (gaussian(2, 3),)),
    "x + x": (lambda a: a + a, (gaussian(2, 3),)),
    "x - x": (lambda a: a - a, (gaussian(2, 3),)),
    "neg": (lambda a: -a, (gaussian(2, 3),)),
    "sum": (lambda a: a.sum((0, 2)), (gaussian(2, 3, 4),)),
    "mean": (lambda a: a.mean(dim=-1, keepdim=True), (gaussian(2, 3, 4),)),
    "mean of all": (lambda a: a.mean(), (gaussian(2, 3, 4),)),
    "cumsum": (lambda a: a.cumsum(1), (gaussian(2, 4),)),
    "batch norm": (
        lambda a: F.batch_norm(a, plain(3), plain(3).exp(), plain(3, seed=1), plain(3, seed=2)),
        (gaussian(2, 3, 4),),
    ),
    "avg_pool2d": (lambda a: F.avg_pool2d(a, 3, 2, 1), (x,)),
    "avg_pool2d, borders": (lambda a: F.avg_pool2d(a, (3, 2), 2, 1, True, False), (x,)),
    "avg_pool2d, ceil": (lambda a: F.avg_pool2d(a, 4, 3, 1, ceil_mode=True), (x,)),
    "avg_pool2d, divisor": (lambda a: F.avg_pool2d(a, 2, divisor_override=3), (x,)),
    "avg_pool1d": (lambda a: F.avg_pool1d(a, 2), (gaussian(2, 3, 4),)),
    "adaptive_avg_pool2d(1)": (lambda a: F.adaptive_avg_pool2d(a, 1), (x,)),
    "adaptive_avg_pool2d(4, 3)": (lambda a: F.adaptive_avg_pool2d(a, (4, 3)), (x,)),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2), (x,)),
    "bilinear": (lambda a: F.interpolate(a, size=(9, 4), mode="bilinear", align_corners=False), (x,)),
    "bilinear, corners": (lambda a: F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=True), (x,)),
    "bicubic": (lambda a: F.interpolate(a, scale_factor=1.5, mode="bicubic"), (x,)),
    "linear interpolation": (lambda a: F.interpolate(a, size=7, mode="linear"), (gaussian(1, 2, 4),)),
    "area": (lambda a: F.interpolate(a, size=4, mode="area"), (x,)),
    "cat": (lambda a, b: torch.cat([a, b], dim=1), (gaussian(2, 3), plain(2, 2))),
    "stack": (lambda a, b: torch.stack((b, a)), (gaussian(2, 3), plain(2, 3))),
    "pad": (lambda a: F.pad(a, (1, 2), value=3.0), (gaussian(2, 3),)),
    "pad by reflection": (lambda a: F.pad(a, (1, 1, 2, 2), mode="reflect"), (x,)),
    "split": (lambda a: a.split([1, 2], 1)[1], (gaussian(2, 3),)),
    "chunk": (lambda a: torch.chunk(a, 2)[0], (gaussian(2, 3),)),
    "unbind": (lambda a: a.unbind(1)[2], (gaussian(2, 3),)),
    "getitem": (lambda a: a[:, ::2], (gaussian(2, 3),)),
    "permute, reshape": (lambda a: a.permute(1, 2, 0).reshape(3, -1).flatten().unsqueeze(0), (gaussian(2, 3, 4),)),
    "transpose, view": (lambda a: a.transpose(1, 2).contiguous().view(2, -1).mT, (gaussian(2, 3, 4),)),
    "expand": (lambda a: a[:, None].expand(-1, 2, -1).roll(1, 2).flip(0), (gaussian(2, 3),)),
    "where": (lambda a, b: torch.where(mask, a, b), (gaussian(3, 4), plain(3, 4))),
    "masked_fill": (lambda a: a.masked_fill(mask, 2.0), (gaussian(3, 4),)),
    "unfold": (lambda a: F.unfold(a, 2), (x,)),
    "fold": (lambda a: F.fold(a, (3, 3), 2), (gaussian(1, 4, 4),)),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 2), (gaussian(1, 4, 2, 2),)),
    "embedding": (lambda a: F.embedding(torch.tensor([[0, 2], [1, 1]]), a), (gaussian(3, 4),)),
    "dropout in evaluation": (lambda a: F.dropout(a, 0.5, training=False), (gaussian(2, 3),)),
}


@pytest.mark.parametrize("name", RULES)
def test_moments_of_sums_and_products_are_exact(name: str) -> None:
    function, inputs = RULES[name]
    result = function(*inputs)
    assert isinstance(result, Gaussian)
    torch.testing.assert_close(result.loc, function(*map(mean_of, inputs)))
    torch.testing.assert_close(result.variance, expected_variance(function, *inputs))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (F.linear, (gaussian(2, 4), gaussian(3, 4, seed=1), gaussian(3, seed=2))),
        (lambda x, w: F.unfold(x, 2).mT @ w.flatten(1).mT, (gaussian(1, 2, 3, 3), gaussian(2, 2, 2, 2, seed=1))),
        (torch.mul, (gaussian(5), gaussian(5, seed=1))),
        (lambda x: F.adaptive_avg_pool2d(x, 1), (gaussian(1, 1, 3, 3),)),
    ],
    ids=["linear", "conv2d", "mul", "average"],
)
def test_moments_of_single_layers_match_draws(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    """6 standard errors around 10^5 draws, the convolution drawn as the product it is."""
    result = function(*inputs)
    if len(inputs) == 2 and inputs[1].ndim == 4:
        torch.testing.assert_close(result.variance, F.conv2d(*inputs).variance.flatten(2).mT)
    mean, var = monte_carlo(function, *inputs)
    assert bool(((result.loc - mean).abs() <= 6 * (var / DRAWS).sqrt()).all())
    torch.testing.assert_close(result.variance, var, rtol=0.06, atol=0)  # products have heavier tails than a Gaussian


positive = gaussian(3, 4, low=0.5)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "Tensor.relu": torch.Tensor.relu, "leaky_relu": lambda a: F.leaky_relu(a, 0.2), "gelu": F.gelu,
    "gelu tanh": lambda a: F.gelu(a, approximate="tanh"), "silu": F.silu, "mish": F.mish, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "softplus": lambda a: F.softplus(a, beta=2), "logsigmoid": F.logsigmoid, "softsign": F.softsign,
    "elu": lambda a: F.elu(a, 0.7), "celu": lambda a: F.celu(a, 0.7), "selu": F.selu, "relu6": F.relu6,
    "hardtanh": lambda a: F.hardtanh(a, -0.5, 0.5), "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "clamp": lambda a: a.clamp(-0.3, 0.4), "clamp_min": lambda a: a.clamp(min=0.1), "exp": torch.exp, "abs": abs,
    "sin": torch.sin, "cos": torch.cos, "erf": torch.erf, "square": torch.square, "x * x": lambda a: a * a,
    "power": lambda a: a**3, "2^x": lambda a: 2**a, "tanhshrink": F.tanhshrink,
    "prelu": lambda a: F.prelu(a, torch.tensor([0.3], dtype=torch.float64)),
}  # fmt: skip
OF_POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "1 / x": lambda a: 1 / a,
    "reciprocal": torch.reciprocal, "log1p": torch.log1p, "root": lambda a: a**0.5,
}  # fmt: skip
COUPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda a: a.softmax(-1), "log_softmax": lambda a: F.log_softmax(a, dim=0),
    "normalize": lambda a: F.normalize(a, dim=1), "norm": lambda a: a.norm(dim=1),
    "max_pool": lambda a: F.max_pool2d(a.view(1, 1, 3, 4), 2, padding=1), "amax": lambda a: a.amax(1),
    "max": lambda a: a.max(1, keepdim=True).values, "max of all": lambda a: a.max(),
    "maximum": lambda a: torch.maximum(a, torch.zeros_like(a)),
    "adaptive_max_pool": lambda a: F.adaptive_max_pool2d(a.view(1, 1, 3, 4), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ACTIVATIONS, *OF_POSITIVE, *COUPLED])
def test_moments_first_order_rules_are_the_squared_jacobian(name: str) -> None:
    function = {**ACTIVATIONS, **OF_POSITIVE, **COUPLED}[name]
    a = positive if name in OF_POSITIVE else gaussian(3, 4, seed=5)
    result = function(a)
    assert isinstance(result, Gaussian)
    torch.testing.assert_close(result.loc, function(a.loc))
    torch.testing.assert_close(result.variance, expected_variance(function, a))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_moments_slopes_at_kinks_are_those_of_torch(name: str) -> None:
    """Means of exactly 0 are common: padding, and whatever a ReLU has cut off."""
    kinks = torch.tensor([0.0, -3.0, 3.0, 6.0, -0.5, 0.5, -0.3, 0.4, 0.1], dtype=torch.float64)
    a = Gaussian(kinks, torch.full_like(kinks, 0.2), rules=MOMENTS)
    torch.testing.assert_close(ACTIVATIONS[name](a).variance, expected_variance(ACTIVATIONS[name], a))


def test_moments_of_weight_norm_are_a_length_times_a_direction() -> None:
    v, g = gaussian(3, 4), plain(3, 1)
    result = torch._weight_norm(v, g, 0)
    torch.testing.assert_close(result.loc, torch._weight_norm(v.loc, g, 0))
    torch.testing.assert_close(result.variance, expected_variance(lambda a: g * a / a.norm(dim=1, keepdim=True), v))


def test_moments_of_a_quotient_are_first_order() -> None:
    a, b = gaussian(2, 3), gaussian(2, 3, seed=1, low=1.0)
    result = a / b
    torch.testing.assert_close(result.loc, a.loc / b.loc)
    torch.testing.assert_close(result.variance, a.variance / b.loc**2 + a.loc**2 * b.variance / b.loc**4)


def spread_in_groups(mean: Tensor) -> Tensor:
    n, channels, *rest = mean.shape
    groups = mean.view(n, 2, channels // 2, *rest)
    return groups.var((2, 3, 4), correction=0, keepdim=True).expand_as(groups).reshape(mean.shape)


@pytest.mark.parametrize(
    ("function", "gamma", "spread"),
    [
        (lambda a, g: F.layer_norm(a, (4, 2), g, g), plain(4, 2), lambda m: m.var((2, 3), correction=0, keepdim=True)),
        (
            lambda a, g: F.batch_norm(a, None, None, g.flatten(), g.flatten(), training=True),
            plain(4, 1, 1),
            lambda m: m.var((0, 2, 3), correction=0, keepdim=True),
        ),
        (
            lambda a, g: F.instance_norm(a, weight=g.flatten(), bias=g.flatten()),
            plain(4, 1, 1),
            lambda m: m.var((2, 3), correction=0, keepdim=True),
        ),
        (lambda a, g: F.group_norm(a, 2, g.flatten(), g.flatten()), plain(4, 1, 1), spread_in_groups),
    ],
    ids=["layer", "batch", "instance", "group"],
)
def test_moments_of_normalisation_scale_by_the_means(function: Any, gamma: Tensor, spread: Any) -> None:
    """Gamma^2 v / (Var(m) + eps), the statistics being those of the means."""
    a = gaussian(3, 4, 4, 2)
    result = function(a, gamma)
    torch.testing.assert_close(result.loc, function(a.loc, gamma))
    torch.testing.assert_close(result.variance, a.variance * gamma**2 / (spread(a.loc) + 1e-5))


def test_moments_of_batch_norm_record_the_means() -> None:
    norm = torch.nn.BatchNorm1d(3).double().train()
    twin = torch.nn.BatchNorm1d(3).double().train()
    a = gaussian(5, 3)
    norm(a)
    twin(a.loc)
    assert torch.equal(norm.running_var, twin.running_var)
    assert torch.equal(norm.running_mean, twin.running_mean)


def test_moments_of_rms_norm_follow_its_formula() -> None:
    a, gamma = gaussian(3, 4), plain(4)
    result = F.rms_norm(a, (4,), gamma, 1e-6)
    torch.testing.assert_close(result.loc, F.rms_norm(a.loc, (4,), gamma, 1e-6))
    torch.testing.assert_close(result.variance, a.variance * gamma**2 / (a.loc.square().mean(1, keepdim=True) + 1e-6))


def test_moments_of_dropout_drop_mean_and_variance_together() -> None:
    a = gaussian(40, 50)
    result = F.dropout(a, 0.25, training=True)
    kept = result.loc != 0
    assert 0.2 < 1 - float(kept.double().mean()) < 0.3
    torch.testing.assert_close(result.loc, a.loc * kept / 0.75)
    torch.testing.assert_close(result.variance, a.variance * kept / 0.75**2)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": plain(5, 5) > 0.5}, {"scale": 0.3}])
def test_moments_of_attention_combine_products_and_softmax(options: dict[str, Any]) -> None:
    q, k, v = (gaussian(2, 2, 5, 3, seed=seed) for seed in range(3))
    result = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(result.loc, F.scaled_dot_product_attention(q.loc, k.loc, v.loc, **options))
    scores = (q * options.get("scale", 3**-0.5)) @ k.mT
    hidden = ~options["attn_mask"] if "attn_mask" in options else torch.ones(5, 5).triu(1).bool()
    if "is_causal" in options or "attn_mask" in options:
        scores = scores.masked_fill(hidden, -math.inf)
    expected = (scores.softmax(-1) @ v).variance.nan_to_num(0)  # a query that sees no key gives 0
    torch.testing.assert_close(result.variance, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_moments_of_multi_head_attention_agree_with_parts(need_weights: bool) -> None:
    layer = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64).eval()
    a = gaussian(3, 5, 6)
    out, _ = layer(a, a, a, need_weights=need_weights)
    expected, _ = layer(a.loc, a.loc, a.loc, need_weights=need_weights)
    torch.testing.assert_close(out.loc, expected)
    with torch.no_grad():
        q, k, v = F.linear(a, layer.in_proj_weight, layer.in_proj_bias).view(3, 5, 3, 2, 3).permute(2, 0, 3, 1, 4)
        inside = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(3, 5, 6)
        torch.testing.assert_close(out.variance, layer.out_proj(inside).variance)


@pytest.mark.parametrize("function", [F.gelu, F.silu, lambda a: torch.clamp(a, max=torch.linspace(-1, 1, 9))])
def test_moments_of_composed_functions_agree_with_parts(function: Callable[[Tensor], Tensor], monkeypatch: Any) -> None:
    a = gaussian(7, 5, 9)
    whole = function(a)
    monkeypatch.setattr("pocketbayes.propagation.moments.activations.PART_ENTRIES", 32)
    with torch.no_grad():
        parts = function(a)
    torch.testing.assert_close(parts.loc, whole.loc)
    torch.testing.assert_close(parts.variance, whole.variance)


# -- exact activations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [F.relu, lambda a: F.leaky_relu(a, 0.1), F.gelu], ids=["relu", "leaky", "gelu"])
def test_exact_activations_match_draws(function: Callable[[Tensor], Tensor]) -> None:
    a = gaussian(40, seed=3)
    exact = Gaussian(a.loc, a.variance * 3, rules=MOMENTS_EXACT)
    result = function(exact)
    mean, var = monte_carlo(lambda a: function(a), exact)
    assert bool(((result.loc - mean).abs() <= 6 * (var / DRAWS).sqrt()).all())
    # rare large values make small variances noisy
    torch.testing.assert_close(result.variance, var, rtol=0.05, atol=2e-3)


@pytest.mark.parametrize("moments", [lambda m, v: relu_moments(m, v)[:2], gelu_moments], ids=["relu", "gelu"])
def test_exact_activations_hold_in_single_precision(moments: Any) -> None:
    """From certain to vague, far below zero to far above: float32 agrees with an integral in float64."""
    mean, std = torch.meshgrid(torch.linspace(-6, 30, 73), torch.logspace(-4, 1.5, 23), indexing="ij")
    nodes = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    density = torch.exp(-0.5 * nodes**2) * (nodes[1] - nodes[0]) / math.sqrt(2 * math.pi)
    function = F.gelu if moments is gelu_moments else F.relu
    for m, s in [(m, s) for m in mean[::9, 0].tolist() for s in std[0, ::4].tolist()]:
        values = function(m + s * nodes)
        first = float((values * density).sum())
        second = float(((values - first).square() * density).sum())
        got_mean, got_var = moments(torch.tensor([m]), torch.tensor([s * s]))
        assert float(got_mean) == pytest.approx(first, rel=1e-4, abs=1e-5 * s)
        assert float(got_var) == pytest.approx(second, rel=2e-3, abs=1e-6 * s * s)


def test_owens_t_and_its_gradient() -> None:
    """Against scipy, and against differences."""
    from scipy.special import owens_t as reference

    h, a = torch.meshgrid(torch.linspace(-4, 4, 17).double(), torch.linspace(0, 1, 9).double(), indexing="ij")
    expected = torch.from_numpy(reference(h.numpy(), a.numpy()))
    h, a = h.clone().requires_grad_(), a.clone().requires_grad_()
    torch.testing.assert_close(owens_t(h, a).detach(), expected, atol=1e-9, rtol=1e-8)
    assert torch.autograd.gradcheck(owens_t, (h, a))


def test_exact_activations_without_std_are_the_activation() -> None:
    for function in (F.relu, F.gelu, F.leaky_relu):
        mean = plain(20).requires_grad_()
        result = function(Gaussian(mean, torch.zeros(20, dtype=torch.float64), rules=MOMENTS_EXACT))
        expected = function(mean)
        torch.testing.assert_close(result.loc, expected)
        assert bool((result.variance == 0).all())
        (gradient,) = torch.autograd.grad(result.loc.sum() + result.variance.sum(), mean, retain_graph=True)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), mean)[0])


# -- in place ---------------------------------------------------------------------------------------------------------


IN_PLACE: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Tensor]]] = {
    "relu": (lambda a: F.relu(a, inplace=True), F.relu),
    "relu_": (torch.relu_, F.relu),
    "silu": (lambda a: F.silu(a, inplace=True), F.silu),
    "sigmoid_": (lambda a: a.sigmoid_(), torch.sigmoid),
    "leaky_relu_": (lambda a: F.leaky_relu_(a, 0.2), lambda a: F.leaky_relu(a, 0.2)),
    "add_": (lambda a: a.add_(plain(3, 4), alpha=2), lambda a: torch.add(a, plain(3, 4), alpha=2)),
    "+=": (lambda a: a.__iadd__(gaussian(3, 4, seed=7)), lambda a: a + gaussian(3, 4, seed=7)),
    "-=": (lambda a: a.__isub__(1), lambda a: a - 1),
    "*=": (lambda a: a.__imul__(gaussian(3, 4, seed=7)), lambda a: a * gaussian(3, 4, seed=7)),
    "/=": (lambda a: a.div_(2), lambda a: a / 2),
    "mul_ itself": (lambda a: a.mul_(a), lambda a: a * a),
    "add_ itself": (lambda a: a.add_(a), lambda a: a + a),
    "clamp_": (lambda a: a.clamp_(min=0.0), lambda a: a.clamp(min=0.0)),
    "copy_": (lambda a: a.copy_(2 * a), lambda a: 2 * a),
    "copy_ of a plain one": (lambda a: a.copy_(plain(3, 4)), lambda a: 0 * a + plain(3, 4)),
    "masked_fill_": (lambda a: a.masked_fill_(mask, 1.0), lambda a: a.masked_fill(mask, 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("rules", [MOMENTS, MOMENTS_EXACT], ids=["taylor", "exact"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_moments_in_place_operations_keep_gradients(name: str, rules: Any) -> None:
    change, function = IN_PLACE[name]
    start = gaussian(3, 4)
    leaves = [start.loc.clone().requires_grad_(), start.variance.clone().requires_grad_()]
    a = Gaussian(leaves[0] * 1, leaves[1] * 1, rules=rules)
    assert change(a) is a
    expected = function(Gaussian(leaves[0] * 1, leaves[1] * 1, rules=rules))
    torch.testing.assert_close(a.loc, expected.loc)
    torch.testing.assert_close(a.variance, expected.variance)
    got = torch.autograd.grad(a.loc.sum() + a.variance.sum(), leaves)
    torch.testing.assert_close(got, torch.autograd.grad(expected.loc.sum() + expected.variance.sum(), leaves))


def test_moments_view_changes_reach_the_base() -> None:
    a = gaussian(3, 4)
    b = a + 1
    before = b.variance.clone()
    a.view(-1)[:4].mul_(0.0)
    assert bool((a.loc[0] == 0).all() and (a.variance[0] == 0).all() and (a.variance[1:] > 0).all())
    b.relu_()
    a[1] = 5.0
    assert torch.equal(b.variance, before * (b.loc > 0))
    assert bool((a.loc[1] == 5).all() and (a.variance[1] == 0).all())


def test_moments_never_change_a_plain_tensor_in_place() -> None:
    from pocketbayes import UserError

    with pytest.raises(UserError, match="plain tensor of shape"):
        plain(3, 4).add_(gaussian(3, 4))
    with pytest.raises(UserError, match="item assignment"):
        plain(3, 4)[0] = gaussian(4)


def test_moments_need_no_rule_for_shapes_and_types() -> None:
    a = gaussian(3, 4)
    assert a.shape == (3, 4)
    assert a.new_zeros(2).equal(torch.zeros(2, dtype=torch.float64))
    assert type(torch.ones_like(a)) is Tensor
    assert a.float().variance.dtype == torch.float32
    assert a.detach().loc.requires_grad is False
