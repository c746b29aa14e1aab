"""Measure stage 2 of 2DGBNN: time and memory by number of weights and Gaussians, and the fit against scikit-learn's.

python benchmarks/plane.py [--huge] [--sizes 100000,1000000,11200000] [--gaussians 64,2000,6000] [--skip-peer]

Each size runs in a separate process, so that peak memory is measured per size. CPU seconds, wall-clock seconds and the
machine's load are recorded; on a shared machine, CPU seconds divided by cores approximate the time of an idle one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from measure import forget_peak, memory, write_result
from pocketbayes import plane

# Fan-in and share of the weights of ResNet-18's layers, roughly.
LAYERS = (
    (27, 0.0002),
    (576, 0.013),
    (576, 0.013),
    (1152, 0.04),
    (1152, 0.05),
    (2304, 0.13),
    (2304, 0.16),
    (4608, 0.59),
)
HUGE = 86_000_000
PEER_POINTS = 200_000
# scikit-learn's mixture takes time proportional to points times Gaussians: hours for 2000.
PEER_MIXTURES = (64, 200)
PEER_KMEANS = (64, 200, 2000)


def cloud(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return means, stds and gradients like a mean-field ResNet-18's: each layer has its own scale and heavy tails."""
    generator = torch.Generator().manual_seed(0)
    mean, std, gradient = torch.empty(n), torch.empty(n), torch.empty(n)
    total = sum(share for _, share in LAYERS)
    start = 0
    for number, (fan_in, share) in enumerate(LAYERS):
        stop = n if number == len(LAYERS) - 1 else start + max(1, round(n * share / total))
        part = slice(start, stop)
        scale = 0.6 * (2 / fan_in) ** 0.5
        tail = 0.5 * torch.randn(stop - start, generator=generator)
        mean[part] = scale * torch.randn(stop - start, generator=generator) * tail.exp()
        std[part] = 0.1 * scale * (0.4 * torch.randn(stop - start, generator=generator)).exp()
        gradient[part] = 1e-3 * torch.randn(stop - start, generator=generator)
        start = stop
    return mean, std, gradient


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_survey(n: int, k: int) -> dict[str, Any]:
    """Run one survey in this process; return seconds by step, additional memory, and the result."""
    mean, std, gradient = cloud(n)
    forget_peak()
    before, cpu, start = memory(), cpu_seconds(), time.perf_counter()
    found = plane.survey(mean, std, gradient, plane.PlaneSettings(k=k))
    seconds = time.perf_counter() - start
    return {
        "weights": n,
        "k": k,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds() - cpu, 2),
        "load_average": round(os.getloadavg()[0], 1),
        "megabytes_above_the_weights": round((memory("VmHWM") - before) / 1e6),
        "steps": {name: round(value, 2) for name, value in found.timings.items()},
        "gaussians_before_merging": found.k_before_merging,
        "gaussians": len(found.mixture),
        "outliers": {
            "value": len(found.value_outliers),
            "gradient": len(found.gradient_outliers),
            "small cluster": len(found.small_outliers),
        },
        "ellipse_points": len(found.ellipses),
        "index_bits": round(found.index_bits, 3),
    }


def surveys(cases: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the results of `measure_survey` for every (weights, Gaussians), each from a separate process."""
    found = []
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(measure_survey, case))
        print(found[-1], flush=True)
    return found


def timed(action: Any) -> tuple[Any, dict[str, float]]:
    """Return the result of an action and its cost."""
    cpu, start = cpu_seconds(), time.perf_counter()
    result = action()
    return result, {"seconds": round(time.perf_counter() - start, 2), "cpu_seconds": round(cpu_seconds() - cpu, 2)}


def peer_mixture(points: Tensor, k: int) -> dict[str, Any]:
    """Return the mean log-likelihood of the same points under both fits."""
    from sklearn.mixture import GaussianMixture

    ours, our_time = timed(lambda: plane.fit_mixture(points, k))
    peer, peer_time = timed(lambda: GaussianMixture(k, reg_covar=1e-12, random_state=0).fit(points.double().numpy()))
    likelihood, theirs = float(ours.log_density(points).mean()), float(peer.score(points.double().numpy()))
    return {
        "k": k,
        "log_likelihood": likelihood,
        "log_likelihood_scikit_learn": theirs,
        "difference_percent": round(100 * (likelihood - theirs) / abs(theirs), 3),
        "time": our_time,
        "time_scikit_learn": peer_time,
        "times_faster": round(peer_time["seconds"] / our_time["seconds"], 1),
    }


def peer_kmeans(points: Tensor, k: int) -> dict[str, Any]:
    """Return the mean squared distance of the same points to the nearest centre of both fits."""
    from sklearn.cluster import KMeans

    def ours() -> Tensor:
        bins = plane.mixture.default_bins(k)
        weight, mean, _ = plane.make_histogram(points, plane.make_grid(points, bins)).cells()
        return plane.kmeans(weight, mean, k)

    centres, our_time = timed(ours)
    peer, peer_time = timed(lambda: KMeans(k, n_init=1, random_state=0).fit(points.double().numpy()))
    error = float(plane.centres.nearest(points.double(), centres)[0].mean())
    theirs = float(peer.inertia_) / len(points)
    return {
        "k": k,
        "quantisation_error": error,
        "quantisation_error_scikit_learn": theirs,
        "difference_percent": round(100 * (error - theirs) / theirs, 3),
        "time": our_time,
        "time_scikit_learn": peer_time,
        "times_faster": round(peer_time["seconds"] / our_time["seconds"], 1),
    }


def peer_points() -> Tensor:
    """Return points without outliers by value, for both fits."""
    mean, std, _ = cloud(PEER_POINTS)
    return torch.stack((mean, std), 1)[mean.abs() <= 0.2]


def main() -> None:
    """Measure, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="100000,1000000,11200000")
    parser.add_argument("--gaussians", default="64,2000,6000")
    parser.add_argument("--huge", action="store_true", help=f"also {HUGE} weights with 2000 Gaussians")
    parser.add_argument("--skip-peer", action="store_true", help="leave scikit-learn out")
    arguments = parser.parse_args()
    cases = [(int(n), int(k)) for n in arguments.sizes.split(",") for k in arguments.gaussians.split(",")]
    if arguments.huge:
        cases.append((HUGE, 2000))
    result: dict[str, Any] = {"surveys": surveys(cases)}
    if not arguments.skip_peer:
        points = peer_points()
        result["scikit_learn"] = {"points": len(points), "kmeans": [], "mixture": []}
        for name, compare, numbers in (("kmeans", peer_kmeans, PEER_KMEANS), ("mixture", peer_mixture, PEER_MIXTURES)):
            for k in numbers:
                result["scikit_learn"][name].append(compare(points, k))
                print(name, result["scikit_learn"][name][-1], flush=True)
    print(write_result("plane", result))


if __name__ == "__main__":
    main()
