"""Methods with several stages resume bit for bit from each kind of checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from cases import tiny_data, tiny_model
from pocketbayes.training import checkpoint

METHODS = {
    "swag": lambda: pb.SWAG(swag_epochs=3, rank=2),
    "ensemble": lambda: pb.Ensemble(members=2),
    "multi-swag": lambda: pb.Ensemble(members=2, method=pb.SWAG(swag_epochs=2, rank=2)),
    "laplace": lambda: pb.Laplace(hessian="diag"),
    "int8": lambda: pb.Int8(method="bbb"),
}
STOPS = {"swag": (4, 5, 7, 10), "ensemble": (4, 6, 8), "multi-swag": (5, 11, 16), "laplace": (4,), "int8": (4,)}
"""Checkpoints: the end of a stage, the middle of the next, the last of all, after which only a stage's end is left."""


class StoppedError(Exception):
    pass


def fit(name: str, folder: Path, **settings: object) -> pb.network.Net:
    return pb.fit(
        METHODS[name](),
        tiny_model(),
        tiny_data(),
        epochs=2,
        batch_size=16,
        lr=1e-2,
        checkpoint_steps=2,
        seed=5,
        out=folder,
        progress=False,
        **settings,
    )


@pytest.mark.parametrize("name", METHODS)
def test_fit_resumes_between_and_within_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(name, tmp_path / "whole").state_dict()
    write = checkpoint.write
    for stop in STOPS[name]:
        count = 0

        def write_and_stop(*args: object) -> None:
            nonlocal count
            write(*args)
            count += 1
            if count == stop:  # noqa: B023 (called within this turn of the loop)
                raise StoppedError

        monkeypatch.setattr(checkpoint, "write", write_and_stop)
        with pytest.raises(StoppedError):
            fit(name, tmp_path / str(stop))
        monkeypatch.setattr(checkpoint, "write", write)
        resumed = fit(name, tmp_path / str(stop), resume=True).state_dict()
        assert list(resumed) == list(whole)
        assert all(torch.equal(whole[key], resumed[key]) for key in whole), stop
        lines = [(tmp_path / run / "metrics.jsonl").read_text() for run in ("whole", str(stop))]
        assert lines[0] == lines[1]


def test_fit_stage_takes_its_own_settings() -> None:
    method = pb.WeightSharing(k=4, n_min=2, pretrain_epochs=1, meanfield_epochs=0)

    def centres(**settings: object) -> torch.Tensor:
        net = pb.fit(method, tiny_model(), tiny_data(), epochs=1, batch_size=16, lr=1e-2, progress=False, **settings)
        return net.posterior.centre_mean.detach()

    still = centres(stages={"shared": {"lr": 1e-12}})
    untrained = centres(stages={"shared": {"epochs": 0}})
    torch.testing.assert_close(still, untrained)  # the first stage trained as usual, the second did not change
    assert not torch.allclose(centres(), untrained)


@pytest.mark.parametrize(
    ("stages", "message"), [({"share": {"lr": 1.0}}, "did you mean 'shared'"), ({"shared": {"lrr": 1.0}}, "'lr'")]
)
def test_fit_names_an_unknown_stage_or_setting(stages: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(pb.UserError, match=message):
        pb.fit(pb.WeightSharing(k=4), tiny_model(), tiny_data(), epochs=1, stages=stages, progress=False)
