"""`msprobe demo` and `msprobe doctor` with MindSpore."""

import json
import subprocess
import sys

import pytest
from msprobe.mindspore import _checkup

from msprobe_core.plugin import Health


def test_the_planted_fault_is_located(tmp_path):
    command = [sys.executable, "-m", "msprobe_core", "demo", "--framework", "mindspore", "--no-browser"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    located = json.loads((tmp_path / "msprobe_demo" / "result" / "locate.json").read_text())
    assert located["suspects"][0]["entry"] == "Primitive.layer_norm.LayerNorm.2.forward"
    assert (tmp_path / "msprobe_demo" / "view.html").is_file()


@pytest.mark.parametrize(
    ("version", "health"),
    [("2.10.0", Health.OK), ("2.9.1", Health.OK), ("2.8.0", Health.WARNING), ("3.0", Health.WARNING)],
)
def test_what_is_recorded_is_told(version, health):
    assert _checkup._version(version).health is health
    found = {each.code: each for each in _checkup.examine()}
    assert "L0" in found["mindspore.levels"].state
    assert {each.health for each in found.values()} == {Health.OK}
    assert [each.health for each in _checkup._numpy("2.1.0")] == [Health.WARNING]
