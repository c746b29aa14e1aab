"""Network: planning has no side effects, compiling gives one graph, checkpointing is rejected."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pocketbayes as pb
from cases import TinyNet, tiny_data
from pocketbayes.base.batch_norm import frozen_batch_norm
from pocketbayes.base.errors import UserError
from pocketbayes.posteriors import MeanField, Point

PROPAGATIONS = ("mean", "sample", "local", "flipout")


def tiny_network(propagation: str = "sample", std: float = 0.1) -> pb.Network:
    torch.manual_seed(1)
    net = pb.bayesianize(TinyNet(), pb.MeanFieldVI(std_init=std))
    assert isinstance(net, pb.Network)
    net.propagation = propagation
    return net


def images() -> Tensor:
    return tiny_data(8)[0]


# -- planning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("propagation", ["local", "flipout"])
def test_planning_changes_neither_buffers_nor_generators(propagation: str) -> None:
    x = images()
    planned, unplanned = tiny_network(propagation).train(), tiny_network(propagation).train()
    unplanned._plans = {(propagation, True): (True, True)}
    outputs = []
    for net in (planned, unplanned):
        torch.manual_seed(7)
        outputs.append(net(x))
    assert planned._plans == unplanned._plans
    assert torch.equal(*outputs)
    assert int(planned.model.norm.num_batches_tracked) == 1
    for one, two in zip(planned.model.buffers(), unplanned.model.buffers()):
        assert torch.equal(one, two)


def test_planning_shows_batch_norm_one_batch() -> None:
    """Without noise the statistics are exactly those of the plain model after one pass."""
    plain, x = TinyNet().train(), images()
    net = pb.bayesianize(plain, pb.MeanFieldVI(propagation="local")).train()
    net.posterior = MeanField(net.layout, net.posterior.mean, torch.zeros(net.layout.size))
    net(x)
    plain(x)
    torch.testing.assert_close(net.model.norm.running_mean, plain.norm.running_mean)
    torch.testing.assert_close(net.model.norm.running_var, plain.norm.running_var)


def test_planning_keeps_shared_buffers_and_dropout_noise() -> None:
    class Counter(nn.Module):
        def __init__(self, count: Tensor) -> None:
            super().__init__()
            self.register_buffer("count", count)

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x

    count = torch.zeros(())
    model = nn.Sequential(Counter(count), nn.Linear(3, 3), nn.Dropout(), Counter(count))
    net = pb.bayesianize(model, pb.MeanFieldVI(propagation="local")).train()
    assert net.model[0].count is net.model[3].count
    net(torch.randn(2, 3))
    assert net.model[0].count is net.model[3].count
    assert float(net.model[0].count) == 2


def test_planning_leaves_inputs_that_a_model_changes() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, *, other: list[Tensor]) -> Tensor:
            return self.layer(x.mul_(2)) + other[0].add_(1)

    net = pb.bayesianize(InPlace(), pb.MeanFieldVI(propagation="local"))
    x, other = torch.ones(2, 3), torch.ones(2, 3)
    net(x, other=[other])
    assert torch.equal(x, torch.full((2, 3), 2.0))
    assert torch.equal(other, torch.full((2, 3), 2.0))


def test_planning_happens_once_per_mode() -> None:
    net = tiny_network("local")
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    net.model.register_forward_hook(count)
    x = images()
    for expected in (2, 3):
        net(x)
        assert calls == expected
    net.train()
    for expected in (5, 6):
        net(x)
        assert calls == expected
    with net.using("flipout"):
        net(x)
    assert calls == 8
    net.forget_plan()
    net(x)
    assert calls == 10


def test_network_is_usable_after_an_error_in_the_model() -> None:
    net = tiny_network("local")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            net(torch.randn(2, 1, 8, 8))
    assert not any("weight" in name for name, _ in net.model.named_parameters() if "norm" not in name)
    assert net(images()).shape == (8, 3)


# -- compiling --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("eager_first", [False, True])
@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_compiled_graph_draws_like_eager(propagation: str, eager_first: bool) -> None:
    net, x = tiny_network(propagation).train(), images()
    reference = copy.deepcopy(net)
    if eager_first:
        for each in (net, reference):
            torch.manual_seed(0)
            each(x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    outputs = []
    for call in (compiled, reference):
        torch.manual_seed(3)
        outputs.append(call(x))
        outputs[-1].square().sum().backward()
    torch.testing.assert_close(*outputs)
    for one, two in zip(net.parameters(), reference.parameters()):
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None and two.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
    assert int(net.model.norm.num_batches_tracked) == 1 + eager_first


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_graph_redraws_and_follows_the_mode() -> None:
    net, x = tiny_network("local"), images()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert not torch.equal(compiled(x), compiled(x))
        net.train()
        compiled(x)
        assert int(net.model.norm.num_batches_tracked) == 1


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_graph_keeps_tied_weights_drawn() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    net = pb.bayesianize(Twice(), pb.MeanFieldVI(propagation="local", std_init=1.0))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    output = compiled(torch.ones(2, 3))
    torch.testing.assert_close(output[0], output[1])  # both examples share one draw


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_compiled_graph_is_one_for_inductor(propagation: str) -> None:
    net, x = tiny_network(propagation, std=1e-6).train(), images()
    with net.using("mean"):
        expected = copy.deepcopy(net)(x)
    output = torch.compile(net, fullgraph=True)(x)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)
    output.sum().backward()
    assert bool(net.posterior.mean.grad.isfinite().all())


# -- activation checkpointing -----------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.reentrant = nn.Linear(3, 3), nn.Linear(3, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=self.reentrant).tanh())


@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_checkpointing_inside_the_model_is_refused(propagation: str) -> None:
    net = pb.bayesianize(Checkpointed(False), pb.MeanFieldVI())
    with net.using(propagation), pytest.raises(RuntimeError, match=r"checkpointing inside the model .* switch it off"):
        net(torch.randn(2, 3))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")  # the planning pass
@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_reentrant_checkpointing_fails_in_the_backward_pass(propagation: str) -> None:
    net = pb.bayesianize(Checkpointed(True), pb.MeanFieldVI())
    with net.using(propagation):
        output = net(torch.randn(2, 3, requires_grad=True))
    with pytest.raises(AttributeError, match="no attribute 'weight'"):
        output.sum().backward()


@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_checkpointing_repeats_the_noise(propagation: str) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    grads = []
    for run in (lambda net: net(x), lambda net: checkpoint(net, x, use_reentrant=False)):
        torch.manual_seed(1)
        net = pb.bayesianize(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), pb.MeanFieldVI(std_init=0.5))
        with net.using(propagation):
            net(x)
            torch.manual_seed(2)
            run(net).square().sum().backward()
        grads.append([p.grad for p in net.parameters() if p.grad is not None])
    for one, two in zip(*grads):
        assert torch.equal(one, two)


def test_network_allows_saved_tensors_on_the_cpu() -> None:
    net = tiny_network()
    with torch.autograd.graph.save_on_cpu():
        net(images()).sum().backward()
    assert bool(net.posterior.mean.grad.isfinite().all())


# -- what a network is ------------------------------------------------------------------------------------------------


def test_using_restores_even_after_an_error() -> None:
    net = tiny_network("local")
    noise = torch.randn(net.posterior.noise_size)
    with net.using("sample", noise=noise):
        assert torch.equal(net(images()), net(images()))
    with pytest.raises(KeyError), net.using("sample", noise=noise):
        raise KeyError
    assert net.propagation == "local"
    assert not torch.equal(net(images()), net(images()))


def test_network_draws_from_given_noise() -> None:
    net, noise = tiny_network(), torch.randn(tiny_network().posterior.noise_size)
    mean, std = net.posterior.moments()
    expected = copy.deepcopy(net)
    with torch.no_grad():
        expected.posterior.mean.copy_(mean + std * noise)
    with net.using("sample", noise=noise), expected.using("mean"):
        torch.testing.assert_close(net(images()), expected(images()))
    with net.using("sample", noise=torch.zeros_like(noise)):
        zero = net(images())
    with net.using("mean"):
        assert torch.equal(zero, net(images()))


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), lambda: nn.Sequential(nn.LSTM(3, 2))])
def test_run_at_leaves_no_weights_behind(make: object) -> None:
    net, x = pb.bayesianize(make(), pb.MeanFieldVI()), torch.randn(4, 3)  # type: ignore[operator]
    flat = net.posterior.mean.detach().requires_grad_()
    output = net.run_at(flat, x)
    with net.using("mean"):
        expected = net(x)
    output, expected = (value[0] if isinstance(value, tuple) else value for value in (output, expected))
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(flat.grad, net.posterior.mean.grad)
    assert copy.deepcopy(net) is not net  # drawn weights left behind could not be copied


def test_network_lists_the_known_propagations() -> None:
    with pytest.raises(UserError, match=r"unknown propagation 'locl': did you mean 'local'\?"):
        tiny_network("sample").using("locl").__enter__()


def test_network_is_random_only_with_noise() -> None:
    net = tiny_network()
    assert net.is_random
    with net.using("mean"):
        assert not net.is_random
    net.posterior = Point(net.layout, net.posterior.mean)
    assert not net.is_random


def test_network_state_dict_round_trip() -> None:
    one, two = tiny_network(), tiny_network(std=0.3)
    two.posterior.mean.data.zero_()
    two.load_state_dict(one.state_dict())
    with one.using("mean"), two.using("mean"):
        assert torch.equal(one(images()), two(images()))
    assert torch.equal(one.posterior.moments()[1], two.posterior.moments()[1])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_network_copies_are_independent(duplicate: object) -> None:
    net = tiny_network("local")
    net(images())
    other = duplicate(net)  # type: ignore[operator]
    other.posterior.mean.data.zero_()
    other.forget_plan()
    assert float(net.posterior.mean.detach().abs().sum()) > 0
    assert net._plans
    assert other(images()).shape == (8, 3)


def test_network_is_freed_with_its_last_reference() -> None:
    net = tiny_network("local")
    net(images())
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_network_moves_device_and_dtype() -> None:
    net = tiny_network().double()
    assert net(images().double()).dtype == torch.float64
    assert net.device == torch.device("cpu")
    assert net.to("meta").device == torch.device("meta")


def test_census_counts_the_whole_network() -> None:
    net = tiny_network()
    census = net.census()
    assert census.weights == 27 + 144
    assert census.stored == {"means": 171, "stds": 171}
    assert census.random == 171
    assert census.points == 3 + 3 * 4 + 1 + 3
    assert census.values == 2 * 171 + 19
    assert census.trainable == 2 * 171 + 3 + 6 + 3
    assert census.memory_bytes == 2 * 171 * 4 + 18 * 4 + 8
    doubled = pb.Mixture([net, tiny_network()]).census()
    assert (doubled.weights, doubled.values, doubled.random) == (342, 722, 342)
    assert doubled.stored == {"means": 342, "stds": 342}


def test_mixture_answers_with_all_its_networks() -> None:
    nets = [tiny_network("mean") for _ in range(3)]
    for number, net in enumerate(nets):
        net.posterior.mean.data.mul_(number)
    mixture = pb.Mixture(nets)
    output = mixture(images())
    assert output.shape == (3, 8, 3)
    assert all(torch.equal(output[i], nets[i](images())) for i in range(3))
    torch.testing.assert_close(mixture.kl(), sum(net.kl() for net in nets))
    assert len(mixture) == len(list(mixture)) == 3
    with pytest.raises(ValueError, match="at least one"):
        pb.Mixture([])


def test_frozen_normalisation_ignores_the_batch() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.InstanceNorm2d(2, track_running_stats=True),
        nn.BatchNorm2d(2, momentum=None),
    )
    reference, x = copy.deepcopy(model), images()
    before = copy.deepcopy(dict(model.named_buffers()))
    with frozen_batch_norm(model):
        assert torch.equal(model(x), reference(x))
    after = dict(model.named_buffers())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (model[1].momentum, model[3].momentum) == (0.1, None)
    model(x)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), reference.buffers()))
    assert int(model[1].num_batches_tracked) == 1


class Bank(nn.Module):
    """A model that keeps weights in a list, which its repr reads."""

    def __init__(self) -> None:
        super().__init__()
        self.bank, self.head = nn.ParameterList([torch.ones(3, 3)]), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x @ self.bank[0])


def test_network_text_works_for_every_storage() -> None:
    net = pb.bayesianize(Bank(), pb.MeanFieldVI(select="bank|head"))
    assert "ParameterList" in repr(net)
    assert net(torch.ones(1, 3)).shape == (1, 2)


@pytest.mark.parametrize(
    ("call", "fragment"),
    [
        (lambda model: pb.fit(model, "bbb", None), "swapped"),
        (lambda model: pb.bayesianize("bbb", model), "swapped"),
        (lambda model: pb.fit(pb.MeanFieldVI, model, None), "give an instance, such as pb.MeanFieldVI"),
        (lambda model: pb.bayesianize(type(model)), "is the class Bank"),
        (lambda model: pb.bayesianize(model, 3), "not int, Bank"),
        (
            lambda model: pb.bayesianize(model, pb.MeanFieldVI(), prior_std=2),
            "prior_std: the method is an instance already",
        ),
    ],
)
def test_convert_names_a_wrong_method_or_model(call: Any, fragment: str) -> None:
    with pytest.raises(pb.UserError, match=fragment):
        call(Bank())
