"""Ask an exported network on a small machine: numpy and onnxruntime, no PyTorch, no pocketbayes.

python run.py net.onnx                 # random inputs: size, load time, latency
python run.py net.onnx --x images.npy  # answers for inputs (n, ...): bytes, or numbers as before normalisation
python run.py net-01.onnx net-02.onnx net-03.onnx --adaptive  # members one after another, until an answer is settled
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


def ask(session: onnxruntime.InferenceSession, feed: dict) -> dict:
    """The outputs of a graph by name."""
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed)))


def settle(sessions: list, shares: list[float], rule: dict, feed: dict) -> dict:
    """Members one after another: an input that is settled is left out of the next one's batch.

    After step k the mean probabilities are taken to the temperature of step k; an input is settled when its largest
    one reaches the threshold.
    """
    x, order = feed["x"], rule.get("order") or range(len(sessions))
    left, answer = np.arange(len(x)), None
    total = aleatoric = weight = 0.0
    for step, (member, heat) in enumerate(zip(order, rule["temperatures"]), 1):
        own = ask(sessions[member], {**feed, "x": x[left]})
        total, aleatoric = total + shares[member] * own["probs"], aleatoric + shares[member] * own["aleatoric"]
        weight += shares[member]
        mean = np.maximum(total / weight, 1e-38)
        raised = np.exp(np.log(mean) / heat - (np.log(mean) / heat).max(1, keepdims=True))
        probs = raised / raised.sum(1, keepdims=True)
        entropy = -(probs * np.log(np.maximum(probs, 1e-38))).sum(1)
        between = np.maximum(-(mean * np.log(mean)).sum(1) - aleatoric / weight, 0)  # how much the members disagree
        epistemic = np.minimum(between, entropy)
        found = {"probs": probs, "epistemic": epistemic, "aleatoric": entropy - epistemic}
        answer = answer or {name: np.empty((len(x), *value.shape[1:])) for name, value in found.items()}
        answer.setdefault("passes", np.empty(len(x), int))
        done = np.full(len(left), step == len(sessions)) | (probs.max(1) >= rule["threshold"])
        for name, value in {**found, "passes": np.full(len(left), rule["steps"][step - 1])}.items():
            answer[name][left[done]] = value[done]
        left, total, aleatoric = left[~done], total[~done], aleatoric[~done]
        if not len(left):
            break
    return answer


def report(answer: dict, data: dict | None, rows: int) -> None:
    """One line an input: what it is, and how sure the network is of it."""
    for row in range(min(rows, len(next(iter(answer.values()))))):
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
        passes = f"  {answer['passes'][row]} passes" if "passes" in answer else ""
        print(f"  {row:3d}  {what}  {parts}{passes}")


def main() -> None:
    """Prints size, load time and latency, then some answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, nargs="+", help="a graph, or with --adaptive one per member")
    parser.add_argument("--adaptive", action="store_true", help="ask members one after another until it is settled")
    parser.add_argument("--x", type=Path, help="an .npy file of inputs (n, ...)")
    parser.add_argument("--samples", type=int, help="weight samples; else the exporter's number")
    parser.add_argument("--seed", type=int, help="of the samples; else the exporter's")
    parser.add_argument("--batch", type=int, default=1, help="inputs at a time, for the latency")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if strange := [str(graph) for graph in arguments.graph if graph.suffix != ".onnx" or not graph.is_file()]:
        parser.error(f"no graph: {', '.join(strange)}; give .onnx files, and inputs with --x FILE.npy")

    start = time.perf_counter()
    loaded = [load(graph, arguments.threads) for graph in arguments.graph]
    session, facts = loaded[0]
    if arguments.adaptive != (len(loaded) > 1) or (arguments.adaptive and not facts.get("stopping")):
        parser.error("--adaptive takes the graphs of all members, in order, whose network has a rule of fit_stopping")
    loading = time.perf_counter() - start
    x = next((value for value in session.get_inputs() if value.name == "x"), None)
    if x is None:
        names = ", ".join(value.name for value in session.get_inputs())
        parser.error(f"this graph takes {names}; give them to onnxruntime's session.run yourself")
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

    size = sum(graph.stat().st_size for graph in arguments.graph)
    print(f"{arguments.graph[0]}: {facts['model']}, {facts['storage']} posterior, {facts['weights']:,} weights")
    bits = 8 * size / (facts["networks"] * len(loaded) * facts["weights"])

    def answer(feed: dict) -> dict:
        sessions = [session for session, _ in loaded]
        return settle(sessions, facts["shares"], facts["stopping"], feed) if arguments.adaptive else ask(session, feed)

    print(f"size     {size:,} bytes, {bits:.1f} bits per weight, the graph included")
    print(f"load     {1000 * loading:.0f} ms")
    batch = np.resize(inputs, (arguments.batch, *inputs.shape[1:]))
    median, slow = milliseconds(lambda: answer({"x": batch, **settings}), arguments.seconds)
    how = f"{facts['mode']}, {settings.get('samples', facts['samples'])} samples" if given else facts["mode"]
    print(f"latency  {median:.2f} ms median, {slow:.2f} ms at 90 % ({how}, batch of {arguments.batch})")
    found = answer({"x": inputs, **settings})
    report(found, data, 8)
    if "passes" in found:
        print(f"passes   {found['passes'].mean():.2f} of {facts['stopping']['steps'][-1]} on average")
    print(f"PyTorch  {'imported' if sys.modules.get('torch') else 'not imported'}")


if __name__ == "__main__":
    main()
