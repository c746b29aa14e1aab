"""Two processes over gloo: equal weights on both, and the weights of one process with the joint batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pocketbayes as pb

SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
import pocketbayes as pb
from test_train import smooth
from cases import tiny_data
torch.set_num_threads(1)
net = pb.fit({method}, smooth(), tiny_data(), epochs=3, batch_size=16, lr=0.1, optimizer="sgd",
             accelerator="cpu", out={out!r}, progress=False)
import os
pb.save(net, {out!r} + "/rank" + os.environ.get("RANK", "0") + ".pocket")
"""


def run(method: str, folder: Path, processes: int) -> list[pb.Network]:
    script = folder.with_suffix(".py")
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), method=method, out=str(folder)))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "0", "--standalone"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *(launch if processes > 1 else []), str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    from test_train import smooth

    return [pb.load(folder / f"rank{r}.pocket", smooth()) for r in range(processes)]


@pytest.mark.parametrize("method", ["pb.Deterministic()", "pb.MeanFieldVI(std_init=1e-6, prior_std=0.1)"])
def test_two_ranks_agree_with_each_other_and_with_one_process(method: str, tmp_path: Path) -> None:
    one, two = run(method, tmp_path / "two", 2)
    (alone,) = run(method, tmp_path / "one", 1)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    torch.testing.assert_close(one.posterior.mean, alone.posterior.mean, rtol=1e-4, atol=1e-5)


def test_two_ranks_choose_the_same_random_weights(tmp_path: Path) -> None:
    """The noise of the first stds differs by rank: what the ranks train must still be one network."""
    method = "pb.PBN(rate=0.2, pretrain_epochs=1, rho_mean=-12.0, train_samples=2)"
    one, two = run(method, tmp_path / "two", 2)
    (alone,) = run(method, tmp_path / "one", 1)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert torch.equal(one.posterior.index, alone.posterior.index)
    torch.testing.assert_close(one.posterior.mean, alone.posterior.mean, rtol=1e-4, atol=1e-5)
