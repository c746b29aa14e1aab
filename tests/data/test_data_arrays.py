"""User arrays, the UCI layout and the cubic toy data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbayes import data
from pocketbayes.base.errors import UserError

random = np.random.default_rng(0)


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


@pytest.mark.parametrize(
    ("shape", "input_shape"),
    [((40, 6, 5), (1, 6, 5)), ((40, 6, 5, 3), (3, 6, 5)), ((40, 1, 6, 5), (1, 6, 5)), ((40, 3, 6, 5), (3, 6, 5))],
)
def test_npz_reads_images(shape: tuple[int, ...], input_shape: tuple[int, ...], tmp_path: Path) -> None:
    x = random.integers(0, 256, shape, dtype=np.uint8)
    path = save(tmp_path, x=x, y=np.arange(40) % 4)
    dataset = data.load("npz", "test", path=path, test_fraction=1)
    assert dataset.info == data.Info(
        "npz", "classification", 4, None, input_shape, (0.0,) * input_shape[0], (1.0,) * input_shape[0]
    )
    images, labels = dataset.__getitems__(range(40))
    expected = x[:, None] if len(shape) == 3 else x.transpose(0, 3, 1, 2) if shape[-1] == 3 else x
    torch.testing.assert_close(images, torch.from_numpy(expected / 255).float())
    assert labels.tolist() == [i % 4 for i in range(40)]


def test_npz_reads_splits_and_relative_paths(tmp_path: Path) -> None:
    x = np.arange(100.0)[:, None]
    save(tmp_path, x=x, y=x[:, 0])
    parts = [data.load("npz", split, tmp_path, path="own.npz", test_fraction=0.2) for split in ("train", "val", "test")]  # type: ignore[arg-type]
    assert [len(part) for part in parts] == [72, 8, 20]
    rows = torch.cat([part.__getitems__(range(len(part)))[1] for part in parts])
    assert sorted(rows[:, 0].tolist()) == list(range(100))
    assert parts[0].info == data.Info("npz", "regression", None, None, (1,))
    assert torch.equal(*parts[0].__getitems__(range(72)))


def test_npz_takes_classes_as_an_option(tmp_path: Path) -> None:
    path = save(tmp_path, x=np.zeros((30, 2), np.float32), y=np.zeros(30, np.uint8))
    assert data.load("npz", path=path, classes=5).info.classes == 5


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "needs the arrays x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "same number of rows"),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2), int)}, "expected integers"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 2])}, "label -1 in row 1"),
        ({"x": np.zeros((3, 2), complex), "y": np.zeros(3)}, "only numbers"),
        ({"x": np.zeros((3, 5, 5, 7), np.uint8), "y": np.zeros(3)}, "no axis of one or three channels"),
        ({"x": np.full((3, 2), 1e300), "y": np.zeros(3)}, "row 0 of x holds NaN, infinity or a number beyond 3.4e.38"),
    ],
)
def test_npz_refuses_mistakes(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        data.load("npz", path=save(tmp_path, **arrays))
    assert "own.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 2}, "classes=2, but the largest label is 2"),
        ({"task": "regresion"}, "did you mean 'regression'"),
        ({"task": "regression", "classes": 3}, "classes=3, but y means regression"),
        ({"std": float("nan")}, "std=nan: must be positive and finite"),
        ({"mean": [float("inf"), 0.0]}, "mean=.*: must be finite"),
    ],
)
def test_npz_refuses_options_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save(tmp_path, x=np.ones((30, 2), np.float32), y=np.arange(30) % 3)
    with pytest.raises(UserError, match=message):
        data.load("npz", path=path, **options)


def test_npz_is_standardised(tmp_path: Path) -> None:
    x = random.normal([5, -3, 7], [100, 0.01, 0], (200, 3))
    y = random.normal(1e4, 1e3, 200)
    path = save(tmp_path, x=x, y=y)
    train, val, test = (
        data.load("npz", split, path=path, standardise=True)  # type: ignore[arg-type]
        for split in ("train", "val", "test")
    )
    assert train.info == val.info == test.info
    known = torch.cat([train[:][0], val[:][0]]), torch.cat([train[:][1], val[:][1]])
    for values, stds in ((known[0], [1, 1, 0]), (known[1], [1])):
        torch.testing.assert_close(values.mean(0), torch.zeros(len(stds)), atol=1e-4, rtol=0)  # -3 +- 0.01 in 32 bits
        torch.testing.assert_close(values.std(0, correction=0), torch.tensor(stds).float(), atol=1e-4, rtol=0)
    back = torch.cat([known[1], test[:][1]]) * test.target_std + test.target_mean
    np.testing.assert_allclose(np.sort(back[:, 0].numpy()), np.sort(y), rtol=1e-5)
    assert test[:][0].abs().max() < 6, "test rows are measured by the others' scale"

    labels = save(tmp_path, x=x, y=np.arange(200) % 3)
    assert data.load("npz", path=labels, standardise=True)[:][1].max() == 2, "labels stay"
    given = data.load("npz", "test", path=labels, test_fraction=1, mean=[5, -3, 7], std=[100, 0.01, 1])
    np.testing.assert_allclose(given[:][0].numpy(), (x - [5, -3, 7]) / [100, 0.01, 1], rtol=1e-3, atol=1e-4)
    sequences = save(tmp_path, x=np.zeros((9, 4, 2)), y=np.arange(9) % 3)
    for option in ({"standardise": True}, {"mean": 0.5}):
        with pytest.raises(UserError, match="need uint8 images or tables"):
            data.load("npz", path=sequences, **option)


def test_npz_standardises_each_target(tmp_path: Path) -> None:
    y = random.normal([10, -1000], [0.1, 500], (100, 2))
    part = data.load("npz", path=save(tmp_path, x=y, y=y), standardise=True, test_fraction=0.0, val_fraction=0.0)
    torch.testing.assert_close(part[:][1].std(0, correction=0), torch.ones(2))
    back = part[:][1].numpy() * np.array(part.target_std) + np.array(part.target_mean)
    np.testing.assert_allclose(back, y, rtol=1e-3)
    np.testing.assert_allclose(part.unscaled()[:][1].numpy(), y, rtol=1e-3)  # type: ignore[attr-defined]


def test_npz_labels_may_be_strings(tmp_path: Path) -> None:
    path = save(tmp_path, x=np.zeros((40, 2)), y=np.array(["emu", "cat", "dog", "cat"] * 10))
    part = data.load("npz", "test", path=path, test_fraction=1)
    assert part.info.class_names == ("cat", "dog", "emu")
    assert part[:][1][:4].tolist() == [2, 0, 1, 0]


def test_npz_reads_inputs_without_labels(tmp_path: Path) -> None:
    path = save(tmp_path, x=np.ones((7, 2)))
    x, y = data.load("npz", "test", path=path, test_fraction=1, labelled=False)[:]
    assert x.shape == (7, 2)
    assert y.tolist() == [0] * 7


def test_npz_reports_missing_file_and_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file nowhere\.npz"):
        data.load("npz", data_dir=tmp_path, path="nowhere.npz")
    path = save(tmp_path, x=np.zeros((3, 2)), y=np.zeros(3))
    with pytest.raises(UserError, match="has no training rows"):
        data.load("npz", path=path, test_fraction=1, standardise=True)
    with pytest.raises(UserError, match=r"between 0 and 1, not 1\.5"):
        data.load("npz", path=path, test_fraction=1.5)


@pytest.fixture
def uci_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "uci/UCI_Datasets/tiny/data"
    folder.mkdir(parents=True)
    table = random.normal(5, 3, (50, 4))
    table[:, 1] = 7  # constant, as two columns of naval-propulsion-plant are
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 1, 2], fmt="%d")
    (folder / "index_target.txt").write_text("3\n")
    for index in range(2):
        order = random.permutation(50)
        np.savetxt(folder / f"index_train_{index}.txt", order[:40])
        np.savetxt(folder / f"index_test_{index}.txt", order[40:])
    return tmp_path


def test_uci_is_standardised_by_its_training_split(uci_dir: Path) -> None:
    folder = uci_dir / "uci/UCI_Datasets/tiny/data"
    table, train, test = (np.loadtxt(folder / f) for f in ("data.txt", "index_train_1.txt", "index_test_1.txt"))
    whole = data.load("uci", "train", uci_dir, set="tiny", index=1, val_fraction=0)
    x, y = whole.__getitems__(range(40))
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]))
    assert y.shape == (40, 1)
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0))
    held = data.load("uci", "test", uci_dir, set="tiny", index=1)
    _, y = held.__getitems__(range(10))
    back = y[:, 0] * held.target_std + held.target_mean
    torch.testing.assert_close(back, torch.from_numpy(table[test.astype(int), 3]).float())
    assert held.info == whole.info
    np.testing.assert_allclose(held.target_mean, table[train.astype(int), 3].mean())


def test_uci_has_its_splits(uci_dir: Path) -> None:
    assert [len(data.load("uci", s, uci_dir, set="tiny")) for s in ("train", "val", "test")] == [36, 4, 10]  # type: ignore[arg-type]


def test_uci_refuses_mistakes(uci_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'tiny'"):
        data.load("uci", "train", uci_dir, set="tine")
    with pytest.raises(UserError, match="no split index=2; choose 0 to 1"):
        data.load("uci", "train", uci_dir, set="tiny", index=2)
    with pytest.raises(UserError, match=r"no folder .*UCI_Datasets.*--data-dir"):
        data.load("uci", "train", tmp_path / "empty", set="tiny")
    folder = uci_dir / "uci/UCI_Datasets/tiny/data"
    (folder / "index_test_0.txt").write_text("1\n50\n")
    with pytest.raises(UserError, match=r"index_test_0\.txt: holds an index outside 0 to 49"):
        data.load("uci", "test", uci_dir, set="tiny")
    (folder / "data.txt").write_text("1 2 3 nan\n")
    with pytest.raises(UserError, match=r"data\.txt: not all of its numbers are finite"):
        data.load("uci", "train", uci_dir, set="tiny")
    (folder / "data.txt").write_text("1 2 3 4\n1 2 x 4\n")
    with pytest.raises(UserError, match=r"data\.txt: not a readable table"):
        data.load("uci", "train", uci_dir, set="tiny")
    (folder / "data.txt").write_text("1 2 3 4\n1 2 4\n")
    with pytest.raises(UserError, match=r"data\.txt: not a readable table"):
        data.load("uci", "train", uci_dir, set="tiny")


def test_toy_cubic_has_its_shape_and_noise() -> None:
    dataset = data.load("toy-cubic", n=30_000)
    x, y = dataset.__getitems__(range(30_000))
    noise = y - x**3
    assert x.shape == y.shape == (30_000, 1)
    assert -4 <= float(x.min()) < -3.99
    assert 3.99 < float(x.max()) <= 4
    assert abs(float(noise.mean())) < 4 * 3 / 30_000**0.5
    assert abs(float(noise.var()) - 9) < 4 * 9 * (2 / 30_000) ** 0.5
    assert len(data.load("toy-cubic")) == 20
    test = data.load("toy-cubic", "test", noise_std=0)
    x, y = test.__getitems__(range(len(test)))
    assert (len(test), float(x.min()), float(x.max())) == (10_000, -6, 6)
    assert torch.equal(y, x**3)


@pytest.mark.parametrize("options", [{"n": 0}, {"n": 10**15}, {"noise_std": -1.0}, {"noise_std": float("nan")}])
def test_toy_cubic_refuses_settings_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        data.load("toy-cubic", **options)


def test_toy_cubic_depends_on_the_seed() -> None:
    first, again, other = (data.load("toy-cubic", seed=seed)[0][0] for seed in (1, 1, 2))
    assert first == again != other
    assert len(data.load("toy-cubic", val_fraction=0.5)) == 20
    assert len(data.load("toy-cubic", "val", val_fraction=0.5)) == 10
    assert data.load("toy-cubic", "val")[0][0] != data.load("toy-cubic")[0][0]
    with pytest.raises(UserError, match="n=0"):
        data.load("toy-cubic", n=0)


def test_npz_names_the_row_with_nan(tmp_path: Path) -> None:
    x, y = np.zeros((9, 2)), np.zeros(9)
    x[7, 1] = np.nan
    np.savez(tmp_path / "n.npz", x=x, y=y)
    with pytest.raises(UserError, match=r"n\.npz: row 7 of x holds NaN"):
        data.load("npz", "train", tmp_path, path="n.npz")
