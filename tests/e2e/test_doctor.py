"""What `msprobe doctor` says of PyTorch."""

import json
import subprocess
import sys

import pytest
from msprobe.pytorch import _checkup

from msprobe_core.plugin import Health


@pytest.mark.parametrize(
    ("version", "health"),
    [
        ("2.13.0+cpu", Health.OK), ("2.6.1", Health.OK), ("2.1.0a0+git", Health.ERROR), ("1.13.1", Health.ERROR),
        ("2.9.0", Health.NOTE), ("3.0.0.dev20270101", Health.WARNING),
    ],
)  # fmt: skip
def test_releases_are_compared_with_those_that_are_tested(version, health):
    assert _checkup._version(version).health is health


@pytest.mark.slow
def test_what_is_recorded_is_told_and_a_broken_framework_is_an_error(tmp_path):
    command = [sys.executable, "-m", "msprobe_core", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = {each["code"]: each for each in json.loads(done.stdout)["conditions"] if each["section"] == "pytorch"}
    assert {each["health"] for each in found.values()} <= {"ok", "note"}
    assert "L0" in found["pytorch.levels"]["state"]

    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    broken = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    (torch,) = [each for each in json.loads(broken.stdout)["conditions"] if each["section"] == "pytorch"]
    assert (broken.returncode, torch["code"], torch["health"]) == (1, "framework.broken", "error")
    assert "libcudart.so.12" in torch["state"]
