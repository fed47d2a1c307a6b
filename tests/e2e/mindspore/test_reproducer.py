"""Scripts of recorded calls of MindSpore: they say what the check says."""

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import msgspec
import numpy as np
import pytest
from mindspore import mint, nn, ops
from msprobe.mindspore import PrecisionDebugger

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker
from msprobe_core.api_check.dump_check import CheckOptions, DumpCheck
from msprobe_core.api_check.reproducer import MOST_LINES, write_reproducer
from msprobe_core.api_check.verdict import Verdict
from msprobe_core.model import Phase, SiteKind
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCalls
from msprobe_core.store.reading import read_dump


class Net(nn.Cell):
    """A layer with a cast, a softmax, an index and a sort."""

    def __init__(self):
        super().__init__()
        ms.set_seed(0)
        self.fc = nn.Dense(16, 8)

    def construct(self, x):
        y = ops.softmax(ops.gelu(self.fc(x)).astype(ms.bfloat16).astype(ms.float32), axis=-1)
        return mint.nn.functional.silu(ops.concat((y, y), axis=0)[1:, ...])


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    place = tmp_path_factory.mktemp("scripts") / "run"
    ms.runtime.launch_blocking()
    config = place.with_suffix(".json")
    config.write_text(json.dumps({"task": "tensor", "level": "mix", "risk_level": "ALL", "dump_path": str(place)}))
    debugger, model = PrecisionDebugger(str(config)), Net()
    x = ms.Tensor(np.random.default_rng(1).standard_normal((6, 16)), ms.float32)
    train = ms.value_and_grad(lambda x: (model(x) ** 2).mean(), 0, model.trainable_params())
    try:
        debugger.start(model)
        train(x)
        debugger.stop()
    finally:
        debugger.close()
    (unit,) = place.glob("step0/*")
    return unit


class Drawing(nn.Cell):
    """Drops elements, and draws others."""

    def construct(self, x):
        return ops.dropout(x * 2.0, p=0.2) + ops.randn(120, 100) + ops.rand(120, 100)


@pytest.mark.slow
def test_scripts_of_random_calls_test_what_was_drawn(tmp_path):
    config = tmp_path / "run.json"
    settings = {"task": "tensor", "level": "L1", "risk_level": "ALL", "dump_path": str(tmp_path / "run")}
    config.write_text(json.dumps(settings))
    debugger, model = PrecisionDebugger(str(config)), Drawing()
    try:
        debugger.start(model)
        model(ms.Tensor(np.random.default_rng(1).standard_normal((120, 100)), ms.float32))
        debugger.stop()
    finally:
        debugger.close()
    check = DumpCheck.of(next((tmp_path / "run").glob("step0/*")), CheckOptions())
    verdicts = {each.entry: each for each in check.run(workers=0)}
    drawn = [entry for entry in verdicts if names.parse_entry(entry).path in ("dropout", "randn", "rand")]
    assert {names.parse_entry(entry).path for entry in drawn} == {"dropout", "randn", "rand"}
    framework = replaying_framework("mindspore")
    paths = {"right": [], "wrong": []}
    for entry in drawn:
        assert verdicts[entry].verdict is Verdict.RIGHT
        call = check.read(entry)
        for name, found in paths.items():
            found.append(
                write_reproducer(call, verdicts[entry], framework, tmp_path / name, command="msprobe acc_check")
            )
            off = call.outputs["0"]
            call.outputs["0"] = msgspec.structs.replace(off, values=off.values * 1.2 + 0.1)
    for name, status in (("right", 0), ("wrong", 1)):
        statuses, said = run_bare(paths[name])
        assert set(statuses.values()) == {status}, f"{said.stdout}{said.stderr}"


BARE = """
import importlib.util, os, runpy, sys
sys.path.append({packages!r})
assert importlib.util.find_spec("msprobe_core") is None
for script in {scripts!r}:
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print("status", os.path.basename(script), ended.code)
"""


def run_bare(paths):
    """Run scripts where msprobe is not importable; return the exit status of each by name."""
    code = BARE.format(packages=str(Path(ms.__file__).parents[1]), scripts=[str(path) for path in paths])
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines() if line.startswith("status ")]
    return {name.removesuffix(".py"): int(status) for _, name, status in lines}, found


@pytest.mark.slow
def test_scripts_of_all_calls_say_what_the_check_says(unit, tmp_path):
    calls = RecordedCalls(read_dump(unit), 1 << 24)
    framework = replaying_framework("mindspore")
    checker = CallChecker(framework=framework, measures_power=False)
    paths, expected = [], {}
    for entry in calls.entries:
        site = names.parse_entry(entry)
        if site.kind is not SiteKind.API or site.phase not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        recorded = calls.read(entry)
        verdict = checker.check(recorded)
        if verdict.verdict is Verdict.CANNOT_TELL:
            continue
        path = write_reproducer(recorded, verdict, framework, tmp_path, command="msprobe acc_check --script NAME")
        text = path.read_text()
        assert len(text.splitlines()) <= MOST_LINES
        assert "pickle" not in text
        paths.append(path)
        expected[entry] = int(verdict.verdict is Verdict.WRONG)
    assert len(expected) > 6
    assert any(entry.endswith("backward") for entry in expected)
    found, said = run_bare(paths)
    assert found == expected, said.stdout + said.stderr


def test_a_wrong_recorded_result_is_wrong(unit, tmp_path):
    calls = RecordedCalls(read_dump(unit), 1 << 24)
    framework = replaying_framework("mindspore")
    recorded = calls.read("Functional.softmax.0.forward")
    recorded.outputs["0"].values[0, 0] *= 1.5
    verdict = CallChecker(framework=framework).check(recorded)
    assert verdict.verdict is Verdict.WRONG
    path = write_reproducer(recorded, verdict, framework, tmp_path, command="msprobe acc_check --script NAME")
    found, said = run_bare([path])
    assert found == {"Functional.softmax.0.forward": 1}
    assert "recorded 0: WRONG" in said.stdout
    assert "cpu      0: right" in said.stdout
