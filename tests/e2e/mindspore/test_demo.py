"""`msprobe demo` finds the fault that it plants in a model of MindSpore."""

import json
import subprocess
import sys


def test_the_planted_fault_is_located(tmp_path):
    command = [sys.executable, "-m", "msprobe_core", "demo", "--framework", "mindspore", "--no-browser"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    located = json.loads((tmp_path / "msprobe_demo" / "result" / "locate.json").read_text())
    assert located["suspects"][0]["entry"] == "Primitive.layer_norm.LayerNorm.2.forward"
    assert (tmp_path / "msprobe_demo" / "view.html").is_file()
