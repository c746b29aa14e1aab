"""Invalid arguments of predict, evaluate and stream."""

from __future__ import annotations

import copy
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


def test_predict_leaves_gradients_on_while_its_error_is_handled() -> None:
    net = network(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
    val = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    for action in (lambda: pb.predict(net, val[0], 2), lambda: pb.calibrate(net, val, samples=2)):
        with pytest.raises(pb.UserError) as caught:
            action()
        assert torch.is_grad_enabled()
        assert caught.value is not None


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
    "compress to a number": lambda net: pb.compress(net, DATA, DATA, out=3),  # type: ignore[arg-type]
    "an accuracy loss above 1": lambda net: pb.compress(net, DATA, DATA, max_accuracy_loss=2),
    "negative bits": lambda net: pb.compress(net, DATA, DATA, bits=-1),
    "negative bytes": lambda net: pb.compress(net, DATA, DATA, max_bytes=-1),
    "a negative loss": lambda net: pb.compress(net, DATA, DATA, max_nll_loss=-0.1),
    "negative steps": lambda net: pb.compress(net, DATA, DATA, steps=-1),
    "compress by no samples": lambda net: pb.compress(net, DATA, DATA, samples=0),
    "a shape of one number": lambda net: pb.describe(net, input_shape=3),  # type: ignore[arg-type]
    "a shape of text": lambda net: pb.describe(net, input_shape="a"),
    "a negative shape": lambda net: pb.describe(net, input_shape=(-1,)),
    "a huge shape": lambda net: pb.describe(net, input_shape=(10**9, 10**9)),
    "classes of a number": lambda net: pb.describe(net, classes=2.5),  # type: ignore[arg-type]
    "a curve of one number": lambda net: pb.evaluate(net, DATA, samples=1, curve=3),  # type: ignore[arg-type]
    "a rise of text": lambda net: pb.fit_stopping(net, DATA, samples=4, max_rise="a"),  # type: ignore[arg-type]
    "fixed draws of nothing": lambda net: pb.fix_draws(None, 4),  # type: ignore[arg-type]
    "recalibrate nothing": lambda net: pb.recalibrate(None, DATA),  # type: ignore[arg-type]
    "a method of a number": lambda net: pb.search_beta(3, nn.Linear(3, 2), DATA, DATA),  # type: ignore[arg-type]
    "a report of nothing": lambda net: pb.report(None, "report.html"),  # type: ignore[arg-type]
    "a hub folder of a number": lambda net: pb.save_pretrained(net, 3),  # type: ignore[arg-type]
    "evaluations in a number": lambda net: pb.evaluate_suite(net, DATA, samples=1, out=3),  # type: ignore[arg-type]
    "an evaluation of texts": lambda net: pb.evaluate_suite(net, [("a", 1)] * 3, samples=1),
    "a text for beta": lambda net: pb.MeanFieldVI(beta="a"),  # type: ignore[arg-type]
    "no density": lambda net: pb.SSVI(density=None),  # type: ignore[arg-type]
    "astronomic bits": lambda net: pb.WeightSharing(bits_per_weight=1e30),
    "class weights of text": lambda net: pb.Categorical("a"),  # type: ignore[arg-type]
    "a delta of text": lambda net: pb.bayesianize(nn.Linear(3, 2), data=DATA, delta="a"),  # type: ignore[arg-type]
    "infinite beta": lambda net: pb.MeanFieldVI(beta=float("inf")),
    "an infinite std": lambda net: pb.MeanFieldVI(std_init=float("inf")),
    "a million draws a step": lambda net: pb.MeanFieldVI(train_samples=10**6),
    "a million members": lambda net: pb.Ensemble(members=10**6),
    "a momentum of 5": lambda net: pb.Training(momentum=5.0),
    "class weights of NaN": lambda net: pb.Categorical([1.0, float("nan")]),
    "no bits": lambda net: pb.compress(net, DATA, DATA, bits=0),
    "a huge batch size": lambda net: pb.fit_stopping(net, DATA, samples=4, batch_size=10**30),
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


WRONG_DATA: dict[str, tuple[Any, str]] = {
    "other features": (OTHER, "does not accept inputs"),
    "integers": ((DATA[0].long(), DATA[1]), "does not accept inputs"),
    "labels outside the classes": ((DATA[0], DATA[1] + 9), "outputs: label 9 at position 0"),
    "real numbers": ((DATA[0], DATA[0][:, 0]), "predicts classes, but the targets are torch.float32"),
    "too few labels": ((DATA[0], DATA[1][:3]), "20 inputs but 3 targets"),
    "labels in columns": (torch.utils.data.TensorDataset(DATA[0], DATA[1][:, None]), r"labels of shape \(20, 1\)"),
}
MEASURING: dict[str, Any] = {
    "evaluate": lambda net, data: pb.evaluate(net, data, samples=2),
    "calibrate": lambda net, data: pb.calibrate(net, data, samples=2),
    "calibrate moments": lambda net, data: pb.calibrate(net, data, propagation="moments"),
    "fit_variance_scale": lambda net, data: pb.fit_variance_scale(net, data),
    "fit_conformal": lambda net, data: pb.fit_conformal(net, data, samples=2),
    "fit_stopping": lambda net, data: pb.fit_stopping(net, data, samples=4),
    "validation": lambda net, data: pb.fit("bbb", nn.Linear(3, 2), DATA, val=data, epochs=1, progress=False),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
@pytest.mark.parametrize("data", WRONG_DATA)
@pytest.mark.parametrize("verb", MEASURING)
def test_measuring_verbs_refuse_data_that_do_not_fit(verb: str, data: str, trained: pb.Network) -> None:
    wrong, message = WRONG_DATA[data]
    if (verb, data) == ("validation", "other features"):
        message = "3 features, but val= has 2"
    with pytest.raises(pb.UserError, match=message) as caught:
        MEASURING[verb](trained, wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
@pytest.mark.parametrize("verb", MEASURING)
@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int32], ids=str)
def test_measuring_verbs_take_labels_of_any_integer_type(verb: str, kind: torch.dtype, trained: pb.Network) -> None:
    net = copy.deepcopy(trained)
    assert repr(MEASURING[verb](net, (DATA[0], DATA[1].to(kind)))) == repr(MEASURING[verb](net, DATA))


@pytest.mark.filterwarnings("ignore::UserWarning")  # few examples
@pytest.mark.parametrize("kind", [torch.float16, torch.float64], ids=str)
def test_compress_takes_inputs_of_any_precision(kind: torch.dtype, trained: pb.Network) -> None:
    data = DATA[0].to(kind), DATA[1]
    assert pb.compress(trained, data, data, max_bytes=2000, samples=1).chosen.bytes > 0


def test_predict_names_a_failed_assertion_of_the_model() -> None:
    class Strict(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1] == 3, "wrong width"
            return super().forward(x)

    with pytest.raises(pb.UserError, match=r"does not accept inputs .*: wrong width"):
        pb.predict(pb.bayesianize(Strict(3, 2), "bbb"), torch.ones(2, 5), 2)


def test_predict_names_inputs_of_an_undescribed_network() -> None:
    with pytest.raises(
        pb.UserError, match=r"does not accept inputs \(2, 5\) of type torch.float32: .*; check"
    ) as caught:
        pb.predict(network(), torch.ones(2, 5), 2)
    assert isinstance(caught.value, RuntimeError)  # as torch's modules raise


def test_predict_keeps_errors_that_the_plain_model_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a defect")

    net = network()
    monkeypatch.setattr(type(net.posterior), "sample_slots", fail)
    with pytest.raises(RuntimeError, match=r"^a defect$"):
        net(torch.ones(2, 3))


LOADS: dict[str, dict[str, Any]] = {
    **{f"name {value!r}": {"name": value} for value in (None, 3, b"digits", ["digits"])},
    **{f"subset {value!r}": {"subset": value} for value in (2.5, "a", [1, "a"], 0, [10**9], torch.tensor([1.5]))},
    **{f"seed {value!r}": {"seed": value} for value in (None, 2.5, "a", -1)},
    **{f"val_fraction {value!r}": {"val_fraction": value} for value in (None, "a", 1.5, -0.1, float("nan"))},
    **{f"data_dir {value!r}": {"data_dir": value} for value in (3, [1])},
    **{f"path {value!r}": {"name": "npz", "path": value} for value in (3, None, b"a")},
    "mean": {"mean": ["a"]},
    "std": {"std": [float("nan")]},
}


@pytest.mark.parametrize("wrong", LOADS)
def test_data_load_refuses_nonsense_with_one_line(wrong: str) -> None:
    refused(lambda: pb.data.load(**{"name": "digits", **LOADS[wrong]}))
