"""`pb.calibrate`: its results, its errors, and its use in predictions, files and graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

TRUE_TEMPERATURE = 3.0


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return labels drawn from the softmax of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, 4, generator=generator)
    return x, torch.multinomial(x.softmax(1), 1, generator=generator)[:, 0]


def overconfident(method: str = "map", **settings: object) -> pb.Network:
    model = nn.Linear(4, 4, bias=False)
    nn.init.eye_(model.weight).data.mul_(TRUE_TEMPERATURE)
    net = pb.bayesianize(model, method, **settings)
    assert isinstance(net, pb.Network)
    return net


@pytest.mark.parametrize("method", ["map", "bbb"])
def test_calibrate_finds_the_temperature_and_predict_applies_it(method: str) -> None:
    settings = {"std_init": 0.01} if method == "bbb" else {}
    net = overconfident(method, **settings)
    found = pb.calibrate(net, data(3000), samples=5)
    assert net.calibration is None
    assert found.calibration is not None
    assert found.calibration.temperature == pytest.approx(TRUE_TEMPERATURE, rel=0.1)
    low, high = found.calibration.temperature_interval or (0, 0)
    assert low < found.calibration.temperature < high
    test = data(1000, seed=1)
    assert pb.evaluate(found, test)["nll"] < pb.evaluate(net, test)["nll"] - 0.1


def test_calibrate_is_cautious_with_few_examples() -> None:
    with pytest.warns(UserWarning, match="give more calibration data"):
        found = pb.calibrate(overconfident(), data(15))
    assert found.calibration is not None
    assert 1 <= found.calibration.temperature <= (found.calibration.temperature_interval or (0, 0))[1]


def test_calibrate_scales_the_variance_of_moments() -> None:
    net = overconfident("vdp", std_init=0.05)
    found = pb.calibrate(net, data(500))
    assert found.calibration is not None
    assert found.calibration.temperature == 1
    assert found.calibration.variance_scale > 2
    asked = pb.predict(net, data(20)[0], variance_scale=found.calibration.variance_scale)
    torch.testing.assert_close(pb.predict(found, data(20)[0]).probs, asked.probs)


def test_calibration_is_kept_in_the_file(tmp_path: Path) -> None:
    found = pb.calibrate(overconfident(), data(2000))
    pb.save(found, tmp_path / "net.pocket")
    loaded = pb.load(tmp_path / "net.pocket", nn.Linear(4, 4, bias=False))
    assert loaded.calibration == found.calibration
    x = data(20)[0]
    torch.testing.assert_close(pb.predict(loaded, x).probs, pb.predict(found, x).probs)


def test_calibration_of_a_mixture_covers_all_members() -> None:
    found = pb.calibrate(pb.Mixture([overconfident(), overconfident()]), data(2000))
    assert {network.calibration for network in found} != {None}
    assert len({network.calibration for network in found}) == 1


def test_calibrate_warns_of_missing_classes_and_refuses_one() -> None:
    x, y = data(2000)
    with pytest.warns(UserWarning, match="1 of 4 classes are missing"):
        pb.calibrate(overconfident(), (x[y != 3], y[y != 3]))
    with pytest.raises(pb.UserError, match="two classes or more"):
        pb.calibrate(overconfident(), (x[y == 0], y[y == 0]))


def test_calibrate_fits_a_temperature_to_pixels() -> None:
    """A 1 x 1 convolution with logits too large by a known factor; pixels without a label do not count."""
    x, y = data(8 * 32 * 32)
    model = nn.Conv2d(4, 4, 1, bias=False)
    model.weight.data = TRUE_TEMPERATURE * torch.eye(4)[:, :, None, None]
    net = pb.bayesianize(model, "map")
    assert isinstance(net, pb.Network)
    net.likelihood = pb.Categorical(ignore_index=255)
    images, labels = x.view(8, 32, 32, 4).movedim(3, 1).contiguous(), y.view(8, 32, 32).clone()
    labels[:, :4] = 255
    found = pb.calibrate(net, (images, labels), samples=2)
    assert found.calibration is not None
    assert found.calibration.temperature == pytest.approx(TRUE_TEMPERATURE, rel=0.1)
    assert pb.evaluate(found, (images, labels))["nll"] < pb.evaluate(net, (images, labels))["nll"] - 0.1


def test_calibration_is_part_of_an_exported_graph(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = pb.calibrate(overconfident(), data(2000))
    x = data(6)[0]
    pb.export_onnx(found, tmp_path / "net.onnx", "mean", example=x)
    session = ort.InferenceSession(str(tmp_path / "net.onnx"))
    names = [output.name for output in session.get_outputs()]
    answer = dict(zip(names, session.run(None, {session.get_inputs()[0].name: x.numpy()})))
    torch.testing.assert_close(torch.from_numpy(answer["probs"]), pb.predict(found, x).probs, atol=1e-5, rtol=0)
