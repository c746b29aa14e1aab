"""Several processes that train together, forked from a server that has imported everything once."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "lightning_fabric", "pocketbayes", "laplace", "ranks"])
SECONDS = 300


def start(work: Callable[..., Any], size: int, folder: Path, *args: Any) -> list[Any]:
    """Starts `work(*args)` on so many ranks; what a rank returns or raises is in `folder/RANK.pt`, see `results`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    processes = [CONTEXT.Process(target=_rank, args=(work, rank, size, port, folder, args)) for rank in range(size)]
    for process in processes:
        process.start()
    return processes


def results(processes: list[Any], folder: Path) -> list[Any]:
    """What every rank returned, or the text of what it raised, or None if it was killed."""
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode is not None, "a rank hangs"
    files = [folder / f"{rank}.pt" for rank in range(len(processes))]
    return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


def run(work: Callable[..., Any], size: int, folder: Path, *args: Any) -> list[Any]:
    """What `work(*args)` returns on every rank."""
    return results(start(work, size, folder, *args), folder)


def _rank(work: Callable[..., Any], rank: int, size: int, port: int, folder: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if size > 1:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "tests",
        }  # fmt: skip
    try:
        found = work(*args)
    except BaseException as error:
        found = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    torch.save(found, folder / f"{rank}.part")
    (folder / f"{rank}.part").rename(folder / f"{rank}.pt")
    if torch.distributed.is_initialized() and isinstance(found, str):
        os._exit(1)  # no shutdown message to processes that are gone


def by_command_line(options: list[str], out: Path, *, torchrun: bool) -> Any:
    """The JSON that `pocketbayes OPTIONS --out OUT` prints, run by one process or by torchrun's two."""
    command = [sys.executable, *(TORCHRUN if torchrun else ()), "-m", "pocketbayes", *options, "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
