"""Warnings about inputs unlike the training data."""

import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

import pocketbayes as pb
from pocketbayes.data import Info, read_inputs

DIGITS = Info("digits", "classification", 10, None, (1, 8, 8), (0.3,), (0.4,))
PHOTOS = Info("photos", "classification", 2, None, (3, 224, 224), (0.5,) * 3, (0.2,) * 3, crop_fraction=0.875)


def photo(path: Path, size: int, colour: tuple[int, int, int] = (200, 40, 10)) -> Path:
    Image.new("RGB", (size, size), colour).save(path)
    return path


def test_input_check_reports_a_photo_for_a_digit_network(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="reduced from 64 x 64 to 8 x 8 pixels and converted to grey"):
        read_inputs(photo(tmp_path / "photo.png", 64), DIGITS)
    with pytest.warns(UserWarning, match="enlarged from 32 x 32 to 224 x 224"):
        read_inputs(photo(tmp_path / "icon.png", 32), PHOTOS)


def test_input_check_accepts_usual_pictures(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_inputs(photo(tmp_path / "digit.png", 16, (90, 90, 90)), DIGITS)
        read_inputs(photo(tmp_path / "photo.png", 1200), PHOTOS)


def test_input_check_reports_values_outside_of_training() -> None:
    net = pb.bayesianize(pb.models.build("lenet300", in_features=64, classes=10), "map")
    net.info = DIGITS
    with pytest.warns(UserWarning, match="values from 0 to 255.*normalise them"):
        pb.predict(net, torch.linspace(0, 255, 64).reshape(1, 1, 8, 8))
    table = pb.bayesianize(pb.models.build("mlp", in_features=3, out_features=2), "map")
    table.info = Info("rows", "classification", 2, None, (3,), (0.0,) * 3, (1.0,) * 3)
    with pytest.warns(UserWarning, match=r"feature 2 of x\[1\] lies 40 stds"):
        pb.predict(table, torch.tensor([[0.0, 1, 2], [0, 1, -40]]))
    trained = pb.fit("map", torch.nn.Linear(2, 2), (torch.rand(8, 2), torch.arange(8) % 2), epochs=1, progress=False)
    with pytest.warns(UserWarning, match="the training data from"):
        pb.predict(trained, torch.full((1, 2), 9.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pb.predict(trained, torch.full((1, 2), 1.5))
        pb.predict(table, torch.randn(50, 3))
