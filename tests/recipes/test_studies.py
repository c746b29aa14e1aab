"""Studies: built-in studies are valid, resume, and predict a row's network with several propagations."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app
from pocketbayes.recipes import studies
from pocketbayes.recipes.studies.study import merged

SMALL = {
    "about": "two methods",
    "stands_for": "nothing",
    "minutes": 0.1,
    "seeds": [0, 1],
    "samples": 2,
    "base": {
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"name": "digits", "val_fraction": 0, "subset": 100},
        "training": {"epochs": 1, "batch_size": 32},
    },
    "quick": ["data.subset=50"],
    "rows": {
        "map": {"recipe": {"method": "map"}},
        "bbb": {"recipe": {"method": {"name": "bbb", "std_init": 0.05}, "training": {"lr": 0.01}}},
        "bbb x linear": {"of": "bbb", "propagation": "linear"},
    },
}


def work_of(folder: Path, study: str, row: str) -> Path:
    """Return the folder of a row's network, seed 0."""
    (found,) = (folder / "work" / study).glob(f"{row}-0-*")
    return found


@pytest.mark.parametrize("name", studies.names())
def test_studies_shipped_are_valid(name: str) -> None:
    study = studies.read(name)
    assert study.about
    assert study.stands_for
    for row in study.rows:
        assert study.recipe(row, 3, quick=True).seed == 3


def test_study_row_settings_are_merged_into_the_base() -> None:
    base = {"method": {"name": "bbb", "beta": 1}, "training": {"lr": 1, "epochs": 2}}
    assert merged(base, {"training": {"lr": 3}})["training"] == {"lr": 3, "epochs": 2}
    assert merged(base, {"method": {"name": "lrt"}})["method"] == {"name": "lrt"}  # another method: nothing is kept
    assert merged(base, {"method": "map"})["method"] == "map"
    assert base["training"] == {"lr": 1, "epochs": 2}


def test_study_skips_finished_rows_and_seeds(tmp_path: Path) -> None:
    study = studies.Study.model_validate(SMALL)
    done: list[tuple[str, int]] = []

    def make(study: studies.Study, **options: Any) -> dict[str, Any]:
        done.clear()
        return studies.reproduce(
            "small", study, tmp_path / "results", tmp_path / "work", progress=False,
            on_row=lambda row, seed, _: done.append((row, seed)), **options,
        )  # fmt: skip

    first = make(study, rows=("map",))
    assert done == [("map", 0), ("map", 1)]
    whole = make(study)
    assert done == [(row, seed) for seed in (0, 1) for row in ("bbb", "bbb x linear")]
    assert whole["rows"]["map"] == first["rows"]["map"]
    assert list(whole["rows"]) == list(study.rows)
    assert json.loads((tmp_path / "results" / "small.json").read_text()) == whole
    sampled, linear = (whole["rows"][row]["seeds"]["0"] for row in ("bbb", "bbb x linear"))
    assert sampled["bytes"] == linear["bytes"]  # one network
    assert sampled["nll"] != linear["nll"]  # answered twice
    assert whole["rows"]["bbb"]["seeds"]["0"]["nll"] != whole["rows"]["bbb"]["seeds"]["1"]["nll"]
    make(study)
    assert done == []
    changed = merged(SMALL, {"samples": 3})
    make(studies.Study.model_validate(changed), rows=("map",))
    assert done == [("map", 0), ("map", 1)]  # its settings have changed
    longer = merged(SMALL, {"base": {"training": {"epochs": 3}}})
    again = make(studies.Study.model_validate(longer), rows=("map",))  # and so is the network, for all that lies there
    assert again["rows"]["map"]["seeds"]["0"]["nll"] != first["rows"]["map"]["seeds"]["0"]["nll"]


def test_study_refuses_an_unknown_row() -> None:
    with pytest.raises(ValueError, match="bbb"):
        studies.Study.model_validate(merged(SMALL, {"rows": {"x": {"of": "bb"}}}))


def test_study_row_starts_from_the_network_of_another(tmp_path: Path) -> None:
    rows = {
        "map": SMALL["rows"]["map"],
        "int8": {"start": "bbb", "recipe": {"method": "int8", "training": {"epochs": 0}}},
    }
    tree = {**SMALL, "rows": {"bbb": SMALL["rows"]["bbb"], **rows}, "seeds": [0]}
    study = studies.Study.model_validate(tree)
    result = studies.reproduce("small", study, tmp_path, tmp_path / "work", progress=False)
    whole, integers = (pb.load(work_of(tmp_path, "small", row) / "model.pocket") for row in ("bbb", "int8"))
    assert isinstance(whole, pb.Network)
    assert isinstance(integers, pb.Network)
    mean, rounded = (net.posterior.moments()[0].detach() for net in (whole, integers))
    assert not torch.equal(mean, rounded)
    assert torch.allclose(mean, rounded, atol=float(mean.abs().max()) / 100)  # no training in between
    assert result["rows"]["int8"]["settings"]["start"] == "bbb"
    for wrong in ("int8", "mapp"):  # the row itself, or an unknown row
        with pytest.raises(ValueError, match="starts from"):
            studies.Study.model_validate(merged(tree, {"rows": {"int8": {"start": wrong}}}))


@pytest.mark.filterwarnings("ignore:.* examples leave the temperature")
def test_study_row_is_compressed_or_calibrated_first(tmp_path: Path) -> None:
    tree: dict[str, Any] = merged(SMALL, {"seeds": [0], "base": {"data": {"val_fraction": 0.3}}})
    tree["rows"] = {
        "map": SMALL["rows"]["map"],
        "coded": {"of": "map", "compress": {"max_bytes": 1600}},
        "tempered": {"of": "map", "calibrate": True},
    }
    study = studies.Study.model_validate(tree)
    result = studies.reproduce("small", study, tmp_path, tmp_path / "work", progress=False)
    plain, coded, tempered = (row["seeds"]["0"] for row in result["rows"].values())
    assert coded["bytes"] <= 1600 < plain["bytes"]
    assert tempered["accuracy"] == plain["accuracy"]
    assert pb.load(work_of(tmp_path, "small", "map") / "tempered.pocket").calibration is not None
    assert result["rows"]["coded"]["settings"]["compress"] == {"max_bytes": 1600}
    both = merged(tree, {"rows": {"coded": {"calibrate": True}}})
    with pytest.raises(ValueError, match="both compressed and calibrated"):
        studies.Study.model_validate(both)


def test_study_resumes_a_network_killed_before_its_checkpoint(tmp_path: Path) -> None:
    study = studies.Study.model_validate(merged(SMALL, {"seeds": [0]}))
    run = functools.partial(
        studies.reproduce, "small", study, tmp_path, tmp_path / "work", rows=("map",), progress=False
    )
    expected = run(rows=("map",))["rows"]["map"]["seeds"]["0"]["nll"]
    folder = work_of(tmp_path, "small", "map")
    for path in folder.iterdir():
        if path.name != "recipe.yaml":
            path.unlink()
    (tmp_path / "small.json").unlink()
    assert run(rows=("map",))["rows"]["map"]["seeds"]["0"]["nll"] == expected


def test_study_row_keeps_the_first_members(tmp_path: Path) -> None:
    tree: dict[str, Any] = merged(SMALL, {"seeds": [0]})
    tree["rows"] = {
        "three": {"recipe": {"method": {"name": "ensemble", "members": 3}}},
        "two": {"of": "three", "members": 2},
        "four": {"of": "three", "members": 4},
    }
    study = studies.Study.model_validate(tree)
    run = functools.partial(studies.reproduce, "small", study, tmp_path, tmp_path / "work", progress=False)
    three, two = (row["seeds"]["0"] for row in run(rows=("three", "two"))["rows"].values())
    assert two["values"] * 3 == three["values"] * 2
    with pytest.raises(pb.UserError, match="'three' is not an ensemble of 4"):
        run(rows=("four",))


def test_study_file_holds_a_study_per_data_set() -> None:
    yacht, energy = studies.read("uci-yacht"), studies.read("uci-energy")
    assert yacht.recipe("map", 3).data.settings == {"val_fraction": 0.0, "set": "yacht", "index": 3}  # a seed, a split
    assert energy.recipe("map", 0).data.settings["set"] == "energy"
    assert "uci" not in studies.names()


def test_study_quick_takes_fewer_images_and_seeds(tmp_path: Path) -> None:
    study = studies.Study.model_validate({**SMALL, "test_images": 40, "shift": ["noise"], "shift_images": 20})
    result = studies.reproduce("small", study, tmp_path, tmp_path / "work", seeds=1, rows=("map",), progress=False)
    assert list(result["rows"]["map"]["seeds"]) == ["0"]
    assert result["rows"]["map"]["seeds"]["0"]["count"] == 40
    document = json.loads((work_of(tmp_path, "small", "map") / "evaluation.json").read_text())
    assert {round(20 * row["accuracy"], 6) % 1 for row in document["shift"]["noise"]} == {0.0}


def test_study_command_runs_the_quick_version(tmp_path: Path) -> None:
    options = ["--quick", "--row", "map", "--row", "2dgbnn", "--out", str(tmp_path), "--work", str(tmp_path / "work")]
    found = CliRunner().invoke(app, ["reproduce", "digits", *options, "--json"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)["results"][0]
    assert set(result["rows"]) == {"map", "2dgbnn"}
    scores = {row: result["rows"][row]["seeds"]["0"] for row in result["rows"]}
    assert 0 < scores["2dgbnn"]["nll"] != scores["map"]["nll"] > 0
    assert (tmp_path / "digits-quick.json").is_file()
    assert pb.load(work_of(tmp_path, "digits-quick", "map") / "model.pocket")
    assert CliRunner().invoke(app, ["reproduce", "digit", "--out", str(tmp_path)]).exit_code == 2
