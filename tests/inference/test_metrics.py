"""Metrics against reference implementations and known cases, and merged over shards."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pocketbayes.base.errors import UserError
from pocketbayes.inference import metrics

CLASSES = 10


def predictions(n: int = 1500, classes: int = CLASSES, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return overconfident probabilities with labels that agree in part."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).probs.multinomial(1, generator=generator)[:, 0]
    return (sharpness * logits).softmax(1), labels


def classify(probs: Tensor, labels: Tensor, **settings: int) -> dict[str, float]:
    measure = metrics.Classification(probs.shape[1], **settings)
    measure.update(probs, labels)
    return measure.compute()


def sharded(make, batches) -> dict[str, float]:
    """Return two accumulators, fed alternately and then merged."""
    shards = [make(), make()]
    for i, batch in enumerate(batches):
        shards[i % 2].update(*batch)
    shards[0].merge(shards[1])
    return shards[0].compute()


class TestClassification:
    def test_agrees_with_torchmetrics(self):
        from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

        probs, labels = predictions()
        ours = classify(probs, labels)
        accuracy = {k: multiclass_accuracy(probs, labels, CLASSES, top_k=k, average="micro") for k in (1, 5)}
        assert ours["accuracy"] == pytest.approx(float(accuracy[1]), abs=1e-6)
        assert ours["top5"] == pytest.approx(float(accuracy[5]), abs=1e-6)
        theirs = multiclass_calibration_error(probs, labels, CLASSES, n_bins=15, norm="l1")
        assert ours["ece"] == pytest.approx(float(theirs), abs=1e-6)

    def test_agrees_with_sklearn(self):
        from sklearn.metrics import log_loss

        probs, labels = predictions()
        ours = classify(probs, labels)
        assert ours["nll"] == pytest.approx(log_loss(labels, probs), abs=1e-12)

    def test_brier_and_entropy_by_hand(self):
        ours = classify(torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]), torch.tensor([0, 1]))
        assert ours["brier"] == pytest.approx(((0.25 + 0.125) + 2) / 2)
        assert ours["entropy"] == pytest.approx(1.5 * math.log(2) / 2)
        assert "top5" not in ours

    def test_adaptive_error_against_sorting(self):
        confidence = 0.5 + 0.5 * torch.rand(1500, dtype=torch.float64)
        correct = (60 * confidence).sin() > 0  # alternately over- and underconfident: mixed bins would cancel
        probs = torch.stack([confidence, 1 - confidence], 1)
        gap = (confidence - correct.double())[confidence.argsort()].view(15, -1).sum(1).abs().sum() / 1500
        assert classify(probs, (~correct).long())["ece_adaptive"] == pytest.approx(float(gap), abs=2e-3)

    def test_adaptive_error_of_few_is_exact(self):
        # Three bins of two: gaps (.6 + .62 - 1), (.7 + .72 - 1), (.8 + .9 - 2), over 6.
        confidence = torch.tensor([0.6, 0.62, 0.7, 0.72, 0.8, 0.9], dtype=torch.float64)
        labels = torch.tensor([0, 1, 1, 0, 0, 0])
        probs = torch.stack([confidence, 1 - confidence], 1)
        ours = classify(probs, labels, bins=3)
        assert ours["ece_adaptive"] == pytest.approx((0.22 + 0.42 + 0.3) / 6, abs=1e-12)

    def test_adaptive_error_ignores_the_order_of_ties(self):
        probs = torch.tensor([[0.8, 0.2]]).repeat(100, 1)
        labels = (torch.arange(100) >= 70).long()
        first = classify(probs, labels)["ece_adaptive"]
        assert first == pytest.approx(0.1, abs=1e-6)
        assert classify(probs, labels[torch.randperm(100)])["ece_adaptive"] == pytest.approx(first, abs=1e-12)

    def test_adaptive_error_resolves_confidences_near_one(self):
        # Half at 1 - 1e-3 and wrong a tenth of the time, half at 1 - 1e-6 and always right: a coarse grid mixes them.
        confidence = torch.tensor([1 - 1e-3] * 100 + [1 - 1e-6] * 100, dtype=torch.float64)
        labels = torch.tensor([1] * 10 + [0] * 190)
        ours = classify(torch.stack([confidence, 1 - confidence], 1), labels, bins=2)
        assert ours["ece_adaptive"] == pytest.approx((0.099 + 1e-6) / 2, abs=1e-9)

    def test_classwise_error_is_the_mean_of_one_against_rest(self):
        probs, labels = predictions(600, 4)
        errors = []
        for k in range(4):
            p, hit = probs[:, k].numpy(), (labels == k).double().numpy()
            cell = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
            errors.append(sum(abs((p - hit)[cell == b].sum()) for b in range(15)) / len(p))
        assert classify(probs, labels)["ece_classwise"] == pytest.approx(np.mean(errors), abs=1e-12)

    def test_perfect_predictions_have_no_error(self):
        labels = torch.arange(CLASSES)
        ours = classify(torch.eye(CLASSES), labels)
        assert (ours["accuracy"], ours["top5"]) == (1, 1)
        for name in ("nll", "brier", "ece", "ece_adaptive", "ece_classwise", "entropy"):
            assert ours[name] == pytest.approx(0, abs=1e-12), name

    def test_constant_predictions_know_nothing(self):
        labels = torch.arange(CLASSES).repeat(3)
        ours = classify(torch.full((30, CLASSES), 1 / CLASSES), labels)
        assert ours["accuracy"] == pytest.approx(0.1)
        assert ours["top5"] == pytest.approx(0.5)
        assert ours["nll"] == pytest.approx(math.log(10), abs=1e-6)
        assert ours["brier"] == pytest.approx(0.9, abs=1e-6)
        assert ours["ece"] == pytest.approx(0, abs=1e-6)
        assert ours["ece_classwise"] == pytest.approx(0, abs=1e-6)

    def test_confidently_wrong_stays_finite(self):
        ours = classify(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
        assert ours["nll"] == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
        assert (ours["brier"], ours["ece"]) == (2, 1)

    def test_calibrated_answers_have_little_error(self):
        calibrated, overconfident = (classify(*predictions(20_000, sharpness=s)) for s in (1.0, 2.0))
        assert calibrated["ece"] < 0.02 < 0.1 < overconfident["ece"]

    def test_bins_are_closed_above(self):
        confidence = torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64)
        diagram = metrics.reliability_bins(confidence, torch.tensor([1, 0, 1]), bins=4)
        assert diagram.count.tolist() == [0, 1, 1, 1]
        assert diagram.accuracy[1:].tolist() == [1, 0, 1]
        assert diagram.confidence[0].isnan()
        assert diagram.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]

    def test_diagram_agrees_with_error(self):
        probs, labels = predictions()
        measure = metrics.Classification(CLASSES)
        measure.update(probs, labels)
        for diagram in (
            measure.reliability(),
            metrics.reliability_bins(probs.amax(1), probs.argmax(1) == labels),
        ):
            gap = (diagram.count * (diagram.accuracy - diagram.confidence).abs()).nansum() / len(labels)
            assert float(gap) == pytest.approx(measure.compute()["ece"], abs=1e-12)

    def test_pixels_equal_examples_and_ignored_pixels_do_not_count(self):
        probs, labels = predictions(96, 6)
        images = probs.view(2, 6, 8, 6).movedim(-1, 1)
        whole = classify(probs, labels)
        pixels = metrics.Classification(6, ignore_index=255)
        pixels.update(images, labels.view(2, 6, 8), epistemic=torch.ones(2, 6, 8))
        measured = pixels.compute()
        assert {k: v for k, v in measured.items() if k != "epistemic"} == pytest.approx(whole, abs=1e-12)
        junk = torch.full((1, 6, 6, 8), 1 / 6)
        pixels.update(junk, torch.full((1, 6, 8), 255), epistemic=torch.full((1, 6, 8), 9.0))
        assert pixels.compute() == pytest.approx(measured, abs=1e-12)

    def test_given_uncertainties_are_averaged(self):
        measure = metrics.Classification(2)
        for value in (0.1, 0.3):
            measure.update(
                torch.tensor([[0.5, 0.5]]), torch.tensor([0]), torch.tensor([value]), torch.tensor([2 * value])
            )
        ours = measure.compute()
        assert (ours["epistemic"], ours["aleatoric"]) == (pytest.approx(0.2), pytest.approx(0.4))
        assert "epistemic" not in classify(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))

    @settings(max_examples=20, deadline=None)
    @given(cuts=st.lists(st.integers(1, 499), min_size=1, max_size=6, unique=True))
    def test_sharded_equals_whole(self, cuts):
        probs, labels = predictions(500, 7)
        at = sorted(cuts)
        batches = zip(probs.tensor_split(at), labels.tensor_split(at), strict=True)
        merged = sharded(lambda: metrics.Classification(7), batches)
        assert merged == pytest.approx(classify(probs, labels), abs=1e-12)

    def test_memory_does_not_grow(self):
        measure = metrics.Classification(CLASSES)
        sizes = []
        for _ in range(2):
            measure.update(*predictions(200))
            sizes.append(sum(s.numel() for s in measure.sums.values()))
        assert sizes[0] == sizes[1]

    def test_mistakes_are_named(self):
        probs, labels = predictions(20)
        with pytest.raises(UserError, match="logits"):
            classify(probs.log(), labels)
        with pytest.raises(UserError, match=r"0\.\.9, found"):
            classify(probs, labels + 5)
        with pytest.raises(UserError, match=r"\(20, 10\) and \(19,\)"):
            classify(probs, labels[1:])
        with pytest.raises(UserError, match="no examples"):
            metrics.Classification(3).compute()
        with pytest.raises(UserError, match="cannot merge Segmentation into Classification"):
            metrics.Classification(3).merge(metrics.Segmentation(3))
        fewer, more = metrics.Classification(10, bins=5), metrics.Classification(10)
        fewer.update(probs, labels)
        more.update(probs, labels)
        with pytest.raises(UserError, match="bins differ"):
            fewer.merge(more)


class TestSegmentation:
    @staticmethod
    def maps() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2)
        labels = torch.randint(0, 4, (6, 5, 7), generator=generator)
        noise = torch.randint(0, 4, (6, 5, 7), generator=generator)
        return torch.where(torch.rand(6, 5, 7, generator=generator) < 0.6, labels, noise), labels

    def test_agrees_with_torchmetrics_and_sklearn(self):
        from sklearn.metrics import jaccard_score
        from torchmetrics.functional.classification import multiclass_jaccard_index

        predicted, labels = self.maps()
        labels[:, 0] = 9
        measure = metrics.Segmentation(4, ignore_index=9)
        measure.update(predicted, labels)
        ours = measure.compute()
        theirs = multiclass_jaccard_index(predicted, labels, 4, average=None, ignore_index=9)
        seen = labels != 9
        skl = jaccard_score(labels[seen], predicted[seen], average=None)
        for k in range(4):
            assert ours[f"iou_{k}"] == pytest.approx(float(theirs[k]), abs=1e-6)
            assert ours[f"iou_{k}"] == pytest.approx(skl[k], abs=1e-12)
        assert ours["miou"] == pytest.approx(skl.mean())
        assert ours["pixel_accuracy"] == pytest.approx(float((predicted == labels)[seen].double().mean()))

    def test_absent_class_has_no_iou(self):
        measure = metrics.Segmentation(3)
        measure.update(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 0]))
        assert measure.compute() == pytest.approx(
            {"count": 3, "pixel_accuracy": 2 / 3, "miou": 1 / 3, "iou_0": 2 / 3, "iou_2": 0}
        )
        assert measure.confusion.tolist() == [[2, 0, 1], [0, 0, 0], [0, 0, 0]]

    def test_sharded_equals_whole(self):
        predicted, labels = self.maps()
        whole = metrics.Segmentation(4)
        whole.update(predicted, labels)
        batches = zip(predicted.split(1), labels.split(1), strict=True)
        assert sharded(lambda: metrics.Segmentation(4), batches) == whole.compute()

    def test_mistakes_are_named(self):
        predicted, labels = self.maps()
        with pytest.raises(UserError, match="argmax"):
            metrics.Segmentation(4).update(predicted.float(), labels)
        with pytest.raises(UserError, match=r"0\.\.2, found 0\.\.3"):
            metrics.Segmentation(3).update(predicted, labels)


class TestRegression:
    @staticmethod
    def targets(n: int = 400) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        mean = torch.randn(n, generator=generator)
        std = 0.2 + torch.rand(n, generator=generator)
        return mean, std, mean + std * torch.randn(n, generator=generator)

    def test_agrees_with_torchmetrics_and_torch(self):
        from torchmetrics.functional import mean_absolute_error, mean_squared_error

        mean, std, target = self.targets()
        measure = metrics.Regression()
        measure.update(mean, std, target)
        ours = measure.compute()
        assert ours["rmse"] == pytest.approx(float(mean_squared_error(mean, target, squared=False)), rel=1e-6)
        assert ours["mae"] == pytest.approx(float(mean_absolute_error(mean, target)), rel=1e-6)
        density = torch.distributions.Normal(mean.double(), std.double()).log_prob(target.double())
        assert ours["log_likelihood"] == pytest.approx(float(density.mean()), abs=1e-12)

    def test_coverage_of_calibrated_intervals(self):
        measure = metrics.Regression()
        mean, std, target = self.targets(20_000)
        measure.update(mean, std, target)
        assert measure.compute()["coverage95"] == pytest.approx(0.95, abs=0.005)
        halved = metrics.Regression()
        halved.update(mean, std / 2, target)
        assert halved.compute()["coverage95"] == pytest.approx(0.673, abs=0.01)

    def test_scale_restores_the_units(self):
        mean, std, target = self.targets()
        standard, original = metrics.Regression(scale=4.0), metrics.Regression()
        standard.update(mean, std, target)
        original.update(4 * mean + 7, 4 * std, 4 * target + 7)
        assert standard.compute() == pytest.approx(original.compute(), rel=1e-6)

    def test_one_scale_per_output(self):
        mean, std, target = (t.view(200, 2) for t in self.targets())
        scale = torch.tensor([2.0, 0.5])
        both, columns = metrics.Regression(scale), [metrics.Regression(float(s)) for s in scale]
        both.update(mean, std, target)
        for k, column in enumerate(columns):
            column.update(mean[:, k], std[:, k], target[:, k])
        columns[0].merge(columns[1])
        assert both.compute() == pytest.approx(columns[0].compute(), abs=1e-12)

    def test_given_log_likelihood_is_rescaled_and_kept_apart(self):
        mean, std, target = self.targets()
        samples = torch.stack([mean - 0.1, mean + 0.1]).double()
        density = torch.distributions.Normal(samples, std.double()).log_prob(target.double())
        mixture = density.logsumexp(0) - math.log(2)
        measure = metrics.Regression(scale=3.0)
        measure.update(mean, std, target, mixture)
        assert measure.compute()["log_likelihood_samples"] == pytest.approx(float(mixture.mean()) - math.log(3))
        plain = metrics.Regression(scale=3.0)
        plain.update(mean, std, target)
        assert measure.compute()["log_likelihood"] == plain.compute()["log_likelihood"]

    def test_sharded_equals_whole(self):
        data = self.targets()
        whole = metrics.Regression(2.0)
        whole.update(*data)
        batches = zip(*(t.split(33) for t in data), strict=True)
        assert sharded(lambda: metrics.Regression(2.0), batches) == pytest.approx(whole.compute(), abs=1e-12)

    def test_mistakes_are_named(self):
        with pytest.raises(UserError, match="positive"):
            metrics.Regression().update(torch.zeros(3), torch.zeros(3), torch.zeros(3))
        with pytest.raises(UserError, match=r"\(3,\), \(3,\), \(3, 1\)"):
            metrics.Regression().update(torch.zeros(3), torch.ones(3), torch.zeros(3, 1))


def sklearn_ood(inside: np.ndarray, out: np.ndarray) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    scores = np.concatenate([inside, out])
    is_out = np.repeat([0, 1], [len(inside), len(out)])
    false, true, _ = roc_curve(1 - is_out, -scores, drop_intermediate=False)
    return {
        "auroc": roc_auc_score(is_out, scores),
        "aupr_in": average_precision_score(1 - is_out, -scores),
        "aupr_out": average_precision_score(is_out, scores),
        "fpr85": false[np.argmax(true >= 0.85 - 1e-12)],
        "fpr95": false[np.argmax(true >= 0.95 - 1e-12)],
    }


class TestOOD:
    @pytest.mark.parametrize("decimals", [0, 1, 8])
    def test_agrees_with_sklearn_with_and_without_ties(self, decimals):
        rng = np.random.default_rng(4)
        inside, out = rng.normal(0, 1, 700).round(decimals), rng.normal(0.8, 1.5, 400).round(decimals)
        ours = metrics.ood_scores(torch.from_numpy(inside), torch.from_numpy(out))
        assert ours == pytest.approx(sklearn_ood(inside, out), abs=1e-12)

    @settings(max_examples=40, deadline=None)
    @given(
        inside=st.lists(st.integers(-3, 3), min_size=1, max_size=30),
        out=st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    )
    def test_agrees_with_sklearn_on_tiny_tied_sets(self, inside, out):
        ours = metrics.ood_scores(torch.tensor(inside), torch.tensor(out))
        assert ours == pytest.approx(sklearn_ood(np.array(inside), np.array(out)), abs=1e-12)

    def test_agrees_with_torchmetrics_on_probabilities(self):
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        inside, out = torch.rand(300), torch.rand(200).sqrt()
        scores, is_out = torch.cat([inside, out]), torch.cat([torch.zeros(300), torch.ones(200)]).long()
        ours = metrics.ood_scores(inside, out)
        assert ours["auroc"] == pytest.approx(float(binary_auroc(scores, is_out)), abs=1e-5)
        assert ours["aupr_out"] == pytest.approx(float(binary_average_precision(scores, is_out)), abs=1e-5)

    def test_perfect_and_reversed(self):
        low, high = torch.linspace(0, 1, 20), torch.linspace(2, 3, 30)
        assert metrics.ood_scores(low, high) == {"auroc": 1, "aupr_in": 1, "aupr_out": 1, "fpr85": 0, "fpr95": 0}
        wrong = metrics.ood_scores(high, low)
        assert (wrong["auroc"], wrong["fpr85"], wrong["fpr95"]) == (0, 1, 1)

    def test_constant_scores_know_nothing(self):
        ours = metrics.ood_scores(torch.ones(30), torch.ones(10))
        assert ours == {"auroc": 0.5, "aupr_in": 0.75, "aupr_out": 0.25, "fpr85": 1, "fpr95": 1}

    def test_large_scores_are_not_squashed_into_ties(self):
        ours = metrics.ood_scores(torch.tensor([100.0, 101.0]), torch.tensor([102.0, 103.0]))
        assert ours["auroc"] == 1

    def test_threshold_is_met_exactly(self):
        # 19 of the 20 are 95 %, and two of the four lie below the 19th; 17 are 85 %, and none lies below the 17th.
        ours = metrics.ood_scores(torch.arange(1.0, 21), torch.tensor([17.2, 18.5, 19.5, 30.0]))
        assert (ours["fpr85"], ours["fpr95"]) == (0, 0.5)

    def test_mistakes_are_named(self):
        with pytest.raises(UserError, match="NaN"):
            metrics.ood_scores(torch.tensor([math.nan]), torch.ones(1))
        with pytest.raises(UserError, match="0 out"):
            metrics.ood_scores(torch.ones(3), torch.ones(0))


class TestSelective:
    def test_against_a_loop(self):
        confidence = torch.rand(50)
        correct = torch.rand(50) < confidence
        curve = metrics.risk_coverage(confidence, correct)
        order = confidence.argsort(descending=True)
        risks = [float((~correct[order][:k]).double().mean()) for k in range(1, 51)]
        assert curve.risk.tolist() == pytest.approx(risks)
        assert curve.area == pytest.approx(np.mean(risks))
        assert curve.coverage.tolist() == pytest.approx([k / 50 for k in range(1, 51)])

    def test_known_curves(self):
        correct = torch.tensor([True, True, False, False])
        best = metrics.risk_coverage(torch.tensor([4.0, 3.0, 2.0, 1.0]), correct)
        assert best.risk.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
        worst = metrics.risk_coverage(torch.tensor([1.0, 2.0, 3.0, 4.0]), correct)
        assert worst.risk.tolist() == pytest.approx([1, 1, 2 / 3, 1 / 2])
        assert best.area < worst.area

    def test_ties_are_the_mean_over_orders(self):
        from itertools import permutations

        confidence, correct = torch.tensor([0.9, 0.5, 0.5, 0.5]), torch.tensor([True, True, False, False])
        risks = []
        for order in permutations([1, 2, 3]):
            broken = correct[[0, *order]]
            risks.append([float((~broken[:k]).double().mean()) for k in range(1, 5)])
        assert metrics.risk_coverage(confidence, correct).risk.tolist() == pytest.approx(np.mean(risks, 0).tolist())

    def test_constant_confidence_has_the_error_rate_everywhere(self):
        curve = metrics.risk_coverage(torch.ones(8), torch.arange(8) < 6)
        assert curve.risk.tolist() == pytest.approx([0.25] * 8)
        assert curve.area == pytest.approx(0.25)


class TestTemperature:
    @pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
    def test_finds_the_minimum(self, true):
        from scipy.optimize import minimize_scalar

        logits = 2 * torch.randn(3000, 10, dtype=torch.float64)
        labels = torch.distributions.Categorical(logits=logits / true).sample()
        fitted = metrics.temperature(logits, labels)
        assert fitted == pytest.approx(true, rel=0.1)
        nll = lambda t: float(nn.functional.cross_entropy(logits / t, labels))  # noqa: E731
        assert fitted == pytest.approx(minimize_scalar(nll, bounds=(0.05, 20), method="bounded").x, rel=1e-4)

    def test_log_probabilities_serve_as_logits(self):
        logits, labels = torch.randn(200, 5), torch.randint(0, 5, (200,))
        logits[torch.arange(200), labels] += 1
        assert metrics.temperature(logits, labels) == pytest.approx(
            metrics.temperature(logits.log_softmax(1), labels), rel=1e-5
        )

    def test_scaling_the_logits_scales_the_temperature(self):
        logits, labels = torch.randn(500, 5), torch.randint(0, 5, (500,))
        logits[torch.arange(500), labels] += 1
        assert metrics.temperature(5 * logits, labels) == pytest.approx(5 * metrics.temperature(logits, labels))

    def test_without_an_optimum_the_end_of_the_range(self):
        right = torch.eye(4)
        assert metrics.temperature(right, torch.arange(4)) == pytest.approx(0.01)
        assert metrics.temperature(right, torch.arange(4).roll(1)) == pytest.approx(100)
        impossible = torch.tensor([[0.0, -math.inf]])
        assert metrics.temperature(impossible, torch.tensor([1])) == pytest.approx(100)

    def test_equal_logits_say_nothing(self):
        assert 0.01 <= metrics.temperature(torch.zeros(4, 3), torch.zeros(4)) <= 100


def test_flops_of_a_linear_and_a_convolution():
    with torch.no_grad():
        assert metrics.flops(nn.Linear(30, 20), torch.zeros(8, 30)) == 2 * 8 * 30 * 20
        assert metrics.flops(nn.Conv2d(3, 5, 3), torch.zeros(2, 3, 10, 10)) == 2 * 2 * 5 * 64 * 27


def test_metrics_import_is_quick():
    heavy = "[m for m in ('torchmetrics', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules]"
    code = f"import sys, torch; before = {heavy}; import pocketbayes.inference.metrics; assert {heavy} == before"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestAbstention:
    def test_against_a_loop(self):
        torch.manual_seed(3)
        uncertainty = torch.rand(200).mul(20).round()
        correct = torch.rand(200) > uncertainty / 40
        for target in (0.0, 0.02, 0.1, 0.2, 0.9):
            allowed = [t for t in uncertainty.unique() if (~correct[uncertainty <= t]).double().mean() <= target]
            if not allowed:
                continue
            found = metrics.abstention(uncertainty, correct, target)
            answered = uncertainty <= max(allowed)
            assert torch.equal(uncertainty <= found.threshold, answered)
            assert found.coverage == pytest.approx(float(answered.double().mean()))
            assert found.risk == pytest.approx(float((~correct[answered]).double().mean()))
            assert found.risk <= target

    def test_by_hand(self):
        right = torch.tensor([1, 1, 0, 1, 0])
        found = metrics.abstention(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), right, 0.25)
        assert (found.threshold, found.coverage, found.risk) == (pytest.approx(0.45), 0.8, 0.25)
        assert metrics.abstention(torch.arange(5.0), torch.ones(5), 0.0).coverage == 1

    def test_abstention_threshold_stands_off_both_neighbours(self):
        scores = torch.tensor([0.1, 0.3, 0.4])
        low, all_of_them = (metrics.abstention(scores, torch.tensor(right), 0.0) for right in ([1, 1, 0], [1, 1, 1]))
        assert low.threshold == pytest.approx(0.35)
        assert all_of_them.threshold > 0.4001
        close = torch.tensor([1.0, 1.0 + 2**-23])
        assert metrics.abstention(close, torch.tensor([1, 0]), 0.0).threshold == 1.0

    def test_ties_are_answered_together(self):
        found = metrics.abstention(torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([1, 1, 0, 1]), 0.3)
        assert found.coverage == 1  # the tie alone would be 1 wrong in 3
        found = metrics.abstention(torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([1, 1, 0, 1]), 0.2)
        assert found.coverage == 0.25

    def test_mistakes_are_named(self):
        with pytest.raises(UserError, match=r"even the most certain 2 of 3 predictions have an error rate of 0\.5"):
            metrics.abstention(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1, 0, 1]), 0.1)
        with pytest.raises(UserError, match=r"below 1, not 1\.5"):
            metrics.abstention(torch.ones(2), torch.ones(2), 1.5)
        with pytest.raises(UserError, match="NaN"):
            metrics.abstention(torch.tensor([float("nan")]), torch.ones(1), 0.1)


class TestHumanAgreement:
    def test_by_hand_and_against_torch(self):
        torch.manual_seed(0)
        probs, votes = torch.rand(30, 4).softmax(1), torch.randint(0, 9, (30, 4)) + torch.eye(4)[torch.arange(30) % 4]
        agreement = metrics.HumanAgreement()
        agreement.update(probs[:11], votes[:11])
        agreement.update(probs[11:], votes[11:])
        found = agreement.compute()
        humans = votes / votes.sum(1, keepdim=True)
        assert found["cross_entropy"] == pytest.approx(float(torch.nn.functional.cross_entropy(probs.log(), humans)))
        distance = [0.5 * sum(abs(float(a - b)) for a, b in zip(p, h, strict=True)) for p, h in zip(probs, humans)]
        assert found["total_variation"] == pytest.approx(sum(distance) / 30, rel=1e-6)

    def test_the_people_themselves_are_the_best_prediction(self):
        humans = torch.tensor([[0.5, 0.5, 0], [1.0, 0, 0]])
        agreement = metrics.HumanAgreement()
        agreement.update(humans, humans)
        found = agreement.compute()
        assert found["cross_entropy"] == pytest.approx(found["human_entropy"]) == pytest.approx(math.log(2) / 2)
        assert found["total_variation"] == 0

    def test_mistakes_are_named(self):
        with pytest.raises(UserError, match=r"\(n, classes\)"):
            metrics.HumanAgreement().update(torch.ones(2, 3) / 3, torch.ones(2))
        with pytest.raises(UserError, match="nor all 0"):
            metrics.HumanAgreement().update(torch.ones(1, 3) / 3, torch.zeros(1, 3))


def test_dee_reads_the_curve_of_independent_networks() -> None:
    curve = [0.25, 0.22, 0.20, 0.205, 0.19]
    assert metrics.dee(0.25, curve) == metrics.dee(0.3, curve) == 1
    assert metrics.dee(0.21, curve) == pytest.approx(2.5)
    assert metrics.dee(0.195, curve) == pytest.approx(4.5)
    assert metrics.dee(0.1, curve) == math.inf
    with pytest.raises(UserError, match="finite"):
        metrics.dee(math.nan, curve)


def test_calibrated_nll_undoes_a_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=generator)
    labels = torch.distributions.Categorical(logits=logits).sample()
    found = [metrics.calibrated_nll((scale * logits).softmax(1), labels) for scale in (1.0, 4.0)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[0] < float(torch.nn.functional.cross_entropy(4 * logits, labels))
