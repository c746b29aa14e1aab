"""Test the example service over real sockets: many concurrent clients, slow clients, and malformed requests.

python benchmarks/service.py [--clients 200] [--requests 5] [--slow 20]

uvicorn serves examples/service with a small network. While slow clients keep their connections open, all others
send requests concurrently; every response must equal that of `predict`. Writes results/service.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import pocketbayes as pb
from measure import write_result
from pocketbayes.network import members

SERVICE = Path(__file__).parents[1] / "examples" / "service"
ROWS = 10
"""The number of different requests."""


def make_network(path: Path) -> tuple[list[bytes], list[str]]:
    """Train a small network; return requests and the expected classes."""
    train = pb.data.load("digits", "train")
    model = pb.models.build("mlp", in_features=64, hidden=[16], out_features=10)
    net = pb.fit(pb.MeanFieldVI(prior_std=0.1, beta=0.1), model, train, epochs=2, progress=False)
    pb.save(net, path)
    loaded = pb.load(path)
    info = members(loaded)[0].info
    assert info is not None
    pixels = torch.rand(ROWS, 64, generator=torch.Generator().manual_seed(0))
    x = pb.data.scale_inputs(pixels.reshape(-1, 1, 8, 8), info)
    answers = [int(pb.predict(loaded, x[i : i + 1], samples=10).mean.argmax(1)) for i in range(ROWS)]
    names = info.class_names or [str(label) for label in range(10)]
    questions = [json.dumps({"x": [row.tolist()], "samples": 10}).encode() for row in pixels]
    return questions, [names[answer] for answer in answers]


def head(length: int) -> bytes:
    """Return the header of a request."""
    lines = ("POST /predict HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


async def ask(port: int, body: bytes) -> tuple[int, bytes]:
    """Send a body; return the status and the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(len(body)) + body)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2]


async def client(
    port: int, questions: list[bytes], expected: list[str], count: int, seed: int
) -> list[tuple[str, float]]:
    """Send requests one after another; return the outcome and the seconds of each."""
    chooser, found = random.Random(seed), []
    for _ in range(count):
        number, start = chooser.randrange(len(questions)), time.perf_counter()
        if chooser.random() < 0.1:
            status, _ = await ask(port, chooser.randbytes(chooser.choice((1, 100, 5000))))
            outcome = "refused rubbish" if 400 <= status < 500 else f"status {status} for rubbish"
        else:
            status, answer = await ask(port, questions[number])
            right = status == 200 and json.loads(answer)[0]["class"] == expected[number]
            outcome = "answered" if right else f"status {status}, wrong"
        found.append((outcome, time.perf_counter() - start))
    return found


async def slow_client(port: int, body: bytes, stop: asyncio.Event) -> None:
    """Keep a connection open, sending one byte per second."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in head(len(body)) + body:
        if stop.is_set():
            break
        writer.write(bytes([byte]))
        await asyncio.sleep(1)
    writer.close()


async def attack(
    port: int, questions: list[bytes], expected: list[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run all clients concurrently; return the outcomes."""
    stop = asyncio.Event()
    slow = [asyncio.create_task(slow_client(port, questions[0], stop)) for _ in range(arguments.slow)]
    await asyncio.sleep(1)
    start = time.perf_counter()
    clients = (client(port, questions, expected, arguments.requests, seed) for seed in range(arguments.clients))
    found = [each for part in await asyncio.gather(*clients) for each in part]
    seconds = time.perf_counter() - start
    stop.set()
    await asyncio.gather(*slow)
    outcomes = [outcome for outcome, _ in found]
    times = sorted(took for _, took in found)
    return {
        "clients": arguments.clients,
        "slow clients": arguments.slow,
        "requests": len(found),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "seconds": round(seconds, 2),
        "median seconds": round(statistics.median(times), 3),
        "slowest seconds": round(times[-1], 3),
    }


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process; Linux only."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS on this system")


def wait_until_ready(port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:  # noqa: PERF203 (waits)
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("the service does not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=5, help="of each client")
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        network = Path(folder) / "net.pocket"
        questions, expected = make_network(network)
        env = {**os.environ, "POCKETBAYES_NET": str(network), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "error"]
        server = subprocess.Popen(command, cwd=SERVICE, env=env)
        try:
            wait_until_ready(port)
            asyncio.run(ask(port, questions[0]))
            before = memory_of(server.pid)
            result = asyncio.run(attack(port, questions, expected, arguments))
            result["memory growth in MB"] = round((memory_of(server.pid) - before) / 2**20, 1)
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(result, indent=1))
    write_result("service", result, *([] if arguments.out is None else [arguments.out]))


if __name__ == "__main__":
    main()
