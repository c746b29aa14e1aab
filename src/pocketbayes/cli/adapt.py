"""`pocketbayes adapt`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketbayes import models
from pocketbayes.base.allocation import keep_freed_activations
from pocketbayes.base.errors import UserError
from pocketbayes.cli.datasets import load_for
from pocketbayes.cli.options import DataDir, Json, Seed
from pocketbayes.cli.output import log, show, show_json
from pocketbayes.data import Dataset, Info
from pocketbayes.data.description import read_transform
from pocketbayes.data.folders import require
from pocketbayes.files.network_file import load, save
from pocketbayes.inference.calibration import calibrate
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.likelihoods import Categorical
from pocketbayes.methods import MeanFieldVI
from pocketbayes.network import Net, Network, members
from pocketbayes.reporting import report
from pocketbayes.reporting.table import table
from pocketbayes.ship.compression import compress
from pocketbayes.ship.onnx import export_onnx
from pocketbayes.training.fitting import bayesianize

MEASURES = ("accuracy", "nll", "ece")
STEPS = 5
HELD_OUT, MAX_HELD_OUT_FRACTION = 100, 0.3
"""Images for validation and for testing, of folders with few: nothing is trained, so they are worth more there than
among the training images. A network of ours keeps the split of its training, which must not leak into the test."""
USUAL_FRACTION = 0.1
SWEEP_SAMPLES = 2
"""Weight samples per measurement of a candidate file, at most: all candidates see the same noise."""


def adapt(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A .pocket file, or a model by name such as timm:resnet18.")
    ],
    data: Annotated[
        str, typer.Option("--data", help="An image folder with one subfolder per class, or a data set by name.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The .pocket file to write; a .onnx and a .html file are written next to it.")
    ],
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Trained weights of a model by name (a torch or safetensors file).")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option("--examples", min=1, help="Number of images the model was trained on, if more than in --data."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help="All classes of a model by name, in the order of its outputs, if the folders are only some of them: a "
            "text file with one per line, or `imagenet` (WordNet ids such as n01440764).",
        ),
    ] = None,
    max_nll_loss: Annotated[
        float | None,
        typer.Option(
            "--max-nll-loss",
            min=0,
            help="Largest increase of the validation NLL, in nats; by default 0.01 and one standard error.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Weight samples per measurement.")] = 10,
    size: Annotated[
        int | None, typer.Option("--size", min=1, help="Side of the images in pixels, if the network does not know it.")
    ] = None,
    seed: Seed = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a trained network Bayesian, small and calibrated with a few hundred images, without training it.

    Estimates stds from the curvature of the loss, compresses the weights, and fits a temperature and the scores for
    prediction sets on validation images. Prints accuracy, NLL and ECE on test images before and after.

    Examples:
      pocketbayes adapt timm:resnet18 --weights resnet18.safetensors --data photos --out small.pocket
      pocketbayes adapt timm:resnet18 --weights imagenet.safetensors --classes imagenet --data photos --out small.pocket
      pocketbayes adapt net.pocket --data photos --out small.pocket
    """
    from pocketbayes.recipes import network_file

    if out.suffix != ".pocket":
        raise UserError(f"--out {out}: the name must end in .pocket")
    keep_freed_activations()
    seconds: dict[str, float] = {}
    begun = time.monotonic()

    def done(step: str) -> None:
        seconds[step] = time.monotonic() - begun - sum(seconds.values())
        log(f"[{len(seconds)}/{STEPS}] {step}: {seconds[step]:.0f} s")

    start, (train, val, test) = _load(model, weights, data, classes, size, data_dir)
    if not isinstance(start, Network):
        raise UserError(f"{model} holds several networks: adapt one of them")
    if train.info.task != "classification":
        raise UserError(f"{data} has no classes: adapt is for classification")
    if out.exists() and Path(model).exists() and out.samefile(network_file(model)):
        raise UserError(f"--out {out} is the network itself: choose another name")
    rows = {"before": evaluate(start, test, samples=1, seed=seed)}
    done("read and measured")
    net: Any = bayesianize(start, MeanFieldVI(), data=train, val=val, examples=examples, seed=seed)
    for network in members(net):
        network.info = start.info or train.info
    done("stds from curvature")
    few = min(samples, SWEEP_SAMPLES)
    net = compress(net, train, val, max_nll_loss=max_nll_loss, samples=few, seed=seed).net
    done("compressed")
    net = calibrate(net, val, samples=samples, seed=seed)
    rows["after"] = evaluate(net, test, samples=samples, seed=seed)
    done("calibrated and measured")
    sizes = {"file": save(net, out)}
    sizes["onnx"] = export_onnx(net, out.with_suffix(".onnx"), "sample", samples)
    report([out], out.with_suffix(".html"))
    done("exported")
    result = {
        "network": str(out),
        "images": {"train": len(train), "val": len(val), "test": len(test)},
        "bytes": sizes,
        "plain_bytes": 4 * start.layout.size,
        "measures": rows,
        "seconds": seconds,
    }
    if json:
        show_json(result)
        return
    show(table([{"": name, **{key: row[key] for key in MEASURES}} for name, row in rows.items()]))
    show(
        f"{out}: {sizes['file']:,} B, {4 * start.layout.size / sizes['file']:.1f} times smaller than float32 weights; "
        f"measured on {len(test)} test images with {samples} weight samples; {sum(seconds.values()):.0f} s in total"
    )


def _load(
    model: str, weights: Path | None, data: str, classes: str | None, size: int | None, data_dir: Path | None
) -> tuple[Net, tuple[Dataset, Dataset, Dataset]]:
    """Read the network and the three splits of the data, prepared for the network."""
    from pocketbayes.recipes import check_data, network_file

    tree: dict[str, Any] = {"name": "imagefolder", "path": data} if Path(data).is_dir() else {"name": data}
    given = Path(model)
    if given.exists():
        net = load(network_file(given))
        info = members(net)[0].info
        size = size or (info.input_shape[-1] if info is not None and len(info.input_shape) == 3 else None)
        tree |= _sized(tree, size)
    elif weights is None:
        raise UserError(f"no file {model}; for a model by name give its trained weights with --weights")
    else:
        tree |= _sized(tree, size) or _trained_preprocessing(model, tree)
        first = check_data(tree).load("train", data_dir).info
        if first.classes is None:
            raise UserError(f"{data} has no classes: adapt is for classification")
        net = _by_name(model, weights, first, _class_names(classes))
        tree |= _held_out(tree, data_dir)
    part = check_data(tree)
    train, val, test = (load_for(given, net, part, split, data_dir) for split in ("train", "val", "test"))
    return net, (train, val, test)


def _sized(tree: dict[str, Any], size: int | None) -> dict[str, Any]:
    return {"size": size} if size is not None and tree["name"] == "imagefolder" else {}


def _held_out(tree: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """Return the fractions of validation and test images of a folder of images, more than usual if they are few."""
    from pocketbayes.recipes import check_data

    if tree["name"] != "imagefolder":
        return {}
    part = check_data(tree)
    images = sum(len(part.load(split, data_dir)) for split in ("train", "val", "test"))
    fraction = min(MAX_HELD_OUT_FRACTION, HELD_OUT / images)
    return {"test_fraction": fraction, "val_fraction": fraction} if fraction > USUAL_FRACTION else {}


def _trained_preprocessing(model: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the size, crop and normalisation with which timm or torchvision trained a model; nothing for others."""
    library, _, name = model.partition(":")
    if library not in ("timm", "torchvision") or tree["name"] != "imagefolder":
        return {}
    module = models.build(model)
    if library == "timm":
        prepared = read_transform(require("timm.data").resolve_model_data_config(module))
    else:
        prepared = read_transform(require("torchvision.models").get_model_weights(name).DEFAULT.transforms())
    assert prepared.size is not None, "both libraries give a size"
    found = {"size": prepared.size[0], "crop_fraction": prepared.crop_fraction}
    return {**found, "mean": list(prepared.mean), "std": list(prepared.std)}


def _class_names(classes: str | None) -> tuple[str, ...] | None:
    """Read the names of a network's classes, in the order of its outputs."""
    if classes is None:
        return None
    if classes == "imagenet":
        return tuple(require("timm.data").ImageNetInfo().label_names())
    if not Path(classes).is_file():
        raise UserError(f"--classes {classes}: no such file; give a text file with one class per line, or imagenet")
    return tuple(line.strip() for line in Path(classes).read_text().splitlines() if line.strip())


def _by_name(model: str, weights: Path, data: Info, names: tuple[str, ...] | None) -> Network:
    """Build a model by name, with its trained weights and the description of its data."""
    if names is not None:
        data = replace(data, classes=len(names), class_names=names)
    assert data.classes is not None, "adapt is for classification"
    module = models.build_for(model, data.input_shape, data.classes)
    try:
        models.load_weights(module, weights)
    except UserError as error:
        if names is not None:
            raise
        raise UserError(f"{error}; if the data lack some of the network's classes, name all with --classes") from None
    network = bayesianize(module, "map")
    assert isinstance(network, Network), "a point estimate is one network"
    network.likelihood, network.info = Categorical(), data
    return network
