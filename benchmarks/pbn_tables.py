"""Tables of the PBN page, for tables.py."""

from __future__ import annotations

from table_parts import Result, Table, Tables, grouped, mean, spread

COSTS = ("passes", "parameters", "memory")


def mnist(result: Result) -> Table:
    rows = []
    for name, group in grouped(result["rows"]).items():
        columns = (("accuracy", 2, 100), ("nll", 4, 1), ("brier", 4, 1), ("auroc by entropy", 3, 1))
        row = [
            spread([scale * r[key] for r in group], digits) if key in group[0] else "" for key, digits, scale in columns
        ]
        foreign = "entropy out" in group[0]  # measured with Fashion-MNIST
        entropy = [f"{mean(group, f'entropy {side}'):.2f}" if foreign else "" for side in ("in", "out")]
        rows.append([name, *row, *entropy, f"{group[0]['trainable']:,}", str(len(group))])
    head = ["", "accuracy", "NLL", "Brier", "AUROC", "entropy, MNIST", "entropy, Fashion", "trained values", "seeds"]
    return head, rows


def rotation(result: Result) -> Table:
    groups = grouped(result["rows"])
    angles = list(next(iter(groups.values()))[0]["rotated"])
    shown = [angle for angle in angles if int(angle) % 30 == 0]
    rows = [
        [name, *(f"{mean([row['rotated'][angle] for row in group], 'brier'):.2f}" for angle in shown)]
        for name, group in groups.items()
    ]
    return ["Brier at", *(f"{angle}°" for angle in shown)], rows


def uci(result: Result, key: str) -> Table:
    groups = grouped(result["rows"], ", split")
    methods = list(dict.fromkeys(name.split(", ")[1] for name in groups))
    sets = list(dict.fromkeys(name.split(", ")[0] for name in groups))
    digits = {"naval-propulsion-plant": 5} if key == "rmse" else {}
    rows = []
    for data in sets:
        found = [groups.get(f"{data}, {method}", []) for method in methods]
        cells = [spread([r[key] for r in g], digits.get(data, 3), error=True) if g else "" for g in found]
        rows.append([data, *cells, str(len(found[0]))])
    return ["", *methods, "splits"], rows


def cifar(result: Result) -> Table:
    rows = []
    for name, row in result["rows"].items():
        if "accuracy" not in row:
            continue
        clean = [f"{100 * row['accuracy']:.2f}", *(f"{row[key]:.3f}" for key in ("nll", "ece", "brier"))]
        shifted = [
            f"{scale * mean(list(row['corrupted'].values()), key):.{digits}f}"
            for key, scale, digits in (("accuracy", 100, 1), ("nll", 1, 2), ("ece", 1, 3))
        ]
        rows.append([name, *clean, *shifted, f"{row['trainable']:,}"])
    head = ["", "accuracy", "NLL", "ECE", "Brier"]
    return [*head, "corrupted: accuracy", "NLL", "ECE", "trained values"], rows


def camvid(result: Result) -> Table:
    base = result["rows"].get("deterministic", {}).get("miou")
    rows = [
        [
            name,
            f"{100 * row['miou']:.1f}",
            f"{100 * row['miou'] / base:.0f} %" if base else "",
            f"{100 * row['accuracy']:.1f}",
            *(f"{row[key]:.3f}" for key in ("nll", "ece")),
            f"{row['trainable']:,}",
        ]
        for name, row in result["rows"].items()
    ]
    return ["", "mean IoU", "relative to deterministic", "pixel accuracy", "NLL", "ECE", "trained values"], rows


def cost(result: Result) -> Table:
    rows = []
    for name, row in result["rows"].items():
        model, label, samples = name.split(", ")
        pairs = [f"{row[f'{what}, {who}']:.2f}" for what in COSTS for who in ("paper", "measured")]
        rows.append([model, label, samples.split()[0], *pairs, f"{row['peak of a step, measured']:.2f}"])
    head = [f"{what}, {who}" for what in COSTS for who in ("paper", "measured")]
    return ["", "", "samples", *head, "peak of a training step"], rows


def weights(result: Result) -> Table:
    rows = [
        [
            name.removeprefix("variance, "),
            f"{row['predicted over sampled std']:.2f}",
            f"{row['spearman']:.3f}",
            f"{row['mean std of random weights']:.4f}",
            *(f"{100 * value:.1f}" for value in row["fractions"].values()),
        ]
        for name, row in result["rows"].items()
        if name.startswith("variance")
    ]
    return [
        "",
        "predicted / sampled std",
        "rank correlation",
        "mean std of a random weight",
        "layer 1, % random",
        "layer 2",
        "layer 3",
    ], rows


def speed(result: Result) -> Table:
    names = ("deterministic", "PBN 1%", "PBN 5%", "VI")
    rows = [[model, *(f"{row[name]:.2f}" for name in names)] for model, row in result["rows"].items()]
    return ["step time relative to deterministic", *names], rows


def cubic(result: Result) -> Table:
    rows = [
        [name, f"{row['epistemic inside']:.2f}", f"{row['epistemic outside']:.2f}"]
        for name, row in result["rows"].items()
        if "epistemic inside" in row
    ]
    return ["std of the mean, without noise", "inside [-4, 4]", "outside"], rows


TABLES: Tables = {
    "pbn-mnist": ("pbn-mnist", mnist),
    "pbn-rotation": ("pbn-mnist", rotation),
    "pbn-uci-rmse": ("pbn-uci", lambda result: uci(result, "rmse")),
    "pbn-uci-likelihood": ("pbn-uci", lambda result: uci(result, "log_likelihood")),
    "pbn-cubic": ("pbn-cubic", cubic),
    "pbn-cifar": ("pbn-cifar", cifar),
    "pbn-camvid": ("pbn-camvid", camvid),
    "pbn-cost": ("pbn-cost", cost),
    "pbn-weights": ("pbn-weights", weights),
    "pbn-speed": ("pbn-speed", speed),
}
