"""The files of a run, in its folder or beside a network's file; each may be missing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketbayes.base.errors import UserError
from pocketbayes.base.run_folder import EVALUATION_FILE, METRICS_FILE, MODEL_FILE, RECIPE_FILE

REPORTED_FILES = (MODEL_FILE, RECIPE_FILE, METRICS_FILE, EVALUATION_FILE)
"""Files of which a run has at least one."""
PARTS = (
    "network", "method", "model", "data", "split", "examples", "samples", "propagation", "seed", "measures", "census",
    "bytes", "reliability", "risk_coverage", "temperature", "ood", "shift", "images", "box", "humans", "seconds",
)  # fmt: skip
"""The entries of an evaluation that a report uses."""
MOST_EPOCHS = 500
Paths = str | Path | Iterable[str | Path]
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class RunFolder:
    """One network with the contents of its files.

    Attributes:
        name: The name in tables and legends.
        path: The given path.
        file: The network's file, if any.
        recipe: The recipe; empty if there is none.
        epochs: The rows of training.
        evaluation: The evaluation document; empty if there is none.
        weights: The description of the weights (see `report.weights`).
        cost: `flops` and `latency` (seconds) of one prediction, and its `samples`.
        problems: Messages about parts that could not be read.
    """

    name: str
    path: Path
    file: Path | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def evaluation_file(self) -> Path:
        """The path of the evaluation, in the run's folder or beside the network's file."""
        if self.path.is_dir():
            return self.path / EVALUATION_FILE
        if self.path.suffix == ".json":
            return self.path
        return self.path.with_name(f"{self.path.stem}.{EVALUATION_FILE}")

    @property
    def method(self) -> str | None:
        """The method's registry name."""
        return self.evaluation.get("method") or _name(self.recipe.get("method"))

    @property
    def data(self) -> str | None:
        """The name of the evaluated data, or of the training data."""
        return _name(self.evaluation.get("data")) or _name(self.recipe.get("data"))

    @property
    def samples(self) -> int:
        """Passes per prediction, as evaluated or as in the recipe."""
        for value in (self.evaluation.get("samples"), self.recipe.get("samples")):
            if isinstance(value, int) and value > 0:
                return value
        return 30

    @property
    def is_unfinished(self) -> bool:
        """Whether training started in the folder but did not finish."""
        begun = bool(self.epochs or self.recipe)
        return self.path.is_dir() and self.file is None and begun and not self.evaluation

    @property
    def images(self) -> int | None:
        """The number of measured examples; None if unknown."""
        examples = self.evaluation.get("examples")
        if isinstance(examples, int):
            return examples or None
        reliability = self.evaluation.get("reliability")  # older documents have no other count
        counts = reliability.get("count") if isinstance(reliability, Mapping) else None
        if not isinstance(counts, Sequence) or not all(map(is_number, counts)):
            return None
        return int(sum(counts)) or None

    @property
    def measures(self) -> dict[str, float]:
        """The measured numbers."""
        return numbers(self.evaluation.get("measures"))


def read_runs(paths: Paths) -> list[RunFolder]:
    """Read all runs at the paths: run folders, folders of run folders, .pocket files, evaluations (.json)."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found = list(dict.fromkeys(place for path in given for place in _places(Path(path))))
    if not found:
        raise UserError("nothing to report: give run folders or .pocket files")
    return [_read(path, name) for path, name in zip(found, _names(found))]


def numbers(value: Any) -> dict[str, float]:
    """Return the entries of a mapping that are finite numbers."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): item for key, item in value.items() if is_number(item)}


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _places(path: Path) -> list[Path]:
    """Return the path itself if it is a run, otherwise the runs in the folder."""
    if not path.exists():
        raise UserError(f"no run {path}: neither a folder nor a file")
    if path.name in (MODEL_FILE, EVALUATION_FILE):
        return [path.parent]
    if path.is_file():
        if path.suffix not in (".pocket", ".json"):
            raise UserError(f"{path} is not a network: give run folders, .pocket files or evaluations")
        return [path]
    if _is_run(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))
    if not inside:
        raise UserError(f"the folder {path} contains no run: no {', '.join(REPORTED_FILES)}")
    return inside


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in REPORTED_FILES)


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest distinct suffixes of the paths."""
    parts = [(*path.resolve().parts[:-1], _stem(path)) for path in paths]
    names = ["/".join(part[-1:]) for part in parts]
    for depth in range(2, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) if names.count(name) > 1 else name for part, name in zip(parts, list(names))]
    return names


def _stem(path: Path) -> str:
    name = path.resolve().name
    return name if path.is_dir() else name.removesuffix(path.suffix).removesuffix(".evaluation")


def _read(path: Path, name: str) -> RunFolder:

    run = RunFolder(name, path)
    run.evaluation = _evaluation(run)
    file = path / MODEL_FILE if path.is_dir() else path
    if path.suffix == ".json":
        # An evaluation names its network, which may have moved.
        file = Path(str(run.evaluation.get("network")))
        file = file / MODEL_FILE if file.is_dir() else file
    run.file = file if file.is_file() else None
    folder = file.parent if path.is_dir() or file.name == MODEL_FILE else None
    if folder is not None:
        run.recipe = _recipe(run, folder)
        run.epochs = _epochs(run, folder / METRICS_FILE)
    if run.file is None:
        run.problems.append("the network's file is missing, so weights and costs are omitted")
    if run.is_unfinished:
        run.problems.append(f"unfinished; resume with: pocketbayes train --out {path} --resume")
    return run


def _recipe(run: RunFolder, folder: Path) -> dict[str, Any]:
    from pocketbayes.recipes import read_tree

    if not (folder / RECIPE_FILE).is_file():
        return {}
    try:
        return read_tree(folder)
    except (UserError, OSError) as error:
        run.problems.append(f"the recipe cannot be read: {error}")
        return {}


def _epochs(run: RunFolder, file: Path) -> list[dict[str, Any]]:
    """Read the rows of training, thinned if there are very many; a line truncated by a crash is skipped."""
    if not file.is_file():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            run.problems.append(f"{file.name} has a line that is not JSON")
            continue
        if isinstance(row, dict):
            rows.append({"stage": str(row.get("stage", "")), **numbers(row)})
    step = -(-len(rows) // MOST_EPOCHS) or 1
    return [row for place, row in enumerate(rows) if place % step == 0 or place == len(rows) - 1]


def _evaluation(run: RunFolder) -> dict[str, Any]:
    from pocketbayes.inference.suite import read_document

    file = run.evaluation_file
    if not file.is_file():
        run.problems.append(f"no {file.name}: measure it with `pocketbayes evaluate {run.path}`")
        return {}
    try:
        document = read_document(file)
    except UserError as error:
        run.problems.append(str(error))
        return {}
    kept = {key: document[key] for key in PARTS if document.get(key) is not None}
    if "images" in kept:
        kept["images"] = _images(kept["images"])
    return kept


def _images(groups: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the images that are valid PNG files."""
    if not isinstance(groups, Mapping):
        return {}
    return {
        str(title): [dict(image) for image in images if isinstance(image, Mapping) and _is_png(image.get("png"))]
        for title, images in groups.items()
        if isinstance(images, Sequence)
    }


def _is_png(text: Any) -> bool:
    try:
        return isinstance(text, str) and base64.b64decode(text, validate=True).startswith(PNG)
    except (binascii.Error, ValueError):
        return False


def _name(part: Any) -> str | None:
    """Return the name of a recipe's section: `bbb`, or `{name: bbb, ...}`."""
    found = part.get("name") if isinstance(part, Mapping) else part
    return found if isinstance(found, str) else None
