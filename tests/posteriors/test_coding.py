"""Declared tensors: files are checked by them, and a user's storage needs only `moments`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes import posteriors
from pocketbayes.files import network_file
from pocketbayes.posteriors import POSTERIORS, Posterior
from pocketbayes.posteriors.layout import Layout
from storages import network, networks, tables

WRONG = [(name, tensor) for name, (tensors, _) in tables().items() for tensor in tensors]
OF_ANY_LENGTH = [("trajectory", "deviations"), ("trajectory", "points")]


def refusal(name: str, tensor: str, value: Tensor) -> str:
    """Return the error for a file that holds `value`."""
    tree = network_file.describe(network(name, *tables()[name]))
    tree["posterior"]["tensors"][tensor] = value
    with pytest.raises(pb.UserError) as error:
        network_file.rebuild(tree, source="some.pocket")
    line = str(error.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(("name", "tensor"), [case for case in WRONG if case not in OF_ANY_LENGTH])
def test_load_refuses_a_tensor_of_another_length(name, tensor):
    value = tables()[name][0][tensor]
    longer = torch.cat([value, value])[: len(value) + 1] if value.ndim else value.repeat(2)
    assert name in refusal(name, tensor, longer)


@pytest.mark.parametrize(("name", "tensor"), WRONG)
def test_load_refuses_a_tensor_of_another_type(name, tensor):
    value = tables()[name][0][tensor]
    other = value.to(torch.int64) if value.is_floating_point() else value.double()
    assert repr(tensor) in refusal(name, tensor, other)


@pytest.mark.parametrize(("name", "tensor"), WRONG)
def test_load_refuses_a_tensor_out_of_range(name, tensor):
    value = tables()[name][0][tensor]
    if value.dtype == torch.uint8:
        pytest.skip("every byte is a code")
    worst = torch.nan if value.is_floating_point() else -128 if value.dtype == torch.int8 else -1
    assert repr(tensor) in refusal(name, tensor, torch.full_like(value, worst))


@pytest.mark.parametrize("tensor", ["scale", "low", "step"])
def test_load_refuses_negative_steps(tensor):
    value = tables()["quantized"][0][tensor]
    assert "at least 0" in refusal("quantized", tensor, -value)


@pytest.mark.parametrize("bad", [100, -1])
def test_load_refuses_entries_outside_the_table(bad):
    index = tables()["shared"][0]["index"].clone()
    index[4] = bad
    assert "'index'" in refusal("shared", "index", index)


def test_load_refuses_a_duplicate_position():
    index = tables()["partial"][0]["index"].clone()
    index[1] = index[0]
    assert "twice" in refusal("partial", "index", index)


def test_load_refuses_numbers_of_two_types():
    assert "different types" in refusal("mean-field", "rho", tables()["mean-field"][0]["rho"].double())


@pytest.mark.parametrize("name", tables())
def test_check_accepts_every_storage(name):
    networks()[name].posterior.check()


def test_check_accepts_a_std_of_zero():
    layout = Layout.of(nn.Linear(3, 2))
    posteriors.MeanField(layout, torch.zeros(6), torch.zeros(6)).check()


class Relative(Posterior):
    """A user's storage with only `moments`: std = rate |mean|."""

    def __init__(self, layout: Layout, mean: Tensor, rate: float) -> None:
        super().__init__(layout)
        self.mean = nn.Parameter(mean)
        self.rate = rate
        self.register_buffer("floor", torch.full((1,), 1e-3))

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.rate * self.mean.abs() + self.floor


@pytest.fixture
def relative() -> pb.Network:
    model = pb.models.build("mlp", in_features=4, hidden=[5], out_features=3)
    layout = Layout.of(model)
    return pb.Network(model, Relative(layout, layout.read(model), 0.1), likelihood=pb.Categorical()).eval()


def test_posterior_subclass_is_registered():
    assert POSTERIORS["Relative"] is Relative


def test_posterior_cannot_take_a_name_in_use():
    with pytest.raises(pb.UserError, match=r"'mean-field' is taken by pocketbayes\.posteriors"):
        type("Mine", (Relative,), {"name": "mean-field"})


@pytest.mark.parametrize("precision", ["lossless", "bfloat16", "int8"])
def test_posterior_with_moments_alone_is_saved_and_loaded(relative, tmp_path, precision):
    pb.save(relative, tmp_path / "net.pocket", precision=precision)
    loaded = pb.load(tmp_path / "net.pocket")
    assert [name for name, _ in loaded.posterior.named_parameters()] == ["mean"]
    for was, now in zip(relative.posterior.moments(), loaded.posterior.moments()):
        assert torch.allclose(was, now, atol=0 if precision == "lossless" else 1e-2)
    assert pb.census(loaded).stored == {"means": 36}


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "flipout", "moments", "moments-full", "linear"])
def test_posterior_with_moments_alone_predicts(relative, propagation):
    prediction = pb.predict(relative, torch.randn(3, 4), samples=2, propagation=propagation)
    assert torch.allclose(prediction.probs.sum(1), torch.ones(3))


@pytest.mark.parametrize("mode", ["sample", "moments"])
def test_posterior_with_moments_alone_is_exported(relative, tmp_path, mode):
    pytest.importorskip("onnxruntime")
    size = pb.export_onnx(relative, tmp_path / "net.onnx", mode, example=torch.zeros(1, 4))
    assert (tmp_path / "net.onnx").stat().st_size == size


@pytest.mark.parametrize("setting", [{"rate": -0.5}, {"rate": 1.0}, {"units": [[0, 0]]}, {"units": [[0, 0], [2, 4]]}])
def test_load_refuses_dropout_that_cannot_be(setting):
    tensors, config = tables()["dropped"]
    with pytest.raises(pb.UserError):
        network("dropped", tensors, {**config, **setting})


@pytest.mark.parametrize("part", ["state", "prior", "likelihood"])
def test_load_refuses_nan_outside_the_posterior(part):
    net = network("mean-field", *tables()["mean-field"])
    net.likelihood = pb.Categorical(class_weights=torch.ones(3))
    tree = network_file.describe(net)
    if part == "likelihood":
        tree["likelihood"]["tensors"] = {"class_weights": torch.full((3,), torch.nan)}
    if part == "prior":
        tree["prior"] = {"name": "normal", "config": {"std": 1.0}, "tensors": {"centre": torch.full((35,), torch.nan)}}
    if part == "state":
        tree["state"] = {name: torch.full_like(value, torch.nan) for name, value in tree["state"].items()}
    with pytest.raises(pb.UserError, match="NaN"):
        network_file.rebuild(tree)


def test_load_names_a_storage_that_was_not_imported(relative, tmp_path):
    pb.save(relative, tmp_path / "net.pocket")
    kept = POSTERIORS.pop("Relative")
    try:
        with pytest.raises(pb.UserError, match="unknown storage 'Relative': import the module that defines it first"):
            pb.load(tmp_path / "net.pocket")
    finally:
        POSTERIORS["Relative"] = kept
