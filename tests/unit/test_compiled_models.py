"""What the core does for frameworks that compile whole models, and hear of calls on other threads and out of order."""

import threading

import pytest
from numpy_layers import ArrayFramework, Network

from msprobe_core.capture import Session
from msprobe_core.capture.processors import StatisticsProcessor
from msprobe_core.capture.recorder import Recorder
from msprobe_core.capture.selection import Selection
from msprobe_core.config import TaskOptions, load_config
from msprobe_core.errors import ConfigError


class CompilingFramework(ArrayFramework):
    def __init__(self):
        super().__init__()
        self.prepared = []

    def prepare(self, models, options):
        self.prepared.append(([model.model for model in models], options.level.value))


@pytest.fixture
def recorder():
    return Recorder(
        ArrayFramework(), StatisticsProcessor(), Selection(TaskOptions()), stacks=None, tracks_parents=True,
        expands_modules=False, keep_tensor=None,
    )  # fmt: skip


@pytest.mark.parametrize(("settings", "num_prepared"), [({"step": [3]}, 2), ({"rank": [5]}, 0), ({"step": [0]}, 1)])
def test_models_are_prepared_for_as_long_as_something_may_be_recorded(tmp_path, settings, num_prepared):
    framework, model = CompilingFramework(), Network(0)
    config = load_config(None, task="structure", dump_path=str(tmp_path), level="L0", **settings)
    session = Session(config, framework)
    for _ in range(2):
        session.start([model])
        session.stop()
        session.step()
    session.close()
    assert framework.prepared == [([model], "L0")] * num_prepared


class CheckingFramework(ArrayFramework):
    def check(self, options):
        raise ConfigError(f"no {options.level.value} here")


def test_a_framework_refuses_a_level_before_the_training_begins(tmp_path):
    config = load_config(None, dump_path=str(tmp_path), level="mix")
    with pytest.raises(ConfigError, match="no mix here"):
        Session(config, CheckingFramework())
    is_off = load_config(None, dump_path=str(tmp_path), level="mix", dump_enable=False)
    Session(is_off, CheckingFramework()).close()


def test_calls_on_another_thread_are_inside_of_those_that_are_named(recorder):
    outer = recorder.open_module("Cell", "outer", "Outer")
    nesting = recorder.nesting()

    def work():
        recorder.nest_in(nesting)
        recorder.close(recorder.open_module("Cell", "outer.inner", "Inner"))
        recorder.nest_in(())
        recorder.close(recorder.open_module("Cell", "alone", "Alone"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.close(outer)
    parents = recorder.drain().parents
    assert parents["Cell.outer.inner.Inner.forward.0"] == "Cell.outer.Outer.forward.0"
    assert parents["Cell.alone.Alone.forward.0"] is None


def test_reports_stand_where_the_clock_was_set(recorder):
    for name, moment in (("late", 1000), ("early", 10), ("between", 500)):
        call = recorder.open_module("Cell", name, "Layer")
        recorder.set_clock(moment)
        recorder.close(call)
        assert recorder.clock == moment + 1
    assert [entry.name.split(".")[1] for entry in recorder.drain().entries] == ["early", "between", "late"]
