"""Error feedback: layer outputs, groups, blocks, and weights of unknown operations."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.files import pocket
from pocketbayes.network import Network
from pocketbayes.plane import trellis
from pocketbayes.plane.codes import fit_codebook
from pocketbayes.ship.compression import measurements
from pocketbayes.ship.compression.coding import Measured, Recipe, code
from pocketbayes.ship.compression.feedback import Greedy, code_with_feedback, error_shares
from pocketbayes.ship.compression.measurements import input_moments


def correlated(*shape: int) -> Tensor:
    """Return inputs with correlated neighbours."""
    common = torch.randn(shape[0], *[1] * (len(shape) - 1))
    return common + 0.3 * torch.randn(shape)


def network(model: nn.Module) -> Network:
    net = pb.bayesianize(model, "map")
    assert isinstance(net, Network)
    return net


def decoded(net: Network, moments: list[Tensor | None]) -> Network:
    made = code(net, Recipe(0.3), [Measured(error_shares(moments))]).net
    assert isinstance(made, Network)
    return made


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (partial(nn.Linear, 24, 64), (400, 24)),
        (partial(nn.Conv2d, 6, 32, 3, padding=1), (40, 6, 8, 8)),
        (partial(nn.Conv2d, 6, 48, 3, stride=2, groups=3, dilation=2), (40, 6, 9, 9)),
        (partial(nn.Conv2d, 64, 64, 3, padding="same", groups=64), (20, 64, 8, 8)),
        (partial(nn.Conv1d, 6, 32, 5, padding=2), (40, 6, 20)),
    ],
)
def test_feedback_lowers_the_error_of_outputs(layer: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    net = network(nn.Sequential(layer()))
    x = correlated(*shape)
    moments = input_moments(net, [x], len(x))
    assert moments[0] is not None
    plain, fed_back = decoded(net, [None]), decoded(net, moments)
    with torch.no_grad():
        errors = [float(F.mse_loss(made(x), net(x))) for made in (plain, fed_back)]
    assert errors[1] < 0.8 * errors[0]


def test_feedback_in_blocks_equals_that_of_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trellis, "LONGEST_PATH", 8)
    net = network(nn.Sequential(nn.Linear(24, 5)))
    x = correlated(400, 24)
    (moments,) = input_moments(net, [x], len(x))
    assert moments is not None
    assert moments.shape == (3, 8, 8)
    weight = net.posterior.mean.detach().view(5, 24)
    codebook = fit_codebook(weight, 0.3)

    def assign(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        codes = codebook.assign(values)
        return codes, codebook.centres[codes]

    (shares,) = error_shares([moments])
    assert shares is not None
    whole = code_with_feedback(weight, shares, Greedy(assign))[0]
    for block in range(3):
        part = slice(8 * block, 8 * block + 8)
        alone = code_with_feedback(weight[:, part], shares[block : block + 1], Greedy(assign))[0]
        torch.testing.assert_close(whole[:, part], alone)


def test_feedback_moments_are_those_of_the_inputs() -> None:
    net = network(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    x = torch.randn(100, 6)
    first, second = input_moments(net, x.split(30), 100)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(first[0], x.T @ x / 100, rtol=1e-4, atol=1e-5)
    hidden = net.to_module()[:2](x).detach()
    torch.testing.assert_close(second[0], hidden.T @ hidden / 100, rtol=1e-4, atol=1e-5)


def test_feedback_moments_need_linear_use_of_weights() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(5, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    net = network(Recurrent())
    moments = input_moments(net, [torch.randn(70, 6, 5)], 70)
    assert [moment is None for moment in moments] == [slot.name != "head.weight" for slot in net.layout.slots]
    made = decoded(net, moments)
    assert made(torch.randn(3, 6, 5)).shape == (3, 2)


@pytest.mark.parametrize("units", ["network", "layer", "filter"])
def test_feedback_units_scale_the_codebook(units: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10))
    with torch.no_grad():
        model[1].weight *= 100
    net = network(model)
    made = code(net, Recipe(0.01, units)).net  # type: ignore[arg-type]
    assert isinstance(made, Network)
    mean = net.posterior.moments()[0].detach()
    error = (made.posterior.moments()[0].detach() - mean).square()
    share = [float(error[part].mean() / mean[part].var()) for part in (slice(0, 600), slice(600, None))]
    assert share[1] < 0.05
    assert (share[0] < 0.05) == (units != "network")  # in raw units the small layer is not worth its bits


@pytest.mark.parametrize(("side", "expected"), [(4, [128, 72]), (224, [32] * 4)])
def test_calibration_batches_of_large_images_are_small(side: int, expected: list[int]) -> None:
    x = torch.zeros(1, 3, side, side).expand(200, -1, -1, -1)
    found = measurements.calibration_batches((x, torch.zeros(200, dtype=torch.long)), 0)
    assert [len(batch) for batch in found] == expected


def test_trellis_files_omit_the_sides_and_load_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = network(nn.Sequential(nn.Conv2d(3, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 40), nn.Linear(40, 10)))
    x = correlated(200, 3, 8, 8)
    measured = [Measured(error_shares(input_moments(net, [x], len(x))))]
    sizes = {}
    for trellis_codes in (False, True):
        made = code(net, Recipe(0.1, trellis=trellis_codes), measured).net
        pb.save(made, tmp_path / "made.pocket")
        again = pb.load(tmp_path / "made.pocket", net.to_module())
        assert isinstance(made, Network)
        assert isinstance(again, Network)
        for own, found in zip(made.posterior.moments(), again.posterior.moments()):
            torch.testing.assert_close(own, found, rtol=0, atol=0)
        sizes[trellis_codes] = pocket.sizes(tmp_path / "made.pocket")["posterior.index"]
        tree = zlib.decompress(pocket.read(tmp_path / "made.pocket")[1]["tree"])
        assert (b'"as":"trellis"' in tree) == trellis_codes
    assert sizes[True] < sizes[False]
