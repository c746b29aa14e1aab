"""SSVI and RigL: swaps against hand calculations, exact density, schedule, optimiser state, ranks, resumption."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pocketbayes as pb
import ranks
from cases import smooth, tiny_data, tiny_model
from peak_memory import peak_memory
from pocketbayes import recipes
from pocketbayes.base.process_group import ALONE
from pocketbayes.methods.sparse_training import SparseTraining
from pocketbayes.methods.sparsity import layer_counts
from pocketbayes.network import Network
from pocketbayes.posteriors.sparse import SCORES, Sparse, removal_score
from pocketbayes.training import checkpoint

QUICK = {"batch_size": 16, "lr": 1e-2, "progress": False}
BOTH = pytest.mark.parametrize("method", [pb.SSVI, pb.RigL])


def by_hand(mean: list[float], std: list[float], index: list[int], weights: int = 6) -> Sparse:
    layout = pb.Layout.of(nn.Linear(weights, 1))
    return Sparse(layout, torch.tensor(index), torch.tensor(mean), torch.tensor(std))


# -- swaps ------------------------------------------------------------------------------------------------------------


def test_swap_takes_lowest_score_and_largest_gradient() -> None:
    """Ratios 10, 2, 5: the second leaves. Gradients at the absent 1, 3, 5 are 3, 9, 1: the fourth weight comes in."""
    posterior = by_hand([1.0, 2.0, -0.5], [0.1, 1.0, 0.1], [0, 2, 4])
    swapped = pb.SSVI(density=0.5).swap(posterior, torch.tensor([99.0, 3, 50, 9, 70, 1]), fraction=0.3)
    assert swapped == 1
    assert posterior.index.tolist() == [0, 3, 4]
    assert posterior.mean.tolist() == [1, 0, -0.5]
    torch.testing.assert_close(posterior.present_std(), torch.tensor([0.1, 0.1, 0.1]))  # the mean of those that stay


def test_rigl_removes_the_smallest_value() -> None:
    layout = pb.Layout.of(nn.Linear(6, 1))
    posterior = Sparse(layout, torch.tensor([0, 2, 4]), torch.tensor([1.0, 2.0, -0.5]))
    pb.RigL(density=0.5).swap(posterior, torch.tensor([99.0, 3, 50, 9, 70, 1]), fraction=0.3)
    assert posterior.index.tolist() == [0, 2, 3]
    assert posterior.mean.tolist() == [1, 2, 0]


@pytest.mark.parametrize("removal", SCORES)
def test_ssvi_scores_decide_what_is_removed(removal: str) -> None:
    torch.manual_seed(4)
    mean, std = torch.randn(20), torch.rand(20) + 0.01
    posterior = by_hand(mean.tolist(), std.tolist(), list(range(0, 40, 2)), weights=40)
    lowest = removal_score(removal, mean, std).argsort()[:6]
    pb.SSVI(removal=removal).swap(posterior, torch.rand(40), 0.3)
    assert not set((2 * lowest).tolist()) & set(posterior.index.tolist())
    assert int((posterior.index % 2).sum()) == 6


def test_ssvi_new_stds_are_the_layers_mean_or_a_constant() -> None:
    layout = pb.Layout.of(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 4)))
    start = (torch.tensor([0, 1, 4, 5]), torch.tensor([0.01, 1.0, 0.01, 1.0]), torch.tensor([1.0, 0.2, 1.0, 0.6]))
    gradient = torch.tensor([0.0, 0, 1, 0, 0, 0, 1, 0])
    for setting, expected in (("layer", [0.2, 0.6]), (0.05, [0.05, 0.05])):
        posterior = Sparse(layout, *start)
        pb.SSVI(added_std_init=setting).swap(posterior, gradient, 0.5)  # type: ignore[arg-type]
        assert posterior.index.tolist() == [1, 2, 5, 6]
        torch.testing.assert_close(posterior.present_std()[[1, 3]], torch.tensor(expected))
    emptied = Sparse(layout, *(part[[0, 2]] for part in start))
    pb.SSVI(std_init=0.007).swap(emptied, gradient, 1.0)
    torch.testing.assert_close(emptied.present_std(), torch.full((2,), 0.007))


def test_ssvi_global_layers_compete_and_dense_ones_stay_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 5), nn.Linear(5, 2))
    method = pb.SSVI(density=0.4, distribution="global", dense_first=True, dense_last=True)
    posterior = pb.bayesianize(model, method).posterior
    assert [b - a for a, b in posterior.spans()] == [20, 12, 12, 10]
    posterior.mean.data[20:32] = 1e-6  # all of the second layer
    gradient = torch.zeros(posterior.layout.size)
    gradient[50:80] = 1 + torch.rand(30)
    assert method.swap(posterior, gradient, 0.5) == 12
    assert [b - a for a, b in posterior.spans()] == [20, 0, 24, 10]
    assert posterior.densities() == {"0.weight": 1.0, "1.weight": 0.0, "2.weight": 0.8, "3.weight": 1.0}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@BOTH
def test_ssvi_optimiser_state_follows_swapped_weights(optimizer: str, method: type[SparseTraining]) -> None:
    net = pb.bayesianize(tiny_model(), method(density=0.4))
    steps = pb.Training(optimizer=optimizer).make_optimizer(net)  # type: ignore[arg-type]
    for _ in range(2):
        steps.zero_grad()
        net(tiny_data()[0]).square().sum().backward()
        steps.step()
    posterior = net.posterior
    parameters = [p for p in (posterior.mean, posterior.rho) if p is not None]  # Adam steps stds, whatever steps means
    keys = [[key for key, value in steps.state[p].items() if value.shape == p.shape] for p in parameters]
    assert all(keys)
    before = {
        (i, key): dict(zip(posterior.index.tolist(), steps.state[p][key].tolist()))
        for i, p in enumerate(parameters)
        for key in keys[i]
    }
    count = method(density=0.4).swap(posterior, torch.rand(net.layout.size), 0.3, steps)
    assert count > 10
    for i, parameter in enumerate(parameters):
        for key in keys[i]:
            for position, value in zip(posterior.index.tolist(), steps.state[parameter][key].tolist()):
                assert value == before[i, key].get(position, 0.0)
    steps.step()  # the state still fits


# -- density ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=5),
    st.floats(0.02, 1.0),
    st.sampled_from(["uniform", "erdos-renyi", "erdos-renyi-kernel", "global"]),
    st.booleans(),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_ssvi_density_is_exact_after_any_swaps(
    widths: list[int], density: float, distribution: str, dense: bool, fractions: list[float]
) -> None:
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
    method = pb.SSVI(density=density, distribution=distribution, dense_first=dense, dense_last=dense)  # type: ignore[arg-type]
    posterior = pb.bayesianize(model, method).posterior
    full = [dense and i in (0, len(widths) - 2) for i in range(len(widths) - 1)]
    counts = layer_counts([slot.shape for slot in posterior.layout.slots], density, distribution, full)  # type: ignore[arg-type]
    for fraction in fractions:
        method.swap(posterior, torch.rand(posterior.layout.size), fraction)
        assert len(posterior.index) == sum(counts)
        assert bool((posterior.index.diff() > 0).all())
        present = [b - a for a, b in posterior.spans()]
        if distribution == "global":
            assert all(present[i] == counts[i] for i in range(len(counts)) if full[i])
        else:
            assert present == counts


@BOTH
@pytest.mark.parametrize("distribution", ["uniform", "erdos-renyi-kernel", "global"])
def test_ssvi_density_is_exact_at_every_training_step(
    method: type[SparseTraining], distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    class Counting(method):  # type: ignore[valid-type, misc]
        def after_step(self, net: Network, *args: object) -> None:
            assert len(net.posterior.mean) == len(net.posterior.index) == len(net.posterior.index.unique())
            counted.append(int((net.posterior.moments()[0].detach() != 0).sum()))

    settings = {"density": 0.3, "distribution": distribution, "swap_every": 2, "swap_until": 1.0}
    pb.fit(Counting(**settings), tiny_model(), tiny_data(), epochs=3, **QUICK)
    total = round(0.3 * (27 + 144))
    assert len(counted) == 9 - 4  # swaps take the place of steps 2, 4, 6 and 8
    assert counted == [total] * 5


# -- the schedule -----------------------------------------------------------------------------------------------------


def test_ssvi_fraction_falls_by_a_cosine() -> None:
    method = pb.SSVI(swap_every=100)
    assert method.fraction(0, 1000) == 0
    assert method.fraction(150, 1000) == 0
    assert method.fraction(300, 1000) == pytest.approx(0.15 * (1 + math.cos(math.pi * 300 / 750)))
    assert method.fraction(700, 1000) > 0
    assert method.fraction(800, 1000) == 0
    assert replace(method, static=True).fraction(300, 1000) == 0


@pytest.mark.parametrize(("steps", "every"), [(10, 1), (150, 10), (1500, 100), (100_000, 100)])
def test_ssvi_swap_interval_follows_the_length_of_a_run(steps: int, every: int) -> None:
    swaps = [step for step in range(1, 10 * every) if pb.SSVI(swap_until=1.0).fraction(step, steps)]
    assert swaps == list(range(every, min(10 * every, steps), every))


class Recorded:
    """A training context with numbered batches."""

    seed, examples, team = 0, 48, ALONE

    def __init__(self) -> None:
        self.turns: list[int] = []

    def batches(self, shuffle: bool = False, turn: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        self.turns.append(turn)
        x, y = tiny_data()
        for begin in range(0, 48, 8):
            yield x[begin : begin + 8], y[begin : begin + 8]

    def note(self, **figures: object) -> None:
        raise AssertionError


@pytest.mark.parametrize("addition", ["sampled", "mean", "averaged"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("layerwise", [False, True])
def test_ssvi_gradient_for_addition_is_that_of_the_dense_weight(addition: str, parts: int, layerwise: bool) -> None:
    """1/K sum_k |g_k| at draws (or the mean), summed over the parts of a batch, batch norm left as it is."""
    method = pb.SSVI(density=0.3, addition=addition, addition_batches=3, mean_init="model")  # type: ignore[arg-type]
    net = pb.bayesianize(tiny_model().double(), method).train()
    net.likelihood = pb.Categorical()
    net.model.norm.eval()  # batch norm would see other parts
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = (value.double() if value.is_floating_point() else value for value in tiny_data(12))
    batch = list(zip(x.chunk(parts), y.chunk(parts)))
    run = Recorded()
    torch.manual_seed(5)
    passes = method._passes(net, run, batch, step=7)  # type: ignore[arg-type]
    gradient = torch.cat(list(passes.gradients(layerwise)))
    after = torch.get_rng_state()
    torch.manual_seed(5)
    others = [(a.double(), b) for a, b in list(run.batches())[:2]] if addition == "averaged" else []
    expected = torch.zeros_like(gradient)
    for inputs, targets in [(x, y), *others]:
        with torch.no_grad():
            flat = net.posterior.moments()[0] if addition == "mean" else net.posterior.sample()
        flat.requires_grad_()
        loss = net.likelihood.nll(net.run_at(flat, inputs), targets)
        expected += torch.autograd.grad(loss, flat)[0].abs()
        if inputs is x:
            assert passes.nll == pytest.approx(float(loss.detach()))
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(after, torch.get_rng_state())  # the run continues as if all layers had been processed together
    assert run.turns == (([7, 7, 0] if layerwise else [7, 0]) if addition == "averaged" else [])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@BOTH
@pytest.mark.parametrize("distribution", ["uniform", "global"])
@pytest.mark.parametrize("kernel", ["dense", "csr"])
def test_ssvi_layerwise_swaps_equal_joint_swaps(method: type[SparseTraining], distribution: str, kernel: str) -> None:
    settings = {"density": 0.3, "distribution": distribution, "swap_every": 2, "kernel": kernel, "mean_init": "model"}
    nets = [
        pb.fit(method(addition_layerwise=one_by_one, **settings), tiny_model(), tiny_data(), epochs=3, **QUICK)
        for one_by_one in (False, True)
    ]
    assert int(nets[0].posterior.swapped) > 0
    assert torch.equal(nets[0].posterior.index, nets[1].posterior.index)
    torch.testing.assert_close(nets[0].posterior.mean, nets[1].posterior.mean)


def test_ssvi_layerwise_swaps_need_the_memory_of_one_layer() -> None:
    width, depth = 200, 12
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    batch = torch.randn(2, width), torch.arange(2)
    peaks = []
    for one_by_one in (False, True):
        method = pb.SSVI(density=0.02, kernel="csr", swap_every=1, swap_until=1.0, addition_layerwise=one_by_one)
        net = pb.bayesianize(model, method).train()
        net.likelihood = pb.Categorical()
        optimizer = pb.Training(optimizer="sgd").make_optimizer(net)
        swap = (net, Recorded(), [batch], optimizer, 1, 10)
        method.replace_step(*swap)  # type: ignore[arg-type]  # the first call counts the weights' uses, once
        peaks.append(peak_memory(method.replace_step, *swap) / (4 * width * width))
    assert peaks[0] > 2 * depth  # weights and gradients of all layers
    assert peaks[1] < 8  # of one, and of putting its gradients in order, at any depth


def test_ssvi_swap_step_leaves_weights_and_batch_norm() -> None:
    method = pb.SSVI(density=0.3, swap_every=1, swap_until=1.0)
    net = pb.bayesianize(tiny_model(), method).train()
    net.likelihood = pb.Categorical()
    optimizer = pb.Training(weight_decay=0.1).make_optimizer(net)
    points = {name: value.clone() for name, value in net.model.state_dict().items()}
    old = dict(zip(net.posterior.index.tolist(), net.posterior.mean.tolist()))
    nll = method.replace_step(net, Recorded(), [tiny_data(16)], optimizer, step=1, steps=10)  # type: ignore[arg-type]
    assert nll == pytest.approx(math.log(3), rel=0.1)
    assert all(torch.equal(points[name], value) for name, value in net.model.state_dict().items())
    for position, value in zip(net.posterior.index.tolist(), net.posterior.mean.tolist()):
        assert value == old.get(position, 0.0)
    assert int(net.posterior.swapped) > 0
    assert not optimizer.state
    assert all(p.grad is None for p in net.parameters())


def test_ssvi_records_swaps_and_densities(tmp_path: Path) -> None:
    method = pb.SSVI(density=0.3, swap_every=2, swap_until=1.0)
    pb.fit(method, tiny_model(), tiny_data(), epochs=3, out=tmp_path, **QUICK)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    swapped = [row["swapped"] for row in rows]
    assert 0 < swapped[0] < swapped[1] <= swapped[2]
    assert rows[0]["densities"] == pytest.approx({"conv.weight": 8 / 27, "head.weight": 43 / 144})
    assert rows[0]["csr_products"] == []
    assert all(row["nll"] > 0.1 for row in rows)  # swap steps report their NLL too


def test_ssvi_static_mask_never_moves() -> None:
    settings = {"density": 0.3, "swap_every": 2, "swap_until": 1.0}
    start = pb.fit(pb.SSVI(static=True, **settings), tiny_model(), tiny_data(), epochs=0, **QUICK)
    end = pb.fit(pb.SSVI(static=True, **settings), tiny_model(), tiny_data(), epochs=3, **QUICK)
    moved = pb.fit(pb.SSVI(**settings), tiny_model(), tiny_data(), epochs=3, **QUICK)
    assert torch.equal(start.posterior.index, end.posterior.index)
    assert not torch.equal(start.posterior.mean, end.posterior.mean)
    assert not torch.equal(start.posterior.index, moved.posterior.index)


def test_ssvi_starts_from_the_largest_trained_weights() -> None:
    model = tiny_model()
    net = pb.bayesianize(model, pb.SSVI(density=0.3, first_choice="largest", mean_init="model"))
    assert isinstance(net, pb.Network)
    assert isinstance(net.posterior, Sparse)
    for slot, (first, last) in zip(net.layout.slots, net.posterior.spans()):
        weights = model.get_parameter(slot.name).detach().flatten().abs()
        kept = net.posterior.index[first:last].long() - slot.start
        absent = torch.ones(slot.size, dtype=torch.bool)
        absent[kept] = False
        assert float(weights[kept].min()) >= float(weights[absent].max())
    with pytest.raises(pb.UserError, match="first_choice"):
        pb.SSVI(first_choice="smallest")  # type: ignore[arg-type]


# -- the start --------------------------------------------------------------------------------------------------------


def test_ssvi_recipe_starts_as_the_paper() -> None:
    method = recipes.read("cifar10-resnet18-ssvi").method.make()
    torch.manual_seed(0)
    net = pb.bayesianize(pb.models.build("lenet300"), method)
    assert float(net.posterior.mean.detach().std()) == pytest.approx(0.01, rel=0.05)
    std = net.posterior.present_std().detach()
    expected = (6e-4 + 5e-4 * torch.randn(1_000_000)).abs()
    assert float(std.mean()) == pytest.approx(float(expected.mean()), rel=0.03)
    assert float(std.std()) == pytest.approx(float(expected.std()), rel=0.05)
    assert net.propagation == "local"
    assert float(net.prior.std) == 0.005
    assert [method.kl_weight(progress) for progress in (0.0, 0.25, 0.75)] == [0.0, 0.005, 0.01]


def test_ssvi_starts_on_the_scale_of_the_weights() -> None:
    net = pb.bayesianize(pb.models.build("lenet300"), pb.SSVI())
    std, mean = net.posterior.present_std().detach(), net.posterior.mean.detach()
    assert float(std.mean()) == pytest.approx(0.2 * float(mean.square().mean().sqrt()), rel=0.05)
    assert net.prior.name == "empirical"
    assert [pb.SSVI().kl_weight(progress) for progress in (0.0, 0.25, 0.75)] == [0.0, 0.01, 0.02]


def test_ssvi_may_keep_the_models_means() -> None:
    model = tiny_model()
    net = pb.bayesianize(model, pb.SSVI(mean_init="model", density=0.3))
    assert torch.equal(net.posterior.mean.detach(), net.layout.read(model)[net.posterior.index.long()])


@pytest.mark.parametrize("choice", ["random", "largest"])
def test_ssvi_scaled_means_keep_the_size_of_a_layer(choice: str) -> None:
    model = tiny_model()
    settings = {"density": 0.25, "distribution": "erdos-renyi", "mean_init": "scaled", "first_choice": choice}
    net = pb.bayesianize(model, pb.SSVI(**settings))  # type: ignore[arg-type]
    posterior = net.posterior
    assert isinstance(posterior, Sparse)
    given, densities = net.layout.read(model), posterior.densities()
    for slot, (first, last) in zip(net.layout.slots, posterior.spans()):
        factor = densities[slot.name] ** -0.5 if choice == "random" else 1.0
        torch.testing.assert_close(posterior.mean[first:last], factor * given[posterior.index[first:last].long()])


def test_ssvi_trains_a_sparse_network_further() -> None:
    rigl = pb.fit(pb.RigL(density=0.3), tiny_model(), tiny_data(), epochs=2, **QUICK)
    net = pb.fit(pb.SSVI(std_init=0.05), rigl, tiny_data(), epochs=0, **QUICK)
    assert torch.equal(net.posterior.index, rigl.posterior.index)
    assert torch.equal(net.posterior.mean, rigl.posterior.mean)
    assert float(net.posterior.present_std().detach().mean()) == pytest.approx(0.05, rel=0.1)
    again = pb.fit(pb.SSVI(), net, tiny_data(), epochs=0, **QUICK)
    torch.testing.assert_close(again.posterior.rho, net.posterior.rho)
    point = pb.fit(pb.RigL(), net, tiny_data(), epochs=0, **QUICK)
    assert point.posterior.rho is None


# -- full runs --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("addition", ["sampled", "averaged"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ssvi_resumes_between_swaps_exactly(
    method: type[SparseTraining], addition: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"density": 0.3, "swap_every": 2, "swap_until": 0.9, "addition": addition, "addition_batches": 2}

    def train(name: str, **more: object) -> Network:
        out = tmp_path / name
        options = {"epochs": 4, "out": out, "checkpoint_steps": 1, "optimizer": optimizer, **QUICK, **more}
        return pb.fit(method(**settings), tiny_model(), tiny_data(), **options)

    class StopError(Exception):
        pass

    write, left = checkpoint.write, 6  # after the sixth of twelve steps, two of four swaps

    def write_and_stop(*args: object) -> None:
        nonlocal left
        write(*args)
        left -= 1
        if not left:
            raise StopError

    whole = train("whole")
    monkeypatch.setattr(checkpoint, "write", write_and_stop)
    with pytest.raises(StopError):
        train("parts")
    monkeypatch.setattr(checkpoint, "write", write)
    resumed = train("parts", resume=True)
    assert int(whole.posterior.swapped) > 0
    assert all(torch.equal(one, two) for one, two in zip(whole.state_dict().values(), resumed.state_dict().values()))
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "parts/metrics.jsonl").read_text()


def trained_state() -> dict[str, Tensor]:
    method = pb.SSVI(density=0.3, swap_every=2, swap_until=1.0, mean_init="model", addition="averaged")
    return pb.fit(method, smooth(), tiny_data(), epochs=3, accelerator="cpu", **QUICK).state_dict()


def test_ssvi_swaps_the_same_weights_on_two_ranks(tmp_path: Path) -> None:
    one, two = ranks.run(trained_state, 2, tmp_path)
    assert int(one["posterior.swapped"]) > 0
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


@BOTH
def test_ssvi_learns(method: type[SparseTraining], learning_seed: int) -> None:
    x, y = tiny_data(96, learning_seed)
    model = tiny_model(learning_seed)
    net = pb.fit(method(density=0.2, swap_every=10), model, (x, y), epochs=25, seed=learning_seed, **QUICK)
    assert pb.evaluate(net, (x, y))["accuracy"] > 0.95
    assert len(net.posterior.index) == round(0.2 * net.layout.size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, "density must lie above 0"),
        ({"distribution": "even"}, "unknown distribution 'even'"),
        ({"removal": "size"}, "unknown removal score 'size'"),
        ({"addition": "all"}, "unknown addition 'all'"),
        ({"swap_every": 0}, "swap_every must be a number of steps of at least 1"),
        ({"swap_fraction": 2.0}, "swap_fraction must lie between 0 and 1"),
        ({"prior": "pretrained"}, "which a sparse network does not have"),
        ({"mean_init": "zero"}, "mean_init must be a std, 'model' or 'scaled'"),
        ({"added_std_init": 0.0}, "added_std_init must be a positive number or 'layer'"),
        ({"std_init": 0.0}, "std_init and removal_scale must be positive"),
        ({"antithetic": True, "train_samples": 2}, "antithetic noise needs propagation='sample'"),
    ],
)
def test_ssvi_names_wrong_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(pb.UserError, match=message):
        pb.SSVI(**settings)  # type: ignore[arg-type]


def test_ssvi_names_a_wrong_kernel() -> None:
    with pytest.raises(pb.UserError, match="unknown kernel 'coo'"):
        pb.bayesianize(tiny_model(), pb.SSVI(kernel="coo"))  # type: ignore[arg-type]


def test_ssvi_runs_two_steps_at_the_papers_scale() -> None:
    from pocketbayes import recipes as config

    large = config.read("cifar100-resnet18-ssvi")
    recipe = config.read("cifar10-resnet18-ssvi", ["method.swap_every=1"])
    assert (large.training, large.model) == (recipe.training, recipe.model)
    model = pb.models.build_for(recipe.model.name, (3, 32, 32), 10, **recipe.model.settings)
    training = pb.Training(**recipe.training).replace({"batch_size": 2, "epochs": 1})
    data = torch.randn(4, 3, 32, 32), torch.arange(4)
    net = pb.fit(recipe.method.make(), model, data, training=training, progress=False)
    assert int(net.posterior.swapped) > 0
    first, *others = net.posterior.densities().values()
    assert first == 1
    assert others == pytest.approx([0.1] * len(others), abs=1e-3)
