"""Moment propagation through whole models: the plain model at std 0, refusals by name, compilation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.propagation import find_propagation
from pocketbayes.propagation.moments import table

MOMENTS = ("moments", "moments-exact")


def tiny_vit(**settings: Any) -> nn.Module:
    return pb.models.build("vit-ti", image_size=16, patch_size=8, depth=1, classes=3, **settings)


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=3)


def timm_model(name: str, **settings: Any) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=3, **settings)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet300": (lambda: pb.models.build("lenet300", in_features=64, batch_norm=True), (4, 64)),
    "lenet5": (lambda: pb.models.build("lenet5"), (2, 1, 28, 28)),
    "resnet20": (lambda: pb.models.build("resnet20"), (2, 3, 16, 16)),
    "resnet with projections": (lambda: pb.models.build("resnet-small", dropout=0.0), (2, 3, 32, 32)),
    "unet": (lambda: pb.models.build("unet-small"), (2, 3, 20, 16)),
    "vit": (tiny_vit, (2, 3, 16, 16)),
    "torchvision vit": (torchvision_vit, (2, 3, 16, 16)),
    "timm vit": (
        lambda: timm_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=1, embed_dim=12, num_heads=2),
        (2, 3, 16, 16),
    ),
    "timm mobilenet": (lambda: timm_model("mobilenetv3_small_050"), (2, 3, 32, 32)),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_moments_at_std_zero_are_the_plain_model(name: str, training: bool) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    model = make().double().train(training)
    x = torch.randn(shape, dtype=torch.float64)
    network = pb.bayesianize(model, "map").train(training)  # a copy: batch norm moves in training
    target = model(x)
    target.square().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for propagation in MOMENTS:
        twin = copy.deepcopy(network)
        with twin.using(propagation):
            output = twin(x)
        torch.testing.assert_close(output.loc, target)
        assert bool((output.variance == 0).all())
        (output.loc.square().sum() + output.variance.sum()).backward()
        for slot, view in zip(twin.layout.slots, twin.layout.views(twin.posterior.mean.grad)):
            torch.testing.assert_close(view, expected[slot.name], msg=slot.name)


def test_moments_of_an_mlp_match_weight_samples() -> None:
    """Independent weights and inputs: the output's std is that of 10^4 draws within 15 %."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 4))
    network = pb.bayesianize(model, pb.MeanFieldVI(std_init=0.05, bayesian_bias=True))
    x = torch.randn(8, 20)
    with torch.no_grad():
        draws = torch.stack([network(x) for _ in range(10_000)])
        for propagation in MOMENTS:
            with network.using(propagation):
                output = network(x)
            torch.testing.assert_close(output.stddev, draws.std(0), rtol=0.15, atol=0)
        error = (output.loc - draws.mean(0)).abs()  # the exact moments know the mean of a rectified Gaussian
        assert bool((error < 0.1 * draws.std(0)).all())


class Odd(nn.Module):
    """Uses an operation that no rule knows, deep inside."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0e(x)


def test_moments_refuse_unknown_operations_until_taught() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"inner": Odd()})["inner"])
    network = pb.bayesianize(model, pb.MeanFieldVI())
    x = torch.randn(2, 3)
    with network.using("moments"), pytest.raises(pb.UserError, match=r"no rule for .*i0e, used in '1' \(Odd\)"):
        network(x)

    def rule(x: pb.Gaussian) -> pb.Gaussian:
        slope = torch.special.i1e(x.loc) - torch.sign(x.loc) * torch.special.i0e(x.loc)
        return pb.Gaussian(torch.special.i0e(x.loc), x.variance * slope.square())

    pb.register_moment_rule(torch.special.i0e, rule)
    try:
        with network.using("moments"):
            output = network(x)
    finally:
        del table.RULES[torch.special.i0e]
    torch.testing.assert_close(output.loc, network.to_module()(x))
    assert bool((output.variance > 0).all())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


def test_moments_refuse_a_weight_used_twice() -> None:
    network = pb.bayesianize(Tied(), pb.MeanFieldVI())
    with network.using("moments"), pytest.raises(pb.UserError, match=r"'layer\.weight' is used 2 times"):
        network(torch.randn(2, 3))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(self.first(x), self.second.weight)


def test_moments_refuse_a_weight_hidden_in_a_function() -> None:
    network = pb.bayesianize(Hidden(), pb.MeanFieldVI())
    with network.using("moments"), pytest.raises(pb.UserError, match=r"cannot follow 'second\.weight'"):
        network(torch.randn(2, 3))


class WithBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(3, 2)
        self.auxiliary = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        return (self.main(x), self.auxiliary(x)) if self.training else self.main(x)


def test_moments_accept_a_branch_that_does_not_run() -> None:
    network = pb.bayesianize(WithBranch(), pb.MeanFieldVI())
    with network.using("moments"):
        assert network(torch.randn(2, 3)).variance.shape == (2, 2)
        main, auxiliary = network.train()(torch.randn(2, 3))
    assert isinstance(main, pb.Gaussian)
    assert isinstance(auxiliary, pb.Gaussian)


def test_moments_of_a_plain_model_take_random_inputs() -> None:
    network = pb.bayesianize(nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 2)), pb.MeanFieldVI(std_init=0.5))
    x = torch.randn(2, 3)
    outputs = {}
    for propagation in MOMENTS:
        with network.using(propagation):
            noisy = network(pb.Gaussian(x, torch.full_like(x, 0.1), rules=find_propagation(propagation).table))
            outputs[propagation] = network(x)
        assert bool((noisy.variance > outputs[propagation].variance).all())
    assert not torch.allclose(outputs["moments"].loc, outputs["moments-exact"].loc, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "propagation"),
    [
        ("lenet5", "moments"),
        ("vit", "moments-exact"),
        *(pytest.param(n, p, marks=pytest.mark.slow) for n in ("resnet20", "unet") for p in MOMENTS),
    ],
)
def test_moments_compile_into_one_graph(name: str, propagation: str) -> None:
    make, shape = MODELS[name]
    network = pb.bayesianize(make(), pb.MeanFieldVI())
    x = torch.randn(shape)
    torch._dynamo.reset()
    with network.using(propagation), torch.no_grad():
        expected = network(x)
        network.forget_plan()
        output = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(output.loc, expected.loc)
    torch.testing.assert_close(output.variance, expected.variance)


def test_moments_refuse_a_rule_that_a_tracer_would_miss() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    network = pb.bayesianize(Attends(), pb.MeanFieldVI())
    torch._dynamo.reset()
    with network.using("moments"), torch.no_grad(), pytest.raises(Exception, match=r"found step by step"):
        torch.compile(network, fullgraph=True, backend="aot_eager")(torch.randn(2, 5, 8))


def test_moments_carry_the_uncertainty_of_every_storage() -> None:
    """A point has none, and one random weight is enough."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    for method in ("map", "bbb", "pbn"):
        network = pb.bayesianize(model, method)
        with network.using("moments"), torch.no_grad():
            output = network(x)
        torch.testing.assert_close(output.loc, model(x))
        assert bool((output.variance > 0).any()) == bool((network.posterior.moments()[1] > 0).any())


def test_moments_take_functional_models() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ F.dropout(self.weight, 0.0).t()).log_softmax(1)

    network = pb.bayesianize(Functional(), pb.MeanFieldVI(std_init=0.1))
    with network.using("moments"):
        output = network(torch.randn(2, 3))
    assert bool((output.variance > 0).all())
