"""Spoiled networks of every storage, their checksums right: each is refused with a UserError, or answers questions.

python benchmarks/fuzz_predict.py [--inputs 100000] [--only NAME ...] [--seed 0]

Bytes of a part, values of the header and of the tree, and whole tensors (NaN, infinity, negative, huge, another length
or type) are changed. What loads is asked for a prediction, which the command line's table must be able to show: one
table in ten is drawn.
Writes results/fuzz-predict.json as it goes, a row for each storage; a run that was stopped resumes where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pocketbayes as pb
from fuzz_mutations import damage, lie
from fuzz_pocket import network, take_apart
from measure import Rows, forget_peak, memory
from pocketbayes.base.terminal import SafeConsole
from pocketbayes.cli.predict import _answer, _table
from pocketbayes.data import Info
from pocketbayes.files import packing, pocket
from pocketbayes.files.network_file import _without_centres, describe
from pocketbayes.network import Net, members

LONGEST = 1.0
"""CPU seconds that any input may take."""
DRAWN_EVERY = 10
"""One table in so many is drawn on a terminal, which takes longer than the prediction; all are made."""
AT_ONCE = 5_000
"""Inputs between two writings of the results."""
INFO = Info("things", "classification", 3, ("cat", "dog", "emu"), (12,), (0.5,) * 12, (0.2,) * 12)
METHODS: dict[str, tuple[Callable[[], pb.Method], str | packing.Precision]] = {
    "point": (pb.Deterministic, "bfloat16"),
    "mean-field": (pb.MeanFieldVI, "int8"),
    "shared": (lambda: pb.WeightSharing(k=4, n_min=2, tau_w=0.3), "lossless"),
    "sparse": (lambda: pb.SSVI(density=0.2), "int8"),
    "partial": (lambda: pb.PBN(rate=0.2, pretrain_epochs=0), "bfloat16"),
    "quantized": (lambda: pb.Int8(sigma_bits=4), "lossless"),
    "dropped": (lambda: pb.MCDropout(rate=0.2), "lossless"),
    "kronecker": (lambda: pb.Laplace(hessian="kron"), "lossless"),
    "low-rank": (lambda: pb.SWAG(swag_epochs=2, rank=2), "lossless"),
    "mixture": (lambda: pb.Ensemble(members=2), "lossless"),
}
TRAINED = frozenset({"kronecker", "low-rank", "quantized"})
"""Storages that come into being by training."""


def make(name: str) -> tuple[Net, str | packing.Precision]:
    """Return a tiny network with this storage, and a precision for its file."""
    method, precision = METHODS[name]
    if name not in TRAINED:
        net: Net = network(method())
    else:
        torch.manual_seed(0)
        model = pb.models.build("mlp", in_features=12, out_features=3, hidden=[10])
        data = torch.randn(40, 12), torch.arange(40) % 3
        net = pb.fit(method(), model, data, epochs=2, progress=False)
    for member in members(net):
        member.info = INFO
    return net, precision


def mutate(described: dict[str, Any], whole: bytes, chooser: random.Random) -> bytes:
    """Change something; the checksum is right."""
    kind = chooser.randrange(4)
    if kind == 0:
        return mutate_tensor(described, chooser)
    text, parts = take_apart(whole)
    if kind == 1:
        name = chooser.choice(sorted(parts))
        parts[name] = damage(parts[name], chooser)
    elif kind == 2:
        lie(text, chooser)
    else:
        tree = json.loads(zlib.decompress(parts["tree"]))
        for _ in range(chooser.choice((1, 1, 3))):
            lie(tree, chooser)
        parts["tree"] = zlib.compress(json.dumps(tree).encode(), 1)
    return pocket.assemble(text, parts)


def describe_tensors(net: Net) -> dict[str, Any]:
    """Return what a file of the network holds."""
    return _without_centres(describe(net), keep=False)


def copy_tree(tree: Any) -> Any:
    """Copy the dictionaries and lists of a tree, not its leaves."""
    if isinstance(tree, dict):
        return {name: copy_tree(value) for name, value in tree.items()}
    return [copy_tree(value) for value in tree] if isinstance(tree, list) else tree


def mutate_tensor(described: dict[str, Any], chooser: random.Random) -> bytes:
    """Change a tensor and code it as `save` does."""
    tree = copy_tree(described)
    networks = tree.get("networks", [tree])
    chosen = chooser.choice(networks)
    owners = [
        chosen["state"],
        chosen["posterior"]["tensors"],
        chosen["posterior"]["tensors"],
        chosen["prior"]["tensors"],
    ]
    owner = chooser.choice([tensors for tensors in owners if tensors])
    name = chooser.choice(sorted(owner))
    owner[name] = spoil(owner[name].detach().clone(), chooser)
    text, parts = packing.pack(tree, "lossless")
    return pocket.assemble(text, parts)


def spoil(tensor: Tensor, chooser: random.Random) -> Tensor:
    """Return another tensor in its place."""
    how = chooser.randrange(6)
    if how == 0:
        return tensor.to(chooser.choice((torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)))
    if how == 1:
        return tensor.flatten()[: chooser.randrange(tensor.numel() + 1)]
    if how == 2:
        return torch.cat([tensor.flatten(), tensor.flatten()[: chooser.choice((1, 7))]])
    if how == 3:
        return -tensor if tensor.dtype != torch.bool else ~tensor
    floats = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, -1.0, 0.0)
    value: Any = chooser.choice(floats if tensor.is_floating_point() else (-1, 0, 1, 100))
    if tensor.dtype == torch.uint8:
        value = abs(value)
    if how == 4:
        return torch.full_like(tensor, value)
    flat = tensor.flatten()
    if len(flat):
        flat[chooser.randrange(len(flat))] = value
    return flat.view(tensor.shape)


def outcome(path: Path, x: Tensor, draw: bool = True) -> str:
    """Return "answered", "refused", or what went wrong; `draw` the command line's table, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = pb.load(path)
            answer = pb.predict(net, x, samples=2)
            rows = [{"file": "x", "index": i, **_answer(answer, i, members(net)[0].info)} for i in range(len(x))]
            table = _table(rows)
            if draw:
                CONSOLE.print(table)
    except pb.UserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:160]
    return "answered"


class _Sink:
    """A file that forgets."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


SINK: Any = _Sink()
CONSOLE = SafeConsole(file=SINK, width=100)


def fuzz(name: str, rows: Rows, count: int, seed: int, folder: Path) -> None:
    """Read so many spoiled files of a storage and ask them."""
    net, precision = make(name)
    path, x = folder / "net.pocket", torch.linspace(-1, 1, 12).view(1, 12)
    pb.save(net, path, precision=precision)
    whole = path.read_bytes()
    described = describe_tensors(net)
    if outcome(path, x) != "answered":
        raise RuntimeError(f"{name}: the sound file is not read: {outcome(path, x)}")
    empty = {
        "inputs": 0,
        "answered": 0,
        "refused": 0,
        "other": {},
        "slowest cpu seconds": 0.0,
        "memory growth in MB": 0.0,
    }
    row: dict[str, Any] = {**empty, **rows.get(name, {})}
    while row["inputs"] < count:
        outcomes: Counter[str] = Counter()
        forget_peak()
        before = memory("VmHWM")
        for number in range(row["inputs"], min(row["inputs"] + AT_ONCE, count)):
            chooser = random.Random(f"{seed} {name} {number}")
            data = None
            while data is None:
                with contextlib.suppress(RuntimeError, ValueError, OverflowError):  # a change that no file can hold
                    data = mutate(described, whole, chooser)
            path.write_bytes(data)
            start = time.process_time()
            found = outcome(path, x, draw=number % DRAWN_EVERY == 0)
            took = time.process_time() - start
            row["slowest cpu seconds"] = max(row["slowest cpu seconds"], round(took, 4))
            outcomes[found] += 1
            if found not in ("answered", "refused") or took > LONGEST:
                print(f"{name} {seed} {number}: {found}, {took:.2f} s", flush=True)
        row["memory growth in MB"] = max(row["memory growth in MB"], round((memory("VmHWM") - before) / 2**20, 1))
        row["inputs"] += sum(outcomes.values())
        row["answered"] += outcomes.pop("answered", 0)
        row["refused"] += outcomes.pop("refused", 0)
        row["other"] = dict(Counter(row["other"]) + outcomes)
        rows.keep(name, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each storage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=list(METHODS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    where = {} if arguments.out is None else {"folder": arguments.out}
    rows = Rows("fuzz-predict", {"seed": arguments.seed}, key="storages", **where)
    with contextlib.suppress(pb.UserError):
        pb.models.build("unknown")  # looks into torchvision and timm, whose import is not a file's cost
    fast = Path("/dev/shm")
    for name in arguments.only or METHODS:
        with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
            fuzz(name, rows, arguments.inputs, arguments.seed, Path(folder))


if __name__ == "__main__":
    main()
