"""Values per image, and the figures computed from them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pocketbayes.data.dataset import Info, Pictures
from pocketbayes.inference.answer import Prediction
from pocketbayes.inference.metrics import Classification, Reliability, ood_scores, risk_coverage, temperature
from pocketbayes.inference.metrics.accumulators import SMALLEST_PROBABILITY

MOST_LOG_PROBS = 20_000_000
"""Largest number of log-probabilities for fitting a temperature: all of CIFAR, the first 20 000 of ImageNet."""
HISTOGRAM_BINS = 30
CURVE_POINTS = 100
SHOWN_IMAGES = 8
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SCORES = {
    "max probability": "confidence",
    "entropy": "entropy",
    "mutual information": "epistemic",
    "variance": "variance",
}
"""Uncertainty scores by name, and the values that they are computed from."""


class PerImage:
    """A few numbers per image, on the CPU."""

    def __init__(self) -> None:
        self.classes = 0
        self._batches: dict[int, dict[str, Tensor]] = {}
        self._log_probs: dict[int, Tensor] = {}
        self._kept = 0

    def __len__(self) -> int:
        return sum(len(found["entropy"]) for found in self._batches.values())

    def add(self, start: int, prediction: Prediction, labels: Tensor | None = None) -> None:
        """Add a batch of predictions (n, classes)."""
        probs = prediction.mean
        self.classes = probs.shape[1]
        confidence, predicted = probs.max(1)
        spread = prediction.std.gather(1, predicted[:, None])[:, 0]
        found = {
            "confidence": confidence,
            "entropy": prediction.entropy,
            "epistemic": prediction.epistemic,
            "variance": spread.square(),
        }
        if labels is not None:
            chosen = probs.gather(1, labels[:, None])[:, 0]
            found |= {
                "nll": -chosen.clamp(min=SMALLEST_PROBABILITY).log(),
                "brier": probs.square().sum(1) - 2 * chosen + 1,
                "correct": (predicted == labels).to(torch.uint8),
                "predicted": predicted.to(torch.int32),
                "label": labels.to(torch.int32),
            }
            if self._kept < MOST_LOG_PROBS:
                self._log_probs[start] = probs.clamp(min=SMALLEST_PROBABILITY).log().float().cpu()
                self._kept += probs.numel()
        plain = {name: value.float() if value.is_floating_point() else value for name, value in found.items()}
        self._batches[start] = {name: value.detach().cpu() for name, value in plain.items()}

    def merge(self, other: PerImage) -> None:
        """Merge the values of other images of the same data."""
        self.classes = max(self.classes, other.classes)
        self._batches |= other._batches
        self._log_probs |= other._log_probs

    def values(self) -> dict[str, Tensor]:
        """Return all images' values by name, in the order of the data."""
        batches = [found for _, found in sorted(self._batches.items())]
        return {name: torch.cat([found[name] for found in batches]) for name in batches[0]}

    def log_probs(self) -> Tensor:
        """Return the log-probabilities of the first images, (m, classes)."""
        found: list[Tensor] = []
        for _, part in sorted(self._log_probs.items()):  # each process has kept the maximum
            if sum(map(torch.numel, found)) < MOST_LOG_PROBS:
                found.append(part)
        return torch.cat(found)


def scores(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return uncertainties by name, larger meaning less certain."""
    return {name: (-1 if key == "confidence" else 1) * values[key] for name, key in SCORES.items()}


def ood_figures(inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], classes: int) -> dict[str, Any]:
    """Return how well each score separates the two data sets, and histograms of entropies as fractions.

    Scores that are equal for all images, such as the mutual information of a deterministic network, are omitted.
    """
    ins, outs = scores(inside), scores(outside)
    telling = [name for name in ins if torch.cat([ins[name], outs[name]]).unique().numel() > 1]
    edges = torch.linspace(0, float(torch.tensor(float(classes)).log()), HISTOGRAM_BINS + 1)
    fractions = [_fractions(values["entropy"], edges) for values in (inside, outside)]
    return {
        "scores": {name: ood_scores(ins[name], outs[name]) for name in telling},
        "histogram": {"score": "entropy", "edges": edges.tolist(), "inside": fractions[0], "outside": fractions[1]},
        "images": len(outside["entropy"]),
    }


def reliability_figures(found: Reliability) -> dict[str, Any]:
    """Return a reliability diagram as JSON values."""
    return {name: getattr(found, name).tolist() for name in ("confidence", "accuracy", "count")}


def risk_figures(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the risk-coverage curve by maximum probability, thinned to a hundred points, and its exact area."""
    found = risk_coverage(values["confidence"], values["correct"])
    count = len(found.coverage)
    steps = torch.arange(1, CURVE_POINTS + 1) * count
    places = steps.add(CURVE_POINTS - 1).div(CURVE_POINTS, rounding_mode="floor").sub(1).unique()
    return {"coverage": found.coverage[places].tolist(), "risk": found.risk[places].tolist(), "area": found.area}


def temperature_figures(log_probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Fit a temperature on every other image and measure it on the rest, as a baseline without a posterior."""
    fitted, labels = temperature(log_probs[::2], labels[::2].long()), labels.long()
    found: dict[str, Any] = {"value": fitted, "fitted_on": "every other image"}
    for suffix, divisor in (("", fitted), ("_before", 1.0)):
        computed = tempered(log_probs[1::2], labels[1::2], divisor)
        found |= {f"{name}{suffix}": computed[name] for name in ("nll", "ece", "brier")}
    return {**found, "images": len(labels) // 2}


def tempered(log_probs: Tensor, labels: Tensor, temperature: float) -> dict[str, float]:
    """Measure predictions after temperature scaling."""
    measures = Classification(log_probs.shape[1])
    measures.update((log_probs.double() / temperature).softmax(1), labels.long())
    return measures.compute()


def box_figures(values: Mapping[str, Tensor], info: Info | None) -> dict[str, list[float]]:
    """Return quantiles of the confidence for each true class, and its number of images."""
    names = info.class_names if info else None
    found = {}
    for label in values["label"].unique().tolist():
        confidence = values["confidence"][values["label"] == label].double()
        quantiles = confidence.quantile(torch.tensor(QUANTILES, dtype=torch.float64))
        found[names[label] if names else str(label)] = [*quantiles.tolist(), len(confidence)]
    return found


def shown_images(values: Mapping[str, Tensor], source: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the most and least certain images by entropy, with pixels if the data are images."""
    order = values["entropy"].argsort(stable=True).tolist()
    chosen = {"most certain": order[:SHOWN_IMAGES], "least certain": order[::-1][:SHOWN_IMAGES]}
    return {name: [_shown(values, index, source) for index in indices] for name, indices in chosen.items()}


def _shown(values: Mapping[str, Tensor], index: int, source: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"index": index}
    found |= {name: int(values[name][index]) for name in ("label", "predicted")}
    found |= {name: float(values[name][index]) for name in ("confidence", "entropy")}
    picture = _png(source.pixels([index])[0][0]) if isinstance(source, Pictures) else None
    return found if picture is None else {**found, "png": picture}


def _png(pixels: Tensor) -> str | None:
    """Return the base64 text of a PNG; None if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return None
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _fractions(values: Tensor, edges: Tensor) -> list[float]:
    counts = torch.histogram(values.clamp(float(edges[0]), float(edges[-1])).float(), edges.float()).hist
    found: list[float] = (counts / len(values)).tolist()
    return found
