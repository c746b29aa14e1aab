"""CSV tables: features, targets and invalid rows."""

from pathlib import Path

import pytest
import torch

import pocketbayes as pb
from pocketbayes.data.description import match_features, match_preprocessing
from pocketbayes.recipes import check_data


def write(path: Path, targets: list[str]) -> Path:
    rows = [f"{i},{2 * i}.5,{target}" for i, target in enumerate(targets)]
    path.write_text("\n".join(["a,b,target", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("targets", "task", "names"),
    [
        (["0.5", "1.25"] * 10, "regression", None),
        (["0", "1"] * 10, "classification", None),
        (["cat", "dog"] * 10, "classification", ("cat", "dog")),
    ],
)
def test_csv_table_infers_its_task(targets: list[str], task: str, names: tuple[str, ...], tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", targets)
    data = check_data(str(path)).load("train")
    assert (data.info.task, data.info.class_names) == (task, names)
    x, _ = data.unscaled()[:]  # type: ignore[attr-defined]
    torch.testing.assert_close(x[:, 1], 2 * x[:, 0] + 0.5)


def test_csv_table_names_the_line_at_fault(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\nx,3\n")
    with pytest.raises(pb.UserError, match=r"line 3: a is 'x', not a number"):
        pb.data.load("npz", "train", path=path)
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(pb.UserError, match="line 3: 1 columns, but there are 2 headings"):
        pb.data.load("npz", "train", path=path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b;y\n1;2;3\n", "columns are separated by ';'"),
        ("a\tb\ty\n1\t2\t3\n", "columns are separated by"),
        ("a,y\n1,0.5\n2,\n", "line 3: y is '', not a number; fill or remove"),
        ("a,y\n1,red\n2,\n", "line 3: y is ''"),
        ("a,y\n1,0.5\n2,red\n", "line 3: y is 'red', not a number"),
        ("a,y\n1,0.5\n2,nan\n", "line 3: y is nan"),
        ("a,y\n1e300,0.5\n", "line 2: a is 1e300, not a number in single precision"),
    ],
)
def test_csv_table_refuses_what_is_no_number(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(pb.UserError, match=message):
        pb.data.load("npz", "train", path=path)


def test_csv_table_takes_integers_beyond_64_bits_for_a_regression(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", [f"{number}{'0' * 30}" for number in range(1, 21)])
    assert pb.data.load("npz", "train", path=path).info.task == "regression"


def test_check_data_takes_an_image_folder_by_its_path(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(12):
            pillow.new("RGB", (8, 8)).save(tmp_path / name / f"{i}.png")
    assert check_data(str(tmp_path)).load("train").info.class_names == ("cat", "dog")


def test_csv_table_needs_headings(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("1.5,2\n3,4\n")
    with pytest.raises(pb.UserError, match="the first row holds numbers, not headings"):
        pb.data.load("npz", "train", path=path)
    path.write_text("0,1\n" + "3,4.5\n" * 20 + "\n")  # as pandas names columns without a header
    assert pb.data.load("npz", "train", path=path).info.input_shape == (1,)


def test_read_inputs_reads_rows_with_or_without_targets(tmp_path: Path) -> None:
    info = pb.DataInfo("table", "regression", None, None, (2,), mean=(1.0, 0.0), std=(2.0, 1.0))
    (tmp_path / "new.csv").write_text("a,b\n3,5\n1,-1\n")
    (tmp_path / "known.csv").write_text("a,b,target\n3,5,cat\n1,-1,dog\n")
    for name in ("new.csv", "known.csv"):
        torch.testing.assert_close(pb.data.read_inputs(tmp_path / name, info), torch.tensor([[1.0, 5.0], [0.0, -1.0]]))
    (tmp_path / "other.csv").write_text("a\n3\n")
    with pytest.raises(pb.UserError, match="1 columns, but the network takes 2 features"):
        pb.data.read_inputs(tmp_path / "other.csv", info)


def test_csv_table_takes_whole_prices_for_a_regression(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", [str(1000 + 370 * i) for i in range(60)])
    assert pb.data.load("npz", "train", path=path).info.task == "regression"
    path = write(tmp_path / "table.csv", ["-1", "1"] * 10)
    assert pb.data.load("npz", "train", path=path).info.task == "regression"
    path = write(tmp_path / "table.csv", ["0", "1"] * 10)
    assert pb.data.load("npz", "train", path=path, task="regression").info.task == "regression"
    path = write(tmp_path / "table.csv", ["0.0", "1.0"] * 10)
    assert pb.data.load("npz", "train", path=path, task="classification").info.classes == 2


def test_csv_table_is_standardised_unless_told_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path / "table.csv", [f"{3 * i}.5" for i in range(40)])
    x, y = pb.data.load("npz", "train", path=path, val_fraction=0.0)[:]
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(1))
    raw, _ = pb.data.load("npz", "train", path=path, val_fraction=0.0, standardise=False)[:]
    assert float(raw.max()) > 10
    assert float(pb.data.load("npz", "test", path=path, test_fraction=1.0)[:][0].max()) > 10  # no rows to measure


def test_read_inputs_finds_columns_by_name(tmp_path: Path) -> None:
    info = pb.DataInfo("table", "regression", None, None, (2,), features=("a", "b"))
    expected = torch.tensor([[3.0, 5.0], [1.0, -1.0]])
    (tmp_path / "same.csv").write_text("a, b,target\n3,5,cat\n1,-1,dog\n")
    (tmp_path / "unnamed.csv").write_text("0,1\n3,5\n1,-1\n")
    for name in ("same.csv", "unnamed.csv"):
        torch.testing.assert_close(pb.data.read_inputs(tmp_path / name, info), expected)
    (tmp_path / "turned.csv").write_text("target,b,a\ncat,5,3\ndog,-1,1\n")
    with pytest.warns(UserWarning, match="training|trained") as said:
        torch.testing.assert_close(pb.data.read_inputs(tmp_path / "turned.csv", info), expected)
    assert "another order than in training" in str(said[0].message)
    assert "ignored: 'target'" in str(said[1].message)
    (tmp_path / "renamed.csv").write_text("a,c\n3,5\n")
    with pytest.raises(pb.UserError, match="no column 'b', which the network was trained on; the columns are 'a', 'c'"):
        pb.data.read_inputs(tmp_path / "renamed.csv", info)


def test_evaluation_data_follow_the_networks_columns(tmp_path: Path) -> None:
    rows = [(i, 2 * i + 0.5, 3 * i) for i in range(40)]
    for name, headings, order in (("own", "a,b,t", (0, 1, 2)), ("turned", "b,a,t", (1, 0, 2))):
        lines = [",".join(str(row[k]) for k in order) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([headings, *lines]))
    own, turned = (check_data(str(tmp_path / f"{name}.csv")).load("train") for name in ("own", "turned"))
    assert own.info.features == ("a", "b")
    assert pb.DataInfo.from_json(own.info.to_json()) == own.info
    with pytest.warns(UserWarning, match="another order"):
        matched = match_preprocessing(match_features(turned, own.info), own.info)
    torch.testing.assert_close(matched[:][0], own[:][0])
    assert matched.info == own.info
