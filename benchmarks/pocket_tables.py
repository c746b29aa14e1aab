"""Tables of pocket.json, pocket-codes.json, pocket-curve.json, pocket-scale.json and trellis.json, for tables.py."""

from __future__ import annotations

from typing import Any

from table_parts import Result, Table, Tables, mean, spread

KEYS = (("nll", ".4f"), ("bytes", ","))


def coarseness(result: Result) -> Table:
    found = result["coarseness"]
    levels = [name.removeprefix("means ") for name in found if name.startswith("means")]
    rows = [
        [level, *(f"{found[f'{part} {level}'][key]:{form}}" for part in ("means", "stds") for key, form in KEYS)]
        for level in levels
    ]
    return ["precision", "means: NLL", "bytes", "stds: NLL", "bytes"], rows


def sizes(result: Result) -> Table:
    levels = ("lossless", "bfloat16", "int8")
    rows = [
        [name, *(f"{row['bytes'][level]:,}" for level in levels)]
        for name, row in result["sizes"].items()
        if isinstance(row.get("bytes"), dict)
    ]
    plain = result["sizes"]["torch.save of the deterministic network"]["bytes"]
    return ["", *levels], [["torch.save, deterministic", f"{plain:,}", "", ""], *rows]


def curve(result: Result) -> Table:
    rows = sorted(result["rows"].items(), key=lambda item: item[1]["bytes"])
    return ["", "bytes", "bits per weight", "accuracy", "NLL", "ECE", "Gaussians", "samples"], [
        [
            name,
            f"{row['bytes']:,}",
            f"{row['bits']:.2f}" if "bits" in row else "",
            f"{100 * row['accuracy']:.2f}",
            f"{row['nll']:.3f}",
            f"{row['ece']:.3f}",
            str(row.get("gaussians", "")),
            str(row.get("samples", 1)),
        ]
        for name, row in rows
    ]


def codes(result: Result) -> Table:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for name, row in result["rows"].items():
        what = name.split(", ", 1)[1]
        key = (
            f"at most {row['budget'] / 1000:g} kB" + (f", {row['steps']} steps" if row["steps"] else "")
            if "budget" in row
            else what
        )
        groups.setdefault((row["network"], key), []).append(row)
    head = ["network", "", "bytes", "bits per weight", "accuracy", "NLL", "calibrated NLL", "CPU seconds", "seeds"]
    return head, [
        [
            network,
            what,
            f"{mean(rows, 'bytes'):,.0f}",
            f"{mean(rows, 'bits'):.2f}" if "bits" in rows[0] else "",
            spread([100 * row["accuracy"] for row in rows], 2),
            f"{mean(rows, 'nll'):.3f}",
            f"{mean(rows, 'calibrated_nll'):.3f}",
            f"{max(row['cpu_seconds'] for row in rows):.0f}" if "cpu_seconds" in rows[0] else "",
            str(len(rows)) if "seed" in rows[0] else "",
        ]
        for (network, what), rows in sorted(groups.items(), key=lambda item: (item[0][0], mean(item[1], "bytes")))
    ]


def scale(result: Result) -> Table:
    """Return the sizes, accuracies and times of large networks."""
    head = ["", "weights", "bytes", "bits per weight", "accuracy", "NLL", "bits: depthwise", "others", "CPU seconds"]

    def cells(row: dict[str, Any]) -> list[str]:
        kinds = row.get("bits_by_kind", {})
        return [
            f"{row['weights']:,}",
            f"{row['bytes']:,}" if "bytes" in row else "",
            f"{row['bits']:.2f}" if "bits" in row else "",
            f"{100 * row['accuracy']:.1f}" if "accuracy" in row else "",
            f"{row['nll']:.2f}" if "nll" in row else "",
            *(f"{kinds[kind]:.2f}" if kind in kinds else "" for kind in ("depthwise", "others")),
            f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else "",
        ]

    return head, [[name.replace("as it was", "uncompressed"), *cells(row)] for name, row in result["rows"].items()]


def adapt(result: Result) -> Table:
    """Return the times and sizes of `pocketbayes adapt`."""
    rows = [
        [
            f"`{name}`",
            *(f"{row[key]:,}" for key in ("weights", "classes", "images")),
            f"{row['cpu_seconds']:.0f}",
            f"{row['peak_bytes'] / 1e9:.1f}",
            *(f"{size:,}" for size in (row["plain_bytes"], *row["bytes"].values())),
        ]
        for name, row in result.items()
        if name != "environment"
    ]
    head = ["", "weights", "classes", "images", "CPU seconds", "peak, GB", "bytes before", "file", "ONNX"]
    return head, rows


def trellis(result: Result) -> Table:
    """Return codes on a line and on a trellis, by size."""
    rows = [(name, row) for name, row in result["rows"].items() if "divergence" in row]
    rows.sort(key=lambda item: (item[0].split(",")[0], -item[1]["bytes"]))
    head = ["codes on a", "bytes", "divergence", "accuracy", "CPU seconds"]
    return head, [
        [
            name.split(",")[0],
            f"{row['bytes']:,}",
            f"{row['divergence']:.4f}",
            f"{100 * row['accuracy']:.2f}",
            f"{row['cpu_seconds']:.1f}",
        ]
        for name, row in rows
    ]


def trellis_normal(result: Result) -> Table:
    """Return the bits that a trellis saves for normal numbers."""
    rows = [(name, row) for name, row in result["rows"].items() if name.startswith("normal")]
    return ["bits on a line", "bits on a trellis", "saved at equal error"], [
        [f"{row['line']['bits']:.2f}", f"{row['trellis']['bits']:.2f}", f"{row['bits_saved_at_equal_error']:.2f}"]
        for _, row in rows
    ]


TABLES: Tables = {
    "trellis": ("trellis", trellis),
    "trellis-normal": ("trellis", trellis_normal),
    "adapt": ("adapt", adapt),
    "pocket-codes": ("pocket-codes", codes),
    "pocket-scale": ("pocket-scale", scale),
    "pocket-coarseness": ("pocket", coarseness),
    "pocket-sizes": ("pocket", sizes),
    "pocket-curve": ("pocket-curve", curve),
}
