"""`pocketbayes evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pocketbayes.base.allocation import keep_freed_activations
from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UnknownNameError
from pocketbayes.base.process_group import ProcessGroup, joined
from pocketbayes.base.run_folder import EVALUATION_FILE, MODEL_FILE
from pocketbayes.cli.datasets import check_fit, data_of, load_for, recipe_beside
from pocketbayes.cli.options import Adaptive, DataDir, Json, OwnData, Propagation, Samples, Seed
from pocketbayes.cli.output import note, show, show_json
from pocketbayes.cli.verdicts import seeds_table, sentences, shift_tables, summary_table
from pocketbayes.data import Dataset, folder_of
from pocketbayes.data.formats import read_npy
from pocketbayes.data.request import Split, choose
from pocketbayes.data.shift import PUBLISHED
from pocketbayes.files.network_file import load
from pocketbayes.inference.suite import SHIFTS, compare, evaluate_suite, over_seeds, read_values
from pocketbayes.propagation import find_propagation

if TYPE_CHECKING:
    from pocketbayes.recipes import DataPart


def evaluate(
    nets: Annotated[list[Path], typer.Argument(metavar="NET...", help=".pocket files or run folders.")],
    data: OwnData = None,
    split: Annotated[str, typer.Option("--split", help="The split: train, val or test.")] = "test",
    ood: Annotated[
        str, typer.Option("--ood", help="Out-of-distribution data, such as svhn,cifar100 or an .npz file.")
    ] = "",
    shift: Annotated[str, typer.Option("--shift", help="Distribution shifts: any of corruptions,rotation,noise.")] = "",
    shift_images: Annotated[
        int | None, typer.Option("--shift-images", min=1, help="Number of images to shift; all by default.")
    ] = None,
    humans: Annotated[
        Path | None,
        typer.Option(
            "--humans", help="An .npy file (n, classes) with the number of annotators per class, as in CIFAR-10H."
        ),
    ] = None,
    samples: Samples = None,
    propagation: Propagation = None,
    adaptive: Adaptive = False,
    seed: Seed = 0,
    data_dir: DataDir = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change an option of the data: data.subset=1000, ood.subset=9."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for the results; by default next to each network.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard earlier measurements.")] = False,
    json: Json = False,
) -> None:
    """Measure trained networks: accuracy, likelihood, calibration, out-of-distribution detection, shift, size.

    Results are written to evaluation.json part by part, and an interrupted evaluation resumes. Of several networks, one
    is called better only if a significance test on the same images shows it. Under torchrun, processes divide the
    images.

    Examples:
      pocketbayes evaluate runs/digits-bbb
      pocketbayes evaluate a.pocket b.pocket --data mnist --samples 100
      pocketbayes evaluate runs/resnet20 --ood svhn,cifar100 --shift corruptions,rotation,noise
      torchrun --nproc-per-node 4 -m pocketbayes evaluate runs/resnet20 --shift corruptions
    """
    from pocketbayes.recipes import load_like, network_file
    from pocketbayes.recipes.experiment import about

    check_choice("split", split, get_args(Split))
    if propagation is not None:
        find_propagation(propagation)
    shifts = _names(shift)
    for name in shifts:
        if name not in SHIFTS:
            raise UnknownNameError("shift", name, SHIFTS)
    keep_freed_activations()
    files = [network_file(path) for path in nets]
    documents = [_document_file(file, out, propagation, adaptive) for file in files]

    def measure(path: Path, file: Path, document: Path, team: ProcessGroup) -> dict[str, Any]:
        net, recipe = load(file), recipe_beside(file)
        part, other_settings = data_of(file, net, recipe, data, settings or [])
        dataset = load_for(file, net, part, split, data_dir)
        others = {name: load_like(dataset, name, data_dir, **other_settings) for name in _names(ood)}
        for other in others.values():
            check_fit(file, net, other, labels=False)
        return evaluate_suite(
            net,
            dataset,
            ood=others,
            shift=shifts,
            shift_images=shift_images,
            humans=None if humans is None else _read_humans(humans, part),
            corrupted=_published(part, split, data_dir),
            samples=samples or (recipe.samples if recipe else 30),
            propagation=propagation,
            adaptive=adaptive or None,
            seed=seed,
            out=document,
            overwrite=overwrite,
            about=about(path, net, file.stat().st_size, part, split, recipe),
            team=team,
        )

    results: list[dict[str, Any]] = []
    with joined() as team, team.guarded("run the same command again to resume"):
        try:
            for path, file, document in zip(nets, files, documents):
                results.append(measure(path, file, document, team))
        except KeyboardInterrupt:
            again = "; run the same command again to resume" if documents[len(results)].is_file() else ""
            raise KeyboardInterrupt("" if team.rank else f"stopped{again}") from None
    if team.rank:
        return
    comparisons = compare(results, [read_values(document) for document in documents])
    groups, tests = over_seeds(results)
    if json:
        show_json({"results": results, "comparisons": comparisons, "seeds": groups, "anova": tests})
        return
    show(summary_table(results, comparisons), *shift_tables(results))
    if groups:
        show(seeds_table(results, groups))
    show(*sentences(results, comparisons, groups, tests))
    for document in documents:
        note(f"saved {document}")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _document_file(file: Path, out: Path | None, propagation: str | None, adaptive: bool) -> Path:
    """Return `evaluation.json` in a run's folder, or `NAME.evaluation.json` beside a file or in `out`.

    Results of a requested propagation are written to `PROPAGATION.evaluation.json`, those of adaptive passes to
    `adaptive.evaluation.json`.
    """
    variants = [propagation, "adaptive" if adaptive else None]
    of_run, way = file.name == MODEL_FILE, "".join(f"{name}." for name in variants if name is not None)
    if out is None and of_run:
        return file.parent / f"{way}{EVALUATION_FILE}"
    name = file.resolve().parent.name if of_run else file.stem
    return (file.parent if out is None else out) / f"{name}.{way}{EVALUATION_FILE}"


def _published(part: DataPart, split: str, data_dir: Path | None) -> Callable[[str, int], Dataset | None] | None:
    """Return the published corruptions of the same images, if present."""
    from pocketbayes.recipes import check_data

    name = f"{part.name}-c"
    if split != "test" or name not in PUBLISHED or not (folder_of(data_dir) / PUBLISHED[name].folder).is_dir():
        return None
    kept = {key: value for key, value in part.settings.items() if key in ("mean", "std", "subset", "seed")}

    def ready(corruption: str, severity: int) -> Dataset | None:
        if not (folder_of(data_dir) / PUBLISHED[name].folder / f"{corruption}.npy").is_file():
            return None
        return check_data({"name": name, "corruption": corruption, "severity": severity, **kept}).load("test", data_dir)

    return ready


def _read_humans(path: Path, part: DataPart) -> Any:
    """Read the human labels of the measured images."""
    labels = read_npy(path)
    subset = part.settings.get("subset")
    return labels if subset is None else labels[choose(len(labels), subset, part.settings.get("seed", 0)).numpy()]
