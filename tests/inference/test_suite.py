"""The evaluation suite: results against reference computations, and resumption of parts."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn

import pocketbayes as pb
from peak_memory import peak_memory
from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Images, Pictures
from pocketbayes.data.shift import CORRUPTIONS, ORIGINAL_15, corrupted, noisy, rotated
from pocketbayes.inference.metrics import temperature
from pocketbayes.inference.suite import compare, evaluate_suite, over_seeds, parts, read_document, read_values, run

SAMPLES = 3


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_net(method: Any = None, seed: int = 0) -> pb.Network:
    """Return a briefly trained network, so that its predictions differ."""
    torch.manual_seed(seed)
    model = pb.models.build("mlp", in_features=64, hidden=[12], out_features=10)
    train = pb.data.load("digits", "train", subset=300)
    net = pb.fit(method or pb.MeanFieldVI(std_init=0.05, beta=0.0), model, train, epochs=4, lr=0.01, progress=False)
    assert isinstance(net, pb.Network)
    return net


@pytest.fixture(scope="module")
def net() -> pb.Network:
    return make_net()


@pytest.fixture(scope="module")
def digits() -> Pictures:
    found = pb.data.load("digits", "test", subset=90)
    assert isinstance(found, Pictures)
    return found


@pytest.fixture(scope="module")
def noise_data() -> Pictures:
    """Return noise images."""
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    like = pb.data.load("digits", "test", subset=50)
    assert isinstance(like, Images)
    return Images(torch.from_numpy(images)[:, None], like.labels, like.info, like.normalise, None)


@pytest.fixture(scope="module")
def whole(net: pb.Network, digits: Pictures, noise_data: Pictures, tmp_path_factory: Any) -> tuple[Path, dict]:
    """Return an evaluation with everything but corruptions."""
    path = tmp_path_factory.mktemp("whole") / "evaluation.json"
    document = evaluate_suite(
        net, digits, ood={"noise": noise_data}, shift=["rotation", "noise"], samples=SAMPLES, out=path
    )
    return path, document


def batch(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = data.__getitems__(range(len(data)))
    return found


# -- figures ----------------------------------------------------------------------------------------------------------


def test_suite_file_agrees_with_evaluate(net: pb.Network, digits: Pictures, whole: tuple[Path, dict]) -> None:
    path, document = whole
    assert json.loads(path.read_text()) == document == read_document(path)
    assert document["measures"] == pb.evaluate(net, digits, samples=SAMPLES)
    assert (document["format"], document["model"], document["method"]) == (1, "mlp", "bbb")
    assert document["data"] == {"name": "digits"}


def test_suite_values_per_image_average_to_the_measures(whole: tuple[Path, dict]) -> None:
    path, document = whole
    values = read_values(path)
    assert values["nll"].dtype == values["entropy"].dtype == values["confidence"].dtype == torch.float32
    assert values["correct"].dtype == torch.uint8
    for measure, name in (("accuracy", "correct"), ("nll", "nll"), ("brier", "brier"), ("entropy", "entropy")):
        assert float(values[name].double().mean()) == pytest.approx(document["measures"][measure], rel=1e-5)


def test_suite_has_curves_and_boxes(whole: tuple[Path, dict]) -> None:
    path, document = whole
    values = read_values(path)
    reliability = document["reliability"]
    assert sum(reliability["count"]) == 90
    assert len(reliability["accuracy"]) == 15
    gap = sum(
        n * abs(a - c)
        for n, a, c in zip(*(reliability[key] for key in ("count", "accuracy", "confidence")), strict=True)
        if n
    )
    assert gap / 90 == pytest.approx(document["measures"]["ece"])
    curve = document["risk_coverage"]
    assert len(curve["risk"]) == len(curve["coverage"]) <= 101
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(1 - document["measures"]["accuracy"])
    low, *_, high, count = document["box"]["3"]
    confidence = values["confidence"][values["label"] == 3].numpy()
    assert count == len(confidence)
    assert [low, high] == pytest.approx(np.quantile(confidence.astype(float), [0.05, 0.95]).tolist())


def test_suite_measures_temperature_on_the_other_half(
    net: pb.Network, digits: Pictures, whole: tuple[Path, dict]
) -> None:
    found = whole[1]["temperature"]
    x, y = batch(digits)
    probs = pb.predict(net, x, SAMPLES).probs
    assert probs is not None
    value = temperature(probs[::2].log(), y[::2])
    assert found["value"] == pytest.approx(value, rel=1e-4)
    scaled = (probs[1::2].double().log() / value).log_softmax(1)
    assert found["nll"] == pytest.approx(float(nn.functional.nll_loss(scaled, y[1::2])), rel=1e-4)
    assert found["nll_before"] == pytest.approx(float(nn.functional.nll_loss(probs[1::2].log(), y[1::2])), rel=1e-4)
    assert found["images"] == 45


def test_suite_shows_the_most_and_least_certain_images(digits: Pictures, whole: tuple[Path, dict]) -> None:
    from PIL import Image

    path, document = whole
    entropy = read_values(path)["entropy"]
    shown = document["images"]
    assert [len(shown[name]) for name in ("most certain", "least certain")] == [8, 8]
    assert shown["most certain"][0]["index"] == int(entropy.argmin())
    worst = shown["least certain"][0]
    assert worst["entropy"] == pytest.approx(float(entropy.max()))
    with Image.open(io.BytesIO(base64.b64decode(worst["png"]))) as picture:
        pixels = np.asarray(picture)
    assert (pixels == digits.pixels([worst["index"]])[0][0, 0].numpy()).all()
    assert worst["label"] == int(digits[worst["index"]][1])


def test_suite_out_of_distribution_scores_agree_with_sklearn(
    net: pb.Network, digits: Pictures, noise_data: Pictures, whole: tuple[Path, dict]
) -> None:
    found = whole[1]["ood"]["noise"]
    inside, outside = (pb.predict(net, batch(data)[0], SAMPLES) for data in (digits, noise_data))
    truth = np.repeat([0, 1], [90, 50])

    def auroc(score: Any) -> float:
        return float(roc_auc_score(truth, torch.cat([score(inside), score(outside)])))

    scores = {
        "max probability": lambda p: -p.mean.max(1).values,
        "entropy": lambda p: p.entropy,
        "mutual information": lambda p: p.epistemic,
        "variance": lambda p: p.std.gather(1, p.mean.argmax(1, keepdim=True))[:, 0] ** 2,
    }
    assert list(found["scores"]) == list(scores)
    for name, score in scores.items():
        assert found["scores"][name]["auroc"] == pytest.approx(auroc(score), abs=1e-6), name
    histogram = found["histogram"]
    assert len(histogram["edges"]) == 31
    assert histogram["edges"][-1] == pytest.approx(np.log(10))
    assert [sum(histogram[side]) for side in ("inside", "outside")] == pytest.approx([1, 1])
    middle = np.histogram(outside.entropy.numpy(), histogram["edges"])[0] / 50
    assert np.abs(middle - histogram["outside"]).max() < 1e-6


@pytest.mark.filterwarnings("ignore:x holds values")
def test_suite_rows_of_shifts_agree_with_evaluate(net: pb.Network, digits: Pictures, whole: tuple[Path, dict]) -> None:
    shift = whole[1]["shift"]
    assert [row["degrees"] for row in shift["rotation"]] == list(run.DEGREES)
    assert [row["db"] for row in shift["noise"]] == list(run.DECIBELS)
    for row, data in ((shift["rotation"][3], rotated(digits, 45)), (shift["noise"][-1], noisy(digits, -6))):
        measures = pb.evaluate(net, data, samples=SAMPLES)
        assert {name: row[name] for name in parts.ROW} == {name: measures[name] for name in parts.ROW}
        x, y = batch(data)
        prediction = pb.predict(net, x, SAMPLES)
        right = prediction.mean.argmax(1) == y
        assert row["entropy_right"] == pytest.approx(float(prediction.entropy[right].mean()), rel=1e-4)
        assert row["entropy_wrong"] == pytest.approx(float(prediction.entropy[~right].mean()), rel=1e-4)
        logits = prediction.mean.log() / whole[1]["temperature"]["value"]
        assert row["tempered_nll"] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-4)
    clean = shift["rotation"][0]
    assert clean["nll"] == pytest.approx(whole[1]["measures"]["nll"])


def test_suite_averages_corruptions(net: pb.Network, digits: Pictures) -> None:
    few = digits.take(torch.arange(12))
    document = evaluate_suite(net, few, shift=["corruptions"], samples=1)
    rows, means = document["shift"]["corruptions"], document["shift"]["corruptions_mean"]
    assert list(rows) == list(CORRUPTIONS)
    assert all([row["severity"] for row in found] == [1, 2, 3, 4, 5] for found in rows.values())
    for names, key in ((ORIGINAL_15, "of 15"), (CORRUPTIONS, "of 19")):
        nll = np.mean([row["nll"] for name in names for row in rows[name]])
        assert means[key]["nll"] == pytest.approx(nll)
    third = np.mean([rows[name][2]["accuracy"] for name in CORRUPTIONS])
    assert means["by severity"][2]["accuracy"] == pytest.approx(third)
    assert pb.evaluate(net, corrupted(few, "fog", 4), samples=1)["nll"] == rows["fog"][3]["nll"]


def test_suite_incomplete_corruptions_have_no_mean() -> None:
    row = dict.fromkeys((*parts.ROW, "entropy_right", "entropy_wrong", "variance"), 1.0)
    rows = {name: [{"severity": s, **row} for s in range(1, 6)] for name in ORIGINAL_15}
    found = parts.corruption_means(rows)
    assert found["of 15"]["accuracy"] == 1
    assert "of 19" not in found
    rows["fog"].pop()
    assert parts.corruption_means(rows) == {}


def test_suite_uses_ready_made_corruptions(net: pb.Network, digits: Pictures) -> None:
    few = digits.take(torch.arange(6))
    asked = []

    def ready(name: str, severity: int) -> Any:
        asked.append((name, severity))
        return few if name == "fog" else None

    document = evaluate_suite(net, few, shift=["corruptions"], samples=1, corrupted=ready)
    assert len(asked) == 95
    rows = document["shift"]["corruptions"]
    assert {row["nll"] for row in rows["fog"]} == {document["measures"]["nll"]}
    assert rows["gaussian_noise"][4]["nll"] != document["measures"]["nll"]


def test_suite_compares_with_human_labels(net: pb.Network, digits: Pictures, tmp_path: Path) -> None:
    x, _ = batch(digits)
    humans = torch.rand(90, 10)
    path = tmp_path / "evaluation.json"
    evaluate_suite(net, digits, samples=SAMPLES, out=path)
    document = evaluate_suite(net, digits, samples=SAMPLES, out=path, humans=humans)
    probs = pb.predict(net, x, SAMPLES).probs
    assert probs is not None
    share = humans / humans.sum(1, keepdim=True)
    assert document["humans"]["total_variation"] == pytest.approx(float((share - probs).abs().sum(1).mean() / 2))
    expected = nn.functional.cross_entropy(probs.log(), share)
    assert document["humans"]["cross_entropy"] == pytest.approx(float(expected), rel=1e-5)
    with pytest.raises(UserError, match=r"\(n, classes\) for the 90 images in order, not of shape \(3, 10\)"):
        evaluate_suite(net, digits, humans=humans[:3])


def test_suite_omits_uncertainty_scores_without_randomness(digits: Pictures, noise_data: Pictures) -> None:
    document = evaluate_suite(make_net(pb.Deterministic()), digits, ood={"noise": noise_data})
    assert list(document["ood"]["noise"]["scores"]) == ["max probability", "entropy"]


@pytest.mark.parametrize("propagation", ["moments", "linear"])
def test_suite_takes_propagations_without_sampling(
    net: pb.Network, digits: Pictures, noise_data: Pictures, propagation: str
) -> None:
    document = evaluate_suite(net, digits, ood={"noise": noise_data}, propagation=propagation)
    assert document["measures"] == pb.evaluate(net, digits, propagation=propagation)
    assert document["propagation"] == propagation
    assert "variance" in document["ood"]["noise"]["scores"]


def test_suite_of_a_regression_has_measures_only(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 30)[:, None]
    net = pb.fit(pb.MeanFieldVI(), nn.Linear(1, 1), (x, 2 * x), epochs=1, progress=False)
    document = evaluate_suite(net, (x, 2 * x), out=tmp_path / "evaluation.json")
    assert document["measures"] == pb.evaluate(net, (x, 2 * x))
    assert "risk_coverage" not in document
    assert evaluate_suite(net, (x, 2 * x), out=tmp_path / "evaluation.json") == document
    with pytest.raises(UserError, match="need a classifier"):
        evaluate_suite(net, (x, 2 * x), ood={"x": (x, x)})


def test_suite_of_segmentation_has_measures_and_a_diagram(tmp_path: Path) -> None:
    x, y = torch.rand(4, 3, 6, 6), torch.randint(0, 2, (4, 6, 6))
    net = pb.bayesianize(nn.Conv2d(3, 2, 3, padding=1), pb.MeanFieldVI())
    document = evaluate_suite(net, (x, y), samples=2, out=tmp_path / "evaluation.json")
    assert document["measures"] == pb.evaluate(net, (x, y), samples=2)
    assert sum(document["reliability"]["count"]) == y.numel()
    assert not {"risk_coverage", "box", "images"} & document.keys()
    assert not (tmp_path / "evaluation.safetensors").exists()
    with pytest.raises(UserError, match="whole inputs"):
        evaluate_suite(net, (x, y), ood={"x": (x, y)})


def test_suite_takes_a_mixture_and_a_loader(net: pb.Network, digits: Pictures, tmp_path: Path) -> None:
    both = pb.Mixture([net, make_net(seed=1)])
    loader = torch.utils.data.DataLoader(digits, batch_size=32, collate_fn=pb.data.collate)
    document = evaluate_suite(both, loader, samples=4, out=tmp_path / "evaluation.json")
    assert document["method"] == "mixture of mean-field"
    assert document["measures"]["nll"] == pytest.approx(pb.evaluate(both, digits, samples=4)["nll"])
    assert len(read_values(tmp_path / "evaluation.json")["nll"]) == 90


def test_suite_omits_shifts_of_arrays_that_are_not_images(net: pb.Network, digits: Pictures) -> None:
    x, y = batch(digits)
    with pytest.raises(UserError, match="images as bytes, which 'arrays' does not have"):
        evaluate_suite(net, (x, y), shift=["rotation"])
    with pytest.raises(UserError, match="did you mean 'rotation'"):
        evaluate_suite(net, digits, shift=["rotations"])
    assert "png" not in evaluate_suite(net, (x, y), samples=1)["images"]["most certain"][0]


# -- parts kept -------------------------------------------------------------------------------------------------------


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int | None) -> list[int]:
    """Count parts and interrupt in the middle of part `count` + 1."""
    started: list[int] = []
    stream = parts.stream

    def counted(net: Any, source: Any, ask: Any, **options: Any) -> Any:
        started.append(len(source))
        answers = stream(net, source, ask, **options)
        if count is not None and len(started) > count:
            yield next(answers)
            raise KeyboardInterrupt
        yield from answers

    monkeypatch.setattr(parts, "stream", counted)
    return started


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "seconds"}


@pytest.mark.parametrize("stopped_after", [0, 1, 2, 7])
def test_suite_resumes_an_interrupted_evaluation(
    net: pb.Network,
    digits: Pictures,
    noise_data: Pictures,
    whole: tuple[Path, dict],
    stopped_after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "evaluation.json"
    options: dict[str, Any] = {"samples": SAMPLES, "out": path, "batch_size": 40}
    options |= {"ood": {"noise": noise_data}, "shift": ["rotation", "noise"]}
    with monkeypatch.context() as patch:
        stop_after(patch, stopped_after)
        with pytest.raises(KeyboardInterrupt):
            evaluate_suite(net, digits, **options)
    assert path.exists() == (stopped_after > 0)
    started = stop_after(monkeypatch, None)
    document = evaluate_suite(net, digits, **options)
    every = 2 + len(run.DEGREES) + len(run.DECIBELS)
    assert len(started) == every - stopped_after
    assert list(without_times(document)) == list(without_times(whole[1]))
    assert document["ood"] == whole[1]["ood"]
    assert [row["accuracy"] for row in document["shift"]["noise"]] == [
        row["accuracy"] for row in whole[1]["shift"]["noise"]
    ]
    evaluate_suite(net, digits, **options)
    assert len(started) == every - stopped_after, "a finished evaluation is not measured again"


def test_suite_adds_measurements_later(
    net: pb.Network, digits: Pictures, noise_data: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evaluation.json"
    evaluate_suite(net, digits, samples=SAMPLES, out=path)
    started = stop_after(monkeypatch, None)
    document = evaluate_suite(net, digits, samples=SAMPLES, out=path, ood={"noise": noise_data})
    assert started == [50]
    again = evaluate_suite(net, digits, samples=SAMPLES, out=path)
    assert again == document, "what was measured before stays"
    other = noise_data.take(torch.arange(20))
    evaluate_suite(net, digits, samples=SAMPLES, out=path, ood={"noise": other})
    assert started == [50, 20], "another data set under the same name is measured"


def test_suite_distinguishes_omitted_settings(net: pb.Network, digits: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    evaluate_suite(net, digits, samples=SAMPLES, shift=["noise"], shift_images=4, out=path)
    with pytest.raises(UserError, match=r"another shift_images \(4, now None\)"):
        evaluate_suite(net, digits, samples=SAMPLES, shift=["noise"], out=path)


def test_suite_refuses_corruptions_without_pillow_early(
    net: pb.Network, digits: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UserError, match=r"needs PIL: pip install 'pocketbayes\[vision\]'"):
        evaluate_suite(net, digits, samples=SAMPLES, shift=["corruptions"], out=tmp_path / "evaluation.json")
    assert not (tmp_path / "evaluation.json").exists()


def test_suite_never_reuses_parts_of_other_settings(
    net: pb.Network, digits: Pictures, noise_data: Pictures, tmp_path: Path
) -> None:
    path = tmp_path / "evaluation.json"
    evaluate_suite(net, digits, samples=SAMPLES, out=path)
    other = evaluate_suite(net, digits, samples=SAMPLES + 1, out=path)
    assert other["measures"] == pb.evaluate(net, digits, samples=SAMPLES + 1)
    second = make_net(seed=3)
    found = evaluate_suite(second, digits, samples=SAMPLES, out=path, ood={"noise": noise_data})
    assert found["measures"] == pb.evaluate(second, digits, samples=SAMPLES)
    before = path.read_text()
    with pytest.raises(UserError, match=r"another samples \(3, now 5\).*--overwrite"):
        evaluate_suite(second, digits, samples=5, out=path)
    with pytest.raises(UserError, match=r"another shift_images \(None, now 4\)"):
        evaluate_suite(second, digits, samples=SAMPLES, shift_images=4, out=path)
    with pytest.raises(UserError, match="another network"):
        evaluate_suite(net, digits, samples=SAMPLES, out=path)
    with pytest.raises(UserError, match="another data"):
        evaluate_suite(second, digits.take(torch.arange(9)), samples=SAMPLES, out=path)
    assert path.read_text() == before
    assert "ood" not in evaluate_suite(second, digits, samples=5, out=path, overwrite=True)


def test_suite_never_reuses_values_of_other_settings(
    net: pb.Network, digits: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a power failure between writing the two files."""
    path, other = tmp_path / "evaluation.json", tmp_path / "other.json"
    evaluate_suite(net, digits, samples=SAMPLES, out=path)
    evaluate_suite(net, digits, samples=SAMPLES + 1, out=other)
    other.with_suffix(".safetensors").replace(path.with_suffix(".safetensors"))
    started = stop_after(monkeypatch, None)
    evaluate_suite(net, digits, samples=SAMPLES, out=path)
    assert started == [90]
    assert float(read_values(path)["nll"].double().mean()) == pytest.approx(read_document(path)["measures"]["nll"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_suite_does_not_replace_another_file(net: pb.Network, digits: Pictures, tmp_path: Path, text: str) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"evaluation\.json is not"):
        evaluate_suite(net, digits, out=path)
    assert path.read_text() == text


def test_suite_memory_is_independent_of_passes(net: pb.Network, digits: Pictures) -> None:
    def peak(images: int, samples: int) -> int:
        places = torch.arange(images) % 90
        return peak_memory(evaluate_suite, net, digits.take(places), samples=samples, batch_size=30)

    few = peak(60, 2)
    assert peak(60, 20) <= 1.05 * few
    assert peak(240, 2) - few < 180 * 10 * 40  # a few dozen bytes a class


def test_suite_bar_counts_images_and_passes(net: pb.Network, digits: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.titles: list[tuple[str, int]] = []
            self.images, self.passes = 0, 0.0

        def begin(self, title: str, total: int) -> None:
            self.titles.append((title, total))

        def advance(self, amount: int = 1, **figures: float) -> None:
            self.images += amount
            self.passes = figures.get("passes", self.passes)

    recorder = Recorder()
    monkeypatch.setattr(run, "display", lambda _: contextlib.nullcontext(recorder))
    evaluate_suite(net, digits, shift=["noise"], samples=SAMPLES, batch_size=50)
    assert recorder.titles[:2] == [("[1/9] test", 90), ("[2/9] noise 20", 90)]
    assert recorder.images == 9 * 90
    assert recorder.passes == 2 * SAMPLES  # two batches of the last part


# -- comparison -------------------------------------------------------------------------------------------------------


def documents(count: int, **changes: Any) -> list[dict[str, Any]]:
    measures = {"accuracy": 0.5, "nll": 1.0, "count": 100.0}
    return [{"data": {"name": "digits"}, "split": "test", "measures": measures, **changes} for _ in range(count)]


def image_values(shift: float, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    nll = torch.rand(100, generator=generator) + shift
    return {"nll": nll, "brier": nll, "correct": (nll < 0.9).to(torch.uint8), "label": torch.arange(100) % 10}


def test_compare_calls_better_only_what_is_significant() -> None:
    rows = compare(documents(3), [image_values(0.0), image_values(0.4), image_values(0.0, seed=1)])
    found = {(row["measure"], row["first"], row["second"]): row for row in rows}
    assert len(found) == 9
    assert found["nll", 0, 1]["better"] == 0
    assert found["accuracy", 0, 1]["better"] == 0
    assert found["nll", 1, 2]["better"] == 2
    assert found["nll", 0, 2]["better"] is None
    assert found["nll", 0, 2]["p"] > 0.05
    assert found["nll", 0, 1]["test"] == "paired t"
    assert found["accuracy", 0, 1]["test"] == "McNemar"
    alone = compare(documents(2), [image_values(0.0), image_values(0.0, seed=1)])
    once = next(row for row in alone if row["measure"] == "accuracy")
    assert found["accuracy", 0, 2]["p"] >= once["p"], "corrected for three pairs"


def test_compare_refuses_other_images() -> None:
    one, two = image_values(0.0), image_values(0.4)
    assert compare(documents(2), [one, {**two, "label": two["label"].flip(0)}]) == []
    assert compare([*documents(1), *documents(1, data={"name": "mnist"})], [one, two]) == []
    assert compare(documents(2), [one, {}]) == []


def test_compare_averages_seeds_of_one_recipe() -> None:
    def of(method: str, seed: int, accuracy: float) -> dict[str, Any]:
        measures = {"accuracy": accuracy, "nll": 1 - accuracy, "ece": 0.1, "brier": 0.2}
        return {**documents(1)[0], "recipe": {"method": method, "seed": seed}, "measures": measures}

    runs = [of("bbb", 0, 0.5), of("bbb", 1, 0.6), of("map", 0, 0.9), of("map", 1, 0.95), of("pbn", 0, 0.1)]
    groups, tests = over_seeds(runs)
    assert [group["networks"] for group in groups] == [[0, 1], [2, 3]]
    assert groups[0]["measures"]["accuracy"]["mean"] == pytest.approx(0.55)
    assert groups[0]["measures"]["accuracy"]["high"] - 0.55 == pytest.approx(12.706 * 0.05, rel=1e-3)
    by_name = {test["measure"]: test for test in tests}
    assert by_name["accuracy"]["f"] == pytest.approx(0.140625 / 0.003125)
    assert by_name["ece"]["p"] == 1
    assert over_seeds(runs[:1] + runs[2:3]) == ([], [])
    assert over_seeds(documents(2)) == ([], [])
