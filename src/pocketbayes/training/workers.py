"""Independent jobs on Ray: the members of an ensemble, the rows of a study."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UserError, first_line
from pocketbayes.base.progress import Show, display
from pocketbayes.base.run_folder import METRICS_FILE, MODEL_FILE
from pocketbayes.data.batches import Data
from pocketbayes.files import network_file
from pocketbayes.methods.ensemble import Ensemble
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.training import checkpoint

RETRIES = 3
"""Number of restarts of a job whose process or machine died."""


def run_jobs(
    job: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int, address: str | None = None
) -> Iterator[tuple[int, Any]]:
    """Run `job(*call)` for every call on a Ray cluster and yield `(number, result)` in the order of completion.

    Jobs use the number of threads of this process, so that results are equal. A job whose process dies is restarted,
    possibly on another machine, so jobs must resume from their files on shared storage.

    Args:
        job: The function; it and its arguments are sent by Ray.
        calls: The arguments of each job.
        workers: Number of parallel jobs.
        address: The address of a running cluster; None for processes on this machine.

    Raises:
        UserError: If Ray is not installed, the cluster cannot be reached, or a job died too often. Other errors of a
            job are raised here.
    """
    with connected(workers, address) as ray:
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_with_threads)
        shared = [[ray.put(argument) if _is_large(argument) else argument for argument in call] for call in calls]
        waiting, running = list(enumerate(shared)), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    number, call = waiting.pop(0)
                    running[remote.remote(torch.get_num_threads(), job, *call)] = number
                (done,), _ = ray.wait(list(running), num_returns=1)
                number = running.pop(done)
                yield number, _result(ray, done, number)
        finally:
            for pending in running:
                ray.cancel(pending, force=True)


def fit_members(
    fit: Callable[..., Net],
    method: Ensemble,
    model: nn.Module,
    train: Data,
    *,
    out: Path | None,
    resume: bool,
    progress: Show,
    settings: Mapping[str, Any],
) -> Mixture:
    """Train each member of an ensemble as a separate job; the result equals training them one after another."""
    plain = model.to_module() if isinstance(model, Network) else model
    found: dict[int, Network] = {}
    records: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch, display(progress) as bar:
        folder = Path(scratch) if out is None else out.absolute()
        folders = [folder / f"member-{number}" for number in range(1, method.members + 1)]
        for own in folders if not resume else ():
            for path in (*checkpoint.files(own), own / METRICS_FILE, own / MODEL_FILE):
                path.unlink(missing_ok=True)
        calls = [(fit, method.member(number), model, train, own, dict(settings)) for number, own in enumerate(folders)]
        bar.begin("members", method.members)
        for number, (tree, record) in run_jobs(_train_member, calls, method.workers, method.address):
            network = network_file.rebuild(tree, plain)
            assert isinstance(network, Network)
            found[number], records[number] = network, record
            bar.advance()
            bar.line(f"member {number + 1} of {method.members} is trained")
        net = Mixture([found[number] for number in range(method.members)]).eval()
        if out is not None:
            everything = b"".join(records[number] for number in range(method.members))
            write_atomically(out / METRICS_FILE, lambda file: file.write(everything))
            network_file.save(net, out / MODEL_FILE)
    return net


def _train_member(
    fit: Callable[..., Net], method: Any, model: nn.Module, train: Data, folder: Path, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Train one member, from its checkpoint if there is one, and return it with its metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    (network,) = members(fit(method, model, train, out=folder, resume=True, progress=False, **settings))
    metrics = folder / METRICS_FILE
    return network_file.describe(network), metrics.read_bytes() if metrics.is_file() else b""


def _with_threads(threads: int, job: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(threads)
    return job(*arguments)


def _is_large(argument: Any) -> bool:
    """Return whether an argument should be put in Ray's object store instead of copied per job."""
    return isinstance(argument, (nn.Module, torch.utils.data.Dataset, tuple, torch.Tensor))


@contextmanager
def connected(workers: int, address: str | None) -> Iterator[Any]:
    """Connect to a Ray cluster within the block, or use the existing connection; None starts one here."""
    try:
        import ray
    except ImportError as error:
        raise UserError("workers= needs Ray: pip install 'pocketbayes[ray]'") from error
    began = not ray.is_initialized()
    if began:
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # for the caller's modules
        local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False, "runtime_env": {"env_vars": paths}}
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                configure_logging=False,
                **(local if address is None else {}),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"no Ray cluster at {address!r}: {first_line(error)}") from error
    try:
        yield ray
    finally:
        if began:
            ray.shutdown()


def _result(ray: Any, done: Any, number: int) -> Any:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise UserError(
            f"job {number + 1} died {RETRIES + 1} times, perhaps out of memory: resume the run from its checkpoints"
        ) from error
