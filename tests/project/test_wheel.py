"""The wheel installs and runs in an environment without this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import pocketbayes as pb

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("building needs hatchling, from the package index")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("pocketbayes-*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"pocketbayes", f"{wheel.name.split('-py3')[0]}.dist-info"}
    packed = {name for name in names if name.startswith("pocketbayes/")}
    source = ROOT / "src"
    files = [path for path in (source / "pocketbayes").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert packed == {str(path.relative_to(source)) for path in files}
    assert "pocketbayes/py.typed" in packed
    assert "pocketbayes/recipes/digits-bbb.yaml" in packed


@pytest.mark.slow
def test_wheel_runs_the_readme(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=False)
    python = tmp_path / "clean" / "bin" / "python"
    (site,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)  # a wheel of pure Python is installed when it is unpacked
    # The dependencies of this environment, without its links to this checkout.
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    check = f"import pocketbayes; assert pocketbayes.__file__.startswith({str(site)!r}), pocketbayes.__file__\n"
    (tmp_path / "readme.py").write_text(check + code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), sysconfig.get_paths()["purelib"]])}
    for command in (
        ["readme.py"],
        ["-m", "pocketbayes", "train", "digits-bbb", "--out", "run", "--set", "training.epochs=1"],
    ):
        done = subprocess.run(
            [str(python), *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for file in ("digits.pocket", "run/model.pocket"):
        assert pb.load(tmp_path / file).info.name == "digits", file
