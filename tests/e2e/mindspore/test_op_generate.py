"""Scripts of op_generate of MindSpore calls run where msprobe is not."""

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from msprobe.mindspore import PrecisionDebugger

from msprobe_core.cli import main

BARE = """
import importlib.util, runpy, sys
sys.path.append({packages!r})
assert importlib.util.find_spec("msprobe_core") is None
sys.argv = [{script!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


class Net(nn.Cell):
    """A softmax."""

    def construct(self, x):
        return ops.softmax(x, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize(("propagation", "mode"), [("forward", "real_data"), ("backward", "random_data")])
def test_a_script_prints_the_published_fields(tmp_path, propagation, mode):
    config = tmp_path / "config.json"
    fields = {"task": "tensor", "level": "mix", "risk_level": "ALL", "dump_path": str(tmp_path / "run")}
    config.write_text(json.dumps(fields))
    debugger, model = PrecisionDebugger(str(config)), Net()
    x = ms.Tensor(np.random.default_rng(1).standard_normal((6, 16)), ms.float32)
    try:
        debugger.start(model)
        ms.value_and_grad(lambda x: (model(x) ** 2).mean(), 0)(x)
        debugger.stop()
    finally:
        debugger.close()
    (unit,) = (tmp_path / "run").glob("step0/*")
    given = {"extract_api_path": str(tmp_path / "api.json"), "dump_json_path": str(unit), "data_mode": mode}
    asked = tmp_path / "config_op.json"
    asked.write_text(json.dumps(given | {"api_name": "Functional.softmax.0", "propagation": propagation}))
    with pytest.raises(SystemExit) as ended:
        main(["op_generate", "-i", str(asked), "-o", str(tmp_path)])
    assert not ended.value.code
    script = tmp_path / f"Functional.softmax.0.{propagation}.py"
    code = BARE.format(packages=str(Path(ms.__file__).parents[1]), script=str(script))
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "Compare Standard: benchmark" in found.stdout
    assert found.stdout.count("Verdict: pass") == (2 if mode == "real_data" else 1)
