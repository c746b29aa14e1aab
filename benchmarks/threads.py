"""Check that a network shared by many threads, during training, gives the answers of a single thread.

    python benchmarks/threads.py

Writes benchmarks/results/threads.json: predictions by 8 threads with mixed propagations that equal the serial ones bit
for bit, and fits with concurrent predictions that equal a fit alone.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

import pocketbayes as pb

RESULT = Path(__file__).parent / "results" / "threads.json"
PROPAGATIONS = (None, "mean", "sample", "local", "flipout", "moments", "moments-exact", "linear")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 3)
    )


def predictions(calls: int, threads: int) -> dict[str, object]:
    """Count the predictions of many threads that differ from serial ones."""
    nets = [pb.bayesianize(model(), pb.MeanFieldVI(propagation=how)).eval() for how in ("sample", "local")]
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))

    def call(number: int) -> Tensor:
        how = PROPAGATIONS[number % len(PROPAGATIONS)]
        first = number % 15
        answer = pb.predict(nets[number // 8 % 2], x[first : first + 2], samples=3, propagation=how, seed=number)
        return torch.cat([answer.mean, answer.epistemic[:, None]], 1)

    serial = [call(number) for number in range(calls)]
    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(call, range(calls)))
    equal = sum(torch.equal(one, other) for one, other in zip(serial, together))
    return {"calls": calls, "threads": threads, "equal": equal, "seconds": round(time.perf_counter() - begun, 1)}


def fits(count: int, threads: int) -> dict[str, object]:
    """Count the fits with concurrent predictions that differ from a fit alone."""
    x = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    y = (x.mean((1, 2, 3)) > 0).long()
    net = pb.bayesianize(model(), pb.MeanFieldVI()).eval()

    def fit() -> list[Tensor]:
        trained = pb.fit("lrt", model(), (x, y), epochs=2, seed=3, batch_size=32, progress=False)
        return list(trained.state_dict().values())

    alone, stop, asked = fit(), threading.Event(), [0] * threads

    def predict(number: int) -> None:
        while not stop.is_set():
            pb.predict(net, x[:2], samples=2, propagation=PROPAGATIONS[number % len(PROPAGATIONS)], seed=number)
            asked[number] += 1
            time.sleep(0.001)

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(predict, number) for number in range(threads)]
        try:
            equal = sum(all(torch.equal(a, b) for a, b in zip(alone, fit())) for _ in range(count))
        finally:
            stop.set()
        for each in running:
            each.result()
    return {"fits": count, "predicting threads": threads, "equal": equal, "predictions meanwhile": sum(asked)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--fits", type=int, default=20)
    parser.add_argument("--threads", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    result = {"torch": torch.__version__, "predictions": predictions(asked.calls, asked.threads)}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    result["training"] = fits(asked.fits, asked.threads)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
