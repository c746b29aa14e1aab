"""`pocketbayes adapt`: from a trained network to a small, calibrated file in one command."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app
from pocketbayes.cli.adapt import _load, _trained_preprocessing
from pocketbayes.data.description import match_classes
from pocketbayes.network import members


@pytest.mark.filterwarnings("ignore:.*leave the temperature between")
def test_adapt_makes_file_graph_and_report(tmp_path: Path, learning_seed: int) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(learning_seed)
    model = pb.models.build("mlp", in_features=64, hidden=[32], out_features=10)
    settings = {"epochs": 8, "lr": 1e-2, "seed": learning_seed, "progress": False}
    net = pb.fit("map", model, pb.data.load("digits", "train"), **settings)
    pb.save(net, tmp_path / "net.pocket")
    out = tmp_path / "small.pocket"
    ask = ["adapt", str(tmp_path / "net.pocket"), "--data", "digits", "--out", str(out), "--samples", "3", "--json"]
    found = CliRunner().invoke(app, ask, catch_exceptions=False)
    result = json.loads(found.stdout)
    assert [f"[{number}/5]" in found.stderr for number in range(1, 6)] == 5 * [True]
    assert result["bytes"]["file"] == out.stat().st_size < result["plain_bytes"] / 2
    assert result["measures"]["after"]["accuracy"] > result["measures"]["before"]["accuracy"] - 0.05
    assert out.with_suffix(".onnx").is_file()
    assert out.with_suffix(".html").is_file()
    small = pb.load(out)
    assert small.conformal is not None
    assert pb.predict(small, torch.zeros(1, 1, 8, 8)).sets(0.9).any()


def test_adapt_refuses_unreadable_input(tmp_path: Path) -> None:
    ask = ["adapt", "mlp", "--data", "digits", "--out", str(tmp_path / "small.pocket")]
    assert "--weights" in str(CliRunner().invoke(app, ask).output)


def write_images(folder: Path, names: str, count: int = 12) -> None:
    """Write colour images of 16 x 16 pixels, `count` per class."""
    pillow = pytest.importorskip("PIL.Image")
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = torch.randint(256, (16, 16, 3), dtype=torch.uint8).numpy()
            pillow.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Return a folder with weights of a network with four classes, their names, and images of two of them."""
    pytest.importorskip("timm")
    write_images(tmp_path / "images", "db")
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\n")
    torch.save(pb.models.build("timm:mobilenetv3_small_050", classes=4).state_dict(), tmp_path / "weights.pt")
    return tmp_path


def test_adapt_matches_folders_with_the_models_classes(named: Path) -> None:
    weights, images, names = (str(named / name) for name in ("weights.pt", "images", "classes.txt"))
    net, (train, _, test) = _load("timm:mobilenetv3_small_050", Path(weights), images, names, 32, None)
    assert members(net)[0].info.class_names == ("a", "b", "c", "d")
    assert {int(train[i][1]) for i in range(len(train))} == {1, 3}
    assert test.info.input_shape == (3, 32, 32)


def test_adapt_holds_out_more_of_a_small_folder(named: Path) -> None:
    weights, images, names = (named / "weights.pt", str(named / "images"), str(named / "classes.txt"))
    _, (train, val, test) = _load("timm:mobilenetv3_small_050", weights, images, names, 32, None)
    assert len(train) + len(val) + len(test) == 24
    assert len(test) == 7  # 0.3 of 24 images
    assert len(val) == 5


def test_adapt_asks_for_missing_class_names(named: Path) -> None:
    with pytest.raises(pb.UserError, match="name all with --classes"):
        _load("timm:mobilenetv3_small_050", named / "weights.pt", str(named / "images"), None, 32, None)


def test_adapt_uses_the_preprocessing_of_timm(named: Path) -> None:
    tree = _trained_preprocessing("timm:mobilenetv3_small_050", {"name": "imagefolder"})
    assert tree["size"] == 224
    assert tree["mean"] == [0.485, 0.456, 0.406]


def test_adapt_uses_the_preprocessing_of_torchvision() -> None:
    pytest.importorskip("torchvision")
    tree = _trained_preprocessing("torchvision:resnet18", {"name": "imagefolder"})
    assert (tree["size"], tree["crop_fraction"]) == (224, 0.875)
    assert tree["mean"] == [0.485, 0.456, 0.406]
    assert _trained_preprocessing("mlp", {"name": "imagefolder"}) == {}


def test_match_classes_rejects_a_folder_of_another_name(tmp_path: Path) -> None:
    write_images(tmp_path / "known", "ab")
    write_images(tmp_path / "other", "ax")
    known, other = (pb.data.load("imagefolder", "train", path=tmp_path / name) for name in ("known", "other"))
    with pytest.raises(pb.UserError, match="'x' is not one of the network's classes"):
        match_classes(other, known.info)


def test_adapt_refuses_data_without_classes(tmp_path: Path) -> None:
    net, table = tmp_path / "net.pocket", tmp_path / "prices.csv"
    pb.save(pb.bayesianize(pb.models.build("mlp", in_features=2, out_features=1), "map"), net)
    table.write_text("a,b,price\n" + "".join(f"{i},{2 * i},{i}.5\n" for i in range(40)))
    result = CliRunner().invoke(app, ["adapt", str(net), "--data", str(table), "--out", str(tmp_path / "small.pocket")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "adapt is for classification" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"net.pocket", "prices.csv"}
