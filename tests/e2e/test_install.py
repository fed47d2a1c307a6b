"""The packages import and find each other as wheels, as editable installs, and from a clone that is not installed."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import msprobe_core

REPOSITORY = Path(msprobe_core.__file__).parents[1]
PROJECTS = [REPOSITORY, *sorted(path.parent for path in (REPOSITORY / "plugins").glob("*/pyproject.toml"))]

LOOK = """
import json, msprobe, msprobe_core, msprobe.pytorch, msprobe.mindspore, msprobe.verl
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe_core.plugins import registry
plugins = {p.name: [p.version, p.source, p.problem] for p in registry().plugins if not p.name.startswith("core")}
files = [m.__file__ for m in (msprobe_core, msprobe.pytorch, msprobe.mindspore, msprobe.verl)]
print(json.dumps({"plugins": plugins, "files": files, "frameworks": list(registry().frameworks())}))
"""


def look(paths, *, prelude=""):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, "-c", prelude + LOOK], capture_output=True, text=True, env=environment, cwd=REPOSITORY.parent
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_wheels(tmp_path):
    for project in PROJECTS:
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "wheels", project],
            check=True,
            capture_output=True,
        )
    wheels = sorted((tmp_path / "wheels").glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == [
        "msprobe_core", "msprobe_mindspore", "msprobe_pytorch", "msprobe_verl",
    ]  # fmt: skip
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as content:
            (own,) = [name for name in content.namelist() if name.endswith("licenses/LICENSE")]
            assert content.read(own) == (REPOSITORY / "LICENSE").read_bytes()
        assert "-linux_" not in wheel.name  # the package index refuses it
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, *wheels], check=True
    )
    assert not (site / "msprobe" / "__init__.py").exists()
    assert not (site / "tests").exists()
    assert (site / "msprobe_core" / "py.typed").exists()
    # Modules, which do not replace the packages that mindstudio-probe installs.
    assert sorted(path.name for path in (site / "msprobe").glob("*.py")) == ["core.py", "visualization.py"]
    seen = look([site])
    assert all(Path(file).is_relative_to(site) for file in seen["files"])
    assert sorted(seen["frameworks"]) == ["mindspore", "pytorch"]
    version = msprobe_core.__version__
    assert seen["plugins"] == {name: [version, f"msprobe-{name}", None] for name in ("mindspore", "pytorch", "verl")}


@pytest.mark.slow
@pytest.mark.parametrize("has_compiler", [True, False])
def test_kernels_are_in_a_wheel_where_there_is_a_compiler(tmp_path, has_compiler):
    clone = tmp_path / "clone"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        clone.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, clone)
    without = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(REPOSITORY / "msprobe_core", clone / "msprobe_core", ignore=without)
    if not has_compiler:
        (clone / "msprobe_core" / "native" / "libkernels.so").write_bytes(b"of an earlier build")
    found = shutil.which("cc") if has_compiler else None
    environment = {**os.environ, "CC": found or "no-such-compiler", "PATH": os.environ["PATH"] if found else ""}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    done = subprocess.run(build, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    library = "msprobe_core/native/libkernels.so"
    assert (library in zipfile.ZipFile(wheel).namelist()) == (found is not None)
    assert wheel.name.endswith("-py3-none-any.whl") == (found is None)
    assert ("are not compiled" in done.stdout + done.stderr) == (found is None)


@pytest.mark.slow
def test_a_clone_that_is_not_installed():
    nothing_installed = "import importlib.metadata\nimportlib.metadata.entry_points = lambda **_: []\n"
    seen = look(PROJECTS, prelude=nothing_installed)
    assert all(Path(file).is_relative_to(REPOSITORY) for file in seen["files"])
    assert sorted(seen["frameworks"]) == ["mindspore", "pytorch"]
    assert seen["plugins"] == {name: [None, "not installed", None] for name in ("mindspore", "pytorch", "verl")}
