"""Sparse posteriors: scores, positions, sparse products, and that no dense tensor is kept."""

from __future__ import annotations

import copy
import gc
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.methods.sparsity import layer_counts
from pocketbayes.network import Network
from pocketbayes.posteriors.csr import Pattern, SparseMatrix
from pocketbayes.posteriors.sparse import SCORES, Sparse, carry, removal_score
from training_cost import training_bytes, training_flops

# -- scores -----------------------------------------------------------------------------------------------------------


def integral(f: object, mean: float, std: float) -> float:
    """Return E f(|w|) for w ~ N(mean, std^2)."""

    def each(w: float) -> float:
        return f(abs(w)) * math.exp(-0.5 * ((w - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))  # type: ignore[operator]

    low, high = mean - 12 * std - 3 * std**2, mean + 12 * std + 3 * std**2
    return integrate.quad(each, low, high, points=[0.0] if low < 0 < high else None, limit=300, epsrel=1e-12, epsabs=0)[
        0
    ]


def integrated(name: str, mean: float, std: float, scale: float) -> float:
    if name == "magnitude":
        return abs(mean)
    if name == "snr":
        return abs(mean) / std
    transform = (lambda a: a) if name.startswith("abs") else (lambda a: math.exp(scale * a))
    first = integral(transform, mean, std)
    if name.endswith("mean"):
        return first
    return first / math.sqrt(integral(lambda a: (transform(a) - first) ** 2, mean, std))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_scores_agree_with_numerical_integration(name: str, scale: float) -> None:
    for mean in (0.0, 7e-6, 1e-4, -0.3, 2.5):
        for std in (1e-5, 6e-4, 0.05, 0.5, 1.5):
            score = removal_score(name, *(torch.tensor([v], dtype=torch.float64) for v in (mean, std)), scale)
            assert float(score) == pytest.approx(integrated(name, mean, std, scale), rel=1e-7), (mean, std)


@pytest.mark.parametrize("name", SCORES)
def test_scores_agree_with_a_million_draws(name: str) -> None:
    noise = torch.randn(1_000_000, dtype=torch.float64)
    for mean, std in ((0.2, 0.3), (-1.0, 0.4), (0.0, 0.7)):
        size = (mean + std * noise).abs()
        size = size.exp() if name.startswith("exp") else size
        expected = size.mean() if name.endswith("-mean") else size.mean() / size.std()
        if name in ("magnitude", "snr"):
            expected = torch.tensor(abs(mean) / (std if name == "snr" else 1))
        score = removal_score(name, torch.tensor(mean), torch.tensor(std))
        assert float(score) == pytest.approx(float(expected), rel=0.01)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scores_are_finite_at_every_extreme(name: str, dtype: torch.dtype) -> None:
    sizes = torch.tensor([0.0, 1e-30, 1e-4, 1.0, 100.0, 1e4], dtype=dtype)
    stds = torch.tensor([0.0, 1e-38, 1e-8, 6e-4, 1.0, 1e3], dtype=dtype)
    mean, std = (grid.flatten() for grid in torch.meshgrid(sizes, stds, indexing="ij"))
    for scale in (1e-6, 1.0, 1e3):
        for sign in (1, -1):
            score = removal_score(name, sign * mean, std, scale)
            assert score.dtype == dtype
            assert bool(score.isfinite().all())
            assert bool((score >= 0).all())
            assert torch.equal(score, removal_score(name, mean, std, scale))
        assert not removal_score(name, mean, std, scale, log=True).isnan().any()


def test_scores_rank_correctly_beyond_float_range() -> None:
    """Large l: E exp(l|w|) overflows from |w| = 0.1 on, its signal-to-noise ratio underflows."""
    mean = torch.linspace(0.1, 1.0, 50)
    std = torch.full_like(mean, 0.05)
    assert bool((removal_score("exp-mean", mean, std, 1e4, log=True).diff() > 0).all())
    assert bool((removal_score("exp-snr", mean[:1].expand(50), mean, 1e3, log=True).diff() < 0).all())
    still = torch.zeros(50)
    for name in ("snr", "abs-snr"):
        assert bool((removal_score(name, mean, still, log=True).diff() > 0).all()), name
    tiny = torch.logspace(-9, -1, 1000, dtype=torch.float64)
    for ratio in (0.0, 0.3, 1.0, 10.0):  # no jump where the series takes over
        assert bool((removal_score("exp-snr", ratio * tiny, tiny).diff() < 0).all()), ratio


def test_scores_far_from_zero_are_lognormal() -> None:
    """Var exp(l w) / (E exp(l w))^2 = exp((l std)^2) - 1."""
    for std in (9e-5, 1e-6):  # below the width at which the series takes over
        score = removal_score("exp-snr", *(torch.tensor([v], dtype=torch.float64) for v in (40 * std, std)), log=True)
        assert float(score) == pytest.approx(-0.5 * math.log(math.expm1(std**2)), abs=1e-11)


def test_scores_by_both_ratios_rank_equally() -> None:
    ratio = torch.linspace(0, 40, 2001, dtype=torch.float64)
    assert bool((removal_score("abs-snr", ratio, torch.ones_like(ratio)).diff() > 0).all())


def test_scores_name_an_unknown_score() -> None:
    with pytest.raises(pb.UserError, match="unknown removal score 'sNR': "):
        removal_score("sNR", torch.zeros(1), torch.ones(1))


# -- how many, where --------------------------------------------------------------------------------------------------

shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 12), st.integers(1, 12)),
        st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=6,
)
distributions = st.sampled_from(["uniform", "erdos-renyi", "erdos-renyi-kernel", "global"])


@given(shapes, st.floats(0.005, 1.0), distributions, st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_density_counts_are_exact(
    shapes: list[tuple[int, ...]], density: float, distribution: str, first: bool, last: bool
) -> None:
    dense = [(first and i == 0) or (last and i == len(shapes) - 1) for i in range(len(shapes))]
    sizes = [math.prod(shape) for shape in shapes]
    counts = layer_counts(shapes, density, distribution, dense)  # type: ignore[arg-type]
    assert all(1 <= count <= size for count, size in zip(counts, sizes))
    assert all(count == size for count, size, full in zip(counts, sizes, dense) if full)
    free = [i for i, full in enumerate(dense) if not full]
    assert sum(counts[i] for i in free) == max(round(density * sum(sizes[i] for i in free)), len(free))
    if distribution == "uniform":
        crowd = sum(density * sizes[i] < 1 for i in free)  # layers lifted to one weight, which others give
        assert all(abs(counts[i] - density * sizes[i]) <= 1 + crowd for i in free)


def test_density_by_erdos_renyi_follows_the_fans() -> None:
    shapes = [(64, 3, 3, 3), (128, 64, 3, 3), (256, 512), (10, 256)]
    for distribution, fans in (("erdos-renyi", [67, 192, 768, 266]), ("erdos-renyi-kernel", [73, 198, 768, 266])):
        counts = layer_counts(shapes, 0.05, distribution)  # type: ignore[arg-type]
        scale = (sum(counts) - counts[0] * (counts[0] == 1728)) / sum(fans[counts[0] == 1728 :])
        for count, fan, shape in zip(counts, fans, shapes):
            assert count == min(round(scale * fan), math.prod(shape)) or abs(count - scale * fan) <= 1


# -- the storage ------------------------------------------------------------------------------------------------------


def lenet(
    kernel: str = "auto", density: float = 0.02, dtype: torch.dtype = torch.float32, **settings: object
) -> Network:
    torch.manual_seed(0)
    method = pb.SSVI(density=density, mean_init=0.1, std_init=0.05, kernel=kernel, **settings)  # type: ignore[arg-type]
    net = pb.bayesianize(pb.models.build("lenet300").to(dtype), method)
    net.likelihood = pb.Categorical()
    return net


def test_sparse_moments_draws_and_kl_cover_present_weights() -> None:
    net = lenet()
    posterior = net.posterior
    mean, std = (moment.detach() for moment in posterior.moments())
    index = posterior.index.long()
    assert int((std > 0).sum()) == len(index) == round(0.02 * net.layout.size) == posterior.noise_size
    assert torch.equal(mean[index], posterior.mean)
    assert not posterior.sample().detach()[std == 0].any()
    assert bool((index.diff() > 0).all())
    torch.testing.assert_close(pb.kl(net), super(Sparse, posterior).kl(net.prior))


def test_sparse_at_density_one_is_mean_field() -> None:
    model = tiny_model()
    sparse = pb.bayesianize(model, pb.SSVI(density=1.0, prior_std=0.1))
    field = pb.bayesianize(model, pb.MeanFieldVI(prior_std=0.1))
    field.posterior.rho.data.copy_(sparse.posterior.rho.data)
    noise = torch.randn(field.layout.size)
    torch.testing.assert_close(sparse.posterior.sample(noise), field.posterior.sample(noise))
    torch.testing.assert_close(pb.kl(sparse), pb.kl(field))


def test_sparse_swap_agrees_with_a_hand_calculation() -> None:
    """Weights 1, 4, 5, 8 of nine: 4 and 8 leave, 0 and 6 come in, and everything stays with its weight."""
    layout = pb.Layout.of(nn.Linear(3, 3))
    posterior = Sparse(
        layout, torch.tensor([1, 4, 5, 8]), torch.tensor([1.0, 4, 5, 8]), torch.tensor([0.1, 0.4, 0.5, 0.8])
    )
    source = posterior.swap(torch.tensor([1, 3]), torch.tensor([6, 0]), torch.tensor([0.6, 0.3]))
    assert posterior.index.tolist() == [0, 1, 5, 6]
    assert posterior.mean.tolist() == [0, 1, 5, 0]
    torch.testing.assert_close(posterior.present_std(), torch.tensor([0.3, 0.1, 0.5, 0.6]))
    assert source.tolist() == [-1, 0, 2, -1]
    assert carry(torch.tensor([10.0, 40, 50, 80]), source).tolist() == [0, 10, 50, 0]
    assert int(posterior.swapped) == 2
    with pytest.raises(pb.UserError, match="cannot replace 1 weights by 2"):
        posterior.swap(torch.tensor([0]), torch.tensor([2, 3]), torch.ones(2))


def test_sparse_refuses_positions_out_of_order_or_range() -> None:
    layout = pb.Layout.of(nn.Linear(3, 3))
    for index in ([1, 1], [2, 1], [0, 9], [-1, 3]):
        with pytest.raises(pb.UserError, match=r"must ascend within \[0, 9\)"):
            Sparse(layout, torch.tensor(index), torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("kernel", ["csr", "dense"])
def test_sparse_gradients_are_the_dense_networks(kernel: str) -> None:
    net = lenet(kernel, dtype=torch.float64)
    x, y = torch.randn(8, 1, 28, 28, dtype=torch.float64), torch.arange(8)
    noise = torch.randn(net.posterior.noise_size, dtype=torch.float64)
    with net.using("sample", noise=noise):
        F.cross_entropy(net(x), y).backward()
        flat = net.posterior.sample(noise).detach().requires_grad_()
    (dense,) = torch.autograd.grad(F.cross_entropy(net.run_at(flat, x), y), flat)
    index = net.posterior.index.long()
    torch.testing.assert_close(net.posterior.mean.grad, dense[index])
    torch.testing.assert_close(net.posterior.rho.grad, dense[index] * noise * torch.sigmoid(net.posterior.rho.detach()))


# -- products over present values -------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 49), st.lists(st.integers(1, 4), min_size=0, max_size=2))
@settings(max_examples=25, deadline=None)
def test_sparse_products_are_the_dense_matrixs(rows: int, columns: int, seed: int, batch: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = 1 + seed % (rows * columns)
    index = torch.randperm(rows * columns, generator=generator)[:count].sort().values
    values, bias = (torch.randn(k, dtype=torch.float64, generator=generator, requires_grad=True) for k in (count, rows))
    x = torch.randn(*batch, columns, dtype=torch.float64, generator=generator, requires_grad=True)
    dense = torch.zeros(rows * columns, dtype=torch.float64).index_copy(0, index, values).view(rows, columns)
    sparse = SparseMatrix(Pattern.of(index, (rows, columns)), values)
    assert sparse.shape == (rows, columns)
    for terms in ((), (bias,)):
        one, two = F.linear(x, sparse, *terms), F.linear(x, dense, *terms)
        torch.testing.assert_close(one, two)
        grads = [torch.autograd.grad(out.sin().sum(), (values, x, *terms), retain_graph=True) for out in (one, two)]
        torch.testing.assert_close(*grads)
        with torch.no_grad():
            torch.testing.assert_close(F.linear(x, sparse, *terms), two)


def test_sparse_matrix_refuses_other_operations() -> None:
    matrix = SparseMatrix(Pattern.of(torch.tensor([1]), (2, 2)), torch.ones(1))
    with pytest.raises(RuntimeError, match=r"planned for F\.linear, but matmul uses it"):
        torch.matmul(matrix, torch.ones(2, 2))


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "flipout"])
def test_sparse_kernels_agree(propagation: str) -> None:
    x = torch.randn(16, 1, 28, 28, dtype=torch.float64)
    results = []
    for kernel in ("csr", "dense"):
        net = lenet(kernel, dtype=torch.float64)
        torch.manual_seed(1)
        with net.using(propagation):
            output = net(x)
        output.square().sum().backward()
        results.append((output, net.posterior.mean.grad, net.posterior.rho.grad))
    torch.testing.assert_close(*results)


class Odd(nn.Module):
    """A model with a matrix that is used twice, one without a rule, and one that is used normally."""

    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
            return x @ weight.t()

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.hidden, self.plain = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x))
        return self.plain(self.Hidden.apply(x, self.hidden.weight))


def test_sparse_matrices_are_weights_used_once_by_linear() -> None:
    torch.manual_seed(0)
    model, x = Odd(), torch.randn(5, 6)
    nets = [
        pb.bayesianize(model, pb.SSVI(density=0.5, mean_init="model", kernel=kernel))
        for kernel in ("csr", "dense")
        if torch.manual_seed(3)
    ]
    assert all(torch.equal(a, b) for a, b in zip(nets[0].state_dict().values(), nets[1].state_dict().values()))
    for propagation in ("mean", "sample"):
        with torch.no_grad(), nets[0].using(propagation):
            sparse = [type(weight) is SparseMatrix for weight in nets[0].weights(x)]
        assert sparse == [False, False, True]
        one, two = (pb.predict(net, x, 3, propagation=propagation).mean for net in nets)
        torch.testing.assert_close(one, two)


def test_sparse_rule_takes_large_matrices_and_reports_it() -> None:
    assert lenet().posterior.fast_slots() == ["linear1.weight"]
    assert lenet(density=0.5).posterior.fast_slots() == []
    assert lenet("csr", density=0.5).posterior.fast_slots() == ["linear1.weight", "linear2.weight", "head.weight"]
    assert pb.census(lenet()).notes[0].startswith("CSR products for linear1.weight; dense products")
    assert pb.census(lenet("dense")).notes == ("dense products of scattered values for all layers",)


def test_sparse_tables_follow_swapped_positions() -> None:
    net = lenet("csr")
    x = torch.randn(4, 1, 28, 28)
    before = pb.predict(net, x, propagation="mean").mean
    other = lenet("csr", density=0.02)
    other.posterior.swap(torch.arange(3000), absent(other.posterior, 3000), torch.full((3000,), 0.1))
    swapped = copy.deepcopy(other)
    net.load_state_dict(other.state_dict())
    after = pb.predict(net, x, propagation="mean").mean
    assert not torch.equal(before, after)
    assert torch.equal(after, pb.predict(swapped, x, propagation="mean").mean)
    dense = lenet("dense")
    dense.load_state_dict(other.state_dict())
    torch.testing.assert_close(after, pb.predict(dense, x, propagation="mean").mean)


def absent(posterior: Sparse, count: int) -> Tensor:
    free = torch.ones(posterior.layout.size, dtype=torch.bool)
    free[posterior.index.long()] = False
    return free.nonzero().flatten()[:count]


def test_sparse_compiled_network_needs_no_sparse_matrix() -> None:
    net = lenet("csr")
    x = torch.randn(4, 1, 28, 28)
    with torch.no_grad(), net.using("mean"):
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), net(x))


# -- savings ----------------------------------------------------------------------------------------------------------


def one_step(net: Network, optimizer: torch.optim.Optimizer, batch: int = 8) -> None:
    net.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(net(torch.randn(batch, 1, 28, 28)), torch.arange(batch) % 10)
    (loss + 1e-5 * net.kl()).backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_sparse_memory_is_below_015_of_dense_vi(optimizer: str) -> None:
    used = []
    for net in (lenet(density=0.05), pb.bayesianize(pb.models.build("lenet300"), pb.MeanFieldVI(propagation="local"))):
        steps = pb.Training(optimizer=optimizer).make_optimizer(net)
        one_step(net, steps)
        used.append(training_bytes(net, steps))
        live = [*net.parameters(), *(p.grad for p in net.parameters() if p.grad is not None)]
        live += [v for s in steps.state.values() for v in s.values() if isinstance(v, Tensor)]
        assert used[-1]["total"] >= sum(tensor.nbytes for tensor in live)
    assert used[0]["total"] <= 0.15 * used[1]["total"]
    assert all(used[0][key] <= 0.15 * used[1][key] for key in used[0])


@pytest.mark.parametrize("kernel", ["csr", "dense"])
def test_sparse_step_leaves_nothing_dense(kernel: str) -> None:
    net = lenet(kernel)
    optimizer = pb.Training().make_optimizer(net)
    largest_layer = 784 * 300
    gc.collect()

    def dense_tensors() -> int:
        found = [o for o in gc.get_objects() if issubclass(type(o), Tensor) and o.numel() >= largest_layer]
        return sum(o.untyped_storage().nbytes() >= 4 * largest_layer for o in found)

    before = dense_tensors()
    for _ in range(2):
        one_step(net, optimizer)
    pb.SSVI(density=0.02).swap(net.posterior, torch.rand(net.layout.size), 0.3, optimizer)
    one_step(net, optimizer)
    gc.collect()
    assert dense_tensors() == before
    held = torch.zeros(largest_layer)
    assert dense_tensors() == before + 1, held.shape


def test_sparse_file_is_below_012_of_the_dense_file(tmp_path: Path) -> None:
    dense = pb.bayesianize(pb.models.build("lenet300"), pb.MeanFieldVI())
    sizes = [pb.save(net, tmp_path / "net.pocket") for net in (lenet(density=0.05), dense)]
    assert sizes[0] <= 0.12 * sizes[1]


@pytest.mark.parametrize("propagation", ["local", "sample"])
def test_executed_flops_match_a_step(propagation: str) -> None:
    net = pb.bayesianize(tiny_model(), pb.SSVI(density=0.5, kernel="dense", propagation=propagation)).train()
    x = tiny_data(8)[0]
    net(x)  # plans
    measured = pb.metrics.flops(lambda: net(x).sum().backward())
    counted = training_flops(net, x)
    assert counted["executed"] * len(x) == measured
    densities = net.posterior.densities()  # 14 of 27 and 72 of 144 weights
    conv, head = (products * 3 * 2 * size for size in (16 * 27, 144) for products in [1 + (propagation == "local")])
    assert counted["dense"] == conv + head
    assert counted["present"] == pytest.approx(conv * densities["conv.weight"] + head * densities["head.weight"])


def test_sparse_products_execute_the_present_weights_only() -> None:
    x = torch.randn(4, 1, 28, 28)
    counted = training_flops(lenet("csr", 0.05, distribution="erdos-renyi"), x)
    assert counted["executed"] < counted["present"] < 0.06 * counted["dense"] * 1.5


def test_sparse_draws_are_independent_of_absent_weights() -> None:
    """A draw takes s random numbers for any size of network."""
    net = lenet()
    state = torch.get_rng_state()
    net.posterior.sample()
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.randn(net.posterior.noise_size)
    assert torch.equal(after, torch.get_rng_state())
    assert np.isclose(net.posterior.noise_size / net.layout.size, 0.02, atol=1e-5)
