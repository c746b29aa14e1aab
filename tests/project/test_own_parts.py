"""A user's model, method, storage, propagation and likelihoods from external files, with every verb."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app
from pocketbayes.likelihoods import LIKELIHOODS
from pocketbayes.methods import METHODS
from pocketbayes.models.registry import MODELS
from pocketbayes.posteriors import POSTERIORS
from pocketbayes.propagation import PROPAGATIONS

EXAMPLES = Path(__file__).parents[2] / "examples" / "extend"
MODULES = ("my_model", "my_method", "my_storage", "my_propagation", "my_counts", "my_likelihood")
CASES = ("method", "storage", "propagation", "counts", "labels")


class Case(NamedTuple):
    folder: Path
    net: Any
    data: tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return the modules, imported from a separate folder; their registrations are undone afterwards."""
    folder = tmp_path_factory.mktemp("parts")
    registries: tuple[dict[str, Any], ...] = (MODELS, METHODS, POSTERIORS, PROPAGATIONS, LIKELIHOODS)
    before = [dict(registry) for registry in registries]
    for name in MODULES:
        shutil.copy(EXAMPLES / f"{name}.py", folder)
    sys.path.insert(0, str(folder))
    yield {"folder": folder, **{name: importlib.import_module(name) for name in MODULES}}
    sys.path.remove(str(folder))
    for name in MODULES:
        del sys.modules[name]
    for registry, entries in zip(registries, before):
        registry.clear()
        registry.update(entries)


@pytest.fixture(scope="module")
def cases(parts: dict[str, Any]) -> dict[str, Case]:
    """Return a trained network for each part."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 3, generator=generator)
    classes, counts = (x.sum(1) > 0).long(), torch.poisson(x[:, 0].exp(), generator=generator).long()
    settings: dict[str, tuple[Any, torch.Tensor, dict[str, Any]]] = {
        "method": ("relative-noise", classes, {}),  # by the name that its class brings
        "storage": (parts["my_storage"].OneStdALayer(beta=0.1), classes, {}),
        "propagation": (pb.MeanFieldVI(beta=0.1, propagation="signs"), classes, {}),
        "counts": (pb.MeanFieldVI(beta=0.1), counts, {"likelihood": parts["my_counts"].Counts()}),
        "labels": (pb.MeanFieldVI(beta=0.1), classes, {"likelihood": parts["my_likelihood"].NoisyLabels()}),
    }
    found = {}
    for name, (method, y, options) in settings.items():
        torch.manual_seed(0)
        outputs = 1 if name == "counts" else 2
        model = pb.models.build("mlp", in_features=3, hidden=[8], out_features=outputs)
        folder = parts["folder"] / f"own-{name}"
        net = pb.fit(method, model, (x, y), val=(x, y), epochs=2, out=folder, progress=False, **options)
        found[name] = Case(folder, net, (x, y))
    return found


@pytest.mark.parametrize("name", CASES)
def test_own_parts_predict_and_evaluate_in_every_way(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    for way in PROPAGATIONS:
        if way in ("dropout", "full"):  # for networks made for them
            continue
        answer = pb.predict(case.net, case.data[0][:5], samples=3, propagation=way)
        assert bool(answer.mean.isfinite().all())
        assert pb.evaluate(case.net, case.data, samples=2, propagation=way)["nll"] < 100


@pytest.mark.parametrize("name", CASES)
def test_own_parts_are_compressed(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = cases[name]
    small = pb.compress(case.net, case.data, case.data, max_nll_loss=0.5, samples=2, progress=False)
    assert small.save(tmp_path / "small.pocket") < pb.save(case.net, tmp_path / "net.pocket")
    assert pb.evaluate(pb.load(tmp_path / "small.pocket"), case.data, samples=2)["nll"] < 100


@pytest.mark.parametrize("name", CASES)
def test_own_parts_are_exported(cases: dict[str, Case], name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    case = cases[name]
    for mode in ("mean", "sample", "moments") if name == "storage" else ("sample",):
        pb.export_onnx(case.net, tmp_path / "net.onnx", mode=mode, samples=2, example=case.data[0][:2])
        session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
        assert len(session.run(None, {"x": case.data[0][:3].numpy()})[0]) == 3


def test_own_parts_are_reported(cases: dict[str, Case], tmp_path: Path) -> None:
    page = pb.report([case.folder for case in cases.values()], tmp_path / "report.html")
    assert all(f'"own-{name}"' in Path(page).read_text() for name in CASES)


def test_own_parts_load_in_a_fresh_process(cases: dict[str, Case], parts: dict[str, Any]) -> None:
    lines = ["import json, pocketbayes as pb, torch", f"import {', '.join(MODULES)}", "found = {}"]
    lines += [
        f"found[{name!r}] = pb.predict(pb.load({str(case.folder)!r}), torch.ones(2, 3), samples=3).mean.tolist()"
        for name, case in cases.items()
    ]
    source = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run([sys.executable, "-c", source], cwd=parts["folder"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, mean in json.loads(done.stdout).items():
        here = pb.predict(pb.load(cases[name].folder), torch.ones(2, 3), samples=3).mean
        torch.testing.assert_close(torch.tensor(mean), here, atol=1e-5, rtol=1e-4)


def test_command_line_knows_imported_parts(cases: dict[str, Case], parts: dict[str, Any], tmp_path: Path) -> None:
    runner, file = CliRunner(), str(parts["folder"] / "my_storage.py")
    told = runner.invoke(app, ["--import", file, "inspect", str(cases["storage"].folder), "--json"])
    assert told.exit_code == 0
    assert "LayerStds" in told.stdout
    listed = runner.invoke(app, ["--import", file, "list", "methods", "--json"])
    assert "one-std-a-layer" in listed.stdout
    wrong = runner.invoke(app, ["--import", str(tmp_path / "absent.py"), "list", "methods"])
    assert wrong.exit_code == 2
    assert "absent.py: ModuleNotFoundError" in wrong.output


def test_command_line_reads_networks_of_an_own_class(
    parts: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file saved before its class had a name is rejected with a remedy, and can be saved again."""
    monkeypatch.chdir(parts["folder"])
    parts["my_model"].main()
    assert "bytes; accuracy 0." in capsys.readouterr().out
    runner, options = CliRunner(), ["--samples", "2", "--json"]
    told = runner.invoke(app, ["--import", "my_model.py", "evaluate", "own.pocket", *options])
    assert told.exit_code == 0, told.output
    net = pb.load("own.pocket")
    nameless = pb.load("own.pocket", parts["my_model"].TwoScales(width=16))
    pb.save(nameless, "nameless.pocket")
    refused = runner.invoke(app, ["--import", "my_model.py", "evaluate", "nameless.pocket", *options])
    assert refused.exit_code == 2
    assert "@pb.models.register" in refused.output
    pb.save(pb.load("nameless.pocket", pb.models.build("two-scales", width=16)), "named.pocket")
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(pb.predict(pb.load("named.pocket"), x).mean, pb.predict(net, x).mean)


def test_register_refuses_names_of_others() -> None:
    for name, words in (("mlp", "is taken by"), ("timm:mine", "without a colon")):
        with pytest.raises(pb.UserError, match=words):
            pb.models.register(name)(torch.nn.Identity)
