"""All file readers: valid files, how to mutate them, and the function that reads them."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import fuzz_pocket
import pocketbayes as pb
from fuzz_mutations import damage, damage_text, lie
from pocketbayes import models
from pocketbayes import recipes as config
from pocketbayes.base.run_folder import CHECKPOINT_FILE, EVALUATION_FILE
from pocketbayes.cli.inspect import read_run
from pocketbayes.data import Info, read_inputs
from pocketbayes.inference.suite import read_values
from pocketbayes.recipes.studies.run import read_result

Mutation = Callable[[bytes, random.Random], bytes]
DIGITS = Info("digits", "classification", 10, None, (1, 8, 8), (0.5,), (0.5,))
UCI = "uci/UCI_Datasets/yacht/data"
PICTURES = Info("pets", "classification", 2, None, (3, 6, 6), (0.5,) * 3, (0.5,) * 3)


@dataclass(frozen=True)
class Reader:
    """The fuzzing of one kind of file.

    Attributes:
        file: The path of the file in a folder.
        corpus: Returns valid files; may write other files that the reader needs.
        mutate: Damages a file.
        read: Reads the file as the package does.
    """

    file: str
    corpus: Callable[[Path], list[bytes]]
    mutate: Mutation
    read: Callable[[Path], object]


# -- trees ------------------------------------------------------------------------------------------------------------


def tree_mutation(parse: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Mutation:
    """Return a mutation that damages the text or changes a value of its tree, half of the time each."""

    def mutate(data: bytes, chooser: random.Random) -> bytes:
        if chooser.random() < 0.5:
            return damage_text(data, chooser)
        tree = parse(data)
        for _ in range(chooser.choice((1, 1, 3))):
            lie(tree, chooser)
        return write(tree)

    return mutate


def to_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def recipes(folder: Path) -> list[bytes]:
    trees = [config.read_tree(name) for name in config.names()[::6]]
    return [yaml.safe_dump(tree, sort_keys=False).encode() for tree in trees] + [to_json(trees[0])]


def read_recipe(path: Path) -> object:
    recipe = config.read(path, ["training.epochs=1"])
    return recipe.to_yaml(), recipe.method.make()


def metrics(folder: Path) -> list[bytes]:
    rows = [{"stage": "train", "epoch": epoch, "loss": 1 / (1 + epoch), "lr": 1e-3} for epoch in range(4)]
    return [b"".join(to_json(row) + b"\n" for row in rows)]


def mutate_metrics(data: bytes, chooser: random.Random) -> bytes:
    lines = data.splitlines()
    place = chooser.randrange(len(lines))
    lines[place] = tree_mutation(json.loads, to_json)(lines[place], chooser)
    return b"\n".join(lines)


def read_metrics(path: Path) -> object:
    read_run(path.parent)
    return pb.report(path.parent, path.parent / "out" / "report.html")


def evaluations(folder: Path) -> list[bytes]:
    rows = [{"severity": level, "accuracy": 0.5, "nll": 1.0, "ece": 0.1} for level in range(1, 6)]
    curve = {"confidence": [0.1, 0.9], "accuracy": [0.2, 0.8], "count": [3, 7]}
    document = {
        "format": 1, "network": "model.pocket", "method": "ssvi", "model": "mlp", "split": "test", "samples": 3,
        "data": {"name": "digits"}, "seed": 0, "settings": {"samples": 3}, "bytes": 4096, "propagation": "sample",
        "measures": {"accuracy": 0.9, "nll": 0.4, "ece": 0.05, "count": 10},
        "census": {"weights": 10, "random": 4, "values": 20, "points": 3, "stored": {"mean": 4}},
        "reliability": curve, "risk_coverage": {"coverage": [0.5, 1.0], "risk": [0.1, 0.2]}, "temperature": 1.2,
        "ood": {"noise": {"scores": {"entropy": {"auroc": 0.9}}, "histogram": {"edges": [0, 1], "in": [1]}}},
        "shift": {"corruptions": {"fog": rows}, "corruptions_mean": {"of 15": rows[0]}, "noise": [{"db": 3}]},
        "images": {"least certain": [{"png": "iVBORw0KGgo=", "label": 1}]}, "box": {"clean": [0.1] * 6},
        "humans": {"kl": 0.3}, "seconds": {"test": 0.1},
    }  # fmt: skip
    return [to_json(document)]


def read_evaluation(path: Path) -> object:
    return pb.report(path.parent, path.parent / "out" / "report.html")


def study_results(folder: Path) -> list[bytes]:
    seeds = {"0": {"accuracy": 0.9, "bytes": 3}, "1": {"accuracy": 0.8, "bytes": 3}}
    return [to_json({"study": "s", "rows": {"map": {"settings": {"samples": 3}, "seeds": seeds}}})]


# -- arrays -----------------------------------------------------------------------------------------------------------


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npzs(folder: Path) -> list[bytes]:
    rng = np.random.default_rng(0)
    images = {"x": rng.integers(0, 255, (6, 8, 8), dtype=np.uint8), "y": np.arange(6)}
    table = {"x": rng.normal(size=(6, 3)), "y": rng.normal(size=(6, 1))}
    return [zipped({key: npy(value) for key, value in arrays.items()}) for arrays in (images, table)]


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def mutate_npz(data: bytes, chooser: random.Random) -> bytes:
    """Damage the zip, or change a member and correct its checksum."""
    if chooser.random() < 0.4:
        return damage(data, chooser)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    name = chooser.choice(sorted(members))
    members[name] = mutate_npy(members[name], chooser)
    if chooser.random() < 0.1:
        members[chooser.choice(("../../evil", "/evil", "x/../y", "x"))] = members[name]
    return zipped(members, chooser.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)))


def mutate_npy(data: bytes, chooser: random.Random) -> bytes:
    """Damage the array, or write another type, order or shape into its header."""
    if chooser.random() < 0.5:
        return damage(data, chooser)
    length = 10 + int.from_bytes(data[8:10], "little")
    kinds = ("<f8", "|u1", "|O", "<U9", "<M8[s]", "|V0", ">i4", "<c16", "<f2", "|b1", [("a", "<f8")], "x")
    shapes = ((), (0,), (6,), (2**40,), (-1,), (2**62, 4), (6, 8, 8), (1,) * 70, (1.5,), "x", (6, 3))
    header = {
        "descr": chooser.choice(kinds),
        "fortran_order": chooser.choice((False, True, 3)),
        "shape": chooser.choice(shapes),
    }
    text = repr(header).encode().ljust(length - 11) + b"\n"
    return data[:8] + len(text).to_bytes(2, "little") + text + data[length:]


def npys(folder: Path) -> list[bytes]:
    return [npy(np.zeros((2, 8, 8), np.uint8)), npy(np.zeros((8, 8))), npy(np.eye(6, 10, dtype=np.float32))]


def read_npy(path: Path) -> object:
    return read_inputs(path, None), read_inputs(path, DIGITS)


def idxs(folder: Path) -> list[bytes]:
    images = np.random.default_rng(0).integers(0, 255, (5, 6, 6), dtype=np.uint8)
    (folder / "MNIST/raw").mkdir(parents=True)
    (folder / "MNIST/raw/t10k-labels-idx1-ubyte").write_bytes(
        b"\0\0\x08\x01" + (5).to_bytes(4, "big") + bytes(range(5))
    )
    return [b"\0\0\x08\x03" + b"".join(size.to_bytes(4, "big") for size in images.shape) + images.tobytes()]


def cifars(folder: Path) -> list[bytes]:
    images = np.random.default_rng(0).integers(0, 255, (3, 3072), dtype=np.uint8)
    batch = {b"data": images, b"labels": [0, 1, 2], b"filenames": [b"a", b"b", b"c"], b"batch_label": b"one"}
    return [pickle.dumps(batch, protocol) for protocol in (3, 4)]


def mutate_pickle(data: bytes, chooser: random.Random) -> bytes:
    """Damage the pickle, or insert operations that build, call, copy or store."""
    if chooser.random() < 0.5:
        return damage(data, chooser)
    place = chooser.randrange(2, len(data))
    tricks = (
        *(
            b"cos\nsystem\n",
            b"cbuiltins\neval\n",
            b"(S'id'\ntR",
            b"2",
            b"0",
            b"(",
            b"t",
            b"l",
            b"d",
            b"R",
            b"b",
            b"\x81",
        ),
        *(b"r\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 8, b"\x95" + b"\xff" * 7 + b"\0", b"j\0\0\0\0", b"]2a2a2a", b"."),
    )
    return data[:place] + chooser.choice(tricks) + data[place + chooser.choice((0, 0, 1, 4)) :]


def svhns(folder: Path) -> list[bytes]:
    from scipy.io import savemat

    files = []
    for packed in (False, True):
        out = io.BytesIO()
        images = np.random.default_rng(0).integers(0, 255, (32, 32, 3, 2), dtype=np.uint8)
        savemat(out, {"X": images, "y": np.array([[1], [10]], np.uint8)}, do_compression=packed)
        files.append(out.getvalue())
    return files


def mutate_svhn(data: bytes, chooser: random.Random) -> bytes:
    """Damage the file, with a preference for its header and that of the first variable."""
    place = 128 + 8 if data[128] == 15 else 128
    if data[128] == 15 and chooser.random() < 0.5:  # a compressed variable
        length = int.from_bytes(data[132:136], "little")
        inner = zlib.decompress(data[136 : 136 + length])
        packed = zlib.compress(damage(inner[:64], chooser) + inner[64:])
        return data[:132] + len(packed).to_bytes(4, "little") + packed + data[136 + length :]
    return data[:place] + damage(data[place : place + 72], chooser) + data[place + 72 :]


def tables(folder: Path) -> list[bytes]:
    data = folder / UCI
    data.mkdir(parents=True)
    for name, text in {"features": "0\n1\n", "target": "2\n", "train_0": "0\n1\n2\n3\n", "test_0": "4\n5\n"}.items():
        (data / f"index_{name}.txt").write_text(text)
    rows = np.random.default_rng(0).normal(size=(6, 3))
    return ["\n".join(" ".join(f"{value:.6e}" for value in row) for row in rows).encode()]


# -- images and weights ---------------------------------------------------------------------------------------------


def pictures(folder: Path) -> list[bytes]:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    files = []
    for kind in ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF", "EPS", "PDF"):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        files.append(out.getvalue())
    return files


def read_picture(path: Path) -> object:
    from pocketbayes.data.folders import read_image

    read_image(path)
    return read_inputs(path, PICTURES)


def masks(folder: Path) -> list[bytes]:
    from PIL import Image

    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(folder / "images" / "a.png")
    files = []
    for kind, dtype in (("PNG", np.uint8), ("PNG", np.uint16), ("TIFF", np.int32), ("PNG", bool)):
        out = io.BytesIO()
        Image.fromarray(np.eye(6, 5, dtype=dtype)).save(out, kind)
        files.append(out.getvalue())
    return files


def read_masks(path: Path) -> object:
    return pb.data.load("masks", "test", path.parents[1], path=".", test_fraction=1.0, classes=3, size=(6, 5))[0]


def mutate_png(data: bytes, chooser: random.Random) -> bytes:
    """Damage the image; correct the checksums of a PNG."""
    data = damage(data, chooser)
    if not data.startswith(b"\x89PNG") or chooser.random() < 0.3:
        return data
    out, place = bytearray(data[:8]), 8
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        body = data[place + 4 : place + 8 + length]
        out += data[place : place + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        place += 12 + length
    return bytes(out)


def others_weights(folder: Path) -> list[bytes]:
    state = target().state_dict()
    files = []
    for content, old in ((state, False), ({"state_dict": {f"module.{k}": v for k, v in state.items()}}, True)):
        out = io.BytesIO()
        torch.save(content, out, _use_new_zipfile_serialization=not old)
        files.append(out.getvalue())
    return files


def target() -> torch.nn.Module:
    torch.manual_seed(0)
    return pb.models.build("mlp", in_features=2, out_features=1, hidden=[2])


def safetensors(folder: Path) -> list[bytes]:
    from safetensors.torch import save

    return [save(target().state_dict())]


def load(name: str, up: int, **options: Any) -> Callable[[Path], object]:
    """Return the first example of a data set whose folder is `up` levels above the file."""
    return lambda path: pb.data.load(name, "test", path.parents[up], **options)[0]


def read_npz(path: Path) -> object:
    return load("npz", 0, path=path.name, test_fraction=1.0)(path)


def read_weights(path: Path) -> object:
    models.load_weights(target(), path)
    return None


def to_yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree).encode()


TREE = tree_mutation(json.loads, to_json)
CHECKPOINT = (fuzz_pocket.checkpoints, fuzz_pocket.mutate_checkpoint, fuzz_pocket.read_checkpoint)
READERS: dict[str, Reader] = {
    "network": Reader("mutated.pocket", fuzz_pocket.networks, fuzz_pocket.mutate_network, pb.load),
    "checkpoint": Reader(CHECKPOINT_FILE, *CHECKPOINT),
    "recipe": Reader("recipe.yaml", recipes, tree_mutation(yaml.safe_load, to_yaml), read_recipe),
    "metrics": Reader("metrics.jsonl", metrics, mutate_metrics, read_metrics),
    "evaluation": Reader(EVALUATION_FILE, evaluations, TREE, read_evaluation),
    "values of an evaluation": Reader("evaluation.safetensors", safetensors, damage, read_values),
    "study": Reader("study.json", study_results, TREE, read_result),
    "npz": Reader("a.npz", npzs, mutate_npz, read_npz),
    "npy": Reader("a.npy", npys, mutate_npy, read_npy),
    "idx": Reader("MNIST/raw/t10k-images-idx3-ubyte", idxs, damage, load("mnist", 2)),
    "CIFAR's pickle": Reader("cifar-10-batches-py/test_batch", cifars, mutate_pickle, load("cifar10", 1)),
    "SVHN's mat": Reader("test_32x32.mat", svhns, mutate_svhn, load("svhn", 0)),
    "table": Reader(f"{UCI}/data.txt", tables, damage_text, load("uci", 4, set="yacht")),
    "image": Reader("a.png", pictures, mutate_png, read_picture),
    "mask": Reader("masks/a.png", masks, mutate_png, read_masks),
    "others' weights": Reader("a.pt", others_weights, damage, read_weights),
    "others' safetensors": Reader("a.safetensors", safetensors, damage, read_weights),
}
"""The readers by kind of file."""
