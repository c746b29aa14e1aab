"""`pocketbayes adapt`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.base.errors import UserError
from pocketbayes.cli.options import DataDir, Json
from pocketbayes.cli.output import note, show, show_json

if TYPE_CHECKING:
    from pocketbayes.data import Dataset
    from pocketbayes.network import Net

MEASURES = ("accuracy", "nll", "ece")


def adapt(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A .pocket file, or a model by name such as timm:resnet18.")
    ],
    data: Annotated[
        str, typer.Option("--data", help="A folder with a folder of images for each class, or a data set by name.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The .pocket file; .onnx and .html are written beside it.")],
    weights: Annotated[
        Path | None, typer.Option("--weights", help="The trained weights of a model by name (torch or safetensors).")
    ] = None,
    examples: Annotated[
        int | None, typer.Option("--examples", min=1, help="Images that the model was trained on, if more than these.")
    ] = None,
    max_nll_loss: Annotated[
        float, typer.Option("--max-nll-loss", min=0, help="What compression may cost, in nats.")
    ] = 0.01,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Passes for a measurement.")] = 10,
    size: Annotated[
        int | None, typer.Option("--size", min=1, help="Of the images, where the network does not know it.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all draws.")] = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Make a trained network Bayesian, small and calibrated with a few hundred images, without training it.

    The stds come from the curvature of the loss, then the weights are compressed, and a temperature and the scores for
    prediction sets are fitted on validation images. The test images measure the network before and after.

    Examples:
      pocketbayes adapt timm:resnet18 --weights resnet18.safetensors --data photos --out small.pocket
      pocketbayes adapt net.pocket --data photos --out small.pocket
    """
    from pocketbayes.files.network_file import save
    from pocketbayes.inference.calibrating import calibrate
    from pocketbayes.inference.evaluation import evaluate
    from pocketbayes.methods import MeanFieldVI
    from pocketbayes.network import Network, members
    from pocketbayes.reporting import report
    from pocketbayes.reporting.table import table
    from pocketbayes.ship.compression import compress
    from pocketbayes.ship.onnx import export_onnx
    from pocketbayes.training.fitting import bayesianize

    if out.suffix != ".pocket":
        raise UserError(f"--out {out}: a network's file ends in .pocket")
    seconds: dict[str, float] = {}
    begun = time.monotonic()

    def done(step: str) -> None:
        seconds[step] = time.monotonic() - begun - sum(seconds.values())
        note(f"{step}: {seconds[step]:.0f} s")

    start, (train, val, test) = _load(model, weights, data, size, data_dir)
    if not isinstance(start, Network):
        raise UserError(f"{model} is a mixture: adapt one of its networks")
    rows = {"before": evaluate(start, test, samples=1, seed=seed)}
    done("read and measured")
    net: Any = bayesianize(start, MeanFieldVI(), data=train, val=val, examples=examples, seed=seed)
    for network in members(net):
        network.info = start.info or train.info
    done("stds from curvature")
    net = compress(net, train, val, max_nll_loss=max_nll_loss, samples=samples, seed=seed).net
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
        f"measured on {len(test)} test images with {samples} passes; {sum(seconds.values()):.0f} s"
    )


def _load(
    model: str, weights: Path | None, data: str, size: int | None, data_dir: Path | None
) -> tuple[Net, tuple[Dataset, Dataset, Dataset]]:
    """Read the network and the three parts of the data, prepared as the network wants them."""
    from pocketbayes import models
    from pocketbayes.cli.datasets import load_for
    from pocketbayes.files.network_file import load
    from pocketbayes.likelihoods import Categorical
    from pocketbayes.network import members
    from pocketbayes.recipes import check_data, network_file
    from pocketbayes.training.fitting import bayesianize

    tree: dict[str, Any] = {"name": "imagefolder", "path": data} if Path(data).is_dir() else {"name": data}
    given = Path(model)
    net: Net | None = None
    if given.exists():
        net = load(network_file(given))
        info = members(net)[0].info
        size = size or (info.input_shape[-1] if info is not None and len(info.input_shape) == 3 else None)
    if size is not None and tree["name"] == "imagefolder":
        tree["size"] = size
    part = check_data(tree)
    if net is None:
        if weights is None:
            raise UserError(f"no file {model}; for a model by name give its trained weights with --weights")
        first = part.load("train", data_dir)
        if first.info.classes is None:
            raise UserError(f"{data}: adapt is for classes")
        module = models.build_for(model, first.info.input_shape, first.info.classes)
        models.load_weights(module, weights)
        net = bayesianize(module, "map")
        for network in members(net):
            network.likelihood, network.info = Categorical(), first.info
    train, val, test = (load_for(given, net, part, split, data_dir) for split in ("train", "val", "test"))
    return net, (train, val, test)
