"""Network files and checkpoints for fuzzing.

Most get a correct checksum after the mutation, as an attacker would do, so that they reach the decoder.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from fuzz_mutations import damage, lie
from pocketbayes.base.run_folder import CHECKPOINT_FILE
from pocketbayes.files import container, pocket
from pocketbayes.files import network_file as artifact
from pocketbayes.files.container import METADATA
from pocketbayes.files.packing import Precision
from pocketbayes.training import checkpoint

METHODS: dict[str, tuple[pb.Method, str | Precision]] = {
    "shared": (pb.WeightSharing(k=4, n_min=2, tau_w=0.3), "lossless"),
    "sparse": (pb.SSVI(density=0.2), "int8"),
    "partial": (pb.PBN(rate=0.2, pretrain_epochs=0), "bfloat16"),
    "mean-field": (pb.MeanFieldVI(), "int8"),
    "quantized": (pb.Int8(sigma_bits=4), "lossless"),
    "ensemble": (pb.Ensemble(members=2), "lossless"),
}


def network(method: pb.Method) -> pb.Network:
    """Return a tiny network, the same in each call."""
    torch.manual_seed(0)
    model = pb.models.build("mlp", in_features=12, out_features=3, hidden=[10])
    return pb.bayesianize(model, method)  # type: ignore[return-value]


def networks(folder: Path) -> list[bytes]:
    """Return a small file for every storage."""
    files = []
    for name, (method, precision) in METHODS.items():
        pb.save(network(method), folder / name, precision=precision)
        files.append((folder / name).read_bytes())
    return files


def mutate_network(whole: bytes, chooser: random.Random) -> bytes:
    """Return a mutated file; three in four have a correct checksum."""
    kind = chooser.randrange(4)
    if kind == 0:
        return damage(whole, chooser)
    text, parts = take_apart(whole)
    if kind == 1:
        name = chooser.choice(sorted(parts))
        parts[name] = damage(parts[name], chooser)
    elif kind == 2:
        lie(text, chooser)
    else:
        tree = json.loads(zlib.decompress(parts["tree"]))
        lie(tree, chooser)
        parts["tree"] = zlib.compress(json.dumps(tree).encode())
    return pocket.assemble(text, parts)


def take_apart(whole: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the text and the parts of a valid file."""
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    text = json.loads(header.pop("__metadata__")[METADATA])
    parts = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        parts[name] = whole[8 + length + begin : 8 + length + end]
    return text, parts


def checkpoints(folder: Path) -> list[bytes]:
    """Return checkpoints of a sparse network and of a pair, taken during training."""
    files = []
    for name in ("sparse", "ensemble"):
        net = network(METHODS[name][0])
        optimizer = torch.optim.Adam(net.parameters())
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        tree = {"net": artifact.describe(net), "optimizer": optimizer.state_dict(), "best": None}
        checkpoint.write(folder, checkpoint.Progress(), {**tree, "random": [{"torch": torch.zeros(3)}]})
        files.append((folder / CHECKPOINT_FILE).read_bytes())
    return files


def read_checkpoint(path: Path) -> object:
    """Read a checkpoint as `fit(resume=True)` does."""
    found = checkpoint.read(path.parent)
    return found and artifact.rebuild(found[1]["net"])


def mutate_checkpoint(whole: bytes, chooser: random.Random) -> bytes:
    """Return a mutated file; half of them have a correct checksum."""
    from safetensors.torch import load, save

    if chooser.random() < 0.5:
        return damage(whole, chooser)
    length = int.from_bytes(whole[:8], "little")
    head = json.loads(json.loads(whole[8 : 8 + length])["__metadata__"][METADATA])
    tensors = load(whole)
    if chooser.random() < 0.3:
        name = chooser.choice(sorted(tensors))
        tensors[name] = torch.zeros(chooser.choice(((), (0,), (3,), (2, 2))), dtype=chooser.choice(list(DTYPES)))
    else:
        lie(head["tree"], chooser)
    head["checksum"] = container._checksum(checkpoint.KIND, head["tree"], tensors)
    return save(tensors, {METADATA: json.dumps(head)})


DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
