"""`msprobe plugins new`: a package whose tests pass as they are, and which the command line uses."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_core.cli.main import _run
from msprobe_core.scaffold import kinds

KINDS = kinds()


def made(tmp_path, kind):
    """Write a package, and its metadata as pip does; return the environment that has it."""
    assert _run(["plugins", "new", "tried-out", "--kind", kind, "-o", str(tmp_path / "p")]) == 0
    info = tmp_path / "p" / "msprobe_tried_out-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msprobe-tried-out\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[msprobe]\ntried_out = msprobe_tried_out.hooks\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "p"), *sys.path])}


def finished(environment, tmp_path, *command):
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=tmp_path / "p", env=environment
    )


def test_there_is_a_template_of_each_kind():
    assert KINDS == ["check", "command", "executor", "framework", "metric", "statistic", "trainer", "writer"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_tests_pass_at_once_and_nothing_is_wrong(tmp_path, kind):
    environment = made(tmp_path, kind)
    tests = finished(environment, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert tests.returncode == 0, tests.stdout
    check = finished(environment, tmp_path, "msprobe_core", "plugins", "check", "tried_out")
    # How long a hook of any plugin takes says more about what else the machine does.
    said = [line for line in check.stderr.splitlines() if "has a slow hook" not in line]
    assert (check.returncode, said) == (0, [])
    assert "nothing is wrong" in check.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_lint_clean(tmp_path, kind):
    pytest.importorskip("ruff")
    environment = made(tmp_path, kind)
    lint = finished(environment, tmp_path, "ruff", "check", "--line-length", "120", "--select", "E,F,I,UP,B", ".")
    assert lint.returncode == 0, lint.stdout


PROGRAM = """
import sys
sys.path.insert(0, {support!r})
from numpy_layers import ArrayFramework, Network, train_step
from msprobe_core.capture import Session
from msprobe_core.config import load_config
config = load_config(None, dump_path="run", level="mix", writer="tried_out", task="tensor")
session = Session(config, ArrayFramework())
session.start([model := Network()])
train_step(model, 0)
session.step()
session.close()
"""


@pytest.mark.slow
def test_a_format_is_recorded_and_compared(tmp_path):
    environment = made(tmp_path, "writer")
    program = PROGRAM.format(support=str(Path(__file__).parents[1] / "support"))
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path / "p", env=environment)
    sides = ["-tp", "run/step0", "-gp", "run/step0"]
    compared = finished(environment, tmp_path, "msprobe_core", "compare", *sides, "-o", "o")
    assert compared.returncode == 0, compared.stderr
    assert "AGREE" in compared.stdout


def test_a_full_disk_leaves_no_directory(tmp_path):
    """So that the command can be repeated."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))  # noqa: E731
    command = [sys.executable, "-m", "msprobe_core", "plugins", "new", "fine", "--kind", "metric", "-o", "deep/fine"]
    run = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, cwd=tmp_path)
    assert run.returncode == 2
    assert "deep/fine cannot be written (File too large)" in run.stderr
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["Not A Name", "--kind", "metric"], "is no name of a plugin"),
        (["fine-", "--kind", "check"], "is no name of a plugin"),
        (["core", "--kind", "check"], "msprobe-core is a package of msprobe itself"),
        (["fine", "--kind", "nothing"], "Invalid value for '--kind'"),
        (["fine", "--kind", "metric", "-o", "."], "exists already"),
    ],
)
def test_mistakes_are_said(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert _run(["plugins", "new", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
