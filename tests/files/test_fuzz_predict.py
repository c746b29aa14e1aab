"""A short run of benchmarks/fuzz_predict.py: damaged files of every storage are rejected or predict."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pocketbayes.posteriors import POSTERIORS

fuzz_predict = __import__("fuzz_predict")


def test_fuzz_covers_every_registered_storage() -> None:
    own = {name for name, kind in POSTERIORS.items() if kind.__module__.startswith("pocketbayes.")}
    assert own <= set(fuzz_predict.STORAGES)


@pytest.mark.parametrize("storage", fuzz_predict.STORAGES)
def test_load_refuses_a_damaged_network_or_predict_works(storage: str, tmp_path: Path) -> None:
    mutator, path = fuzz_predict.Mutator(storage), tmp_path / "net.pocket"
    path.write_bytes(mutator.sound())
    assert fuzz_predict.outcome(path) == "answered"
    outcomes = set()
    for data in itertools.islice(fuzz_predict.distinct(mutator, f"1 {storage}"), 40):
        path.write_bytes(data)
        outcomes.add(fuzz_predict.outcome(path))
    assert outcomes <= {"answered", "refused"}
