"""The examples run as they stand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an example registers is gone after it."""
    from pocketbayes.data.registry import LOADERS
    from pocketbayes.propagation.moments.table import RULES

    for registry in (LOADERS, RULES):
        for key, value in list(registry.items()):
            monkeypatch.setitem(registry, key, value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_method", "'accuracy': 0."),
        ("my_rule", "no rule for torch.special.sinc"),
        ("my_data", "entropy between the moons and far away"),
        ("my_likelihood", "NoisyLabels: 9"),
    ],
)
def test_skeletons_for_extensions(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "extend" / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out
