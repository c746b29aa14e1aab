"""Layout: selection of weights, positions, and round trips."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.layout import Layout, Slot, weights_in_place

shapes = st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), min_size=1, max_size=6)


def layout_of_shapes(sizes: list[tuple[int, ...]]) -> Layout:
    slots, start = [], 0
    for number, shape in enumerate(sizes):
        slots.append(Slot(f"w{number}", shape, start, (f"w{number}",)))
        start = slots[-1].stop
    return Layout(tuple(slots), (("b", "bias"),))


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """Return a strategy for chains of layers, some shared or with tied weights."""
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        width, bias = draw(st.integers(1, 3)), draw(st.booleans())
        kind = draw(st.sampled_from(["linear", "conv1d", "conv2d", "transposed", "lstm", "norm", "tied", "same"]))
        if kind == "linear":
            layers.append(nn.Linear(width, 2, bias=bias))
        elif kind == "conv1d":
            layers.append(nn.Conv1d(width, 2, 3, bias=bias))
        elif kind == "conv2d":
            layers.append(nn.Conv2d(2 * width, 2, (1, 3), groups=2, bias=bias))
        elif kind == "transposed":
            layers.append(nn.ConvTranspose2d(width, 2, 2, bias=bias))
        elif kind == "lstm":
            layers.append(nn.LSTM(width, 2, num_layers=draw(st.integers(1, 2)), bias=bias, bidirectional=True))
        elif kind == "norm":
            layers.append(nn.BatchNorm1d(width))
        elif kind == "tied":
            one, two = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
            two.weight = one.weight
            layers.append(nn.Sequential(one, two))
        elif layers:
            layers.append(layers[0])
    return nn.Sequential(nn.Linear(2, 2), *layers)


@given(shapes)
def test_layout_flatten_and_views_are_inverse(sizes: list[tuple[int, ...]]) -> None:
    layout = layout_of_shapes(sizes)
    tensors = {slot.name: torch.randn(slot.shape) for slot in layout.slots}
    flat = layout.flatten(tensors)
    assert flat.shape == (layout.size,)
    for slot, view in zip(layout.slots, layout.views(flat)):
        assert view.shape == slot.shape
        assert torch.equal(view, tensors[slot.name])
        assert torch.equal(flat[slot.start : slot.stop], tensors[slot.name].reshape(-1))


@given(shapes)
def test_layout_segments_name_the_slot_of_every_weight(sizes: list[tuple[int, ...]]) -> None:
    layout = layout_of_shapes(sizes)
    numbers = layout.flatten({s.name: torch.full(s.shape, i) for i, s in enumerate(layout.slots)})
    assert torch.equal(layout.segments(), numbers)


@given(shapes)
def test_layout_json_round_trip_of_any_shapes(sizes: list[tuple[int, ...]]) -> None:
    layout = layout_of_shapes(sizes)
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


@settings(deadline=None, max_examples=40)
@given(models(), st.booleans())
def test_layout_restores_any_model(model: nn.Module, bayesian_bias: bool) -> None:
    layout = Layout.of(model, bayesian_bias=bayesian_bias)
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    unique = sum(p.numel() for p in model.parameters())
    flat = layout.read(model)
    layout.strip(model)
    assert layout.size + sum(p.numel() for p in model.parameters()) == unique
    assert not {site for slot in layout.slots for site in slot.sites} & set(model.state_dict())
    layout.write(model, flat)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert sum(p.numel() for p in model.parameters()) == unique
    assert Layout.of(model, bayesian_bias=bayesian_bias) == layout


@settings(deadline=None, max_examples=20)
@given(models())
def test_weights_in_place_hold_within_the_block_only(model: nn.Module) -> None:
    layout = Layout.of(model)
    names = [name for name, _ in model.named_parameters()]
    flat = layout.read(model)
    layout.strip(model)
    weights = {site: view for slot, view in zip(layout.slots, layout.views(flat)) for site in slot.sites}
    with weights_in_place(model, weights):
        assert sorted(name for name, _ in model.named_parameters()) == sorted(names)
        for module in model.modules():
            if isinstance(module, nn.LSTM):
                assert all(weight is not None for weight in module._flat_weights)
    assert not set(weights) & {name for name, _ in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            held = [weight for weight in module._flat_weights if weight is not None]
            assert all(any(weight is own for own in module.parameters()) for weight in held)


def test_weights_in_place_are_restored_after_an_error() -> None:
    model = nn.Linear(2, 2)
    layout = Layout.of(model)
    layout.strip(model)
    with pytest.raises(KeyError), weights_in_place(model, {"weight": torch.zeros(2, 2)}):
        raise KeyError
    assert list(model.state_dict()) == ["bias"]


def test_layout_gives_tied_weights_one_slot() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.decoder = nn.Linear(3, 5)
            self.decoder.weight = self.embedding.weight

    layout = Layout.of(Tied())
    (slot,) = layout.slots
    assert slot.sites == ("embedding.weight", "decoder.weight")
    assert layout.size == 15


def test_layout_keeps_an_embedding_alone_as_a_point() -> None:
    layout = Layout.of(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)))
    assert [slot.name for slot in layout.slots] == ["1.weight"]
    assert dict(layout.points)["0.weight"].startswith("embedding table")


def test_layout_gives_a_shared_module_one_site() -> None:
    linear = nn.Linear(3, 3)
    layout = Layout.of(nn.Sequential(linear, nn.ReLU(), linear))
    assert [slot.sites for slot in layout.slots] == [("0.weight",)]


def test_layout_report_of_points_gives_every_reason() -> None:
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(False)
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(2, 2),
            "norm": nn.BatchNorm1d(2),
            "layer_norm": nn.LayerNorm((2, 2)),
            "prelu": nn.PReLU(2),
            "normed": parametrizations.weight_norm(nn.Linear(2, 2, bias=False)),
            "frozen": frozen,
            "attention": nn.MultiheadAttention(2, 1, add_bias_kv=True),
        }
    )
    model["linear"].scale = nn.Parameter(torch.zeros(2, 2))
    model["linear"].complex_weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    layout = Layout.of(model)
    assert [slot.name for slot in layout.slots] == [
        "linear.weight",
        "normed.parametrizations.weight.original1",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]
    points = dict(layout.points)
    bias = "bias (bayesian_bias=True makes it random)"
    assert points["linear.bias"] == bias
    assert points["attention.in_proj_bias"] == bias
    assert points["norm.weight"] == points["layer_norm.weight"] == points["norm.bias"] == "normalisation parameter"
    assert points["prelu.weight"] == "scale vector"
    assert points["normed.parametrizations.weight.original0"] == "norm of a weight-normalised layer"
    assert points["frozen.weight"] == "frozen (requires_grad=False)"
    assert points["linear.scale"] == (
        "not the weight of a linear, convolution, recurrent or attention layer (select= can name it)"
    )
    assert points["linear.complex_weight"] == "not a real floating-point parameter"
    covered = {slot.name for slot in layout.slots} | set(points)
    assert covered == {name for name, _ in model.named_parameters()}


def test_layout_bayesian_bias_takes_layer_biases_only() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(2, 6)
            self.norm = nn.LayerNorm(2)
            self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))

    layout = Layout.of(Attention(), bayesian_bias=True)
    assert [slot.name for slot in layout.slots] == ["qkv.weight", "qkv.bias"]


def test_layout_takes_a_matrix_in_a_class_called_norm() -> None:
    class NormedLinear(nn.Linear):
        pass

    class ChannelNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 4, 1, 1))

    layout = Layout.of(nn.Sequential(NormedLinear(2, 3), ChannelNorm()))
    assert [slot.name for slot in layout.slots] == ["0.weight"]
    assert dict(layout.points)["1.weight"] == "normalisation parameter"


def test_layout_select_decides_by_name_and_parameter() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    layout = Layout.of(model, select=lambda name, parameter: name in ("0.weight", "1.bias") and parameter.numel() < 9)
    assert [slot.name for slot in layout.slots] == ["0.weight", "1.bias"]
    assert set(layout.points) == {(n, "not chosen by select") for n in ("0.bias", "1.weight", "2.weight", "2.bias")}


def test_layout_takes_a_bare_linear() -> None:
    model = nn.Linear(3, 2)
    layout = Layout.of(model)
    assert layout.slots == (Slot("weight", (2, 3), 0, ("weight",)),)
    weight = model.weight.detach().clone()
    flat = layout.read(model)
    layout.strip(model)
    layout.write(model, flat)
    assert torch.equal(model.weight, weight)


@pytest.mark.parametrize("normalise", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_layout_selects_weights_before_parametrisation(normalise: object) -> None:
    model = normalise(nn.Conv2d(2, 3, 3))  # type: ignore[operator]
    (slot,) = Layout.of(model).slots
    assert slot.name.startswith("parametrizations.weight.original")
    assert slot.shape == (3, 2, 3, 3)


def test_layout_check_names_the_weight_that_differs() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 3)))
    with pytest.raises(UserError, match=r"'0.weight' has shape \(4, 2\) in the model, \(3, 2\) in the layout"):
        layout.check(nn.Sequential(nn.Linear(2, 4)))
    with pytest.raises(UserError, match=r"the model has no '0.weight'"):
        layout.check(nn.Sequential(nn.ReLU()))


def test_layout_refuses_json_with_a_negative_size() -> None:
    value = Layout.of(nn.Linear(2, 3)).to_json()
    value["slots"][0]["shape"] = [-2, 3]
    with pytest.raises(UserError, match="negative size"):
        Layout.from_json(value)


def with_hook(kind: str) -> nn.Module:
    layer = nn.Linear(2, 2)
    if kind == "prune":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        getattr(nn.utils, kind)(layer)
    return nn.Sequential(layer)


def with_flag(name: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    setattr(model[0], name, True)
    return model


def compiled() -> nn.Module:
    return torch.compile(nn.Linear(2, 2))  # type: ignore[return-value]


REFUSED = {
    "data-parallel": (lambda: nn.DataParallel(nn.Linear(2, 2)), "parallel wrapper"),
    "scripted": (lambda: torch.jit.script(nn.Linear(2, 2)), "is scripted"),
    "scripted inside": (lambda: nn.Sequential(torch.jit.script(nn.Linear(2, 2))), "'0' .* is scripted"),
    "compiled": (compiled, "is compiled"),
    "old weight_norm": (lambda: with_hook("weight_norm"), "'0' .*WeightNorm hook.*parametrizations instead"),
    "old spectral_norm": (lambda: with_hook("spectral_norm"), "'0' .*SpectralNorm hook.*parametrizations instead"),
    "pruned": (lambda: with_hook("prune"), "'0' .*prune.remove"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(3)), "'0' .*no weights yet"),
    "no weights": (nn.ReLU, "ReLU has no weights .* no parameters"),
    "only points": (lambda: nn.BatchNorm1d(3), "BatchNorm1d has no weights .*'weight': normalisation"),
    "timm's checkpointing": (lambda: with_flag("grad_checkpointing"), "'0' .*checkpointing switched on"),
    "transformers' checkpointing": (lambda: with_flag("gradient_checkpointing"), "checkpointing switched on"),
    "two types": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "one type and one device"),
    "two devices": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), "one type and one device"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:FutureWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_layout_names_what_cannot_be_converted(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        Layout.of(make())


def test_layout_vector_keeps_dtype_and_is_detached() -> None:
    model = nn.Linear(2, 2).double()
    flat: Tensor = Layout.of(model).read(model)
    assert flat.dtype == torch.float64
    assert not flat.requires_grad
