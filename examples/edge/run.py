"""Ask an exported network on a small machine: numpy and onnxruntime, no PyTorch, no pocketbayes.

python run.py net.onnx                 # random inputs: size, load time, latency
python run.py net.onnx --x images.npy  # answers for inputs (n, ...): bytes, or numbers as before normalisation
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

UNITS = {"target_mean": 0.0, "target_std": 1.0}
"""What takes the answers of a regression back to the original units, and what stands for it where it is not known."""


def load(path: Path, threads: int) -> tuple[onnxruntime.InferenceSession, dict]:
    """The graph, ready to run, and what the exporter wrote beside it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # else it remarks that samples and seed have defaults
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, json.loads(session.get_modelmeta().custom_metadata_map["pocketbayes"])


def normalised(x: np.ndarray, data: dict | None) -> np.ndarray:
    """Inputs as the network saw them in training: pixels from 0 to 1, then less the mean, over the std."""
    x = x.astype(np.float32) / (255 if x.dtype == np.uint8 else 1)
    if not data or data["mean"] is None:
        return x
    mean, std = (np.float32(data[key]).reshape(-1, *[1] * (len(data["input_shape"]) - 1)) for key in ("mean", "std"))
    return (x - mean) / std


def listed(values: np.ndarray) -> str:
    """Numbers for people."""
    return ", ".join(f"{value:.3g}" for value in np.ravel(values))


def milliseconds(run, seconds: float) -> tuple[float, float]:
    """Median and 90th percentile of repeated runs."""
    run()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    return float(np.median(times)), float(np.quantile(times, 0.9))


def report(session: onnxruntime.InferenceSession, feed: dict, data: dict | None, rows: int) -> None:
    """One line an input: what it is, and how sure the network is of it."""
    answer = dict(zip([output.name for output in session.get_outputs()], session.run(None, feed)))
    for row in range(min(rows, len(feed["x"]))):
        if "probs" in answer:
            best = int(answer["probs"][row].reshape(len(answer["probs"][row]), -1).mean(1).argmax())
            names = (data or {}).get("class_names") or {}
            what = f"class {names[best] if names else best:<12} p = {answer['probs'][row][best].mean():.3f}"
            parts = " ".join(f"{name} {answer[name][row].mean():.4f}" for name in ("epistemic", "aleatoric"))
        else:
            shift, scale = (np.float32((data or {}).get(key, usual)) for key, usual in UNITS.items())
            means, stds = np.ravel(answer["mean"][row] * scale + shift), np.ravel(answer["var"][row] ** 0.5 * scale)
            what = "mean " + ", ".join(f"{mean:.4g} +- {std:.3g}" for mean, std in zip(means, stds))
            parts = "  ".join(f"{name} {listed(answer[name][row] * scale)}" for name in ("epistemic", "aleatoric"))
        print(f"  {row:3d}  {what}  {parts}")


def main() -> None:
    """Prints size, load time and latency, then some answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--x", type=Path, help="an .npy file of inputs (n, ...)")
    parser.add_argument("--samples", type=int, help="weight samples; else the exporter's number")
    parser.add_argument("--seed", type=int, help="of the samples; else the exporter's")
    parser.add_argument("--batch", type=int, default=1, help="inputs at a time, for the latency")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    start = time.perf_counter()
    session, facts = load(arguments.graph, arguments.threads)
    loading = time.perf_counter() - start
    (x,) = (value for value in session.get_inputs() if value.name == "x")
    data = facts["data"]
    whole = x.type == "tensor(int64)"  # tokens, which are not normalised
    if arguments.x:
        inputs = np.load(arguments.x).astype(np.int64) if whole else normalised(np.load(arguments.x), data)
    elif whole:
        inputs = np.zeros((8, *x.shape[1:]), np.int64)
    else:
        inputs = np.random.default_rng(0).standard_normal((8, *x.shape[1:]), dtype=np.float32)
    given = {value.name for value in session.get_overridable_initializers()}
    chosen = {name: getattr(arguments, name) for name in ("samples", "seed")}
    settings = {
        name: np.array(value, np.int64) for name, value in chosen.items() if value is not None and name in given
    }

    size = arguments.graph.stat().st_size
    print(f"{arguments.graph}: {facts['model']}, {facts['storage']} posterior, {facts['weights']:,} weights")
    bits = 8 * size / (facts["networks"] * facts["weights"])
    print(f"size     {size:,} bytes, {bits:.1f} bits a weight, the graph included")
    print(f"load     {1000 * loading:.0f} ms")
    batch = np.resize(inputs, (arguments.batch, *inputs.shape[1:]))
    median, slow = milliseconds(lambda: session.run(None, {"x": batch, **settings}), arguments.seconds)
    how = f"{facts['mode']}, {settings.get('samples', facts['samples'])} samples" if given else facts["mode"]
    print(f"latency  {median:.2f} ms median, {slow:.2f} ms at 90 % ({how}, batch of {arguments.batch})")
    report(session, {"x": inputs, **settings}, data, 8)
    print(f"PyTorch  {'imported' if sys.modules.get('torch') else 'not imported'}")


if __name__ == "__main__":
    main()
