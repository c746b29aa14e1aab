"""Exported graphs: agreement with PyTorch, random draws, and size."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from typer.testing import CliRunner

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.cli import app
from pocketbayes.posteriors import MeanField, Partial, Posterior, Shared, Sparse

ir = pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")

Array = npt.NDArray[Any]
Answer = dict[str, Array]


def session(source: Path | bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns about inputs with defaults
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(source, options)


def ask(path: Path, x: Tensor, **inputs: int) -> Answer:
    runs = session(path)
    feed = {"x": x.numpy(), **{name: np.asarray(value, np.int64) for name, value in inputs.items()}}
    return dict(zip([output.name for output in runs.get_outputs()], runs.run(None, feed)))


def weights_of(path: Path) -> dict[str, Any]:
    return {name: value.const_value for name, value in ir.load(path).graph.initializers.items()}


# -- networks ---------------------------------------------------------------------------------------------------------

STORAGES = ("mean-field", "partial", "sparse", "shared")


def posterior(storage: str, model: nn.Module) -> Posterior:
    layout = pb.Layout.of(model)
    mean, n = layout.read(model), layout.size
    std = 0.02 + 0.02 * torch.rand(n)
    some = torch.randperm(n)[: n // 5].sort().values
    if storage == "mean-field":
        return MeanField(layout, mean, std)
    if storage == "partial":
        return Partial(layout, mean, some, std[some])
    if storage == "sparse":
        return Sparse(layout, some, 2 * mean[some], std[some])
    k, outliers, blends = 30, n // 50, 4
    centres = torch.stack([torch.linspace(float(mean.min()), float(mean.max()), k), torch.full((k,), 0.02)], 1)
    index = torch.bucketize(mean, centres[:, 0].contiguous()).clamp(max=k - 1)
    own = torch.randperm(n)[: outliers + blends]
    index[own] = k + torch.arange(len(own))
    return Shared(
        layout,
        centres=centres,
        factors=torch.tensor([[0.02, 0.005, 0.01]]).repeat(k, 1),
        index=index,
        outlier_mean=mean[own[:outliers]],
        outlier_std=std[:outliers],
        blend_index=torch.randint(0, k, (blends, 2)),
        blend_alpha=torch.full((blends, 2), 0.5),
        draw="shared-noise",
    )


def network(storage: str, model: nn.Module) -> pb.Network:
    return pb.Network(copy.deepcopy(model), posterior(storage, model)).eval()


def mixture(model: nn.Module) -> pb.Mixture:
    """Return a mixture with one network of each storage, so that one export covers all."""
    return pb.Mixture([network(storage, model) for storage in STORAGES])


MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "lenet5": ("lenet5", {}, (1, 28, 28)),
    "resnet20": ("resnet20", {}, (3, 32, 32)),
    "vit": ("vit-ti", {"dim": 24, "heads": 2, "depth": 2, "patch_size": 4, "image_size": 16}, (3, 16, 16)),
}  # fmt: skip


def zoo(name: str) -> tuple[nn.Module, Tensor]:
    model, args, shape = MODELS[name]
    return pb.models.build(model, **args), torch.randn(5, *shape)


# -- noise ------------------------------------------------------------------------------------------------------------


def scrambled(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def noise(seed: int, number: int, size: int) -> Array:
    """Return a graph's noise for a pass, in double precision."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        own = scrambled(scrambled(np.array([seed]).astype(np.uint64)) + np.uint64(number) * golden)
        bits = scrambled(own + np.arange(1, -(-size // 2) + 1, dtype=np.uint64) * golden)
    uniform = (bits >> np.uint64(32)) * 2.0**-32 + 2.0**-33
    angle = 2 * np.pi * ((bits & np.uint64(2**32 - 1)) * 2.0**-32)
    radius = np.sqrt(-2 * np.log(uniform))
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def drawn_in_torch(net: pb.Mixture | pb.Network, x: Tensor, samples: int, seed: int) -> Answer:
    """Return PyTorch's prediction for weights drawn from the same noise."""
    networks = list(net) if isinstance(net, pb.Mixture) else [net]
    logits = []
    sizes = [member.posterior.noise_size for member in networks]
    for number in range(-(-samples // len(networks))):
        parts = torch.from_numpy(noise(seed, number, sum(sizes)).astype(np.float32)).split(sizes)
        for member, part in zip(networks, parts):
            with torch.no_grad(), member.using("sample", noise=part):
                logits.append(member(x).double())
    z = torch.stack(logits)
    p = z.softmax(2)
    entropy, aleatoric = torch.special.entr(p.mean(0)).sum(1), torch.special.entr(p).sum(2).mean(0)
    found = {
        "probs": p.mean(0),
        "var": p.var(0, unbiased=False),
        "entropy": entropy,
        "epistemic": entropy - aleatoric,
        "aleatoric": aleatoric,
        "logits": z.mean(0),
        "logits_var": z.var(0, unbiased=False),
    }
    return {name: value.numpy() for name, value in found.items()}


def noise_graph(size: int) -> Any:
    """(seed, pass) -> noise."""
    from pocketbayes.ship import onnx_graph

    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20})
    op = onnx_graph.Nodes(graph)
    seed, number = (ir.val(name, dtype=ir.DataType.INT64, shape=[]) for name in ("seed", "pass"))
    stream = onnx_graph._mix(op, op("Cast", seed, to=ir.DataType.UINT64))
    made = onnx_graph._normal(op, stream, number, onnx_graph._counters(op, size), size)
    made.name, made.dtype, made.shape = "noise", ir.DataType.FLOAT, ir.Shape([size])
    graph.extend(op.made)
    graph.inputs[:] = [seed, number]
    graph.outputs[:] = [made]
    runs = session(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return lambda s, i: runs.run(None, {"seed": np.asarray(s, np.int64), "pass": np.asarray(i, np.int64)})[0]


def test_exported_noise_depends_on_seed_pass_and_position() -> None:
    draw = noise_graph(1001)
    for seed, number in ((0, 0), (0, 1), (7, 0), (-3, 2), (2**62, 10**6)):
        assert np.allclose(draw(seed, number), noise(seed, number, 1001), atol=2e-5)
        assert np.array_equal(draw(seed, number), draw(seed, number))


def test_exported_noise_is_standard_normal() -> None:
    size = 100_000
    draw = noise_graph(size)
    streams = np.stack([draw(seed, number) for seed in (0, 1) for number in range(3)]).astype(np.float64)
    assert np.isfinite(streams).all()
    pooled = streams.reshape(-1)
    assert stats.kstest(pooled, "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        spread = np.sqrt((stats.norm.moment(2 * power) - moment**2) / pooled.size)
        assert abs((pooled**power).mean() - moment) < 4 * spread
    correlation = np.corrcoef(streams)[np.triu_indices(6, 1)]
    neighbours = np.array([np.corrcoef(s[:-1], s[1:])[0, 1] for s in streams])
    halves = np.array([np.corrcoef(s[: size // 2], s[size // 2 :])[0, 1] for s in streams])  # sine and cosine
    assert np.abs(np.concatenate([correlation, neighbours])).max() < 5 / np.sqrt(size)
    assert np.abs(halves).max() < 5 / np.sqrt(size / 2)


# -- small integers ---------------------------------------------------------------------------------------------------


def shrunk(values: Array) -> tuple[Array, int]:
    """Return a graph's output for its packed constant, and the bytes of all constants."""
    from pocketbayes.ship import onnx_graph

    constant = ir.val("index", const_value=ir.tensor(values, name="index"))
    graph = ir.Graph([], [], nodes=[], initializers=[constant], opset_imports={"": 20})
    op = onnx_graph.Nodes(graph)
    out = op("Identity", constant)
    out.name, out.dtype, out.shape = "out", ir.DataType(constant.const_value.dtype), ir.Shape(values.shape)
    graph.extend(op.made)
    graph.outputs[:] = [out]
    onnx_graph.shrink_integers(graph)
    size = sum(value.const_value.nbytes for value in graph.initializers.values())
    runs = session(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    return runs.run(None, {})[0], size


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=64, max_size=90)
    | st.lists(st.integers(0, 300), min_size=64, max_size=300)
    | st.lists(st.integers(0, 2**31 - 1), min_size=64, max_size=90).map(sorted)
    | st.lists(st.integers(-(2**40), 2**40), min_size=64, max_size=70),
    st.booleans(),
)
def test_export_widens_small_integers_again(values: list[int], as_column: bool) -> None:
    array = np.array(values, np.int64)
    array = array[:, None] if as_column else array
    found, _ = shrunk(array)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


def test_export_stores_integers_in_the_bytes_they_need() -> None:
    random = np.random.default_rng(0)
    few = random.integers(0, 200, 10_000)
    assert shrunk(few)[1] < 10_100
    few[random.permutation(10_000)[:300]] = 5_000 + np.arange(300)  # outliers' entries, rare among bytes
    found, size = shrunk(few)
    assert np.array_equal(found, few)
    assert size < 10_000 + 6 * 300
    positions = np.sort(random.permutation(10**6)[:50_000])  # 5 % present: gaps of 20
    found, size = shrunk(positions.astype(np.int32))
    assert found.dtype == np.int32
    assert np.array_equal(found, positions)
    assert size < 1.01 * 50_000


# -- graphs against PyTorch -------------------------------------------------------------------------------------------


def close(found: Answer, expected: Answer, tolerance: float) -> None:
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert (np.abs(found[name] - value) / np.maximum(1, np.abs(value))).max() < tolerance, name


def as_answer(prediction: pb.Prediction) -> Answer:
    names = ("probs", "entropy", "epistemic", "aleatoric")
    return {**{name: getattr(prediction, name).numpy() for name in names}, "var": prediction.std.square().numpy()}


def check_samples(net: pb.Mixture | pb.Network, x: Tensor, path: Path) -> None:
    found = ask(path, x)
    close(found, drawn_in_torch(net, x, samples=6, seed=3), 1e-4)
    runs = session(path)
    first, again = (runs.run(["probs"], {"x": x.numpy()})[0] for _ in range(2))
    assert np.array_equal(first, again)  # in the same session: noise has no state
    close(ask(path, x, seed=4, samples=2), drawn_in_torch(net, x, samples=2, seed=4), 1e-4)
    assert np.abs(ask(path, x, seed=4)["probs"] - found["probs"]).max() > 1e-5
    close(ask(path, x[:1]), {name: value[:1] for name, value in found.items()}, 1e-5)


def check_moments(net: pb.Mixture | pb.Network, x: Tensor, path: Path) -> None:
    close(ask(path, x), as_answer(pb.predict(net, x, propagation="moments", readout="probit")), 1e-4)
    close(ask(path, x[:1]), as_answer(pb.predict(net, x[:1], propagation="moments", readout="probit")), 1e-4)


def check_mean(net: pb.Mixture | pb.Network, x: Tensor, path: Path) -> None:
    close(ask(path, x), as_answer(pb.predict(net, x, propagation="mean")), 1e-5)


CHECKS = {"sample": check_samples, "moments": check_moments, "mean": check_mean}


@pytest.mark.parametrize("mode", CHECKS)
def test_export_of_every_storage_agrees_with_pytorch(mode: Any, tmp_path: Path) -> None:
    net, x = mixture(tiny_model()), tiny_data(7)[0]
    path = tmp_path / "net.onnx"
    generator = torch.random.get_rng_state()
    size = pb.export_onnx(net, path, mode, samples=6, seed=3, example=x)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert size == path.stat().st_size
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    CHECKS[mode](net, x, path)
    if mode == "sample":
        within_sampling_error(net, x, path)


def within_sampling_error(net: pb.Mixture, x: Tensor, path: Path, samples: int = 1600) -> None:
    """Against PyTorch's own generator: the difference of two means has std sqrt(2 var / samples)."""
    found, expected = ask(path, x, samples=samples), pb.predict(net, x, samples=samples, seed=1)
    error = np.sqrt(2 * found["var"] / samples)
    assert (np.abs(found["probs"] - expected.mean.numpy()) / error).max() < 4.5
    assert np.allclose(np.sqrt(found["var"]), expected.std.numpy(), rtol=0.15, atol=1e-4)


def test_export_of_a_weight_shared_network_stays_small(tmp_path: Path) -> None:
    model, x = zoo("lenet5")
    net = network("shared", model)
    path = tmp_path / "net.onnx"
    size = pb.export_onnx(net, path, samples=6, seed=3, example=x)
    n = net.layout.size
    assert size < 1.6 * n  # a byte a weight, 1230 outliers, the nodes; dense means alone would be 4 n
    tensors = weights_of(path)
    assert [t.dtype for t in tensors.values() if t.size == n] == [ir.DataType.UINT8]
    assert not any(t.dtype in (ir.DataType.FLOAT, ir.DataType.INT64) and t.size > n / 40 for t in tensors.values())
    check_samples(net, x, path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_export_of_models_with_every_storage_agrees(name: str, mode: Any, tmp_path: Path) -> None:
    model, x = zoo(name)
    for storage in STORAGES:
        net, path = network(storage, model), tmp_path / f"{storage}.onnx"
        size = pb.export_onnx(net, path, mode, samples=6, seed=3, example=x)
        CHECKS[mode](net, x, path)
        n, s = net.layout.size, int((net.posterior.moments()[1] > 0).sum())
        rest = sum(4 * t.numel() for t in net.model.state_dict().values()) + 100_000
        limit = {"mean-field": 8 * n, "partial": 4 * n + 6 * s, "sparse": 10 * s, "shared": 1.5 * n}[storage]
        assert size < limit + rest


@pytest.mark.parametrize("mode", ["sample", pytest.param("moments", marks=pytest.mark.slow)])
def test_export_of_a_regression_answers_in_original_units(mode: Any, tmp_path: Path) -> None:
    model = pb.models.build("mlp", in_features=4, hidden=[16], out_features=2)
    net = network("mean-field", model)
    net.likelihood = pb.GaussianNoise("predicted")
    x = torch.randn(9, 4)
    pb.export_onnx(net, tmp_path / "net.onnx", mode, samples=500, example=x)
    found, expected = ask(tmp_path / "net.onnx", x), pb.predict(net, x, propagation=mode, samples=500)
    tolerance = 1e-5 if mode == "moments" else 0.02
    names = ("mean", "entropy", "epistemic", "aleatoric")
    close(found, {name: getattr(expected, name).numpy() for name in names}, tolerance)
    assert np.allclose(np.sqrt(found["var"]), expected.std.numpy(), atol=tolerance)


def test_export_of_moments_covers_traced_activations(tmp_path: Path) -> None:
    """Slopes that depend on the batch's size, `inplace` by position, and functions that it does not dispatch."""
    activations = (nn.GELU(), nn.Hardswish(), nn.ELU(0.7), nn.Hardsigmoid(), nn.LeakyReLU(0.2), nn.SELU())
    layers = [layer for activation in activations for layer in (nn.Linear(6, 6), activation)]
    net, x = network("mean-field", nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 3))), torch.randn(2, 2, 3)
    pb.export_onnx(net, tmp_path / "net.onnx", "moments", example=x)
    CHECKS["moments"](net, x, tmp_path / "net.onnx")


# -- the file ---------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A model whose attention is one operation, with a rule that runs it step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None] * torch.linspace(-1, 1, 3)[:, None]
        return self.attention(x, x, x, need_weights=False)[0][:, 0]


def test_export_of_moments_covers_multi_head_attention(tmp_path: Path) -> None:
    net, x = network("mean-field", Attention()), torch.randn(3, 4)
    pb.export_onnx(net, tmp_path / "net.onnx", "moments", example=x)
    check_moments(net, x, tmp_path / "net.onnx")


def test_export_command_exports_a_trained_run(tmp_path: Path) -> None:
    train = pb.data.load("digits", "train")
    net = pb.fit(
        pb.Deterministic(), pb.models.build("mlp", in_features=64, hidden=[8], out_features=10), train, epochs=1
    )
    pb.save(net, tmp_path / "net.pocket")
    out = tmp_path / "net.onnx"
    run = CliRunner().invoke(app, ["export", str(tmp_path / "net.pocket"), "--out", str(out), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["bytes"] == out.stat().st_size
    graph = ir.load(out)
    facts = json.loads(graph.metadata_props["pocketbayes"])
    assert facts["storage"] == "point"
    assert facts["data"]["classes"] == 10
    assert [value.name for value in graph.graph.inputs] == ["x"]  # no random draws
    assert graph.graph.inputs[0].shape[0] == "batch"
    text = out.read_bytes()
    assert b"site-packages" not in text  # no local paths in the file
    assert b"test_export" not in text


def test_export_command_takes_an_unknown_shape(tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("mlp", in_features=6, hidden=[4], out_features=3), pb.MeanFieldVI())
    net.likelihood = pb.Categorical()
    pb.save(net, tmp_path / "net.pocket")
    out = tmp_path / "[red]" / "[" / "red].onnx"  # rich would take "[/red]" for the end of a style
    command = ["export", str(tmp_path / "net.pocket"), "--out", str(out), "--mode", "mean"]
    run = CliRunner().invoke(app, [*command, "--shape", "2,3"])
    assert run.exit_code == 0, run.output
    assert str(out) in run.stdout.replace("\n", "")
    assert [value.shape[1:] for value in ir.load(out).graph.inputs] == [(2, 3)]
    for shape, message in (("2,x", "the sizes of one input"), ("0", "the sizes of one input"), ("", "is empty")):
        run = CliRunner().invoke(app, [*command, "--shape", shape])
        assert run.exit_code == 2
        assert message in run.stderr


def test_export_command_names_mistakes(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["export", str(tmp_path / "none.pocket"), "--out", str(tmp_path / "net.onnx")])
    assert run.exit_code == 2
    run = CliRunner().invoke(app, ["export", str(tmp_path / "none.pocket"), "--out", str(tmp_path / "net.txt")])
    assert run.exit_code == 2
    assert ".onnx" in run.stderr
    assert not list(tmp_path.iterdir())


class Batchwise(nn.Module):
    """A model that requires a batch of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).view(2, 3)


class Quantile(Batchwise):
    """A model with an operation that ONNX lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.ndtri(torch.sigmoid(self.layer(x)))


def test_export_names_what_it_cannot_do_and_the_remedy(tmp_path: Path) -> None:
    x, path = torch.randn(3, 4), tmp_path / "net.onnx"
    path.write_text("old")
    net = network("mean-field", Quantile())
    with pytest.raises(pb.UserError, match=r"ndtri cannot be exported to ONNX: replace the operation"):
        pb.export_onnx(net, path, "mean", example=x)
    with pytest.raises(pb.UserError, match=r"ndtri.*'layer'|has no rule for .*ndtri"):
        pb.export_onnx(net, path, "moments", example=x)
    with pytest.raises(pb.UserError, match="fixes its batch size"):
        pb.export_onnx(network("mean-field", Batchwise()), path, "mean", example=x)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_export_names_wrong_arguments(tmp_path: Path) -> None:
    net = network("mean-field", Batchwise())
    path = tmp_path / "net.onnx"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mode": "linear"}, "per-example gradients; use 'moments'"),
        ({"mode": "local"}, "unknown mode 'local'"),
        ({"samples": 0}, "at least 1"),
        ({"readout": "sample"}, "readout"),
        ({"example": torch.zeros(3)}, r"inputs \(n, ...\)"),
        ({}, "pass some inputs"),
    ]
    for arguments, message in wrong:
        with pytest.raises(pb.UserError, match=message):
            pb.export_onnx(net, path, **arguments)
    assert not path.exists()


def test_export_of_a_token_model_asks_for_an_example(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    tokens, labels = torch.randint(0, 9, (20, 3)), torch.arange(20) % 2
    net = pb.fit("bbb", model, (tokens, labels), epochs=1, progress=False)
    with pytest.raises(pb.UserError, match=r"does not take real numbers .*: pass some of its inputs as example="):
        pb.export_onnx(net, tmp_path / "net.onnx")
    pb.export_onnx(net, tmp_path / "net.onnx", "mean", example=tokens[:2])
    answer = session(tmp_path / "net.onnx").run(["probs"], {"x": tokens.numpy()})[0]
    assert np.allclose(answer, pb.predict(net, tokens, propagation="mean").probs, atol=1e-6)
