"""The command line: files, output and errors."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import pocketbayes as pb
from pocketbayes import recipes as config
from pocketbayes.cli import app, demo
from pocketbayes.network import members
from pocketbayes.recipes import experiment
from pocketbayes.training import checkpoint

TINY = ["--set", "model.hidden=[8]", "--set", "samples=3"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Use one thread, which is faster for networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def call(*args: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False, **options)


def call_json(*args: object) -> dict[str, Any]:
    """Return the JSON object of a command that succeeds without other output."""
    result = call(*args, "--json")
    assert result.exit_code == 0, result.stderr
    assert "error" not in result.stderr  # progress is shown there
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@dataclass
class Trained:
    """A run made by the command line."""

    folder: Path
    found: dict[str, Any]
    files: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("runs") / "bbb"
    found = call_json("train", "digits-bbb", "--epochs", 2, "--out", folder, *TINY)
    return Trained(folder, found, sorted(path.name for path in folder.iterdir()))  # other commands add files


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Return the embedded digits' test images as bytes."""
    return pb.data.load("digits", "test").images.numpy()


def same_network(one: Path, two: Path) -> bool:
    """Return whether two runs made the same network, bit for bit."""
    states = [pb.load(folder / "model.pocket").state_dict() for folder in (one, two)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0] | states[1])


# -- train ----------------------------------------------------------------------------------------------------------


def test_train_writes_the_whole_run(trained: Trained) -> None:
    assert trained.files == [
        "checkpoint-1.safetensors",
        "checkpoint.safetensors",
        "metrics.jsonl",
        "model.pocket",
        "recipe.yaml",
    ]
    recipe = config.read(trained.folder)
    assert recipe.model.settings == {"in_features": 64, "out_features": 10, "hidden": [8]}
    assert recipe.training["epochs"] == 2
    assert recipe.to_tree() == trained.found["recipe"]
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert {"loss", "nll", "kl"} <= rows[0].keys()


def test_train_prints_its_results(trained: Trained) -> None:
    net = pb.load(trained.folder / "model.pocket")
    assert trained.found["measures"] == pb.evaluate(net, pb.data.load("digits", "test"), samples=3)
    assert trained.found["bytes"] == (trained.folder / "model.pocket").stat().st_size
    assert trained.found["census"]["values"] == pb.census(net).values


def test_train_reproduces_a_run_from_its_resolved_recipe(trained: Trained, tmp_path: Path) -> None:
    call_json("train", trained.folder / "recipe.yaml", "--out", tmp_path / "again")
    assert same_network(tmp_path / "again", trained.folder)


def test_train_prints_a_table_without_a_recipe(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = call("train", "--method", "map", "--model", "mlp", "--data", "digits", "--epochs", 1, "--out", out, *TINY)
    assert result.exit_code == 0
    assert "359 test examples, 3 samples each" in " ".join(result.stdout.split())
    assert "accuracy" in result.stdout
    assert "NLL" in result.stdout


def test_train_depends_on_the_seed(trained: Trained, tmp_path: Path) -> None:
    call_json("train", trained.folder, "--seed", 1, "--out", tmp_path / "other")
    assert not same_network(tmp_path / "other", trained.folder)


def test_train_names_the_default_folder_after_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = call_json("train", "digits-map", "--epochs", 0, *TINY)
    assert found["folder"] == "runs/digits-map"
    assert (tmp_path / "runs" / "digits-map" / "model.pocket").is_file()


def test_train_replaces_a_run_only_on_request(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    call_json("train", "digits-map", "--epochs", 0, "--out", out, *TINY)
    before = (out / "model.pocket").read_bytes()
    result = call("train", "digits-bbb", "--epochs", 0, "--out", out, *TINY)
    assert_mistake(result, "already contains a run")
    assert (out / "model.pocket").read_bytes() == before
    for name in ("evaluation.json", "linear.evaluation.json", "linear.evaluation.safetensors"):
        (out / name).write_text("of the network that is replaced")
    (out / "checkpoint-1.safetensors").write_text("of its training")
    call_json("train", "digits-bbb", "--epochs", 0, "--out", out, "--overwrite", *TINY)
    assert not (out / "checkpoint-1.safetensors").exists()
    assert not list(out.glob("*evaluation*"))
    assert config.read(out).method.name == "bbb"


def test_train_starts_from_a_saved_network(trained: Trained, tmp_path: Path) -> None:
    found = call_json(
        "train",
        "--method",
        "map",
        "--model",
        trained.folder,
        "--data",
        "digits",
        "--epochs",
        0,
        "--out",
        tmp_path / "a",
    )
    assert found["census"]["stored"] == {"means": 64 * 8 + 8 * 10}
    means = pb.load(trained.folder / "model.pocket").posterior.moments()[0]
    assert torch.equal(pb.load(tmp_path / "a" / "model.pocket").posterior.moments()[0], means)


def stop_after(monkeypatch: pytest.MonkeyPatch, checkpoints: int) -> None:
    """Interrupt after `count` checkpoints have been written, or before the first."""
    write, count = checkpoint.write, 0

    def write_and_stop(*args: Any) -> None:
        nonlocal count
        if count < checkpoints:
            write(*args)
        count += 1
        if count >= checkpoints:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", write_and_stop)


def test_train_resumes_an_interrupted_run_exactly(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "parts"
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        result = call("train", "digits-bbb", "--epochs", 2, "--out", out, *TINY)
    assert result.exit_code == 130
    assert result.stderr.endswith(f"stopped; resume with: pocketbayes train --out {out} --resume\n")
    assert_mistake(call("evaluate", out), "--resume")
    found = call_json("train", "--out", out, "--resume")
    assert same_network(out, trained.folder)
    assert found["measures"] == trained.found["measures"]
    assert (out / "metrics.jsonl").read_text() == (trained.folder / "metrics.jsonl").read_text()


def test_train_stopped_before_a_checkpoint_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 0)
    result = call("train", "digits-bbb", "--epochs", 2, "--out", tmp_path / "a" / "b", *TINY)
    assert result.exit_code == 130
    assert result.stderr.endswith("stopped before the first checkpoint\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [["--method", "map"], ["--seed", 3], ["--set", "data.val_fraction=0.2"]])
def test_resume_refuses_another_run(trained: Trained, change: list[object]) -> None:
    assert_mistake(call("train", "--out", trained.folder, "--resume", *change), "resume it unchanged")


def test_load_run_agrees_with_the_command_line(trained: Trained) -> None:
    assert pb.load(trained.folder).layout == pb.load(trained.folder / "model.pocket").layout


def test_evaluate_writes_a_file_per_propagation_and_shifts(trained: Trained, tmp_path: Path) -> None:
    command = ["evaluate", trained.folder, "--out", tmp_path, "--set", "data.subset=20", "--samples", "2"]
    shown = call(*command, "--shift", "noise").stdout
    assert "noise, three levels" in shown
    (answer,) = call_json(*command, "--propagation", "linear")["results"]
    assert answer["propagation"] == "linear"
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "bbb.evaluation.json",
        "bbb.linear.evaluation.json",
    ]


# -- predict: the run's own samples ---------------------------------------------------------------------------------


def test_predict_takes_the_samples_of_the_run(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "digit.npy", images[:1])
    asked = {"run": (), "given": ("--samples", 5)}
    found = {name: call_json("predict", trained.folder, tmp_path / "digit.npy", *more) for name, more in asked.items()}
    assert {name: answer["samples"] for name, answer in found.items()} == {"run": 3, "given": 5}


# -- evaluate -------------------------------------------------------------------------------------------------------


def test_evaluate_agrees_with_training(trained: Trained) -> None:
    results = call_json("evaluate", trained.folder, trained.folder / "model.pocket")["results"]
    assert [result["measures"] for result in results] == [trained.found["measures"]] * 2
    assert results[0]["samples"] == 3
    assert results[0]["bytes"] == trained.found["bytes"]


def test_evaluate_takes_samples_propagation_split_and_options(trained: Trained) -> None:
    command = ["evaluate", trained.folder, "--split", "train", "--set", "data.subset=50", "--propagation", "mean"]
    (result,) = call_json(*command, "--samples", 1)["results"]
    net = pb.load(trained.folder / "model.pocket")
    train = pb.data.load("digits", "train", subset=50)
    assert result["measures"] == pb.evaluate(net, train, samples=1, propagation="mean")


def test_evaluate_finds_the_data_of_a_lone_file(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "alone.pocket"
    copy.write_bytes((trained.folder / "model.pocket").read_bytes())
    (result,) = call_json("evaluate", copy, "--samples", 3)["results"]
    assert result["measures"] == trained.found["measures"]
    shown = call("evaluate", copy, trained.folder, "--samples", 3)
    assert "alone.pocket" in shown.stdout
    assert "accuracy" in shown.stdout


def test_evaluate_writes_beside_the_network(trained: Trained, tmp_path: Path) -> None:
    copy = tmp_path / "alone.pocket"
    copy.write_bytes((trained.folder / "model.pocket").read_bytes())
    (result,) = call_json("evaluate", copy, "--samples", 2)["results"]
    kept = json.loads((tmp_path / "alone.evaluation.json").read_text())
    assert kept == result
    assert (tmp_path / "alone.evaluation.safetensors").is_file()
    assert result["network"] == str(copy)
    (of_run,) = call_json("evaluate", trained.folder, "--out", tmp_path / "kept")["results"]
    assert json.loads((tmp_path / "kept" / "bbb.evaluation.json").read_text()) == of_run
    assert (of_run["method"], of_run["model"], of_run["recipe"]) == ("bbb", "mlp", trained.found["recipe"])
    call_json("evaluate", trained.folder)
    assert json.loads((trained.folder / "evaluation.json").read_text())["measures"] == trained.found["measures"]


def test_evaluate_on_other_and_shifted_data(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "upside.npz", x=images[:60, 0, ::-1], y=np.arange(60))
    command = ["evaluate", trained.folder, "--out", tmp_path, "--ood", tmp_path / "upside.npz", "--shift", "noise"]
    (result,) = call_json(*command, "--set", "ood.subset=40", "--set", "data.subset=30")["results"]
    (other,) = result["ood"].values()
    assert other["images"] == 40
    assert 0 < other["scores"]["entropy"]["auroc"] < 1
    assert [row["db"] for row in result["shift"]["noise"]][-1] == -6
    assert result["measures"]["count"] == 30
    shown = call(*command, "--set", "ood.subset=40", "--set", "data.subset=30").stdout
    assert "AUROC" in shown
    few = ["--set", "data.subset=30", "--shift", "noise", "--shift-images", 4]
    (fewer,) = call_json("evaluate", trained.folder, "--out", tmp_path / "few", *few)["results"]
    assert {round(4 * row["accuracy"], 6) % 1 for row in fewer["shift"]["noise"]} == {0.0}
    assert fewer["measures"] == result["measures"]


def test_evaluate_normalises_other_data_like_the_network(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    """The test images as out-of-distribution data cannot be distinguished."""
    np.savez(tmp_path / "same.npz", x=images, y=np.zeros(len(images), dtype=np.int64))
    (result,) = call_json("evaluate", trained.folder, "--out", tmp_path, "--ood", tmp_path / "same.npz")["results"]
    (other,) = result["ood"].values()
    assert {score["auroc"] for score in other["scores"].values()} == {0.5}


def test_evaluate_reads_human_labels(trained: Trained, tmp_path: Path) -> None:
    labels = pb.data.load("digits", "test").labels
    np.save(tmp_path / "humans.npy", np.eye(10)[labels])
    command = ["evaluate", trained.folder, "--out", tmp_path, "--humans", tmp_path / "humans.npy"]
    (result,) = call_json(*command, "--set", "data.subset=50")["results"]
    assert result["humans"]["cross_entropy"] == pytest.approx(result["measures"]["nll"], rel=1e-6)
    assert result["humans"]["human_entropy"] == 0
    assert "to humans" in call(*command, "--set", "data.subset=50").stdout


def test_evaluate_reads_published_corruptions(tmp_path: Path) -> None:
    """The files hold uniform images, unlike the test images."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    (folder / "CIFAR-10-C").mkdir(parents=True)
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    pixels = rng.integers(0, 256, (12, 3072), dtype=np.uint8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": [i % 10 for i in range(12)]}))
    gray = np.full((60, 32, 32, 3), 128, dtype=np.uint8)
    np.save(folder / "CIFAR-10-C" / "fog.npy", gray)
    np.save(folder / "CIFAR-10-C" / "labels.npy", np.tile(np.arange(12) % 10, 5))
    net = pb.bayesianize(pb.models.build("mlp", in_features=3072, hidden=[4], out_features=10), "map")
    net.likelihood = pb.Categorical()
    pb.save(net, tmp_path / "net.pocket")
    command = ["evaluate", tmp_path / "net.pocket", "--data", "cifar10", "--data-dir", folder, "--shift", "corruptions"]
    (result,) = call_json(*command, "--set", "data.subset=7")["results"]
    rows = result["shift"]["corruptions"]
    assert len({row["entropy"] for row in rows["fog"]}) == 1
    assert len({row["entropy"] for row in rows["snow"]}) == 5
    gray_only = pb.data.load("cifar10-c", "test", folder, corruption="fog", severity=1, subset=7)
    assert rows["fog"][0]["nll"] == pb.evaluate(net, gray_only)["nll"]
    assert list(result["shift"]["corruptions_mean"]) == ["of 15", "by severity", "of 19"]


def test_evaluate_calls_a_network_better_only_if_significant(trained: Trained, tmp_path: Path) -> None:
    call_json("train", "digits-bbb", "--epochs", 0, "--out", tmp_path / "untrained", *TINY)
    both = ["evaluate", trained.folder, tmp_path / "untrained"]
    rows = {row["measure"]: row for row in call_json(*both)["comparisons"]}
    assert rows["accuracy"]["better"] == 0
    assert rows["accuracy"]["p"] < 0.001
    told = call(*both).stdout
    assert f"{trained.folder} is better than" in told.replace("\n", "")
    assert "McNemar, p < 0.001" in told.replace("\n", " ")
    same = call("evaluate", trained.folder, trained.folder / "model.pocket").stdout
    assert "no difference shown" in same
    assert "better" not in same


def test_evaluate_averages_seeds(trained: Trained, tmp_path: Path) -> None:
    call_json("train", trained.folder, "--seed", 1, "--out", tmp_path / "second")
    found = call_json("evaluate", trained.folder, tmp_path / "second")
    (group,) = found["seeds"]
    accuracy = [result["measures"]["accuracy"] for result in found["results"]]
    assert group["measures"]["accuracy"]["mean"] == pytest.approx(np.mean(accuracy))
    assert found["anova"] == []
    assert "mean over seeds" in call("evaluate", trained.folder, tmp_path / "second").stdout


def test_evaluate_says_how_to_resume(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbayes.inference.suite import parts

    stream, count = parts.stream, 0

    def stopped(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return stream(*args, **options)

    command = ["evaluate", trained.folder, "--out", tmp_path, "--shift", "noise"]
    with monkeypatch.context() as patch:
        patch.setattr(parts, "stream", stopped)
        result = call(*command)
    assert result.exit_code == 130
    assert result.stderr.endswith("stopped; run the same command again to resume\n")
    assert len(json.loads((tmp_path / "bbb.evaluation.json").read_text())["shift"]["noise"]) == 2
    assert len(call_json(*command)["results"][0]["shift"]["noise"]) == 8


# -- predict --------------------------------------------------------------------------------------------------------


def test_predict_preprocesses_like_the_data_set(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    """Bytes, numbers from 0 to 1, missing or last channels, and a single image give the same input."""
    test = pb.data.load("digits", "test")
    net = pb.load(trained.folder / "model.pocket")
    probs = pb.predict(net, test.__getitems__(range(3))[0], 5).probs
    assert probs is not None
    x = images[:3]
    np.save(tmp_path / "first.npy", x)
    np.save(tmp_path / "last.npy", x.transpose(0, 2, 3, 1))
    np.save(tmp_path / "none.npy", x[:, 0])
    np.save(tmp_path / "real.npy", x / 255)
    np.savez(tmp_path / "named.npz", x=x, y=np.zeros(3))
    np.save(tmp_path / "one.npy", x[0, 0])
    files = [tmp_path / f"{name}" for name in ("first.npy", "last.npy", "none.npy", "real.npy", "named.npz", "one.npy")]
    rows = call_json("predict", trained.folder, *files, "--samples", 5)["predictions"]
    assert len(rows) == 5 * 3 + 1
    for row in rows:
        torch.testing.assert_close(torch.tensor(row["probs"]), probs[row["index"]])
        assert row["class"] == int(probs[row["index"]].argmax())
        assert row["probability"] == max(row["probs"])
        assert row["entropy"] == pytest.approx(row["epistemic"] + row["aleatoric"], abs=1e-5)


def test_predict_reads_images(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(images[0, 0]).save(tmp_path / "exact.png")
    image.fromarray(images[0, 0]).convert("RGB").resize((32, 32)).save(tmp_path / "scaled.png")
    np.save(tmp_path / "array.npy", images[0])
    files = [tmp_path / name for name in ("exact.png", "array.npy", "scaled.png")]
    exact, array, scaled = call_json("predict", trained.folder, *files)["predictions"]
    assert exact["probs"] == array["probs"]
    assert scaled["probs"] == pytest.approx(exact["probs"], abs=0.2)
    shown = call("predict", trained.folder, *files)
    assert shown.exit_code == 0
    assert "█" in shown.stdout
    assert "epistemic" in shown.stdout


def test_predict_abstains_above_a_threshold(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images[:30])
    command = ["predict", trained.folder, tmp_path / "x.npy", "--samples", 3]
    entropies = sorted(row["entropy"] for row in call_json(*command)["predictions"])
    found = call_json(*command, "--abstain-above", entropies[9])
    assert found["abstention"] == {"threshold": entropies[9]}
    assert sum(row["abstains"] for row in found["predictions"]) == 20
    assert all(row["abstains"] == (row["entropy"] > entropies[9]) for row in found["predictions"])
    shown = call(*command, "--abstain-above", entropies[9]).stdout
    assert "20 of 30 here" in shown
    assert "?)" in shown


def test_train_resumes_with_the_recipe_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call_json("train", "digits-bbb", "--epochs", 1, "--out", folder, *TINY)
    before = (folder / "recipe.yaml").read_text()
    for change in ("training.lr=0.5", "training.epochs=0", "model.name=lenet300"):
        result = call("train", "--out", folder, "--resume", "--set", change)
        assert result.exit_code == 2, change
        assert "was started" in result.stderr
    assert (folder / "recipe.yaml").read_text() == before
    result = call("train", "--out", folder)
    assert (result.exit_code, "add --resume" in result.stderr) == (2, True)


def test_threshold_needs_data_to_be_chosen_on(tmp_path: Path, images: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", images)
    folder = tmp_path / "run"
    call_json("train", "digits-bbb", "--epochs", 0, "--set", "data.val_fraction=0", "--out", folder, *TINY)
    result = call("predict", folder, tmp_path / "x.npy", "--target-risk", 0.1)
    assert result.exit_code == 2
    assert "'val' split is empty with val_fraction=0" in result.stderr
    assert "other data with --data or --split" in result.stderr


def test_threshold_is_chosen_for_a_target_risk(trained: Trained, images: np.ndarray, tmp_path: Path) -> None:
    """The reported risk and coverage hold on the data that the threshold was chosen on."""
    np.save(tmp_path / "x.npy", images)
    command = ["predict", trained.folder, tmp_path / "x.npy", "--samples", 3, "--target-risk", 0.4, "--split", "test"]
    found = call_json(*command)
    chosen = found["abstention"]
    labels = pb.data.load("digits", "test").labels.tolist()
    answered = [(row, y) for row, y in zip(found["predictions"], labels, strict=True) if not row["abstains"]]
    assert chosen["coverage"] == pytest.approx(len(answered) / len(labels))
    assert chosen["risk"] == pytest.approx(np.mean([row["class"] != y for row, y in answered]))
    assert chosen["risk"] <= 0.4
    assert chosen["coverage"] > 0
    assert (chosen["data"], chosen["split"], chosen["count"]) == ("digits", "test", len(labels))
    text = " ".join(call(*command).stdout.split())
    assert f"{100 * chosen['coverage']:.1f} % of them predicted" in text
    assert "target: at most 40 %" in text


def test_predict_answers_regressions_in_original_units(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    np.savez(tmp_path / "line.npz", x=x, y=10 + 5 * x)
    out = tmp_path / "run"
    call_json(
        "train", "--method", "map", "--model", "mlp", "--data", tmp_path / "line.npz", "--epochs", 1, "--out", out
    )
    np.save(tmp_path / "x.npy", x[:2])
    rows = call_json("predict", out, tmp_path / "x.npy")["predictions"]
    mean = pb.predict(pb.load(out / "model.pocket"), x[:2]).mean
    assert [row["mean"] for row in rows] == mean.tolist()
    assert rows[0]["std"][0] ** 2 == pytest.approx(rows[0]["epistemic"][0] ** 2 + rows[0]["aleatoric"][0] ** 2)
    assert "aleatoric" in call("predict", out, tmp_path / "x.npy").stdout


# -- corruptions ------------------------------------------------------------------------------------------------------


def test_corruptions_command_draws_a_picture(images: np.ndarray, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.tile(images[0, 0], (40, 50))).save(tmp_path / "wide.png")
    found = call_json("corruptions", tmp_path / "wide.png", "--out", tmp_path / "sheet.png")
    assert found["size"] == [224, 280]
    assert len(found["corruptions"]) == 19
    with image.open(tmp_path / "sheet.png") as sheet:
        assert min(sheet.size) > 500
    assert call("corruptions", "--data", "digits", "--out", tmp_path / "digits.svg").exit_code == 0
    assert (tmp_path / "digits.svg").read_text().count("<image") == 96


# -- inspect and list -------------------------------------------------------------------------------------------------


def test_inspect_counts_like_the_network(trained: Trained) -> None:
    found = call_json("inspect", trained.folder)
    (network,) = found["networks"]
    census = pb.census(pb.load(trained.folder / "model.pocket"))
    assert network["census"]["values"] == census.values
    assert network["census"]["random"] == census.random
    assert network["census"]["points"] == census.points
    assert network["storage"] == "mean-field"
    assert [weight["name"] for weight in network["weights"]] == ["linear1.weight", "head.weight"]
    assert {point["name"] for point in network["points"]} == {"linear1.bias", "head.bias"}
    assert network["data"]["name"] == "digits"
    assert found["bytes"] == trained.found["bytes"]
    assert found["recipe"] == trained.found["recipe"]
    assert found["last_epoch"]["epoch"] == 2


def test_inspect_needs_no_model(tmp_path: Path) -> None:
    """A network with an unknown model class can be inspected, though not loaded."""

    class Own(torch.nn.Sequential):
        pass

    pb.save(pb.bayesianize(Own(torch.nn.Linear(3, 2)), "bbb"), tmp_path / "own.pocket")
    (network,) = call_json("inspect", tmp_path / "own.pocket")["networks"]
    assert network["model_class"] == "Own"
    assert network["census"]["weights"] == 6
    shown = call("inspect", tmp_path / "own.pocket")
    assert shown.exit_code == 0
    assert "stayed a point" in shown.stdout
    assert_mistake(call("evaluate", tmp_path / "own.pocket", "--data", "digits"), "pb.models.register")


def test_inspect_reads_a_mixture(tmp_path: Path) -> None:
    call_json(
        "train", "--method", "ensemble", "--model", "mlp", "--data", "digits", "--epochs", 0, "--out", tmp_path / "e"
    )
    assert len(call_json("inspect", tmp_path / "e")["networks"]) == 5
    assert "mixture of 5 networks" in call("inspect", tmp_path / "e").stdout


@pytest.mark.parametrize(
    ("what", "key", "names"),
    [
        ("methods", "method", pb.methods()),
        ("models", "model", pb.models.names()),
        ("data", "data", pb.data.names()),
        ("recipes", "recipe", config.names()),
        ("training", "setting", [field.name for field in dataclasses.fields(pb.Training)]),
    ],
)
def test_list_names_everything(what: str, key: str, names: list[str]) -> None:
    assert [row[key] for row in call_json("list", what)[what]] == list(names)
    shown = call("list", what).stdout
    assert all(name in shown for name in names)


# -- demo -------------------------------------------------------------------------------------------------------------


def test_demo_compares_methods_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = config.read
    monkeypatch.setattr(config, "names", lambda: ["digits-bbb", "digits-map", "mnist-lenet300-lrt"])
    monkeypatch.setattr(config, "read", lambda name: read(name, ["training.epochs=1", "samples=2"]))
    found = call_json("demo", "--out", tmp_path / "demo")
    assert list(found["results"]) == ["map", "bbb"]
    assert (tmp_path / "demo" / "digits-bbb" / "model.pocket").is_file()
    page = Path(found["report"]).read_text()
    assert all(f'"name":"{name}"' in page for name in ("digits-bbb", "digits-map"))
    assert found["most_uncertain"]["method"] == "bbb"
    digits = found["most_uncertain"]["digits"]
    assert [digit["entropy"] for digit in digits] == sorted((d["entropy"] for d in digits), reverse=True)
    shown = call("demo", "--out", tmp_path / "demo")
    assert shown.exit_code == 0
    for text in ("accuracy", "NLL", "ECE", "Brier", "values", "bytes", "nats", "██"):
        assert text in shown.stdout


def test_demo_packs_an_ensemble_into_the_size_of_one_network(tmp_path: Path, learning_seed: int) -> None:
    settings = ["training.epochs=1", "method.members=3", "data.subset=200", f"seed={learning_seed}"]
    recipe = config.read("digits-ensemble", settings)
    whole = experiment.run(recipe, tmp_path / "digits-ensemble", progress=False)
    coded = demo._coded(whole)
    one = 4 * members(whole.net)[0].census().values
    assert coded.bytes < one < whole.bytes
    assert len(members(coded.net)) == len(members(whole.net))
    assert coded.measures["nll"] == pytest.approx(whole.measures["nll"], rel=0.2)


@pytest.mark.slow
def test_demo_runs_in_full(tmp_path: Path) -> None:
    found = call_json("demo", "--out", tmp_path / "demo")
    assert {"map", "bbb", "lrt"} <= found["results"].keys()
    for name, result in found["results"].items():
        assert result["measures"]["accuracy"] > 0.95, name
    one = 4 * found["results"]["map"]["census"]["values"]
    assert found["results"]["ensemble-coded"]["bytes"] < one < found["results"]["ensemble"]["bytes"]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def assert_mistake(result: Result, fragment: str) -> None:
    """Check for one line on stderr that names the cause, exit code 2, and nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert fragment in result.stderr


@pytest.fixture
def bad(tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with invalid files."""
    from safetensors.torch import save_file

    folder = tmp_path / "bad"
    folder.mkdir()
    monkeypatch.chdir(folder)
    x, y = np.zeros((40, 3), dtype=np.float32), np.arange(40) % 2
    np.savez("good.npz", x=x, y=y)
    np.savez("nan.npz", x=np.where(np.arange(120).reshape(40, 3) % 7, x, np.nan), y=y)
    np.savez("infinite.npz", x=x, y=np.where(np.arange(40) % 3, 1.0, np.inf))
    np.savez("empty.npz", x=x[:0], y=y[:0])
    np.savez("negative.npz", x=x, y=y - 1)
    np.savez("words.npz", x=np.array(["a"] * 40), y=y)
    np.save("nan.npy", np.full((8, 8), np.nan))
    np.save("wide.npy", np.zeros((2, 1, 9, 9), dtype=np.uint8))
    np.save("normalised.npy", np.full((8, 8), -1.5))
    np.save("digit.npy", np.zeros((8, 8), dtype=np.uint8))
    np.save("none.npy", np.zeros((0, 8, 8), dtype=np.uint8))
    Path("text.txt").write_text("hello")
    for name in ("text.pocket", "text.png", "text.npy", "text.npz"):
        Path(name).write_text("hello")
    data = (trained.folder / "model.pocket").read_bytes()
    Path("cut.pocket").write_bytes(data[: len(data) // 2])
    Path("flipped.pocket").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    save_file({"a": torch.zeros(2)}, "foreign.pocket")
    Path("keys.yaml").write_text("method: bbb\nmodel: mlp\ndata: digits\ncolour: red\n")
    Path("broken.yaml").write_text("method: [bbb\n")
    Path("prices.csv").write_text("a;b;price\n" + "1;2;3\n" * 40)
    Image.new("L", (30_000, 4)).save("strip.png")
    return folder


USE = ["--method", "map", "--model", "mlp", "--epochs", "1", "--out", "out"]


@pytest.mark.parametrize(
    ("command", "fragment"),
    [
        (["trian"], "'train'"),
        (["train", "--colour"], "--colour"),
        (["train", "--epochs", "many"], "--epochs"),
        (["evaluate"], "NET"),
        (["train", "digits-bb"], "did you mean 'digits-bbb'"),
        (["train", "none.yaml"], "none.yaml"),
        (["train", "keys.yaml"], "'colour'"),
        (["train", "broken.yaml"], "broken.yaml"),
        (["train", "text.pocket"], "text.pocket"),
        (["train", "digits-bbb", "--method", "bayes"], "unknown method 'bayes'"),
        (["train", "digits-bbb", "--data", "digit"], "did you mean 'digits'"),
        (["train", "digits-bbb", "--model", "mpl"], "did you mean 'mlp'"),
        (["train", "digits-bbb", "--set", "training.lrr=1"], "did you mean 'lr'"),
        (["train", "digits-bbb", "--set", "training.lr"], "key=value"),
        (["train", "digits-bbb", "--set", "training.accelerator=abacus"], "abacus"),
        (["train", "digits-bbb", "--set", "training.precision=3"], "precision"),
        (
            ["train", "digits-bbb", "--set", "training.lr=1e30", "--set", "method.std_init=10", "--out", "o/p"],
            "not finite",
        ),
        (["train", "--data", "mnist", "--data-dir", "nowhere", *USE], "--data-dir"),
        (["train", "--data", "uci", "--data-dir", ".", *USE], "set="),
        (["train", "--data", "missing.npz", *USE], "missing.npz"),
        (["train", "--data", "text.npz", *USE], "text.npz"),
        (["train", "--data", "words.npz", *USE], "only numbers"),
        (["train", "--data", "nan.npz", *USE], "nan"),
        (["train", "--data", "infinite.npz", *USE], "inf"),
        (["train", "--data", "empty.npz", *USE], "empty"),
        (["train", "--data", "negative.npz", *USE], "label -1"),
        (["train", "--data", "good.npz", "--set", "data.classes=1", *USE], "largest label is 1"),
        (["train", "--data", "good.npz", "--set", "model.out_features=1", *USE], "(1,)"),
        (["train", "--data", "good.npz", "--set", "model.weights=text.txt", *USE], "text.txt"),
        (["train", "digits-map", "--out", "text.txt/run"], "Not a directory"),
        (["train", "digits-map", "--out", "out", "--resume"], "nothing to resume"),
        (["train", "--out", "out", "--resume"], "nothing to resume"),
        (["train", "--out", ".", "--resume"], "nothing to resume: . has no recipe.yaml"),
        (["compress", "RUN", "--out", "small.json"], "write to small.pocket"),
        (["train", "--resume"], "--out"),
        (["train", "digits-map", "--resume", "--overwrite", "--out", "out"], "choose one"),
        (["evaluate", "none.pocket"], "none.pocket"),
        (["evaluate", "."], "no model.pocket"),
        (["evaluate", "RUN/.."], "it contains runs: give one of them, such as"),
        (["evaluate", "text.pocket"], "text.pocket"),
        (["evaluate", "cut.pocket"], "cut.pocket"),
        (["evaluate", "flipped.pocket"], "damaged"),
        (["evaluate", "foreign.pocket"], "not a pocketbayes file"),
        (["evaluate", "RUN/checkpoint.safetensors"], "'checkpoint' file where a 'network' file"),
        (["evaluate", "RUN", "--data", "good.npz"], "cannot take data set 'npz'"),
        (["evaluate", "RUN", "--propagation", "sideways"], "sideways"),
        (["evaluate", "RUN", "--split", "tset"], "did you mean 'test'"),
        (["evaluate", "RUN", "--samples", "0"], "--samples"),
        (["evaluate", "RUN", "--set", "training.lr=1"], "data.subset"),
        (["evaluate", "RUN", "--shift", "noise,rotaton"], "did you mean 'rotation'"),
        (["evaluate", "RUN", "--ood", "svnh"], "did you mean 'svhn'"),
        (["evaluate", "RUN", "--ood", "good.npz"], "cannot take data set 'npz'"),
        (["evaluate", "RUN", "--humans", "text.npy"], "text.npy"),
        (["evaluate", "RUN", "--humans", "wide.npy"], "(n, classes)"),
        (["predict", "RUN", "none.png"], "none.png"),
        (["predict", "RUN", "text.txt"], "text.txt"),
        (["predict", "RUN", "text.png"], "text.png"),
        (["predict", "RUN", "text.npy"], "text.npy"),
        (["predict", "RUN", "text.npz"], "text.npz"),
        (["predict", "RUN", "nan.npy"], "nan"),
        (["predict", "RUN", "wide.npy"], "(2, 1, 9, 9)"),
        (["predict", "RUN", "normalised.npy"], "from 0 to 1"),
        (["predict", "RUN", "none.npy"], "is empty"),
        (["predict", "text.pocket", "nan.npy"], "text.pocket"),
        (["predict", "RUN", "digit.npy", "--abstain-above", "1", "--target-risk", "0.1"], "give only one"),
        (["predict", "RUN", "digit.npy", "--target-risk", "2", "--split", "test"], "below 1, not 2"),
        (["predict", "", "digit.npy"], "an argument is empty"),
        (["predict", "RUN", "digit.npy", "--seed", "9" * 30], "--seed"),
        (["export", "RUN", "--out", "net.onnx", "--seed", "9" * 30], "--seed"),
        (["export", "RUN", "--out", "net.onnx", "--shape", "9" * 30], "--shape"),
        (["export", "RUN", "--out", "net.onnx", "--shape", "100000,100000"], "--shape"),
        (["train", "digits-map", "--out", ""], "an argument is empty"),
        (["train", "digits-map", "--set", "samples=1e9", "--out", "o/p"], "samples"),
        (["train", "digits-bbb", "--set", "method.train_samples=1000000", "--out", "o/p"], "train_samples"),
        (["compress", "RUN", "--out", "small.pocket", "--bits", "0"], "raise the budget"),
        (["calibrate", "RUN", "--data", "prices.csv", "--out", "new.pocket"], "prices.csv"),
        (["adapt", "RUN", "--data", "digits", "--out", "RUN/model.pocket"], "is the network itself"),
        (["report", "RUN", "--out", "report.html", "--figures", "text.txt"], "text.txt"),
        (["reproduce", "digits", "--quick", "--out", "text.txt/results"], "Not a directory"),
        (["corruptions", "strip.png"], "crop the image"),
        (["corruptions", "text.png"], "text.png"),
        (["corruptions", "--data", "digits", "--index", "9999"], "--index 9999"),
        (["corruptions", "--data", "digits", "--out", "sheet.gif"], "sheet.gif"),
        (["inspect", "foreign.pocket"], "not a pocketbayes file"),
        (["list", "method"], "did you mean 'methods'"),
        (["demo", "--out", "text.txt/demo"], "Not a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_cli_errors_are_one_line_and_write_nothing(
    command: list[str], fragment: str, bad: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POCKETBAYES_DATA", raising=False)
    before = sorted(bad.rglob("*"))
    result = call(*(arg.replace("RUN", str(trained.folder)) for arg in command))
    assert_mistake(result, fragment)
    assert sorted(bad.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_cli_reports_permission_denied(bad: Path, trained: Trained) -> None:
    Path("keys.yaml").chmod(0)
    assert_mistake(call("train", "keys.yaml"), "Permission denied")
    bad.chmod(0o500)
    assert_mistake(call("train", "digits-map", "--out", "out"), "Permission denied")
    bad.chmod(0o700)


def test_cli_reports_permission_denied_in_one_line(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates the error, so that it also works as root."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "secret.yaml")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert_mistake(call("train", trained.folder / "recipe.yaml"), "secret.yaml: Permission denied")


# -- a real process ---------------------------------------------------------------------------------------------------


def process(*args: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pocketbayes", *(str(arg) for arg in args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def test_cli_starts_without_slow_imports() -> None:
    heavy = ["lightning_fabric", "torchmetrics", "sklearn", "torchvision", "timm", "matplotlib", "pydantic", "yaml"]
    script = f"import sys, pocketbayes.cli; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_cli_process_fails_in_one_line(tmp_path: Path) -> None:
    stdout, stderr = (running := process("evaluate", tmp_path / "none.pocket", "--json")).communicate()
    assert running.returncode == 2
    assert stdout == ""
    assert stderr == f"error: no file '{tmp_path / 'none.pocket'}'\n"


def test_cli_process_warns_in_one_line(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(100, 10, (200, 2)).astype(np.float32)
    np.savez(tmp_path / "table.npz", x=x, y=1000 + x[:, 0])
    np.save(tmp_path / "new.npy", x[:3])
    ask = ("train", "--method", "map", "--model", "mlp", "--data", tmp_path / "table.npz", "--json", "--out")
    _, stderr = (running := process(*ask, tmp_path / "raw", "--epochs", 1)).communicate()
    assert running.returncode == 0
    first, second = (line for line in stderr.splitlines() if line.startswith("warning"))  # apart from progress
    assert first.startswith("warning: features as large as 10")
    assert second.startswith("warning: targets as large as 1.1")

    call(
        "train",
        *ask[1:],
        tmp_path / "run",
        "--epochs",
        20,
        "--set",
        "data.standardise=true",
        "--set",
        "training.lr=0.01",
    )
    answers = json.loads(call("predict", tmp_path / "run", tmp_path / "new.npy", "--json").stdout)
    means = [row["mean"][0] for row in answers["predictions"]]
    assert means == pytest.approx([1000 + row[0] for row in x[:3]], abs=4)


def test_cli_process_can_be_resumed_after_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = process("train", "digits-map", "--epochs", 1_000_000, "--out", out, *TINY, "--json")
    while not (out / "checkpoint.safetensors").is_file() and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate()
    assert running.returncode == 130
    assert stdout == ""
    assert stderr.endswith(f"stopped; resume with: pocketbayes train --out {out} --resume\n")


@pytest.mark.slow
def test_cli_processes_make_one_run_together(tmp_path: Path) -> None:
    two = ["--set", "training.devices=2", "--set", "training.accelerator=cpu"]
    running = process("train", "digits-map", "--epochs", 1, "--out", tmp_path / "run", *two, *TINY, "--json")
    stdout, stderr = running.communicate()
    assert running.returncode == 0, stderr
    assert json.loads(stdout)["measures"]["count"] == 359
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_cli_help_and_version_succeed() -> None:
    assert call("--version").stdout == f"{pb.__version__}\n"
    for command in ([], ["train"], ["evaluate"], ["predict"], ["report"], ["inspect"], ["list"], ["demo"]):
        result = call(*command, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.stdout
    assert "demo" in call().stdout


def test_predict_refuses_a_folder_without_images(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    result = call("train", "--method", "map", "--model", "lenet5", "--data", tmp_path / "pics", "--out", tmp_path / "r")
    assert result.exit_code == 2
    assert "holds nothing; expected one folder of images per class" in result.stderr
    assert "is a folder: name the files in it" in call("predict", trained.folder, tmp_path / "pics").stderr


# -- the network's own scale ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, learning_seed: int) -> Path:
    """Return a run on a standardised table of two classes, and the table."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(learning_seed).normal([100, -5], [30, 0.1], (300, 2)).astype(np.float32)
    np.savez(folder / "table.npz", x=x, y=np.where(x[:, 0] > 100, "high", "low"))
    np.savez(folder / "other.npz", x=x[:20] + np.array([300, 0]))
    call_json("train", "--method", "bbb", "--model", "mlp", "--data", folder / "table.npz", "--epochs", 5,
              "--seed", learning_seed, "--set", "data.standardise=true",
              "--set", "training.lr=0.02", "--out", folder / "run")  # fmt: skip
    return folder


def test_evaluate_scales_named_data_like_the_network(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(table / "run")  # a run works from another folder
    (own,) = call_json("evaluate", table / "run")["results"]
    assert own["measures"]["accuracy"] > 0.8
    given = ["--data", table / "table.npz", "--out", table / "given"]
    (same,) = call_json("evaluate", table / "run", *given, "--ood", table / "other.npz")["results"]
    assert same["measures"] == own["measures"]
    with pytest.warns(UserWarning, match="stds from its mean in training"):
        chosen = call_json("predict", table / "run", table / "other.npz", "--target-risk", 0.4, *given[:2])
    assert chosen["abstention"]["risk"] <= 0.4
    assert chosen["predictions"][0]["name"] == "high"
    smaller = call_json("compress", table / "run", *given[:2], "--out", table / "small.pocket", "--max-nll-loss", 0.1)
    assert smaller["before"]["accuracy"] > 0.8
    assert_mistake(call("evaluate", table / "small.pocket"), "an .npz file with --data")


def test_evaluate_takes_an_image_folder_as_other_data(tmp_path: Path, trained: Trained) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "flat"
    folder.mkdir()
    for i in range(5):
        image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    assert_mistake(call("evaluate", trained.folder, "--out", tmp_path, "--ood", folder), "has 3 channels")
    run = tmp_path / "colour"
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(60) % 3)
    call_json("train", "--method", "map", "--model", "mlp", "--data", tmp_path / "own.npz", "--epochs", 1, "--out", run)
    (result,) = call_json("evaluate", run, "--ood", folder)["results"]
    assert result["ood"][str(folder)]["images"] == 5


def test_predict_reports_and_draws_pixel_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    net = pb.bayesianize(pb.models.build("unet-small", classes=3, in_channels=3, widths=[4, 8]), "bbb")
    net.likelihood = pb.Categorical()
    net.info = pb.data.Info("masks", "segmentation", 3, ("sky", "road", "tree"), (3, 16, 16), (0.5,) * 3, (0.2,) * 3)
    pb.save(net, tmp_path / "net.pocket")
    image.new("RGB", (16, 16), (200, 10, 60)).save(tmp_path / "street.png")
    asked = (tmp_path / "net.pocket", tmp_path / "street.png", "--maps", tmp_path / "maps")
    (row,) = call_json("predict", *asked)["predictions"]
    assert sum(row["shares"]) == pytest.approx(1)
    assert row["share"] == max(row["shares"]) == row["shares"][row["class"]]
    assert "% of the pixels" in call("predict", *asked).stdout
    classes, doubts = (
        np.asarray(image.open(tmp_path / "maps" / f"street-{what}.png")) for what in ("classes", "uncertainty")
    )
    assert np.bincount(classes.flatten(), minlength=3) / 256 == pytest.approx(row["shares"])
    assert doubts.mean() / 255 * np.log(3) == pytest.approx(row["entropy"], abs=0.01)
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == [
        "street-classes.png",
        "street-uncertainty.png",
    ]
    assert_mistake(call("predict", *asked[:2], "--abstain-above", 0.5), "predicts every pixel")
    (tmp_path / "other").mkdir()
    image.new("RGB", (16, 16)).save(tmp_path / "other" / "street.png")
    assert_mistake(call("predict", *asked[:2], tmp_path / "other" / "street.png", *asked[2:]), "have the same name")
