"""The table of docs/papers.md: the claims of the four papers, compared with our result files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from table_parts import Group, Table, Tables, grouped, mean


class Results(dict[str, Any]):
    """The documents in results/ by name, and the number of seeds of each row that was read."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        super().__init__(documents)
        self.seeds: list[int] = []


class MissingError(Exception):
    """Raised for a figure that has not been measured yet."""


def rows(results: Results, file: str, name: str) -> Group:
    """Return the rows of a name over its seeds."""
    found = results.get(file, {}).get("rows", {})
    group = grouped(found).get(name)
    if not group:
        raise MissingError(f"{file}: {name}")
    results.seeds.append(len(group))
    return group


def figure(results: Results, file: str, name: str, key: str) -> float:
    """Return a metric of a row, averaged over its seeds."""
    group = rows(results, file, name)
    if key not in group[0]:
        raise MissingError(key)
    return mean(group, key)


def accuracy(results: Results, file: str, name: str) -> float:
    return 100 * figure(results, file, name, "accuracy")


def pruned(results: Results, name: str, fraction: float) -> float:
    """Return the accuracy of a network of vdp-scratch, pruned by size."""
    group = rows(results, "vdp-scratch", name)
    return 100 * sum(_at(row["pruning"]["magnitude"], "pruned", fraction) for row in group) / len(group)


def noisy(results: Results, name: str) -> float:
    group = rows(results, "vdp-scratch", name)
    return 100 * sum(_at(row["noise"], "db", -6.0) for row in group) / len(group)


def _at(curve: list[dict[str, float]], key: str, value: float) -> float:
    return next(point["accuracy"] for point in curve if point[key] == value)


ENOUGH_SEEDS = 3
CLEAR_NLL = 0.001
"""The smallest difference in calibrated NLL that counts."""
Answer = tuple[str, bool]
"""Our figures, and whether the claim held."""
Claim = tuple[str, str, Callable[[Results], Answer], str]
"""The claim, the paper's figures, a function that computes ours, and the difference in setting."""


def sharing_accuracy(r: Results) -> Answer:
    plain, ours = accuracy(r, "weight-sharing", "deterministic"), accuracy(r, "weight-sharing", "main")
    return f"{plain:.2f} and {ours:.2f}", ours > plain - 1


def sharing_nll(r: Results) -> Answer:
    plain, ours = (figure(r, "weight-sharing", name, "nll") for name in ("deterministic", "main"))
    return f"{plain:.3f} and {ours:.3f}", ours < plain


def sharing_ellipses(r: Results) -> Answer:
    both, none = (figure(r, "learned-plane", name, "calibrated nll") for name in ("whole", "no ellipses"))
    return f"calibrated NLL {both:.4f} with, {none:.4f} without", none - both > CLEAR_NLL


def sharing_outliers(r: Results) -> Answer:
    both, none = (figure(r, "learned-plane", name, "calibrated nll") for name in ("whole", "no outliers"))
    return f"calibrated NLL {both:.4f} with, {none:.4f} without", none - both > CLEAR_NLL


def sharing_merging(r: Results) -> Answer:
    both, none = (figure(r, "learned-plane", name, "calibrated nll") for name in ("whole", "no merging"))
    return f"calibrated NLL {none:.4f} before, {both:.4f} after", none - both > CLEAR_NLL


def sharing_bits(r: Results) -> Answer:
    eight, one = (figure(r, "learned-plane", f"sigma bits {bits}", "nll") for bits in (8, 1))
    return f"NLL {eight:.4f} at 8 bits, {one:.4f} at 1", abs(eight - one) < 0.01


def sharing_mnist(r: Results) -> Answer:
    found = r.get("weight-sharing-mnist", {}).get("rows", {})
    if not found:
        raise MissingError("weight-sharing-mnist")
    ours = 100 * sum(row["accuracy"] for row in found.values()) / len(found)
    size = sum(row["bytes"] for row in found.values()) / len(found) / 1e6
    return f"{ours:.2f}, {size:.3f} MB", ours > 99


def sharing_ood(r: Results) -> Answer:
    plain, ours = (
        r["weight-sharing"]["rows"][name]["ood"]["svhn"]["max probability"]["auroc"]
        for name in ("deterministic", "main, seed 0")
    )
    return f"{ours:.3f}; the deterministic network {plain:.3f}", ours > plain


def sparse_accuracy(r: Results) -> Answer:
    dense, ours = (accuracy(r, "wide-wide", name) for name in ("dense VI", "SSVI, density 0.05"))
    return f"{dense:.2f} and {ours:.2f} (5 %)", ours > dense - 0.5


def sparse_tenth(r: Results) -> Answer:
    dense, ours = (accuracy(r, "wide-wide", name) for name in ("dense VI", "SSVI, density 0.1"))
    return f"{dense:.2f} and {ours:.2f} (10 %)", ours > dense - 0.5


def sparse_resnet(r: Results) -> Answer:
    dense, ours = (accuracy(r, "ssvi-cifar10", name) for name in ("dense VI", "SSVI, density 0.1"))
    return f"{dense:.2f} and {ours:.2f} (10 %)", ours > dense - 1


def sparse_rigl(r: Results) -> Answer:
    keys = ("calibrated nll", "auroc entropy")
    rigl, ours = ([figure(r, "wide-wide", f"{name}, density 0.05", key) for key in keys] for name in ("RigL", "SSVI"))
    return f"calibrated NLL {ours[0]:.4f} and {rigl[0]:.4f}, AUROC {ours[1]:.3f} and {rigl[1]:.3f}", (
        ours[0] < rigl[0] and ours[1] > rigl[1]
    )


def sparse_small(r: Results) -> Answer:
    small, ours = (
        figure(r, "wide-wide", name, "calibrated nll") for name in ("small dense VI, 0.05", "SSVI, density 0.05")
    )
    return f"calibrated NLL {ours:.4f} wide and sparse, {small:.4f} small and dense", ours < small


def sparse_state(r: Results) -> Answer:
    dense, ours = (figure(r, "wide-wide", name, "state bytes") for name in ("dense VI", "SSVI, density 0.05"))
    return f"{ours / dense:.3f} of dense VI's state", ours / dense < 0.12


def sparse_flops(r: Results) -> Answer:
    dense, ours = (
        figure(r, "ssvi-cifar10", name, "training FLOPs, executed") for name in ("dense VI", "SSVI, density 0.1")
    )
    return f"executed {ours / dense:.2f}x on a convolutional network", ours / dense < 0.2


def sparse_time(r: Results) -> Answer:
    found = r["sparse"]["times"]["mlp 1200-400, density 0.05"]["training step, times faster"]["SSVI, auto"]
    return f"{found:.1f} times faster", found > 2


def partial_ensemble(r: Results) -> Answer:
    ensemble, ours = (figure(r, "pbn-mnist", name, "auroc by entropy") for name in ("ensemble", "PBN 10%"))
    return f"AUROC {ours:.3f}, ensemble {ensemble:.3f}", ours > ensemble - 0.02


def partial_selection(r: Results) -> Answer:
    keys = ("auroc entropy", "calibrated nll")
    gradient, random = (
        [figure(r, "selection", f"{rule}, rate 0.05", key) for key in keys] for rule in ("gradient", "random")
    )
    text = f"AUROC {gradient[0]:.3f}, at random {random[0]:.3f}; calibrated NLL {gradient[1]:.4f} and {random[1]:.4f}"
    return text, gradient[0] > random[0] and gradient[1] < random[1]


def partial_values(r: Results) -> Answer:
    values = [r["pbn-cost"]["rows"][f"lenet300, {n}, 5 samples"]["parameters, measured"] for n in ("PBN 5%", "VI")]
    five = r["pbn-cost"]["rows"]["lenet300, 5-ensemble, 5 samples"]["parameters, measured"]
    fewer = [100 * (1 - values[0] / other) for other in (values[1], five)]
    return f"{fewer[0]:.0f} % and {fewer[1]:.0f} % fewer (rate 5 %)", fewer[0] > 40 and fewer[1] > 75


def partial_camvid(r: Results) -> Answer:
    names = ("PBN 1%", "VI", "deterministic", "deterministic, trained on")
    ours, dense, plain, longer = (figure(r, "pbn-camvid", name, "miou") for name in names)
    text = f"{100 * ours / plain:.0f} % (of a network trained equally long {100 * ours / longer:.0f} %), VI "
    return text + f"{100 * dense / plain:.0f} %", ours > 0.95 * longer and dense < 0.8 * plain


def moments_anova(r: Results) -> Answer:
    tests = r.get("vdp-scratch", {}).get("rows", {}).get("tests")
    if not tests:
        raise MissingError("tests")
    return f"p = {tests['anova']['p']:.3g}, {tests['anova']['seeds']} seeds", tests["anova"]["p"] > 0.01


def moments_pruning(r: Results) -> Answer:
    plain, ours = (pruned(r, name, 0.9) for name in ("map", "vdp, cross-entropy"))
    start = pruned(r, "vdp, cross-entropy", 0.0)
    return f"{start:.1f} -> {ours:.1f} at 90 % (map {plain:.1f})", ours > start - 2.5 and ours > plain


def moments_noise(r: Results) -> Answer:
    plain, ours = (noisy(r, name) for name in ("map", "vdp, cross-entropy"))
    return f"{ours:.1f}, map {plain:.1f}", ours > plain


def moments_control(r: Results) -> Answer:
    ours, control = (
        mean([row["noise"][-1] for row in rows(r, "vdp-scratch", name)], "relative variance")
        for name in ("vdp, cross-entropy", "map + constant std")
    )
    return f"falls to {ours:.2f} from -6 to 20 dB; map + constant std to {control:.2f}", ours < control - 0.1


def moments_cost(r: Results) -> Answer:
    times = r["propagation"]["time"]["training step, lenet5, batch 16"]
    sizes = r["propagation"]["memory"]["training step, lenet5, batch 16"]["ratio"]
    speed, memory = times["vdp-full"] / times["vdp"], sizes["vdp-full"] / sizes["vdp"]
    return f"{speed:.0f} times faster, {memory:.0f} times smaller", speed > 4 and memory > 10


CLAIMS: dict[str, list[Claim]] = {
    "2DGBNN": [
        ("keeps the accuracy", "ResNet-20: 91.84 -> 91.04", sharing_accuracy, "100 steps per stage, K = 64"),
        ("NLL near the deterministic network's", "ResNet-20: .246 -> .303", sharing_nll, "without temperature scaling"),
        ("outliers matter", "ResNet-20: NLL .265, without .308", sharing_outliers, "LeNet-300-100, learned stds"),
        ("ellipses matter", "ResNet-20: NLL .265, without .304", sharing_ellipses, "LeNet-300-100, learned stds"),
        ("merging helps", "ResNet-20: NLL .379 -> .307", sharing_merging, "LeNet-300-100, learned stds"),
        ("stds need few bits", "MNIST INT8: NLL .020 (4 bits), .027 (1)", sharing_bits, "LeNet-300-100, learned stds"),
        ("small and accurate on MNIST", "ResNet-20: 99.52, .403 MB", sharing_mnist, "LeNet-5"),
        ("detects SVHN", "ResNet-18: AUROC .887", sharing_ood, "ResNet-20"),
    ],
    "SSVI": [
        ("5 % of the weights suffice", "ResNet-18: 95.13, 93.74", sparse_accuracy, "MLP 1200-400, 1200 steps"),
        ("10 % of the weights suffice", "ResNet-18: 95.13, 94.58", sparse_tenth, "MLP 1200-400, 1200 steps"),
        ("10 % suffice, small network", "ResNet-18: 95.13, 94.58", sparse_resnet, "0.17 million weights, 30 epochs"),
        ("better than RigL", "accuracy at every density", sparse_rigl, "MLP 1200-400, density 5 %"),
        ("wide and sparse beats small and dense", "not tested", sparse_small, "same number of weights"),
        ("memory falls with the density", "0.05x values", sparse_state, "bytes of the training state, Adam"),
        ("training FLOPs fall with the density", "0.10x", sparse_flops, "convolutions stay dense on a CPU"),
        ("a training step gets faster", "not measured", sparse_time, "MLP 1200-400, 5 %, one CPU thread, dense VI"),
    ],
    "PBN": [
        ("10 % random: OOD detection like an ensemble", "on par, MNIST", partial_ensemble, "4 + 4 epochs, 3 seeds"),
        ("gradients select better than chance", "not compared", partial_selection, "LeNet-5, 5 % random, learned stds"),
        ("fewer values than VI and than five networks", "45 % and 80 %", partial_values, "counted"),
        ("1 % keeps the IoU where VI loses it", "within 5 %, VI -40 %", partial_camvid, "CamVid, small UNet, 1 seed"),
    ],
    "VDP++": [
        ("same accuracy as the deterministic network", "ANOVA, alpha .01", moments_anova, "LeNet-5, 6000 images"),
        ("90 % can be pruned", "no loss below 90 %", moments_pruning, "LeNet-5 from scratch, smallest weights"),
        ("robust at -6 dB", "every Bayesian network beats map", moments_noise, "LeNet-5"),
        ("the variance indicates noise", "falls with the SNR", moments_control, "compared with constant stds"),
        ("cheaper than full covariance", "4 times faster, 10 times smaller", moments_cost, "LeNet-5, batch 16"),
    ],
}


def papers(documents: Mapping[str, Any]) -> Table:
    lines = []
    for paper, claims in CLAIMS.items():
        for claim, theirs, ours, differs in claims:
            results = Results(documents)
            try:
                text, held = ours(results)
                verdict = "yes" if held else "no"
            except (MissingError, KeyError):
                text, verdict = "not measured", ""
            seeds = str(min(results.seeds)) if results.seeds and verdict else ""
            if seeds and int(seeds) < ENOUGH_SEEDS:
                verdict += " (few seeds)"
            lines.append([paper, claim, theirs, text, differs, seeds, verdict])
    return ["paper", "claim", "paper's figures", "ours", "our setting", "seeds", "held"], lines


TABLES: Tables = {"papers": ("*", papers)}
