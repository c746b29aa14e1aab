"""`pocketbayes inspect`."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pocketbayes.base.errors import UserError, refusing
from pocketbayes.base.run_folder import METRICS_FILE, RECIPE_FILE
from pocketbayes.cli.options import Json
from pocketbayes.cli.output import show, show_json, styled
from pocketbayes.files.network_file import posterior_in, read
from pocketbayes.files.pocket import sizes
from pocketbayes.methods.sparsity import describe_sparsity
from pocketbayes.posteriors import Census, Posterior
from pocketbayes.posteriors.health import Health
from pocketbayes.posteriors.layout import Layout
from pocketbayes.reporting.table import table, write

MOST_ROWS = 40
"""Largest number of weights in a table; JSON has all of them."""


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="A .pocket file or a run folder.")],
    json: Json = False,
) -> None:
    """Describe a network file: storage, weights, stored values, bytes, and which parameters are not random, and why."""
    from pocketbayes.recipes import network_file

    file = network_file(path)
    tree = read(file)
    networks = [_network(part, file) for part in tree.get("networks", [tree])]
    found: dict[str, Any] = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "parts": sizes(file),
        "networks": networks,
        **read_run(file.parent),
    }
    if json:
        show_json(found)
    else:
        _show(found)


def _network(tree: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Describe one network of a file without building its model."""
    from pocketbayes.recipes.experiment import census_json

    try:
        posterior, part, state = posterior_in(tree), tree["posterior"], tree["state"]
        layout = posterior.layout
        points = Census(
            weights=0,
            stored={},
            random=0,
            trainable=0,
            points=sum(tensor.numel() for tensor in state.values()),
            memory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
        )
        return {
            "model": tree["model"],
            "model_class": tree["model_class"],
            "storage": part["name"],
            "storage_config": part["config"],
            "propagation": tree["propagation"],
            "prior": {"name": tree["prior"]["name"], **tree["prior"]["config"]},
            "likelihood": tree["likelihood"] and {"name": tree["likelihood"]["name"], **tree["likelihood"]["config"]},
            "data": tree.get("data"),
            "health": tree.get("health"),
            "calibration": tree.get("calibration"),
            "prediction_sets": _scores(tree.get("conformal")),
            "census": census_json(posterior.census() + points),
            "weights": _weights(layout, posterior),
            **describe_sparsity(posterior),
            "points": [{"name": name, "reason": reason} for name, reason in layout.points],
        }
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{file} does not describe a network: {error!r}") from error


def _weights(layout: Layout, posterior: Posterior) -> list[dict[str, Any]]:
    """Describe every weight tensor, with its density if sparse and its bits per weight if coded."""
    densities, bits = posterior.densities(), posterior.code_bits()
    return [
        {"name": slot.name, "shape": slot.shape, "sites": slot.sites}
        | ({"density": densities[slot.name]} if slot.name in densities else {})
        | ({"bits": bits[slot.name]} if slot.name in bits else {})
        for slot in layout.slots
    ]


def read_run(folder: Path) -> dict[str, Any]:
    """Return the recipe and the last line of the metrics in the folder of a run."""
    from pocketbayes.recipes import read as read_recipe

    found: dict[str, Any] = {}
    if (folder / RECIPE_FILE).is_file():
        found["recipe"] = read_recipe(folder).to_tree()
    if (folder / METRICS_FILE).is_file():
        path = folder / METRICS_FILE
        with refusing(path, "a readable file of metrics", "; mend or remove it"):
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines:
                found["last_epoch"] = json_module.loads(lines[-1])
    return found


def _show(found: dict[str, Any]) -> None:
    from rich.columns import Columns

    networks = found["networks"]
    if len(networks) > 1:
        show(styled("bold", f"a mixture of {len(networks)} networks", "; the first of them:"))
    network = networks[0]
    total = {key: sum(n["census"][key] for n in networks) for key in ("weights", "random", "points", "values")}
    stored: dict[str, int] = {}
    for each in networks:
        for kind, count in each["census"]["stored"].items():
            stored[kind] = stored.get(kind, 0) + count
    facts = {
        "file": found["file"],
        "model": _words(network["model"] and {"name": network["model"]["name"], **network["model"]["args"]})
        or network["model_class"],
        "storage": _words({"name": network["storage"], **network["storage_config"]}),
        "propagation": network["propagation"],
        "prior": _words(network["prior"]),
        "likelihood": _words(network["likelihood"]),
        "data": _data(network["data"]),
        "stds": _health(network["health"]),
        "calibration": _calibration(network["calibration"], network["prediction_sets"]),
    }
    values = {
        "weights of the model": total["weights"],
        "of these random": total["random"],
        **{f"stored: {kind}": count for kind, count in stored.items()},
        "stored: points": total["points"],
        "values in all": total["values"],
        "one point network in float32": f"{4 * (network['census']['weights'] + network['census']['points']):,} B",
        "bytes on disk": f"{found['bytes']:,} B",
        **{f"  {name}": f"{size:,} B" for name, size in _largest(found["parts"]).items()},
        **({"weights swapped in training": network["swapped"]} if "swapped" in network else {}),
    }
    show(
        Columns([_pairs(facts), _pairs(values)], padding=(0, 4)),
        table([_weight(weight) for weight in network["weights"][:MOST_ROWS]]),
    )
    if len(network["weights"]) > MOST_ROWS:
        show(styled("dim", f"and {len(network['weights']) - MOST_ROWS} more: --json has them all"))
    reasons: dict[str, list[str]] = {}
    for point in network["points"]:
        reasons.setdefault(point["reason"], []).append(point["name"])
    if reasons:
        show(table([{"stayed a point": _some(names), "because": reason} for reason, names in reasons.items()]))
    for text in network["census"]["notes"]:
        show(styled("dim", text))


def _largest(parts: Mapping[str, int], most: int = 6) -> dict[str, int]:
    """Return the largest parts of the file, and the sum of the others."""
    order = sorted(parts, key=lambda name: -parts[name])
    rest = sum(parts[name] for name in order[most:])
    return {name: parts[name] for name in order[:most]} | ({"others": rest} if rest else {})


def _weight(weight: Mapping[str, Any]) -> dict[str, Any]:
    tied = ", ".join(weight["sites"][1:])
    size = math.prod(weight["shape"])
    return {
        "weight": weight["name"],
        "shape": _shape(weight["shape"]),
        "size": size,
        **({"present": weight["density"]} if "density" in weight else {}),
        **({"bits per weight": f"{weight['bits']:.2f}"} if "bits" in weight else {}),
        **({"tied to": tied} if tied else {}),
    }


def _pairs(facts: Mapping[str, Any]) -> Any:
    from rich.table import Table

    numbers = any(isinstance(value, int) for value in facts.values())
    made = Table.grid(padding=(0, 2))
    made.add_column(style="cyan")
    made.add_column(justify="right" if numbers else "left", overflow="fold")
    for name, value in facts.items():
        made.add_row(name, write(name, value))
    return made


def _words(part: Mapping[str, Any] | None) -> str:
    if not part:
        return ""
    settings = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name" and value is not None)
    return f"{part['name']} ({settings})" if settings else str(part["name"])


def _health(found: Mapping[str, Any] | None) -> str:
    return "unknown" if found is None else str(Health(**found)).removeprefix("stds ")


def _scores(conformal: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of prediction sets without their scores."""
    return conformal and {key: value for key, value in conformal.items() if key != "scores"}


def _calibration(found: Mapping[str, Any] | None, sets: Mapping[str, Any] | None) -> str:
    parts = []
    if found:
        low, high = found.get("temperature_interval") or (None, None)
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        scale = found.get("variance_scale", 1.0)
        parts.append(f"temperature {found['temperature']:.2f}{interval}")
        parts += [f"variances times {scale:.3g}"] if scale != 1 else []
        parts += [f"fitted on {found['examples']:,} examples"] if found.get("examples") else []
    if sets:
        what = "prediction sets" if sets["kind"] == "classes" else "intervals"
        parts.append(f"{what} from {sets['count']:,} examples with {sets['samples']} weight samples")
    return ", ".join(parts) or "none (pocketbayes calibrate fits it on validation data)"


def _data(info: Mapping[str, Any] | None) -> str:
    if info is None:
        return "unknown"
    classes = f", {info['classes']} classes" if info["classes"] else ""
    return f"{info['name']}: {info['task']}, inputs {_shape(info['input_shape'])}{classes}"


def _shape(shape: Any) -> str:
    return " x ".join(str(size) for size in shape)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
