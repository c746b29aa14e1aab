"""Pocket files: lossless round trips, lower precisions, models by name, and errors for mismatches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pocketbayes as pb
from cases import CASES, Case, tiny_data, tiny_model, untrained
from pocketbayes.base.errors import UserError
from pocketbayes.files import network_file as artifact
from pocketbayes.files import packing, pocket
from pocketbayes.files.packing import Precision
from pocketbayes.network import members

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def lenet(method: pb.Method | None = None) -> pb.Network:
    torch.manual_seed(0)
    net = pb.bayesianize(pb.models.build("lenet5"), method or pb.MeanFieldVI(std_init=0.05))
    assert isinstance(net, pb.Network)
    return net


def same_values(one: pb.Net, two: pb.Net) -> bool:
    first, second = one.state_dict(), two.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@each_case
def test_save_keeps_every_storage_bit_for_bit(case: Case, tmp_path: Path) -> None:
    net = untrained(case)
    size = pb.save(net, tmp_path / "net.pocket", keep_centre=True)
    assert size == (tmp_path / "net.pocket").stat().st_size == sum(pocket.sizes(tmp_path / "net.pocket").values())
    again = pb.load(tmp_path / "net.pocket", tiny_model())
    assert same_values(net, again)
    assert torch.equal(pb.kl(net), pb.kl(again))


@each_case
@pytest.mark.parametrize("precision", ["bfloat16", "int8", Precision("int4", "int2", "int8")], ids=str)
def test_save_keeps_every_storage_nearly_in_lower_precision(
    case: Case, precision: str | Precision, tmp_path: Path
) -> None:
    net = untrained(case)
    pb.save(net, tmp_path / "net.pocket", precision=precision)
    again = pb.load(tmp_path / "net.pocket", tiny_model())
    for one, two in zip(members(net), members(again)):
        (mean, std), (other, spread) = one.posterior.moments(), two.posterior.moments()
        for slot in one.layout.slots:
            part = slice(slot.start, slot.stop)
            width = float((mean[part].max() - mean[part].min()).detach())
            assert float((mean[part] - other[part]).detach().abs().max()) <= 0.04 * width + 1e-6
        assert torch.equal(std > 0, spread > 0)


def test_save_writes_smaller_files_with_fewer_bits(tmp_path: Path) -> None:
    net = lenet()
    precisions = ["lossless", "bfloat16", "int8", Precision("int6", "int3", "bfloat16"), Precision("int4", "int2")]
    sizes = [pb.save(net, tmp_path / "net.pocket", precision=precision) for precision in precisions]
    assert sizes == sorted(sizes, reverse=True)
    weights = net.layout.size
    assert sizes[0] < 8 * weights
    assert sizes[2] < 1.5 * weights


@pytest.mark.parametrize("level", packing.LEVELS)
def test_save_keeps_every_precision_within_its_error(level: str, tmp_path: Path) -> None:
    net = lenet(pb.Deterministic())
    pb.save(net, tmp_path / "net.pocket", precision=Precision(means=level))
    again = pb.load(tmp_path / "net.pocket")
    bits = 8 if level == "bfloat16" else int(level[3:]) if level.startswith("int") else None
    mean, other = net.posterior.moments()[0].detach(), again.posterior.moments()[0].detach()  # type: ignore[union-attr]
    for one, two in zip(net.layout.views(mean), net.layout.views(other)):
        if bits is None:
            assert torch.equal(one, two)
        elif level == "bfloat16":
            assert bool(((one - two).abs() <= one.abs() * 2**-8).all())
        else:
            error = float((one - two).abs().max())
            assert 0 < error <= float(one.max() - one.min()) / (2**bits - 1) / 2 * 1.001


def test_save_lists_the_known_precisions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown precision 'int9'.*int8.*known are bfloat16, float32"):
        pb.save(lenet(), tmp_path / "net.pocket", precision="int9")
    assert not (tmp_path / "net.pocket").exists()


def test_save_keeps_stds_of_zero_in_any_precision(tmp_path: Path) -> None:
    net = lenet()
    net.posterior.rho.data[:50] = -torch.inf
    pb.save(net, tmp_path / "net.pocket", precision="int8")
    again = pb.load(tmp_path / "net.pocket")
    assert torch.equal(again.posterior.moments()[1] == 0, net.posterior.moments()[1] == 0)  # type: ignore[union-attr]


def test_save_omits_the_prior_mean_unless_asked(tmp_path: Path) -> None:
    """Prediction does not need it, and it is as large as a deterministic network."""
    net = lenet(pb.MeanFieldVI(prior="pretrained", std_init=0.05))
    small = pb.save(net, tmp_path / "small.pocket")
    large = pb.save(net, tmp_path / "large.pocket", keep_centre=True)
    assert large - small > 3 * net.layout.size
    x = torch.randn(4, 1, 28, 28)
    loaded = pb.load(tmp_path / "small.pocket")
    assert torch.equal(pb.predict(loaded, x, 3).mean, pb.predict(net, x, 3).mean)
    with pytest.raises(UserError, match="keep_centre=True"):
        pb.kl(loaded)
    assert torch.equal(pb.kl(pb.load(tmp_path / "large.pocket")), pb.kl(net))
    pb.save(loaded, tmp_path / "again.pocket")  # the mark stays
    with pytest.raises(UserError, match="keep_centre=True"):
        pb.kl(pb.load(tmp_path / "again.pocket"))


def test_load_without_prior_mean_shares_and_trains(tmp_path: Path) -> None:
    field = pb.bayesianize(tiny_model(), pb.MeanFieldVI(prior="pretrained", std_init=0.05))
    pb.save(field, tmp_path / "net.pocket")
    loaded = pb.load(tmp_path / "net.pocket", tiny_model())
    net = pb.fit(pb.WeightSharing(k=4, n_min=4), loaded, tiny_data(), epochs=1)
    assert bool(pb.kl(net).isfinite())


def test_save_writes_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    net = lenet(pb.SSVI(density=0.1))
    pb.save(net, tmp_path / "net.pocket")
    parts = load_file(tmp_path / "net.pocket")
    assert {name: len(part) for name, part in parts.items()} == {
        name: size for name, size in pocket.sizes(tmp_path / "net.pocket").items() if name != "header"
    }
    assert all(part.dtype == torch.uint8 for part in parts.values())


def test_save_writes_equal_files_for_equal_networks(tmp_path: Path) -> None:
    for name in ("one", "two"):
        torch.manual_seed(0)
        net = pb.bayesianize(tiny_model(), pb.WeightSharing(k=4, n_min=4))
        pb.save(net, tmp_path / name, precision="int8")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_save_rewrites_the_file_a_network_was_loaded_from(tmp_path: Path) -> None:
    pb.save(lenet(pb.PBN(rate=0.1, pretrain_epochs=0)), tmp_path / "one")
    pb.save(pb.load(tmp_path / "one"), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_save_pads_an_almost_empty_network_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lenet(pb.SSVI(density=0.001))
    pb.save(net, tmp_path / "net.pocket")
    assert "padding" not in pocket.sizes(tmp_path / "net.pocket")
    monkeypatch.setattr(packing, "FREE_VALUES", 0)
    monkeypatch.setattr(packing, "VALUES_A_BYTE", 4)
    with pytest.raises(UserError, match="more numbers than a file of its size can"):
        pb.load(tmp_path / "net.pocket")
    pb.save(net, tmp_path / "net.pocket")
    assert pocket.sizes(tmp_path / "net.pocket")["padding"] > 1000
    assert same_values(pb.load(tmp_path / "net.pocket"), net)


def test_save_deflates_large_tensors_and_restores_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lenet()
    usual = pb.save(net, tmp_path / "usual.pocket")
    monkeypatch.setattr(packing, "DEFLATED_VALUES", 1000)
    size = pb.save(net, tmp_path / "net.pocket")
    assert size != usual
    assert size < 1.02 * usual
    monkeypatch.undo()  # the file states its encoding
    assert same_values(pb.load(tmp_path / "net.pocket"), net)


def test_load_imports_no_compiler(tmp_path: Path) -> None:
    pb.save(lenet(), tmp_path / "net.pocket")
    script = (
        "import sys, pocketbayes; known = set(sys.modules); pocketbayes.load(sys.argv[1]);"
        "print(*{'sympy', 'torch._dynamo'} & (set(sys.modules) - known))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "net.pocket")]
    assert not subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_save_shares_the_layout_among_ensemble_members(tmp_path: Path) -> None:
    model = pb.models.build("lenet5")
    one = pb.save(pb.bayesianize(model, pb.Deterministic()), tmp_path / "one.pocket")
    two = pb.save(pb.bayesianize(model, pb.Ensemble(members=2)), tmp_path / "two.pocket")
    header = pocket.sizes(tmp_path / "one.pocket")["header"]
    assert two < 2 * one - header / 2


class Other(nn.Module):
    def __init__(self, width: int = 3, extra: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 2)
        if extra:
            self.extra = nn.LayerNorm(2)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.first(x)))


def test_load_names_the_first_layer_that_differs(tmp_path: Path) -> None:
    pb.save(pb.bayesianize(Other(), pb.MeanFieldVI()), tmp_path / "net.pocket")
    assert isinstance(pb.load(tmp_path / "net.pocket", Other()), pb.Network)
    with pytest.raises(UserError, match=r"'first.weight' has shape \(4, 2\) in the model, \(3, 2\) in the layout"):
        pb.load(tmp_path / "net.pocket", Other(4))
    with pytest.raises(UserError, match=r"'extra.weight' is in the model only"):
        pb.load(tmp_path / "net.pocket", Other(extra=True))
    with pytest.raises(UserError, match=r"no 'first.weight'"):
        pb.load(tmp_path / "net.pocket", nn.Linear(2, 2))
    with pytest.raises(UserError, match="pass one as model="):
        pb.load(tmp_path / "net.pocket")


def test_load_builds_library_models_by_name(tmp_path: Path) -> None:
    for name in ("torchvision:squeezenet1_0", "timm:resnet10t"):
        net = pb.bayesianize(pb.models.build(name, classes=3), pb.Deterministic())
        pb.save(net, tmp_path / "net.pocket")
        assert same_values(pb.load(tmp_path / "net.pocket"), net), name


def test_inspect_text_describes_the_file(tmp_path: Path) -> None:
    pb.save(lenet(), tmp_path / "net.pocket", precision="int8")
    text = pocket.read(tmp_path / "net.pocket")[0]
    assert text["format"] == pocket.FORMAT
    assert text["precision"] == {"means": "int8", "stds": "int4", "points": "bfloat16"}
    assert text["networks"][0]["model"]["name"] == "lenet5"
    assert text["networks"][0]["layout"][0][0] == artifact.read(tmp_path / "net.pocket")["layout"]["slots"][0]["name"]


def test_header_of_a_deep_network_stays_small(tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("resnet56"), pb.Deterministic())
    mixture = pb.Mixture([net, pb.bayesianize(pb.models.build("resnet20"), pb.Deterministic()), net])
    for each in (net, mixture):
        pb.save(each, tmp_path / "net.pocket")
        assert pocket.sizes(tmp_path / "net.pocket")["header"] < 2300
        found = pb.load(tmp_path / "net.pocket")
        for one, other in zip(members(found), members(each), strict=True):
            assert same_values(one, other)
    pb.save(net, tmp_path / "net.pocket")
    assert pocket.sizes(tmp_path / "net.pocket")["header"] < 2048


def test_save_records_the_method(tmp_path: Path) -> None:
    for method in ("pbn", "ensemble"):
        pb.save(
            pb.bayesianize(pb.models.build("mlp", in_features=4, hidden=[5], out_features=2), method), tmp_path / "net"
        )
        assert pb.network.members(pb.load(tmp_path / "net"))[0].method == method
