"""Fuzz network files with correct checksums: each is rejected with a UserError, or predicts.

python benchmarks/fuzz_predict.py [--inputs 100000] [--only NAME ...] [--seed 0]

Bytes of a part, values of the header and of the tree, and whole tensors (NaN, infinity, negative, huge, another length
or type) are changed, one to three at a time; no input occurs twice. A file that loads must predict, and the command
line must be able to show the table: one table in ten is drawn. Writes results/fuzz-predict.json continuously, one row
per storage; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from fuzz_mutations import damage, lie
from measure import Rows, forget_peak, memory
from pocketbayes.base.calibration import Calibration, Conformal
from pocketbayes.base.terminal import SafeConsole
from pocketbayes.cli.predict import _answer, _table
from pocketbayes.data import Info
from pocketbayes.files import packing, pocket
from pocketbayes.files.network_file import _without_centres, describe
from pocketbayes.network import Net, members
from storages import networks, tables

LONGEST = 1.0
"""Limit per input, in CPU seconds."""
DRAWN_EVERY = 10
"""Every n-th table is drawn on a terminal, which takes longer than the prediction; all are built."""
AT_ONCE = 10_000
"""Number of inputs between two writes of the results."""
INFO = Info("things", "classification", 3, ("cat", "dog", "emu"), (4,), (0.5,) * 4, (0.2,) * 4)
PRECISIONS = ("lossless", "bfloat16", "int8")
QUESTION = torch.linspace(-1, 1, 4).view(1, 4)
STORAGES = (*tables(), "trellis", "mixture", "batch-norm")


def make(name: str) -> Net:
    """Return a tiny network with this storage and every optional part of a file."""
    net = batch_norm() if name == "batch-norm" else networks()[name]
    for member in members(net):
        member.info = INFO
        member.method = "mine"
        member.calibration = Calibration(1.5, (1.2, 1.7), 1.25, 40)
        member.conformal = Conformal.of("classes", [0.1, 0.4, 0.7], samples=2)
    return net


def batch_norm() -> pb.Network:
    """Return a network with running statistics."""
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=4, hidden=[5], out_features=3, batch_norm=True)
    return pb.bayesianize(model, pb.MeanFieldVI())  # type: ignore[return-value]


class Mutator:
    """A generator of damaged files of one network."""

    def __init__(self, name: str) -> None:
        """Pack the network in every precision."""
        self.described = _without_centres(describe(make(name)), keep=False)
        packed = [packing.pack(self.described, precision) for precision in PRECISIONS]
        self.files = [(json.dumps(text), parts) for text, parts in packed]

    def sound(self) -> bytes:
        """Return the lossless, unchanged file."""
        text, parts = self.files[0]
        return pocket.assemble(json.loads(text), parts)

    def mutate(self, chooser: random.Random) -> bytes:
        """Return a file with one to three mutations and a correct checksum."""
        while True:
            with contextlib.suppress(RuntimeError, ValueError, OverflowError):  # a mutation that cannot be packed
                return self._mutate(chooser)

    def _mutate(self, chooser: random.Random) -> bytes:
        kinds = chooser.choices(("tensor", "bytes", "header", "tree"), k=chooser.choice((1, 1, 2, 3)))
        changes = Counter(kinds)
        if changes["tensor"]:
            text, parts = packing.pack(self._spoil_tensors(changes["tensor"], chooser), chooser.choice(PRECISIONS))
        else:
            first, parts = chooser.choice(self.files)
            text, parts = json.loads(first), dict(parts)
        for _ in range(changes["header"]):
            lie(text, chooser)
        if changes["tree"]:
            tree = json.loads(zlib.decompress(parts["tree"]))
            for _ in range(changes["tree"]):
                lie(tree, chooser)
            parts["tree"] = zlib.compress(json.dumps(tree).encode(), 1)
        for _ in range(changes["bytes"]):
            name = chooser.choice(sorted(parts))
            parts[name] = damage(parts[name], chooser)
        return pocket.assemble(text, parts)

    def _spoil_tensors(self, count: int, chooser: random.Random) -> dict[str, Any]:
        """Return the network's description with mutated tensors."""
        described: dict[str, Any] = copy_tree(self.described)
        for _ in range(count):
            network = chooser.choice(described.get("networks", [described]))
            owners = [network["state"], *[network["posterior"]["tensors"]] * 2, network["prior"]["tensors"]]
            owner = chooser.choice([tensors for tensors in owners if tensors])
            name = chooser.choice(sorted(owner))
            owner[name] = spoil(owner[name].detach().clone(), chooser)
        return described


def copy_tree(tree: Any) -> Any:
    """Copy the dictionaries and lists of a tree, but not its leaves."""
    if isinstance(tree, dict):
        return {name: copy_tree(value) for name, value in tree.items()}
    return [copy_tree(value) for value in tree] if isinstance(tree, list) else tree


def spoil(tensor: Tensor, chooser: random.Random) -> Tensor:
    """Return a mutated tensor."""
    how = chooser.randrange(10)  # half of the time a single number
    if how == 0:
        return tensor.to(chooser.choice((torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)))
    if how == 1:
        return tensor.flatten()[: chooser.randrange(tensor.numel() + 1)]
    if how == 2:
        return torch.cat([tensor.flatten(), tensor.flatten()[: chooser.choice((1, 7))]])
    if how == 3:
        return -tensor if tensor.dtype != torch.bool else ~tensor
    floats = (
        float("nan"),
        float("inf"),
        -float("inf"),
        3e38,
        -3e38,
        1e-45,
        0.0,
        *(chooser.gauss(0, 1) for _ in range(8)),
    )
    value: Any = chooser.choice(floats if tensor.is_floating_point() else (-1, 0, 1, 100, *range(2, 9)))
    if tensor.dtype == torch.uint8:
        value = abs(value)
    if how == 4:
        return torch.full_like(tensor, value)
    flat = tensor.flatten()
    if len(flat):
        flat[chooser.randrange(len(flat))] = value
    return flat.view(tensor.shape)


def outcome(path: Path, draw: bool = True) -> str:
    """Return "answered", "refused", or the failure; `draw` also draws the command line's table."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = pb.load(path)
            answer = pb.predict(net, QUESTION, samples=2)
            table = _table([{"file": "x", "index": 0, **_answer(answer, 0, members(net)[0].info)}])
            if draw:
                CONSOLE.print(table)
    except pb.UserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:160]
    return "answered"


class _Sink:
    """A file that discards all output."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


SINK: Any = _Sink()
CONSOLE = SafeConsole(file=SINK, width=100)


EMPTY = {"inputs": 0, "answered": 0, "refused": 0, "other": {}, "slowest cpu seconds": 0.0, "memory growth in MB": 0.0}


def fuzz(name: str, rows: Rows, count: int, seed: int, folder: Path) -> None:
    """Load `count` damaged files of a storage and predict."""
    mutator, path = Mutator(name), folder / "net.pocket"
    path.write_bytes(mutator.sound())
    if outcome(path) != "answered":
        raise RuntimeError(f"{name}: the sound file is not read: {outcome(path)}")
    row: dict[str, Any] = {**EMPTY, **rows.get(name, {})}
    inputs = itertools.islice(distinct(mutator, f"{seed} {name}"), row["inputs"], count)
    while batch := list(itertools.islice(inputs, AT_ONCE)):
        outcomes: Counter[str] = Counter()
        forget_peak()
        before = memory("VmHWM")
        for number, data in enumerate(batch, start=row["inputs"]):
            path.write_bytes(data)
            start = time.process_time()
            found = outcome(path, draw=number % DRAWN_EVERY == 0)
            took = time.process_time() - start
            row["slowest cpu seconds"] = max(row["slowest cpu seconds"], round(took, 4))
            outcomes[found] += 1
            if found not in ("answered", "refused") or took > LONGEST:
                print(f"{name} {seed} {number}: {found}, {took:.2f} s", flush=True)
        row["memory growth in MB"] = max(row["memory growth in MB"], round((memory("VmHWM") - before) / 2**20, 1))
        row["inputs"] += len(batch)
        row["answered"] += outcomes.pop("answered", 0)
        row["refused"] += outcomes.pop("refused", 0)
        row["other"] = dict(Counter(row["other"]) + outcomes)
        rows.keep(name, row)


def distinct(mutator: Mutator, seed: str) -> Iterator[bytes]:
    """Yield damaged files that all differ and depend only on the seed."""
    seen: set[int] = set()
    for number in itertools.count():
        data = mutator.mutate(random.Random(f"{seed} {number}"))
        if (digest := hash(data)) not in seen:
            seen.add(digest)
            yield data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each storage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=STORAGES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    where = {} if arguments.out is None else {"folder": arguments.out}
    rows = Rows("fuzz-predict", {"seed": arguments.seed}, key="storages", **where)
    with contextlib.suppress(pb.UserError):
        pb.models.build("unknown")  # imports torchvision and timm, which should not count as the cost of a file
    fast = Path("/dev/shm")
    for name in arguments.only or STORAGES:
        with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
            fuzz(name, rows, arguments.inputs, arguments.seed, Path(folder))


if __name__ == "__main__":
    main()
