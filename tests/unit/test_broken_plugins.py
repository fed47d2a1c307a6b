"""Every hook, broken in every way, while a training is recorded, dumps are compared and plugins are listed."""

import json
import logging
import sys
import time

import numpy as np
import pytest
from broken_plugins import NAME, PLACES, WAYS, broken_offer, implementation, plugged
from numpy_layers import ArrayFramework, Network, train_step

from msprobe_core import PrecisionDebugger
from msprobe_core.capture import framework_choice
from msprobe_core.capture.features import live_checks
from msprobe_core.cli.main import _run

BREAKS = [*WAYS, "missing member"]
BARE = [train_step(model, step) for model in [Network()] for step in range(2)]
USED = ("frameworks", "processors", "writers", "features", "run_settings", "live_checks", "stages", "statistics")
"""Hooks that a recording asks."""


def trained(tmp_path, hook):
    """Train and record with everything that the plugin offers; return the losses."""

    class Debugger(PrecisionDebugger):
        framework_name = NAME if hook == "frameworks" else "numpy"

        def _framework(self, model):
            return framework_choice.find_framework(NAME, model) if hook == "frameworks" else ArrayFramework()

    mode = NAME if hook == "processors" else "statistics"
    (tmp_path / "c.json").write_text(json.dumps({"statistics": {"summary_mode": mode}}))
    asking = {"live_checks": "live_checks", "statistics": "extra_statistics"}
    settings = {"writer": NAME} if hook == "writers" else {asking[hook]: [NAME]} if hook in asking else {}
    debugger = Debugger(config_path=tmp_path / "c.json", dump_path=tmp_path / "run", level="mix", **settings)
    model, losses = Network(), []
    try:
        for step in range(2):
            debugger.start(model)
            losses.append(train_step(model, step))
            debugger.stop()
            debugger.step()
    finally:
        debugger.close()
    return losses


def is_harmless(hook, method, way):
    """Whether what is broken there is what a healthy plugin may do, or is not called."""
    if way == "returns None":
        return method is not None and method not in {"load", "open"} and hook != "live_checks"
    return way == "wrong type" and method in {"check", "reduce"} and hook != "live_checks"


@pytest.mark.parametrize("way", BREAKS)
@pytest.mark.parametrize(("hook", "method"), PLACES)
def test_a_training_goes_on_unharmed(tmp_path, caplog, hook, method, way):
    caplog.set_level(logging.WARNING)
    with plugged(hook, implementation(hook, method, way)):
        assert trained(tmp_path, hook) == BARE
    said = [record.getMessage() for record in caplog.records]
    assert not any("Traceback" in text for text in said)
    if hook in USED and not is_harmless(hook, method, way):
        assert any(f"'{NAME}'" in text for text in said), said
    elif hook not in USED:
        assert said == []


@pytest.mark.parametrize(("hook", "method"), PLACES)
def test_a_slow_plugin_costs_its_time_only(tmp_path, caplog, monkeypatch, hook, method):
    """Nothing is asked again for being slow, a slow hook is named, and a slow check of calls is asked once."""
    if method is None:
        monkeypatch.setattr(sys.modules["msprobe_core.plugins.registry"], "_SLOW_S", 0.02)
    else:
        monkeypatch.setattr(live_checks, "GRACE_S", 0.02)
    waits = []

    def linger():
        waits.append(1)
        time.sleep(0.05 if method != "reduce" else 0)

    with plugged(hook, implementation(hook, method, "hangs", linger)):
        assert trained(tmp_path, hook) == BARE
    assert len(waits) <= (48 if method == "reduce" else 2 if method == "open" else 1)  # tensors, dumps, or once
    said = [text for record in caplog.records if f"'{NAME}'" in (text := record.getMessage())]
    is_told = bool(waits) and (method is None or hook == "live_checks")
    assert ["slow hook" in text or "is dropped" in text for text in said] == [True] * is_told


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Two dumps of one tensor each, which a reader of the plugin recognises too."""
    found = []
    for side in ("target", "golden"):
        directory = tmp_path_factory.mktemp(side) / "step0" / "rank0"
        (directory / "dump_tensor_data").mkdir(parents=True)
        np.save(directory / "dump_tensor_data" / "0.npy", np.ones(3, np.float32))
        record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3], "requires_grad": False}
        record |= {"Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.7, "data_name": "0.npy"}
        data = {"Functional.relu.0.forward": {"input_args": [], "input_kwargs": {}, "output": [record]}}
        content = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (directory / "dump.json").write_text(json.dumps(content))
        found.append(directory)
    return found


TRIED = {"load", "check", "recognises", "titles", "read", "compare", "reduce"}
"""Methods that ``msprobe plugins check`` calls."""

UNTRIED = ("dump_checks", "comparison_checks", "processors")
"""Hooks whose offers need a run to be tried."""

OPTIONS = {"executors": ["--executor", NAME], "tables": ["--compat", NAME], "reports": ["--report", NAME]}
"""What makes ``msprobe compare`` use a plugin."""


def compared(dumps, tmp_path, hook):
    target, golden = dumps
    if hook == "readers":
        (target / "dump.broken").touch()
    command = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out"), *OPTIONS.get(hook, [])]
    if hook == "exports":
        command = ["export", str(target), "-o", str(tmp_path / "out"), f"--{NAME}"]
    if hook == "commands":
        command = [NAME]
    if hook == "dump_checks":
        command = ["check", str(target), "-o", str(tmp_path / "out")]
    try:
        return _run(command)
    finally:
        (target / "dump.broken").unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", BREAKS)
@pytest.mark.parametrize(("hook", "method"), PLACES)
def test_a_command_says_what_is_broken(tmp_path, capsys, caplog, dumps, hook, method, way):
    caplog.set_level(logging.WARNING)
    with plugged(hook, implementation(hook, method, way)):
        try:
            status = compared(dumps, tmp_path, hook)
        except SystemExit as left:  # of a command of the plugin itself, which may end the program as it likes
            assert (hook, method, way) == ("commands", "callback", "exits")
            status = left.code
    text = capsys.readouterr()
    said = text.out + text.err + caplog.text
    assert "internal error" not in said
    assert "Traceback" not in said
    assert status in (0, 2, 3) or (hook, method, way) == ("commands", "callback", "wrong type")  # its status
    if status == 2:
        assert NAME in text.err
    if hook == "comparison_checks" and method is not None and way != "missing member":
        assert NAME in said
    if hook not in OPTIONS and hook not in ("readers", "exports", "commands", "dump_checks"):
        assert status == 0  # nothing of the plugin is needed


@pytest.mark.slow
@pytest.mark.parametrize("way", BREAKS)
@pytest.mark.parametrize(("hook", "method"), PLACES)
def test_plugins_are_checked(capsys, caplog, hook, method, way):
    with plugged(hook, implementation(hook, method, way)):
        assert _run(["plugins"]) == 0
        listed = capsys.readouterr().out
        status = _run(["plugins", "check", NAME])
    text = capsys.readouterr()
    assert "Traceback" not in text.out + text.err + caplog.text
    if method is None or (way == "missing member" and method != "callback"):
        assert "BROKEN" in listed.partition(f"\n{NAME} ")[2].partition("\n")[0]
        assert status == 1
        assert "something is wrong" in text.out
    elif hook not in UNTRIED and way in ("raises", "exits") and method in TRIED:
        assert (status, hook == "readers" and method == "read") in ((1, False), (0, True))


@pytest.mark.parametrize("hook", sorted({hook for hook, _ in PLACES}))
def test_a_plugin_that_is_well_passes(capsys, hook):
    with plugged(hook, implementation(hook, None, "hangs")):
        assert _run(["plugins", "check", NAME]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_a_traceback_is_shown_on_request(capsys, caplog):
    with plugged("processors", implementation("processors", None, "raises")):
        _run(["--debug", "plugins", "check", NAME])
    assert "in raise_error" in caplog.text
    logging.getLogger("msprobe_core.plugins").setLevel(logging.NOTSET)


def test_an_offer_is_guarded_wherever_it_is_called():
    with plugged("exports", lambda: [broken_offer("exports", "write", "raises")]):
        from msprobe_core.errors import BrokenPluginError
        from msprobe_core.plugins import registry

        export = registry().exports()[NAME]
        assert (export.name, export.needs_graphs, repr(export)) == (
            NAME,
            False,
            "the export 'broken' of the plugin 'broken'",
        )
        with pytest.raises(BrokenPluginError, match="the export 'broken' of the plugin 'broken' failed at write"):
            export.write(None)
