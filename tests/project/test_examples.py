"""The examples run unchanged."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_method", "'accuracy': 0."),
        ("my_storage", "compressed: {"),
        ("my_propagation", "signs: epistemic std"),
        ("my_rule", "no rule for torch.special.sinc"),
        ("my_data", "entropy between the moons and far away"),
        ("my_likelihood", "NoisyLabels: 9"),
        ("my_counts", "true: 4.48"),
    ],
)
def test_extension_skeletons_run(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copy(EXAMPLES / "extend" / f"{name}.py", tmp_path)  # run from a folder outside the repository
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(copied), run_name="__main__")
    assert said in capsys.readouterr().out


def test_example_packs_five_networks_into_the_bytes_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "ensemble" / "five_in_one.py"))["main"]
    threads = torch.get_num_threads()
    main(members=2, epochs=2)
    torch.set_num_threads(threads)
    said = capsys.readouterr().out
    one, coded = (int(number) for number in re.findall(r"(\d+) bytes", said))
    assert coded < one
    assert "passes per image" in said
