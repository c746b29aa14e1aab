"""Tables in CSV files: features, targets of each kind, and rows that are wrong."""

from pathlib import Path

import pytest
import torch

import pocketbayes as pb
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
    x, _ = data[:]
    torch.testing.assert_close(x[:, 1], 2 * x[:, 0] + 0.5)


def test_csv_table_names_the_line_at_fault(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\nx,3\n")
    with pytest.raises(pb.UserError, match=r"line 3: a is 'x', not a number"):
        pb.data.load("npz", "train", path=path)
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(pb.UserError, match="line 3: 1 columns, but there are 2 headings"):
        pb.data.load("npz", "train", path=path)


def test_check_data_takes_an_image_folder_by_its_path(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(12):
            pillow.new("RGB", (8, 8)).save(tmp_path / name / f"{i}.png")
    assert check_data(str(tmp_path)).load("train").info.class_names == ("cat", "dog")
