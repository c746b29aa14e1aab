"""Invalid arguments of predict, evaluate and stream."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.inference.evaluation import stream

X: dict[str, Any] = {
    "none": None,
    "empty mapping": {},
    "ragged": [[1.0, 2.0], [1.0]],
    "text": "x.npy",
    "texts": ["a", "b"],
    "array of texts": np.array(["a", "b"]),
    "array of objects": np.array([None, {}]),
    "number": 3.0,
    "scalar": torch.tensor(3.0),
    "scalar array": np.float32(3),
    "meta": torch.ones(2, 3, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "nested": torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
    "complex": torch.ones(2, 3, dtype=torch.complex64),
    "empty": torch.ones(0, 3),
    "8 bits": torch.ones(2, 3).to(torch.float8_e4m3fn),
}

SETTINGS: list[dict[str, Any]] = [
    *({"batch_size": value} for value in (0, -1, None, 2.5, "3", True)),
    *({"seed": value} for value in (None, 2**63, -(2**63) - 1, 1.5, "0")),
    *({"samples": value} for value in (None, "3", 0, -2, 1.5, True)),
    *({"classes": value} for value in (None, "best", 3, "top-0")),
    *({"variance_scale": value} for value in (-1, float("nan"), float("inf"), None, "2")),
    *({"readout": value} for value in (None, "mean")),
    *({"propagation": value} for value in ("locl", 3, "")),
]


def network(model: nn.Module | None = None) -> pb.Network:
    torch.manual_seed(0)
    net = pb.bayesianize(model or nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), pb.MeanFieldVI())
    assert isinstance(net, pb.Network)
    return net


def refused(call: Any) -> None:
    with pytest.raises(pb.UserError) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", X)
def test_predict_refuses_inputs_that_are_not_a_batch(name: str) -> None:
    refused(lambda: pb.predict(network(), X[name], samples=1))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_predict_refuses_settings_out_of_range(setting: dict[str, Any]) -> None:
    net, data = network(), (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    refused(lambda: pb.predict(net, data[0], **setting))
    refused(lambda: pb.evaluate(net, data, **setting))
    refused(lambda: next(stream(net, data, pb.Ask(**setting))))
    if "variance_scale" not in setting:
        refused(lambda: pb.fit_variance_scale(net, data, **setting))


def test_predict_takes_negative_strides_and_numpy_numbers() -> None:
    net, x = network(), np.arange(12, dtype=np.float32).reshape(4, 3)
    turned = pb.predict(net, x[::-1], np.int64(2), seed=np.int32(1), batch_size=torch.tensor(3))
    straight = pb.predict(net, torch.from_numpy(x).flip(0), 2, seed=1, batch_size=3)
    assert torch.equal(turned.mean, straight.mean)


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "linear", "moments"])
def test_predict_refuses_outputs_that_are_not_tensors(propagation: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": self.layer(x), "b": x}

    refused(lambda: pb.predict(network(Two()), torch.ones(2, 3), 2, propagation=propagation))


@pytest.mark.parametrize("propagation", ["mean", "sample", "local", "linear", "moments"])
@pytest.mark.parametrize("shape", ["one number per example", "one number", "fewer rows"])
def test_predict_refuses_outputs_without_rows_of_logits(shape: str, propagation: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y[:, 0] if shape == "one number per example" else y.sum() if shape == "one number" else y[:2]

    refused(lambda: pb.predict(network(Odd()), torch.ones(4, 3), 2, propagation=propagation))


@pytest.mark.parametrize("propagation", ["moments", "moments-full", "linear", "sample"])
def test_predict_warns_of_weights_too_large(propagation: str) -> None:
    net = network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    with torch.no_grad():
        net.posterior.mean.fill_(1e30)
    with pytest.warns(UserWarning, match="not finite"):
        pb.predict(net, torch.ones(2, 3), 2, propagation=propagation)


@pytest.mark.parametrize("magnitude", [1e12, 1e16, 1e30])
def test_predict_by_full_moments_takes_huge_random_weights(magnitude: float) -> None:
    net = network(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)))
    with torch.no_grad():
        net.posterior.mean.mul_(magnitude)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the non-finite value comes last
        found = pb.predict(net, torch.randn(20, 3), propagation="moments-full")
    assert found.mean.shape == (20, 4)


DATA = torch.linspace(-1, 1, 60).view(20, 3), torch.arange(20) % 2
OTHER = DATA[0][:, :2], DATA[1]

VERBS: dict[str, Any] = {
    "kl of a model": lambda net: pb.kl(nn.Linear(3, 2)),  # type: ignore[arg-type]
    "census of nothing": lambda net: pb.census(None),  # type: ignore[arg-type]
    "a level of text": lambda net: pb.predict(net, DATA[0], 2).sets("0.9"),  # type: ignore[arg-type]
    "no level": lambda net: pb.predict(net, DATA[0], 2).sets(None),  # type: ignore[arg-type]
    "compress nothing": lambda net: pb.compress(None, DATA, DATA),  # type: ignore[arg-type]
    "bits of text": lambda net: pb.compress(net, DATA, DATA, bits="4"),  # type: ignore[arg-type]
    "infinite bits": lambda net: pb.compress(net, DATA, DATA, bits=float("inf")),
    "a count of text": lambda net: pb.compress(net, DATA, DATA, count="a"),  # type: ignore[arg-type]
    "weights that overflow": lambda net: pb.mixture([net, net], weights=[1e308, 1e308]),
    "export to a number": lambda net: pb.export_onnx(net, 3),  # type: ignore[arg-type]
    "export of samples of text": lambda net: pb.export_onnx(net, "net.onnx", samples="a"),  # type: ignore[arg-type]
    "evaluate other features": lambda net: pb.evaluate(net, OTHER),
    "conformal sets by other features": lambda net: pb.fit_conformal(net, OTHER),
}


@pytest.fixture(scope="module")
def trained() -> pb.Network:
    net = pb.fit("bbb", nn.Linear(3, 2), DATA, epochs=1, progress=False)
    assert isinstance(net, pb.Network)
    return net


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
@pytest.mark.parametrize("name", VERBS)
def test_verbs_refuse_nonsense_with_one_line(name: str, trained: pb.Network) -> None:
    refused(lambda: VERBS[name](trained))
