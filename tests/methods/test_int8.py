"""Int8: codes and packing, error bounds, and smaller files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.methods.int8 import quantized
from pocketbayes.network import Network
from pocketbayes.posteriors import MeanField, Quantized
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.quantized import SIGMA_BITS, pack, rows, unpack

each_bits = pytest.mark.parametrize("bits", SIGMA_BITS)


@given(bits=st.sampled_from(SIGMA_BITS), values=st.lists(st.integers(0, 255), max_size=70))
def test_int8_unpacking_inverts_packing(bits: int, values: list[int]) -> None:
    codes = torch.tensor([value % 2**bits for value in values], dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-len(codes) * bits // 8)
    assert torch.equal(unpack(packed, bits, len(codes)), codes)


def test_int8_packs_the_first_code_in_the_lowest_bits() -> None:
    assert pack(torch.tensor([1, 2, 3, 0, 3], dtype=torch.uint8), 2).tolist() == [0b00111001, 0b11]


def entropy_bytes(codes: Tensor) -> float:
    """Return the bytes given by the empirical entropy of the codes."""
    share = codes.flatten().to(torch.int64).sub(int(codes.min())).bincount().double() / codes.numel()
    return float(-(share * share.clamp_min(1e-300).log2()).sum()) * codes.numel() / 8


def draw(shapes: list[tuple[int, ...]], seed: int) -> tuple[Layout, Tensor, Tensor]:
    """Draw weights of these shapes, with channels on very different scales, some 0 or constant."""
    generator = torch.Generator().manual_seed(seed)
    layout = Layout.from_json(
        {"slots": [{"name": f"{i}", "shape": s, "sites": [f"{i}"]} for i, s in enumerate(shapes)]}
    )
    mean, std = torch.randn(layout.size, generator=generator), torch.rand(layout.size, generator=generator) + 1e-3
    for part in (*rows(layout, mean), *rows(layout, std)):
        part *= torch.logspace(-3, 2, len(part))[:, None]
    for part in rows(layout, mean):
        part[0] = 0
    for part in rows(layout, std):
        part[-1] = 0.25
    return layout, mean, std


shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 4)),
        st.tuples(st.integers(1, 4), st.integers(1, 5)),
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(shapes=shapes, seed=st.integers(0, 1000), bits=st.sampled_from(SIGMA_BITS))
def test_int8_errors_stay_within_half_a_step(shapes: list[tuple[int, ...]], seed: int, bits: int) -> None:
    layout, mean, std = draw(shapes, seed)
    got_mean, got_std = Quantized.quantize(layout, mean, std, bits).moments()
    for m, s, qm, qs in zip(*(rows(layout, flat) for flat in (mean, std, got_mean, got_std))):
        half = m.abs().amax(1, keepdim=True) / 254
        assert bool(((qm - m).abs() <= half * 1.0001).all())
        low, high = s.amin(1, keepdim=True), s.amax(1, keepdim=True)
        assert bool((qs >= low * 0.9999).all() and (qs <= high * 1.0001).all())
        if bits > 1:
            step = (high - low) / (2**bits - 1)
            assert bool(((qs - s).abs() <= 0.5001 * step + 1e-6 * high).all())
        else:
            assert all(len(row.unique()) <= 2 for row in qs)
            torch.testing.assert_close(qs.square().mean(1), s.square().mean(1))  # the channel's variance is kept


def test_int8_constant_and_empty_channels_are_exact() -> None:
    layout = Layout.of(nn.Linear(4, 2))
    mean, std = torch.tensor([0.0] * 4 + [0.7] * 4), torch.tensor([0.0] * 4 + [0.3] * 4)
    for bits in SIGMA_BITS:
        got_mean, got_std = Quantized.quantize(layout, mean, std, bits).moments()
        torch.testing.assert_close(got_mean, mean)
        torch.testing.assert_close(got_std, std)


def big() -> Network:
    net = pb.bayesianize(nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10)), pb.MeanFieldVI())
    assert isinstance(net, Network)
    net.posterior.rho.data += torch.randn_like(net.posterior.rho)
    return net


@each_bits
def test_int8_memory_and_file_shrink_with_the_bits(bits: int, tmp_path: Path) -> None:
    weights, channels, points = 62000, 210, 210
    net = quantized(big(), bits)
    codes = weights + weights * bits // 8
    assert net.census().memory_bytes == codes + 12 * channels + 4 * points
    size = pb.save(net, tmp_path / "net.pocket")
    # The file codes the codes: near their entropy, which is below their size.
    entropy = sum(entropy_bytes(part) for part in (net.posterior.means, unpack(net.posterior.stds, bits, weights)))
    assert entropy < size < 1.02 * entropy + 12 * channels + 4 * points + 3000
    assert size < codes + 12 * channels + 4 * points + 3000
    assert size < 0.27 * 8 * weights


@each_bits
def test_int8_predictions_stay_close(bits: int) -> None:
    x, y = tiny_data()
    net = pb.fit(pb.MeanFieldVI(std_init=0.05), tiny_model(), (x, y), epochs=2, lr=1e-2, progress=False)
    small = pb.fit(pb.Int8(sigma_bits=bits), net, (x, y), progress=False)
    assert isinstance(small.posterior, Quantized)
    assert small.posterior.means.dtype == torch.int8
    torch.testing.assert_close(pb.predict(small, x).probs, pb.predict(net, x).probs, rtol=0, atol=0.02)
    torch.testing.assert_close(pb.kl(small), pb.kl(net), rtol=0.02, atol=0)


def test_int8_does_not_retrain_a_network_with_stds() -> None:
    net = pb.bayesianize(tiny_model(), pb.PBN(rate=0.3))
    net.likelihood = pb.Categorical()
    mean, std = (moment.detach() for moment in net.posterior.moments())
    small = pb.fit(pb.Int8(), net, tiny_data(), epochs=5, progress=False)
    got_mean, got_std = small.posterior.moments()
    torch.testing.assert_close(got_mean, mean, rtol=0, atol=float(mean.abs().max()) / 254)
    torch.testing.assert_close(got_std, std, rtol=0, atol=float(std.max()) / 255)


def test_int8_needs_no_data() -> None:
    net = big()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    small = pb.bayesianize(net, pb.Int8())
    assert isinstance(small.posterior, Quantized)
    mean, std = (moment.detach() for moment in net.posterior.moments())
    torch.testing.assert_close(small.posterior.moments()[0], mean, rtol=0, atol=float(mean.abs().max()) / 250)
    torch.testing.assert_close(small.posterior.moments()[1], std, rtol=0, atol=float(std.max()) / 500)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_int8_trains_a_network_without_stds(learning_seed: int) -> None:
    data = tiny_data(seed=learning_seed)
    net = pb.fit("map", tiny_model(learning_seed), data, epochs=1, progress=False, seed=learning_seed)
    small = pb.fit(pb.Int8(), net, data, epochs=1, lr=0.1, progress=False, seed=learning_seed)
    assert isinstance(small.posterior, Quantized)
    with torch.no_grad():
        assert float((small.posterior.moments()[0] - net.posterior.moments()[0]).abs().max()) > 0.02


MODELS = {
    "lstm": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), (5, 2, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 5, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_int8_takes_any_architecture(name: str) -> None:
    make, shape = MODELS[name]
    net = pb.bayesianize(make(), pb.MeanFieldVI(std_init=0.01, bayesian_bias=True))
    small = quantized(net, 4)
    x = torch.randn(shape)
    with torch.no_grad(), net.using("mean"), small.using("mean"):
        expected, actual = net(x), small(x)
    for one, two in zip(expected, actual) if isinstance(expected, tuple) else [(expected, actual)]:
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, two, rtol=0.05, atol=0.05)


def test_int8_trains_like_mean_field() -> None:
    method = pb.Int8(method=pb.MeanFieldVI(propagation="flipout", prior_std=0.5, bayesian_bias=True))
    start = method.start(tiny_model())
    assert isinstance(start, Network)
    assert isinstance(start.posterior, MeanField)
    assert start.propagation == "flipout"
    net = pb.fit(method, tiny_model(), tiny_data(), epochs=1, progress=False)
    assert net.prior.std == 0.5
    assert len(net.layout) == 4


def test_int8_names_mistakes() -> None:
    with pytest.raises(pb.UserError, match="sigma_bits must be one of 8, 4, 2, 1, not 3"):
        pb.Int8(sigma_bits=3)
    with pytest.raises(pb.UserError, match="must be a MeanFieldVI"):
        pb.Int8(method="map")
