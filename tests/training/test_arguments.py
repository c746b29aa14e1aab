"""Invalid arguments of `fit` and related functions: one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def fit(x: Any = X, y: Any = Y, net: Any = None, **more: Any) -> object:
    return pb.fit("bbb", net or model(), (x, y), **{"epochs": 1, "progress": False, **more})


class Answers(nn.Module):
    """A model whose output is not (batch, outputs)."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(4, 3), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.linear(x))


def meta_model() -> nn.Module:
    with torch.device("meta"):
        return model()


FITS: dict[str, tuple[Callable[[], object], str]] = {
    "targets None": (lambda: fit(y=None), "the targets cannot be read as numbers"),
    "targets of text": (lambda: fit(y=["a"] * 20), "the targets cannot be read as numbers"),
    "targets of objects": (lambda: fit(y=np.array([None] * 20)), "the targets cannot be read as numbers"),
    "complex targets": (lambda: fit(y=Y.to(torch.complex64)), "complex"),
    "inputs None": (lambda: fit(x=None), "the inputs cannot be read as numbers"),
    "ragged inputs": (lambda: fit(x=[[1, 2], [1]] * 10), "the inputs cannot be read as numbers"),
    "sparse inputs": (lambda: fit(x=X.to_sparse()), "dense"),
    "inputs on the meta device": (lambda: fit(x=X.to("meta")), "meta device"),
    "one number": (lambda: fit(x=torch.tensor(1.0), y=torch.tensor(1)), "single number"),
    "three arrays": (lambda: pb.fit("bbb", model(), (X, Y, Y), epochs=1), "data of 3 arrays"),
    "validation of three arrays": (lambda: fit(val=(X, Y, Y)), "data of 3 arrays"),
    "validation of other features": (lambda: fit(val=(X[:, :2], Y)), "4 features, but val= has 2"),
    "a model without values": (lambda: fit(net=meta_model()), "meta device"),
    "an output of one dimension": (lambda: fit(net=Answers(lambda y: y[:, 0])), r"\(batch, classes, ...\)"),
    "an output of no dimension": (lambda: fit(net=Answers(lambda y: y.sum())), r"\(batch, classes, ...\)"),
    "an output of another length": (lambda: fit(net=Answers(lambda y: y[:3])), r"\(batch, classes, ...\)"),
    "no seed": (lambda: fit(seed=None), "seed must be"),
    "a seed of text": (lambda: fit(seed="1"), "seed must be"),
    "a broken seed": (lambda: fit(seed=1.5), "seed must be"),
    "a huge seed": (lambda: fit(seed=2**70), "seed must be"),
    "a huge batch size": (lambda: fit(batch_size=2**63), "batch_size must be below"),
    "a huge learning rate": (lambda: fit(lr=10**400), "lr must be below"),
    "one array for data": (lambda: pb.fit("map", model(), X.to_sparse()), "one array without targets"),
    "a dictionary for data": (lambda: pb.fit("map", model(), {"x": X, "y": X}), "cannot read data from a dict"),
    "no workers": (lambda: fit(workers=-1), "workers must be 0 or more"),
    "a negative weight decay": (lambda: fit(weight_decay=-1), "weight_decay must be 0 or more"),
    "a learning rate of NaN": (lambda: fit(lr=float("nan")), "lr must be positive"),
    "an infinite timeout": (lambda: fit(timeout=float("inf")), "timeout must be positive"),
    "a negative norm": (lambda: fit(clip_norm=-1.0), "clip_norm must be positive"),
    "too many processes": (lambda: fit(devices=10_000, accelerator="cpu"), "too many for a CPU"),
    "stages by number": (lambda: fit(stages=3), "stages must be settings by stage"),
    "a stage by number": (lambda: fit(stages={"shared": 1}), "stages must be settings by stage"),
    "milestones of text": (lambda: fit(schedule="milestones", milestones="ab"), "milestones must be a list"),
    "inputs of 8 bits": (lambda: fit(x=X.to(torch.float8_e4m3fn)), "cannot be computed with"),
    "no batch size": (lambda: fit(batch_size=None), "batch_size must be"),
    "training as a dict": (lambda: fit(training={"lr": 1}), "training= takes"),
    "a folder that is no path": (lambda: fit(out=5), "out= must be a path"),
    "a folder with a NUL": (lambda: fit(out="a\0b"), "out= must be a path"),
    "a folder of a long name": (lambda: fit(out="/tmp/" + "a" * 5000), "cannot write"),
    "nothing to load": (lambda: pb.load(None), "must be a path"),  # type: ignore[arg-type]
    "a number to load": (lambda: pb.load(5), "must be a path"),  # type: ignore[arg-type]
    "a file with a NUL": (lambda: pb.save(pb.bayesianize(model()), "a\0b"), "must be a path"),
}


@pytest.mark.parametrize("name", FITS)
def test_fit_refuses_a_wrong_argument_with_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    action, message = FITS[name]
    with pytest.raises(pb.UserError, match=message) as caught:
        action()
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's error comes before ours
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mlp", {"in_features": 4, "out_features": 3, "hidden": [0]}),
        ("mlp", {"in_features": 4, "out_features": 3, "hidden": [-1]}),
        ("mlp", {"in_features": 4, "out_features": 3, "hidden": "ab"}),
        ("mlp", {"in_features": "4", "out_features": 3}),
        ("mlp", {"in_features": 4, "out_features": 3, "dropout": 2}),
        ("mlp", {"in_features": 10**9, "out_features": 10**9}),
        ("lenet5", {"classes": -1}),
        ("resnet20", {"classes": 0}),
        ("resnet20", {"depth": "x"}),
        ("vit-ti", {"patch_size": 0}),
        ("unet", {"widths": []}),
        (5, {}),
    ],
)
def test_build_refuses_impossible_sizes(name: Any, args: dict[str, Any]) -> None:
    with pytest.raises(pb.UserError, match="model"):
        pb.models.build(name, **args)


def test_predict_refuses_too_many_samples() -> None:
    with pytest.raises(pb.UserError, match="samples must be at most"):
        pb.predict(pb.bayesianize(model()), X, samples=10**20)


def test_predict_takes_reversed_inputs() -> None:
    net, reversed_rows = pb.bayesianize(model()), X.numpy()[::-1]
    assert torch.equal(pb.predict(net, reversed_rows, samples=2).mean, pb.predict(net, X.flip(0), samples=2).mean)


def test_fit_names_a_model_whose_output_is_not_a_tensor() -> None:
    with pytest.raises(pb.UserError, match="the model returns a tuple, not a tensor: wrap it"):
        fit(torch.zeros(20, 5, 4), net=nn.LSTM(4, 3, batch_first=True))
