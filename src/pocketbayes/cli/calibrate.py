"""`pocketbayes calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pocketbayes.cli.datasets import data_of, load_for, recipe_beside
from pocketbayes.cli.options import DataDir, DataSettings, Json, Seed
from pocketbayes.cli.output import show, show_json, styled
from pocketbayes.files.network_file import load, save
from pocketbayes.inference.adaptive import fit_stopping
from pocketbayes.inference.calibration import calibrate as fit_calibration
from pocketbayes.inference.evaluation import evaluate
from pocketbayes.network import members


def calibrate(
    path: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A .pocket file or a run folder.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The calibrated file to write; by default the network's file is replaced."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Data to calibrate on, if not those of the run.")] = None,
    split: Annotated[str, typer.Option("--split", help="The split to calibrate on: val, test or train.")] = "val",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Weight samples per example.")] = 30,
    propagation: Annotated[
        str | None,
        typer.Option(
            "--propagation",
            help="The propagation to calibrate: draws get a temperature, moments and linear a variance scale.",
        ),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Also fit the stopping rule of predict --adaptive.")
    ] = False,
    max_rise: Annotated[
        float, typer.Option("--max-rise", min=0, help="For --adaptive: the relative increase of the NLL to accept.")
    ] = 0.005,
    seed: Seed = 0,
    data_dir: DataDir = None,
    settings: DataSettings = None,
    json: Json = False,
) -> None:
    """Fit a temperature or variance scale, and prediction sets or intervals, on held-out data; store them in the file.

    Examples:
      pocketbayes calibrate runs/digits-bbb
      pocketbayes calibrate five.pocket --adaptive
    """
    from pocketbayes.recipes import network_file

    file = network_file(path)
    net = load(file)
    part, _ = data_of(file, net, recipe_beside(file), data, settings or [])
    dataset = load_for(file, net, part, split, data_dir)
    found = fit_calibration(net, dataset, samples=samples, propagation=propagation, seed=seed)
    rows = {
        name: evaluate(one, dataset, samples=samples, propagation=propagation, seed=seed)
        for name, one in (("before", net), ("after", found))
    }
    rule = None
    if adaptive:
        rule = fit_stopping(found, dataset, max_rise=max_rise, samples=samples, propagation=propagation, seed=seed)
    target = out or file
    size = save(found, target)
    calibration, conformal = members(found)[0].calibration, members(found)[0].conformal
    if json:
        fitted = {} if rule is None else {"stopping": rule.to_json()}
        known = {"file": str(target), "bytes": size, "split": split}
        known |= {"calibration": None if calibration is None else asdict(calibration)}
        show_json({**known, **fitted, **rows})
        return
    if calibration is not None:
        words = f"temperature {calibration.temperature:.3f}, variance scale {calibration.variance_scale:.3g}"
        info = members(found)[0].info
        units = "pixels" if info is not None and info.task == "segmentation" else "examples"
        show(styled("bold", target, f" {words} from {calibration.examples} {units} ({split})"))
    if conformal is not None:
        what = "sets of classes" if conformal.kind == "classes" else "intervals"
        show(styled("bold", target, f" {what} from {conformal.count} examples ({split}): predict --level 0.9"))
    changed = {"nll", "ece", "log_likelihood", "coverage95"} if calibration is not None else set[str]()
    for name in sorted(rows["before"].keys() & changed):
        show(f"{name}: {rows['before'][name]:.4f} before, {rows['after'][name]:.4f} after, on the same data")
    if rule is not None:
        show(f"adaptive: {rule.passes:.2f} of {rule.steps[-1]} passes on average, NLL {rule.measured_rise:+.1%} here")
