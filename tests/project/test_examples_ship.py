"""The shipping examples run as documented."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pocketbayes as pb
from pocketbayes.ship.onnx import export_members

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = pb.data.load("digits", "train")
    model = pb.models.build("mlp", in_features=64, hidden=[16], out_features=10)
    net = pb.fit(pb.MeanFieldVI(prior_std=0.1, beta=0.1), model, train, epochs=3)
    path = tmp_path_factory.mktemp("digits") / "digits.pocket"
    pb.save(net, path)
    return path


@pytest.fixture
def service(digits: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return _service(digits, monkeypatch)


def _service(net: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("fastapi", reason="the service needs fastapi")
    client = pytest.importorskip("fastapi.testclient", reason="the test client needs httpx")
    monkeypatch.setenv("POCKETBAYES_NET", str(net))
    spec = importlib.util.spec_from_file_location("service", EXAMPLES / "service" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return client.TestClient(module.app)


def test_service_answers_with_its_uncertainty(service: Any, digits: Path) -> None:
    x, _ = _batch(20)
    info = pb.load(digits).info
    pixels = x * info.std[0] + info.mean[0]
    answers = service.post("/predict", json={"x": pixels.reshape(20, -1).tolist(), "samples": 10}).json()
    named = {"class", "probability", "entropy", "epistemic", "aleatoric", "warnings"}
    assert [set(answer) for answer in answers] == [named] * 20
    assert [answer["warnings"] for answer in answers] == [[]] * 20
    expected = pb.predict(pb.load(digits), x, samples=10)
    assert [int(answer["class"]) for answer in answers] == expected.mean.argmax(1).tolist()
    assert [answer["epistemic"] for answer in answers] == pytest.approx(expected.epistemic.tolist(), abs=1e-5)
    for answer in answers:
        assert answer["entropy"] == pytest.approx(answer["epistemic"] + answer["aleatoric"], abs=1e-4)


def test_service_answers_for_image_files(service: Any, digits: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pb.data.load("digits", "test").images[0, 0].numpy()).save(tmp_path / "digit.png")
    found = service.post("/photo?samples=10", content=(tmp_path / "digit.png").read_bytes()).json()
    expected = pb.predict(pb.load(digits), _batch(1)[0], samples=10)
    assert int(found["class"]) == int(expected.mean.argmax())
    assert found["epistemic"] == pytest.approx(float(expected.epistemic), abs=1e-5)
    assert found["warnings"] == []
    refused = service.post("/photo", content=b"no image")
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("the photo: not a readable image")


def test_service_warns_of_an_unsuitable_photo(service: Any, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (64, 64), (200, 40, 10)).save(tmp_path / "photo.png")
    found = service.post("/photo?samples=2", content=(tmp_path / "photo.png").read_bytes()).json()
    assert len(found["warnings"]) == 1
    assert found["warnings"][0].startswith("the photo is reduced from 64 x 64 to 8 x 8 pixels and converted to grey")
    bright = service.post("/predict", json={"x": [[255.0] * 64], "samples": 2}).json()
    assert "normalise them" in bright[0]["warnings"][0]


def test_service_answers_over_a_socket(digits: Path, tmp_path: Path) -> None:
    """As documented: uvicorn in a separate process, and a photo as the body of a request."""
    pytest.importorskip("uvicorn", reason="the service runs under uvicorn")
    httpx = pytest.importorskip("httpx")
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pb.data.load("digits", "test").images[0, 0].numpy()).save(tmp_path / "digit.png")
    expected = pb.predict(pb.load(digits), _batch(1)[0], samples=10)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(
        command, cwd=EXAMPLES / "service", env={**os.environ, "POCKETBAYES_NET": str(digits)}
    ) as server:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert server.poll() is None, "the service does not start"
                    time.sleep(0.1)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                photo = (tmp_path / "digit.png").read_bytes()
                answers = [client.post("/photo?samples=10", content=photo).json() for _ in range(2)]
                assert client.post("/photo", content=b"no image").status_code == 422
        finally:
            server.terminate()
    assert answers[0] == answers[1]
    assert int(answers[0]["class"]) == int(expected.mean.argmax())
    assert answers[0]["epistemic"] == pytest.approx(float(expected.epistemic), abs=1e-5)


def _batch(count: int) -> tuple[Any, Any]:
    return pb.data.load("digits", "test").__getitems__(list(range(count)))


def test_service_bounds_its_requests(service: Any) -> None:
    row = [0.0] * 64
    for question in (
        {"x": []},
        {"x": [row] * 65},
        {"x": [row[:-1]]},
        {"x": [row], "samples": 101},
        {"x": [["a"] * 64]},
    ):
        assert service.post("/predict", json=question).status_code == 422
    body = json.dumps({"x": [row]})
    json_type = {"content-type": "application/json"}
    assert service.post("/predict", content=body.replace("0.0", "NaN", 1), headers=json_type).status_code == 422
    assert service.post("/predict", content=body + " " * (1 << 20), headers=json_type).status_code == 413
    assert service.post("/predict", content=iter([body.encode()]), headers=json_type).status_code == 411
    both = {**json_type, "content-length": "1", "transfer-encoding": "chunked"}
    assert service.post("/predict", content=iter([body.encode()]), headers=both).status_code == 411


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\xff\xfe\x00",
        b"",
        b"\x00" * 100,
        b"[" * 10_000,
        b'{"x": ' + b"9" * 5000 + b"}",
        b'{"x": [[1e999]]}',
        '{"x": "\ud800"}'.encode("utf-8", "surrogatepass"),
        b'{"x": [' + b"[" + b"1e308," * 63 + b"1e308]]}",
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream", "text/plain; charset=\xff", ""])
def test_service_refuses_any_bytes(service: Any, body: bytes, kind: str) -> None:
    answer = service.post("/predict", content=body, headers={"content-type": kind.encode("latin1")})
    assert answer.status_code in (400, 411, 415, 422), answer.text


def test_edge_example_needs_neither_torch_nor_pocketbayes(digits: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    graph = tmp_path / "digits.onnx"
    size = pb.export_onnx(pb.load(digits), graph, samples=4)
    np.save(tmp_path / "x.npy", _batch(3)[0].numpy())
    hidden = "import sys, runpy; sys.modules.update(torch=None, pocketbayes=None); sys.argv = sys.argv[1:]"
    code = f"{hidden}; runpy.run_path(sys.argv[0], run_name='__main__')"
    run, settings = EXAMPLES / "edge" / "run.py", ["--x", str(tmp_path / "x.npy"), "--seconds", "0", "--seed", "1"]
    command = [sys.executable, "-c", code, str(run), str(graph), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"{size:,} bytes" in done.stdout
    assert "ms median" in done.stdout
    assert "(sample, 4 samples, batch of 1)" in done.stdout
    assert done.stdout.count("epistemic") == 3


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three members with a stopping rule."""
    model = pb.models.build("mlp", in_features=64, hidden=[16], out_features=10)
    net = pb.fit(pb.Ensemble(members=3), model, pb.data.load("digits", "train"), epochs=3, lr=1e-2)
    pb.fit_stopping(net, pb.data.load("digits", "val"), max_passes=2)
    path = tmp_path_factory.mktemp("three") / "three.pocket"
    pb.save(net, path)
    return path


def test_service_answers_adaptively(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = _service(three, monkeypatch)
    pixels = pb.data.load("digits", "test").images[:20].float() / 255
    question = {"x": pixels.reshape(20, -1).tolist(), "adaptive": True}
    answers = service.post("/predict", json=question).json()
    expected = pb.predict(pb.load(three), _batch(20)[0], adaptive=True)
    assert [answer["passes"] for answer in answers] == expected.passes.tolist()


def test_service_refuses_adaptive_without_a_rule(service: Any) -> None:
    answer = service.post("/predict", json={"x": [[0.0] * 64], "adaptive": True})
    assert answer.status_code == 422
    assert "fit_stopping" in answer.text


def test_edge_example_names_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"")
    command = [sys.executable, str(EXAMPLES / "edge" / "run.py"), str(tmp_path / "photo.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "photo.png; give .onnx files, and inputs with --x FILE.npy" in done.stderr


def test_edge_example_answers_adaptively(three: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = pb.load(three)
    graphs = export_members(net, tmp_path / "three.onnx")
    edge = runpy.run_path(str(EXAMPLES / "edge" / "run.py"))
    loaded = [edge["load"](graph, 1) for graph in graphs]
    facts, x = loaded[0][1], _batch(30)[0]
    found = edge["settle"]([session for session, _ in loaded], facts["shares"], facts["stopping"], {"x": x.numpy()})
    expected = pb.predict(net, x, adaptive=True)
    assert found["passes"].tolist() == expected.passes.tolist()
    np.testing.assert_allclose(found["probs"], expected.probs, atol=1e-5)
    np.testing.assert_allclose(found["epistemic"], expected.epistemic, atol=1e-4)
    np.testing.assert_allclose(found["aleatoric"], expected.aleatoric, atol=1e-4)
    np.save(tmp_path / "x.npy", pb.data.load("digits", "test").images[:3].numpy())
    command = [sys.executable, EXAMPLES / "edge" / "run.py", *graphs, "--adaptive", "--x", tmp_path / "x.npy"]
    done = subprocess.run([*map(str, command), "--seconds", "0"], capture_output=True, text=True, check=True)
    assert "of 3 on average" in done.stdout


def test_edge_example_answers_regressions_in_original_units(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = np.random.default_rng(0).normal(100, 20, (60, 2))
    regressor = pb.PocketRegressor("bbb", epochs=10, random_state=0).fit(x, np.stack([1e4 + x[:, 0], x[:, 1]], axis=1))
    pb.export_onnx(regressor.net_, tmp_path / "net.onnx", samples=4)
    np.save(tmp_path / "x.npy", x[:2])
    command = [
        sys.executable,
        EXAMPLES / "edge" / "run.py",
        tmp_path / "net.onnx",
        "--x",
        tmp_path / "x.npy",
        "--seconds",
        "0",
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if " mean " in line]
    for row, expected in zip(rows, regressor.predict(x[:2]), strict=True):
        assert [float(row[2]), float(row[5])] == pytest.approx(expected.tolist(), rel=0.1)


def test_watcher_answers_or_asks(digits: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    test = pb.data.load("digits", "test")
    image.fromarray(test.images[0, 0].numpy()).save(inbox / "a.png")
    (inbox / "b.png").write_bytes(b"no picture")
    image.new("RGB", (64, 64), (200, 40, 10)).save(inbox / "c.png")
    (inbox / "notes.txt").write_text("not an image")
    watch = [sys.executable, str(EXAMPLES / "watch" / "watch.py"), str(digits), str(inbox), "--once"]

    def lines(threshold: str) -> list[dict[str, Any]]:
        done = subprocess.run([*watch, "--abstain-above", threshold], capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    sure, broken, photo = lines("3")
    assert sure["file"] == "a.png"
    assert not sure["ask"]
    expected = pb.predict(pb.load(digits), test[:1][0])
    assert sure["class"] == str(int(expected.probs.argmax()))
    assert sure["entropy"] == pytest.approx(expected.entropy.item(), abs=1e-3)
    assert broken["ask"]
    assert "not a readable image" in broken["why"]
    assert photo["ask"]
    assert "reduced from 64 x 64" in photo["why"]
    assert lines("0")[0]["why"] == "more than 0 nats of doubt"


def test_watcher_waits_for_a_growing_file(tmp_path: Path) -> None:
    namespace = runpy.run_path(str(EXAMPLES / "watch" / "watch.py"))
    file = tmp_path / "a.png"
    file.write_bytes(b"1")
    arrivals = namespace["arrivals"]
    arrivals.__globals__["time"] = SimpleNamespace(sleep=lambda _: (looks.append(1), file.write_bytes(b"12")))
    looks: list[int] = []
    assert next(arrivals(tmp_path, 1.0)) == file
    assert len(looks) == 2, "seen, then grown, then the same"


def test_active_learning_runs_both_ways() -> None:
    namespace = runpy.run_path(str(EXAMPLES / "active" / "active.py"))
    found = {acquire: namespace["run"](acquire, rounds=2, seed=0) for acquire in ("random", "bald")}
    assert found["random"][0] == found["bald"][0], "both start from the same labels"
    assert found["random"][1] != found["bald"][1], "and buy others"
    assert min(map(max, found.values())) > 0.5
