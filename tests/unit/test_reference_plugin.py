"""The reference plugin, ``examples/reference_plugin``: its contract, and what commands and recordings do with it."""

import importlib
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from dumps import api, tensor, write_dump
from numpy_layers import Network, train_step
from numpy_rig import ArrayDebugger

from msprobe_core.cli.main import _run
from msprobe_core.plugins import Plugin, registry
from msprobe_core.testing import LiveCheckContract

PLUGIN = Path(__file__).parents[2] / "examples" / "reference_plugin"


@pytest.fixture(scope="module")
def hooks():
    assert 'reference = "msprobe_reference.hooks"' in (PLUGIN / "pyproject.toml").read_text()
    sys.path.insert(0, str(PLUGIN))
    module = importlib.import_module("msprobe_reference.hooks")
    sys.path.remove(str(PLUGIN))
    return module


@pytest.fixture
def installed(hooks):
    registry().add(Plugin("reference", "0.1", "msprobe-reference"), lambda: hooks)
    yield
    registry().manager.unregister(name="reference")
    registry()._plugins.pop("reference")


class TestGrowth(LiveCheckContract):
    @pytest.fixture
    def check(self, hooks):
        return hooks.Growth()


@pytest.mark.usefixtures("installed")
def test_nothing_is_wrong_with_it(capsys):
    assert _run(["plugins", "check", "reference"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_results_are_tests_of_a_build_server(tmp_path, capsys):
    for side, values in (("target", (1.0, 2.0)), ("golden", (1.0, 1.0))):
        for rank, value in enumerate(values):
            data = {"Functional.relu.0.forward": api(tensor(1.0), output=tensor(value))}
            write_dump(tmp_path / side / "step0" / f"rank{rank}", data)
    target, golden, out = (str(tmp_path / name) for name in ("target", "golden", "out"))
    assert _run(["compare", "-tp", target, "-gp", golden, "-o", out, "--report", "junit"]) == 1
    suite = ET.parse(tmp_path / "out" / "compare_junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "diverges first at Functional.relu.0.forward"
    assert _run(["locate", target, golden, "-o", out, "--report", "junit"]) == 1
    suite = ET.parse(tmp_path / "out" / "locate_junit.xml").getroot()
    assert [case.get("name") for case in suite] == ["Functional.relu.0.forward"]


@pytest.mark.usefixtures("installed")
def test_outputs_that_grow_are_said_while_recording(tmp_path, caplog):
    debugger, model = ArrayDebugger(dump_path=tmp_path, level="L0", live_checks=["growth"]), Network()
    for step in range(2):
        model.first.parameters["weight"].values[...] *= 100.0**step
        debugger.start(model)
        train_step(model, 1, learning_rate=0.0)
        debugger.stop()
        debugger.step()
    debugger.close()
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "step 1: Module.first.Dense.forward.0: growth: Module.first.Dense.forward.0.output.0 has" in text
        for text in said
    )
    assert not any("step 0: " in text for text in said)
