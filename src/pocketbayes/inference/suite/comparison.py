"""Significance tests of which network is better."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from pocketbayes.inference.statistics import Interval, anova, holm, mcnemar, mean_interval, paired_t

LEVEL = 0.05
MEASURES = {"accuracy": "correct", "nll": "nll", "brier": "brier"}
"""Measures with a value per image, and the names of these values."""
OVER_SEEDS = ("accuracy", "nll", "ece", "brier")


def compare(documents: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Any]]:
    """Compare every pair of networks measured on the same images, by each measure with a value per image.

    Accuracy is compared by McNemar's exact test, NLL and Brier score by the paired t test. `p` has Holm's correction
    for the number of pairs, and `better` is the network's index in `documents` if p is below 0.05, else None.

    Args:
        documents: Evaluations.
        values: The values per image of each.
    """
    labels = [value.get("label") for value in values]
    pairs = [
        (i, j)
        for i, j in combinations(range(len(documents)), 2)
        if _same_images(documents[i], documents[j], labels[i], labels[j])
    ]
    rows = []
    for measure, name in MEASURES.items():
        known = [(i, j) for i, j in pairs if name in values[i] and name in values[j]]
        test = mcnemar if measure == "accuracy" else paired_t
        found = [test(values[i][name], values[j][name]) for i, j in known]
        for (i, j), result, p in zip(known, found, holm([result.p for result in found])):
            first_wins = (result.difference > 0) == (measure == "accuracy")
            better = (i if first_wins else j) if p < LEVEL else None
            row = {"measure": measure, "first": i, "second": j, **asdict(result), "p": p, "pairs": len(known)}
            rows.append({**row, "test": row.pop("name"), "better": better})
    return rows


def over_seeds(documents: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Group networks that differ only in the seed, with 95 % intervals, and compare groups by one-way ANOVA.

    Returns:
        Groups `{"networks": [indices], "measures": {name: interval}}`, and tests `{"measure", "f", "p", ...}`.
    """
    places: dict[str, list[int]] = {}
    for place, document in enumerate(documents):
        if isinstance(document.get("recipe"), dict):
            places.setdefault(_recipe_and_data(document), []).append(place)
    several = [group for group in places.values() if len({documents[i]["recipe"].get("seed", 0) for i in group}) > 1]
    groups = [{"networks": group, "measures": _intervals([documents[i] for i in group])} for group in several]
    tests = []
    for measure in OVER_SEEDS if len(groups) > 1 else ():
        found = {str(i): [documents[i]["measures"].get(measure) for i in group] for i, group in enumerate(several)}
        if all(value is not None for group in found.values() for value in group):
            tests.append({"measure": measure, **asdict(anova(found))})
    return groups, tests


def _intervals(documents: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, Interval] = {}
    for measure in OVER_SEEDS:
        known = [
            document["measures"][measure] for document in documents if document["measures"].get(measure) is not None
        ]
        if len(known) == len(documents):
            found[measure] = mean_interval(known)
    return {measure: asdict(interval) for measure, interval in found.items()}


def _same_images(
    first: Mapping[str, Any], second: Mapping[str, Any], labels: Tensor | None, others: Tensor | None
) -> bool:
    """Return whether both are the same images in the same order, whatever their normalisation."""
    a, b = (
        (document["data"].get("name"), document["data"].get("path"), document.get("split"))
        for document in (first, second)
    )
    return a == b and a[0] is not None and labels is not None and others is not None and torch.equal(labels, others)


def _recipe_and_data(document: Mapping[str, Any]) -> str:
    recipe = {key: value for key, value in document["recipe"].items() if key != "seed"}
    asked = [document.get(key) for key in ("data", "split", "samples", "propagation")]
    return json.dumps([recipe, asked], sort_keys=True)
