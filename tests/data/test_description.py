"""Descriptions of a user's data in networks, files and graphs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from typer.testing import CliRunner

import pocketbayes as pb
from pocketbayes.cli import app
from pocketbayes.data.description import describe_source, read_transform

NORMALISE = transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.25))
TEST = transforms.Compose([transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor(), NORMALISE])
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALISE]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with images of two classes that differ in colour."""
    for label, colour in (("cold", (20, 40, 200)), ("warm", (220, 60, 10))):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(4):
            shade = tuple(max(value - 5 * number, 0) for value in colour)
            Image.new("RGB", (24, 20), shade).save(tmp_path / "pictures" / label / f"{number}.png")
    return tmp_path / "pictures"


def train(folder: Path, **options: object) -> pb.Network:
    model = pb.models.build("lenet300", in_features=768, classes=2)
    data = ImageFolder(folder, TRAIN)
    return pb.fit(pb.MeanFieldVI(), model, data, epochs=2, batch_size=8, lr=0.01, progress=False, **options)


def test_fit_takes_description_from_image_folder(folder: Path) -> None:
    info = train(folder, val=DataLoader(Subset(ImageFolder(folder, TEST), [0, 7]))).info
    assert info.class_names == ("cold", "warm")
    assert info.input_shape == (3, 16, 16)
    assert info.mean == (0.5, 0.4, 0.3)
    assert info.crop_fraction == pytest.approx(0.8)  # from the validation data, without the random crop


def test_command_line_predicts_photo_of_own_data(folder: Path) -> None:
    file = folder.parent / "net.pocket"
    net = train(folder, val=ImageFolder(folder, TEST))
    pb.save(net, file)
    photo = folder / "warm" / "0.png"
    found = CliRunner().invoke(app, ["predict", str(file), str(photo), "--json", "--samples", "3"])
    row = json.loads(found.stdout)["predictions"][0]
    expected = pb.predict(net, TEST(Image.open(photo))[None], 3)
    assert row["name"] in ("cold", "warm")
    assert row["probs"] == pytest.approx(expected.probs[0].tolist(), abs=1e-4)


def test_onnx_metadata_keeps_description(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    net = pb.describe(train(folder), classes=["blue", "red"])
    pb.export_onnx(net, folder.parent / "net.onnx", "mean")
    metadata = {p.key: p.value for p in onnx.load(folder.parent / "net.onnx").metadata_props}
    data = json.loads(metadata["pocketbayes"])["data"]
    assert data["class_names"] == ["blue", "red"]
    assert data["std"] == [0.2, 0.2, 0.25]


def test_describe_reads_transform(tmp_path: Path) -> None:
    net = pb.bayesianize(pb.models.build("lenet300", in_features=768, classes=2), "bbb")
    pb.describe(net, TEST, ["a", "b"])
    pb.save(net, tmp_path / "net.pocket")
    info = pb.load(tmp_path / "net.pocket").info
    assert (info.input_shape, info.classes, info.crop_fraction) == ((3, 16, 16), 2, 0.8)


def test_describe_refuses_values_that_do_not_fit() -> None:
    net = pb.bayesianize(pb.models.build("lenet300", in_features=768, classes=2), "bbb")
    with pytest.raises(pb.UserError, match="3 classes given, but the network has 2 outputs"):
        pb.describe(net, TEST, ["a", "b", "c"])
    with pytest.raises(pb.UserError, match=r"does not take inputs of shape \(3, 8, 8\)"):
        pb.describe(net, input_shape=(3, 8, 8), classes=2)
    with pytest.raises(pb.UserError, match="input_shape="):
        pb.describe(net, classes=2)


@pytest.mark.parametrize("shape", [(1.5, 8, 8), ("1", "8", "8"), (float("nan"),)])
def test_describe_refuses_sizes_that_are_not_whole(shape: Any) -> None:
    net = pb.bayesianize(pb.models.build("lenet300", in_features=64, classes=2), "bbb")
    with pytest.raises(pb.UserError, match="input_shape"):
        pb.describe(net, input_shape=shape)


@pytest.mark.parametrize("config", [{"input_size": "x"}, {"input_size": (3,)}, {"input_size": (3, 8, 8), "mean": "x"}])
def test_read_transform_refuses_broken_configurations(config: dict[str, Any]) -> None:
    with pytest.raises(pb.UserError, match="cannot be read"):
        read_transform(config)


def test_read_transform_knows_libraries() -> None:
    timm_data = pytest.importorskip("timm.data")
    torchvision_models = pytest.importorskip("torchvision.models")
    timm_read = read_transform(timm_data.create_transform((3, 224, 224), crop_pct=0.9, interpolation="bicubic"))
    assert (timm_read.size, timm_read.interpolation) == ((224, 224), "bicubic")
    assert round(224 / timm_read.crop_fraction) == 248
    weights = read_transform(torchvision_models.ResNet50_Weights.IMAGENET1K_V2.transforms())
    assert (weights.size, round(224 / weights.crop_fraction)) == ((224, 224), 232)
    config = read_transform({"input_size": (3, 160, 160), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0})
    assert (config.size, config.mean) == ((160, 160), (0.5, 0.5, 0.5))
    newer = v2.Compose([v2.Resize((8, 9)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    assert (read_transform(newer).size, read_transform(newer).crop_fraction) == ((8, 9), None)


def test_read_transform_refuses_unknown_steps(folder: Path) -> None:
    unknown = transforms.Compose([transforms.ToTensor(), transforms.Lambda(lambda x: x * 9)])
    with pytest.raises(pb.UserError, match="Lambda"):
        read_transform(unknown)
    assert describe_source(ImageFolder(folder, unknown)).mean is None
    assert describe_source([(torch.zeros(2), 0)]).input_shape == (2,)


def test_describe_source_leaves_random_state(folder: Path) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    describe_source(ImageFolder(folder, TRAIN))
    assert torch.equal(torch.random.get_rng_state(), before)
