"""The packages import and find each other as wheels, as editable installs, and from a clone that is not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, *wheels], check=True
    )
    assert not (site / "msprobe" / "__init__.py").exists()
    assert not (site / "tests").exists()
    assert (site / "msprobe_core" / "py.typed").exists()
    seen = look([site])
    assert all(Path(file).is_relative_to(site) for file in seen["files"])
    assert sorted(seen["frameworks"]) == ["mindspore", "pytorch"]
    version = msprobe_core.__version__
    assert seen["plugins"] == {name: [version, f"msprobe-{name}", None] for name in ("mindspore", "pytorch", "verl")}


def test_a_clone_that_is_not_installed():
    nothing_installed = "import importlib.metadata\nimportlib.metadata.entry_points = lambda **_: []\n"
    seen = look(PROJECTS, prelude=nothing_installed)
    assert all(Path(file).is_relative_to(REPOSITORY) for file in seen["files"])
    assert sorted(seen["frameworks"]) == ["mindspore", "pytorch"]
    assert seen["plugins"] == {name: [None, "not installed", None] for name in ("mindspore", "pytorch", "verl")}
