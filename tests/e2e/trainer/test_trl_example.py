"""The plugin for TRL's GRPOTrainer, installed, on a CPU: a healthy run, a planted fault, a training without it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from forked_python import forked_python
from safetensors.numpy import load_file

from msprobe_core.cli import main

pytest.importorskip("trl")
pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "trl_grpo"
FOUND = "batch = super()._generate_and_score_completions(inputs)"


def install(place):
    """Build the plugin's wheel, and unpack it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place], cwd=EXAMPLE, check=True,
        capture_output=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(place / "site")
    return place / "site"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a Python whose processes have imported TRL, which takes longer than to train."""
    libraries = ["trl.trainer.grpo_trainer", "torch._dynamo"]
    with forked_python(tmp_path_factory.mktemp("python"), libraries) as python:
        yield python


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return install(tmp_path_factory.mktemp("wheel"))


def run_with(python, site, *command):
    done = subprocess.run(
        [python, *command], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train(python, site, place, *arguments):
    run_with(python, site, EXAMPLE / "train.py", place, *arguments)
    return place / "run"


def status_of(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_the_package_is_found_by_its_entry_point(python, site):
    listed = run_with(python, site, "-c", "from msprobe_core.cli import main; main(['plugins'])")
    assert "stages: trl, verl" in listed


def test_a_healthy_run_agrees(python, site, tmp_path, capsys):
    run = train(python, site, tmp_path)
    assert status_of("rl", "check", run, "-o", tmp_path) == 0, capsys.readouterr().out
    assert status_of("rl", "compare", "onpolicy", run, "-o", tmp_path) == 0
    assert "equal to the bit" in capsys.readouterr().out
    assert status_of("view", run, "-o", tmp_path / "page.html") == 0
    assert capsys.readouterr().out.startswith("Nothing is out of its limits in 2 steps.")


def test_a_fault_is_named(python, tmp_path, capsys):
    site = install(tmp_path)
    source = site / "msprobe_trl" / "_trainer.py"
    text = source.read_text()
    assert text.count(FOUND) == 1
    source.write_text(text.replace(FOUND, f'{FOUND}\n        batch["advantages"] = -batch["advantages"]'))
    run = train(python, site, tmp_path / "faulty")
    assert status_of("rl", "check", run, "-o", tmp_path) == 1
    assert "with the other sign" in capsys.readouterr().out


def test_the_training_is_the_same_without_the_recording(python, site, tmp_path):
    """With dropout, so that random numbers that were drawn for the recording would change it."""
    runs = [
        train(python, site, tmp_path / name, "--dropout", "0.1", *more)
        for name, more in (("own", ()), ("plain", ("--plain",)))
    ]
    assert [run.exists() for run in runs] == [True, False]
    own, other = (load_file(run.parent / "trained" / "model.safetensors") for run in runs)
    begun = load_file(runs[0].parent / "model" / "model.safetensors")
    assert own.keys() == other.keys()
    assert all(np.array_equal(own[name], other[name]) for name in own)
    assert any(not np.array_equal(own[name], begun[name]) for name in own)
