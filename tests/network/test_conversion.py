"""Conversion of any module: without noise, every propagation equals the plain model in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import pocketbayes as pb
from pocketbayes.posteriors import MeanField
from pocketbayes.posteriors.gaussian import tensors_in

PROPAGATIONS = ("mean", "sample", "local", "flipout")


class Scale(torch.autograd.Function):
    """x W^T as an autograd function with its own backward pass."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(Scale.apply(x, self.inner.weight))


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(4, 4), nn.Conv1d(1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(bias=self.linear.bias, input=x, weight=self.linear.weight)
        return F.conv1d(x[:, None], self.conv.weight, padding=1, bias=self.conv.bias)


class Custom(nn.Module):
    """A layer that uses its weight directly and reads its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        assert next(self.parameters()).dtype == x.dtype == self.weight.dtype
        rows, columns = self.weight.shape
        assert (len(self.weight), self.weight.size(1), self.weight.numel()) == (rows, columns, rows * columns)
        return torch.einsum("ni,io->no", x, self.weight / self.weight.norm(dim=0)) * self.scale


class Tied(nn.Module):
    """A model with an embedding tied to the decoder, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.embedding(x))


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class Attention(nn.Module):
    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **settings)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        return self.attention(query, query if key is None else key, query if value is None else value)[0]


class NoBiases(nn.Module):
    """A model that calls `next(self.parameters())` although all of them are selected."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.to(next(self.layer.parameters()).dtype))


@dataclass(frozen=True)
class Example:
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    train: bool = True


def floats(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


def conv(kind: type[nn.Module], *shape: int, **settings: object) -> Example:
    return Example(lambda: kind(2, 4, 3, **settings), floats((3, 2, *shape)))


EXAMPLES = {
    "root linear": Example(lambda: nn.Linear(4, 2), floats((3, 4))),
    "one vector": Example(lambda: nn.Linear(4, 2), floats((4,))),
    "tokens": Example(lambda: nn.Linear(4, 2), floats((3, 5, 4))),
    "bilinear": Example(lambda: nn.Bilinear(4, 3, 2), floats((3, 4), (3, 3))),
    "conv1d": conv(nn.Conv1d, 7, stride=2),
    "conv2d": conv(nn.Conv2d, 6, 6, padding=1),
    "conv2d same": conv(nn.Conv2d, 6, 6, padding="same", dilation=2),
    "conv2d groups": conv(nn.Conv2d, 6, 6, groups=2, bias=False),
    "conv2d unbatched": Example(lambda: nn.Conv2d(2, 4, 3), floats((2, 5, 5))),
    "conv3d": conv(nn.Conv3d, 4, 4, 4, padding=1),
    **{f"padding {mode}": conv(nn.Conv2d, 5, 5, padding=2, padding_mode=mode) for mode in
       ("zeros", "circular", "reflect", "replicate")},
    "transposed 1d": conv(nn.ConvTranspose1d, 5, stride=2, output_padding=1),
    "transposed 2d": conv(nn.ConvTranspose2d, 4, 4, groups=2, dilation=2),
    "transposed 3d": conv(nn.ConvTranspose3d, 3, 3, 3),
    "lstm": Example(lambda: nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), floats((3, 5, 4))),
    "lstm projected": Example(lambda: nn.LSTM(4, 3, proj_size=2, bias=False), floats((5, 3, 4))),
    "gru": Example(lambda: nn.GRU(4, 3, 2, bidirectional=True), floats((5, 3, 4))),
    "rnn": Example(lambda: nn.RNN(4, 3), floats((5, 3, 4))),
    "lstm cell": Example(lambda: nn.LSTMCell(4, 3), floats((3, 4))),
    "attention": Example(Attention, floats((3, 5, 4))),
    "attention cross": Example(
        lambda: Attention(kdim=3, vdim=6, add_bias_kv=True), floats((3, 5, 4), (3, 2, 3), (3, 2, 6))
    ),
    "transformer in training": Example(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), floats((3, 5, 4))
    ),
    "transformer in evaluation": Example(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), floats((3, 5, 4)), train=False
    ),
    "decoder": Example(lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0), floats((3, 5, 4), (2, 5, 4))),
    "tied": Example(Tied, lambda: (torch.randint(7, (3, 5)),)),
    "called twice": Example(CalledTwice, floats((3, 4))),
    "shared module": Example(lambda: nn.Sequential(*[nn.Linear(4, 4), nn.Tanh()] * 3), floats((3, 4))),
    "hidden": Example(Hidden, floats((3, 4))),
    "keywords": Example(Keywords, floats((3, 4))),
    "custom": Example(Custom, floats((3, 4))),
    "no biases": Example(NoBiases, floats((3, 4))),
    "batch norm": Example(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), floats((3, 2, 5, 5))),
    "weight norm": Example(lambda: parametrizations.weight_norm(nn.Linear(4, 2)), floats((3, 4))),
    "spectral norm": Example(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(2, 3, 3)), nn.ReLU()), floats((3, 2, 5, 5))
    ),
    "orthogonal": Example(lambda: parametrizations.orthogonal(nn.Linear(4, 3)), floats((3, 4))),
}  # fmt: skip


def gradients(
    model: nn.Module, inputs: tuple[Tensor, ...], names: list[str]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return outputs, input gradients, and gradients of the named parameters (or of the posterior's mean)."""
    torch.manual_seed(3)
    inputs = tuple(x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs)
    outputs = list(tensors_in(model(*inputs)))
    sum((output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum() for output in outputs).backward()
    if isinstance(model, pb.Network):
        flat = model.posterior.mean.grad
    else:
        parameters = dict(model.named_parameters())
        flat = torch.cat([parameters[name].grad.reshape(-1) for name in names])
    return [o.detach() for o in outputs], [x.grad for x in inputs if x.requires_grad], [flat]


@pytest.mark.parametrize("bayesian_bias", [False, True])
@pytest.mark.parametrize("std", [0.0, 1e-30])
@pytest.mark.parametrize("name", EXAMPLES)
def test_convert_without_noise_is_the_plain_model(name: str, std: float, bayesian_bias: bool) -> None:
    example = EXAMPLES[name]
    plain = example.make().double().train(example.train)
    inputs = example.inputs()
    net = pb.bayesianize(plain, pb.MeanFieldVI(bayesian_bias=bayesian_bias)).train(example.train)
    assert isinstance(net, pb.Network)
    net.posterior = MeanField(net.layout, net.posterior.mean, torch.full_like(net.posterior.mean, std))
    names = [slot.name for slot in net.layout.slots]
    for propagation in PROPAGATIONS:
        each = copy.deepcopy(net)
        with each.using(propagation):
            found = gradients(each, inputs, names)
        reference = copy.deepcopy(plain)
        torch.testing.assert_close(found, gradients(reference, inputs, names), rtol=1e-9, atol=1e-12)
        buffers = dict(each.model.named_buffers())
        assert list(buffers) == [buffer for buffer, _ in reference.named_buffers()]
        torch.testing.assert_close(buffers, dict(reference.named_buffers()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EXAMPLES)
def test_to_module_returns_the_mean_model(name: str) -> None:
    example = EXAMPLES[name]
    plain = example.make().double().eval()
    inputs = example.inputs()
    net = pb.bayesianize(plain, pb.MeanFieldVI(bayesian_bias=True))
    net(*copy.deepcopy(inputs))
    module = net.to_module()
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in module.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), plain.state_dict().values()))
    expected = list(tensors_in(plain(*copy.deepcopy(inputs))))
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(module(*copy.deepcopy(inputs))), expected))
    assert not set(dict(net.model.named_parameters())) & {s for slot in net.layout.slots for s in slot.sites}


def test_to_module_returns_a_draw() -> None:
    net = pb.bayesianize(nn.Linear(300, 300, bias=False), pb.MeanFieldVI(std_init=0.5))
    noise = net.to_module("sample").weight - net.to_module().weight
    assert abs(float(noise.detach().std()) - 0.5) < 0.01


def test_to_module_trains_and_keeps_tied_weights() -> None:
    module = pb.bayesianize(Tied(), pb.MeanFieldVI()).to_module()
    assert module.decoder.weight is module.embedding.weight
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in module.parameters())
    lstm = pb.bayesianize(nn.LSTM(2, 3), pb.MeanFieldVI()).to_module()
    lstm.weight_ih_l0.data.zero_()  # the recurrent layer uses its own list of weights, which must be these
    lstm.bias_ih_l0.data.zero_()
    one, two = lstm(torch.zeros(1, 1, 2))[0], lstm(torch.ones(1, 1, 2))[0]
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", ["lstm", "attention", "weight norm", "tied"])
def test_to_module_frees_old_draws(name: str) -> None:
    """After a pass the model holds no drawn weight and can be copied."""
    example = EXAMPLES[name]
    net = pb.bayesianize(example.make().double(), pb.MeanFieldVI())
    net(*example.inputs())
    for module in net.model.modules():
        for value in module.__dict__.values():
            assert all(tensor.grad_fn is None for tensor in tensors_in(value))
    copied = copy.deepcopy(net)
    inputs = example.inputs()
    with net.using("mean"), copied.using("mean"):
        one, two = (list(tensors_in(each(*inputs))) for each in (net, copied))
    assert all(torch.equal(a, b) for a, b in zip(one, two))


def test_convert_copies_the_model() -> None:
    model = nn.Linear(3, 2)
    net = pb.bayesianize(model, pb.MeanFieldVI())
    with torch.no_grad():
        net.posterior.mean.zero_()
        net.model.bias.zero_()
    assert float(model.weight.detach().abs().sum()) > 0
    assert float(model.bias.detach().abs().sum()) > 0


def test_convert_keeps_every_dtype() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        net = pb.bayesianize(nn.Linear(3, 2).to(dtype), pb.MeanFieldVI())
        for propagation in PROPAGATIONS:
            with net.using(propagation):
                assert net(torch.randn(4, 3, dtype=dtype)).dtype == dtype


def test_convert_selects_weights_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    for method in (pb.MeanFieldVI(select=r"^2\."), pb.Deterministic(select=r"^2\."), pb.PBN(select=r"^2\.", rate=0.5)):
        net = pb.bayesianize(model, method)
        assert [slot.name for slot in net.layout.slots] == ["2.weight", "2.bias"]
    with pytest.raises(pb.UserError, match="not a regular expression"):
        pb.MeanFieldVI(select="(")
    with pytest.raises(pb.UserError, match=r"select='nothing' matches no parameter: the names are 0\.weight, "):
        pb.bayesianize(model, pb.MeanFieldVI(select="nothing"))
    with pytest.raises(pb.UserError, match=r"select='\^0' leaves out '2\.weight', .* net\.to_module\(\)"):
        pb.bayesianize(pb.bayesianize(model, pb.Deterministic()), pb.MeanFieldVI(select="^0"))


def test_convert_keeps_tokens_as_integers() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table(x).mean(1))

    x = torch.randint(0, 9, (20, 3))
    net = pb.fit("bbb", Words(), (x, (x[:, 0] > 4).long()), epochs=1, progress=False)
    assert pb.predict(net, x, 2).probs.shape == (20, 2)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_convert_refuses_old_weight_norm_even_after_a_pass() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(3, 2)))
    model(torch.zeros(1, 3))
    with pytest.raises(pb.UserError, match=r"'0' \(Linear\) has a WeightNorm hook.*parametrizations"):
        pb.bayesianize(model)
