"""`evaluate_suite`: measure all missing parts of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pocketbayes import models
from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.base.progress import Show, display
from pocketbayes.data.batches import Data, Source, as_source, info_of, size_of
from pocketbayes.data.dataset import Pictures
from pocketbayes.data.folders import require
from pocketbayes.data.shift import CORRUPTIONS, SEVERITIES, noisy, rotated
from pocketbayes.data.shift import corrupted as corrupt_pictures
from pocketbayes.inference.adaptive import stopping_of
from pocketbayes.inference.health import title
from pocketbayes.inference.prediction import likelihood_of
from pocketbayes.inference.suite.parts import Clean, OutOfDistribution, Part, PredictionStream, Shifted, check_humans
from pocketbayes.inference.suite.store import Store, data_print, network_print
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Net, members
from pocketbayes.propagation import Ask

DEGREES = tuple(range(0, 181, 15))
DECIBELS = (20, 16, 12, 8, 4, 0, -3, -6)
VERSION = 2
"""Version of the measurements; results of another version are not reused."""

Corrupted = Callable[[str, int], Source | None]
"""A function from a corruption's name and severity to ready-made images, or None."""


def evaluate_suite(
    net: Net,
    data: Data,
    *,
    ood: Mapping[str, Any] | None = None,
    shift: Sequence[str] = (),
    shift_images: int | None = None,
    humans: Any = None,
    corrupted: Corrupted | None = None,
    samples: int = 30,
    propagation: str | None = None,
    adaptive: Any = None,
    batch_size: int = 256,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Show = None,
    team: ProcessGroup = ALONE,
) -> dict[str, Any]:
    """Evaluate a network on clean, out-of-distribution and shifted data, in one document.

    Clean data: all measures of `evaluate`, and for a classifier the reliability diagram, the risk-coverage curve,
    temperature scaling as a baseline, confidence by class, the most and least certain images. Other data sets: how well
    four uncertainty scores detect them. Shifts: measures at each level. Memory holds one batch at a time and a few
    numbers per image.

    Args:
        net: A network or mixture.
        data: A data set, a DataLoader or a pair (x, y), as for `evaluate`.
        ood: Out-of-distribution data sets by name, normalised like the network's data.
        shift: Of "corruptions" (19, at 5 severities), "rotation" (0 to 180 degrees) and "noise" (20 to -6 dB); the same
            images for every network and seed.
        shift_images: The number of images to shift, from the first on; None for all.
        humans: (n, classes) fractions or numbers of people who chose each class, for each image of `data`.
        corrupted: Ready-made corruptions, such as the published files, used instead of ours where available.
        samples: Passes per image.
        propagation: As in `predict`.
        adaptive: As in `predict`; adds the mean number of `passes` to the clean measures.
        batch_size: Images per batch.
        seed: Seed of the draws.
        out: A JSON file, written after each part, with the values per image beside it (.safetensors). Parts it already
            holds for the same network, data and settings are not measured again.
        overwrite: Discard the contents of `out`.
        about: Further entries for the head of the document.
        progress: Whether to show a progress bar; None for only on a terminal.
        team: The processes that divide the batches, such as `ProcessGroup.current()`. All return the document of all
            data; the first reads and writes `out`.
    """
    source = as_source(data)
    _check(net, source, ood or {}, shift)
    given = None if humans is None else check_humans(humans, size_of(source))
    settings: dict[str, Any] = {
        "version": VERSION,
        "samples": samples,
        "propagation": propagation,
        "seed": seed,
        "network": network_print(net),
        "data": data_print(source),
        "corrupted": "made" if corrupted is None else "given",
    }
    if shift_images is not None:
        settings["shift_images"] = shift_images
    if adaptive:
        settings["adaptive"] = stopping_of(net, adaptive).to_json()
    head = {**_about(net, source), **(about or {}), "examples": size_of(source)} | {
        name: settings[name] for name in ("samples", "propagation", "seed")
    }
    path = None if out is None else Path(out)
    store = team.first(lambda: Store(path, settings, head, overwrite))
    if team.rank:
        store.path = None
    parts: list[Part] = [Clean(source, given)]
    parts += [OutOfDistribution(name, as_source(other)) for name, other in (ood or {}).items()]
    for name in shift:
        parts += SHIFTS[name](source, corrupted)
    missing = [part for part in parts if not part.done(store)]
    ask = Ask(samples, propagation, seed, batch_size, adaptive=adaptive)
    with display(progress) as bar:
        for number, part in enumerate(missing, len(parts) - len(missing) + 1):
            here = part.source()
            if shift_images is not None and isinstance(part, Shifted):
                here = here.take(torch.arange(min(shift_images, size_of(here))))  # type: ignore[union-attr]
            bar.begin(f"[{number}/{len(parts)}] {part.title}", -(-size_of(here) // team.size))
            part.run(PredictionStream(net, here, bar, ask, team), store)
    store.keep()
    return store.document


def _corruptions(source: Source, ready: Corrupted | None) -> list[Part]:
    require("PIL.Image")  # before the first pass, not at the first corruption that needs it
    assert isinstance(source, Pictures)

    def images(name: str, severity: int) -> Source:
        found = ready(name, severity) if ready else None
        return corrupt_pictures(source, name, severity) if found is None else found

    return [
        Shifted("corruptions", name, ("severity", severity), partial(images, name, severity))
        for name in CORRUPTIONS
        for severity in SEVERITIES
    ]


def _rotation(source: Source, _: Corrupted | None) -> list[Part]:
    assert isinstance(source, Pictures)
    return [Shifted("rotation", None, ("degrees", angle), partial(rotated, source, angle)) for angle in DEGREES]


def _noise(source: Source, _: Corrupted | None) -> list[Part]:
    assert isinstance(source, Pictures)
    return [Shifted("noise", None, ("db", ratio), partial(noisy, source, ratio)) for ratio in DECIBELS]


SHIFTS: dict[str, Callable[[Source, Corrupted | None], list[Part]]] = {
    "corruptions": _corruptions,
    "rotation": _rotation,
    "noise": _noise,
}


def _check(net: Net, source: Source, ood: Mapping[str, Any], shift: Sequence[str]) -> None:
    """Reject invalid arguments before the first pass."""
    for name in shift:
        check_choice("shift", name, SHIFTS)
    info, likelihood = info_of(source), likelihood_of(net)
    whole = info is None or info.task == "classification"
    if (ood or shift) and not (whole and task_of(likelihood) == "classification"):
        raise UserError("out-of-distribution data and shifts need a classifier of whole inputs")
    if shift and not isinstance(source, Pictures):
        raise UserError(f"{shift[0]} needs images as bytes, which {info.name if info else 'the data'!r} does not have")


def _about(net: Net, source: Source) -> dict[str, Any]:
    first = members(net)[0]
    spec, info = models.spec_of(first.model), info_of(source)
    return {
        "network": None,
        "method": title(net),
        "model": type(first.model).__name__ if spec is None else spec.name,
        "data": {"name": info.name if info else "data"},
    }
