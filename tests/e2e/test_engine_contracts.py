"""Engines and trainers that import the debugger by its published name: each in the order in which it calls.

The stand-ins repeat the public calls of the release that is named; what docs/engines.md says of each is tested here.
"""

import fcntl
import json
from pathlib import Path

import pytest
import torch
from recorded import Recorded
from torch import nn

pytestmark = pytest.mark.usefixtures("close_debugger")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"

    def write(**fields):
        path.write_text(json.dumps({"dump_path": str(tmp_path / "run"), "level": "L0", **fields}))
        return str(path)

    return write


def forward(model, value=1.0):
    with torch.inference_mode():
        return model(torch.full((2, 4), float(value)))


def steps(directory):
    return sorted(int(path.name.removeprefix("step")) for path in Path(directory).glob("step*"))


def largest(directory, step, entry="Module.0.Linear.forward.0"):
    return Recorded(directory, step).data[entry]["input_args"][0]["Max"]


# --- SGLang 0.5.23: create_msprobe_debugger, and ModelRunner.forward ------------------------------------------------


@pytest.mark.parametrize("rank_id", [None, 2])
def test_sglang(config, model, tmp_path, rank_id):
    from msprobe.pytorch import PrecisionDebugger, seed_all

    was_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        seed_all(mode=True)
        debugger = PrecisionDebugger(config_path=config(step=[0, 2]))
        for number in range(4):
            debugger.start(model=model, rank_id=rank_id)
            forward(model, number)
            debugger.stop()
            debugger.step()
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
    assert steps(tmp_path / "run") == [0, 2]
    (dump,) = (tmp_path / "run/step2").glob("*/dump.json")
    assert rank_id is None or dump.parent.name == f"rank{rank_id}"
    found = json.loads(dump.read_text())["data"]
    assert found["Module.0.Linear.forward.0"]["input_args"][0]["Max"] == 2.0
    assert debugger.service.should_stop_service


# --- vllm-ascend: Dumper of the model runner


class AscendDumper:
    """start_dump_data, finalize_dump_data and set_msprobe_dump_state."""

    def __init__(self, path):
        from msprobe.pytorch import PrecisionDebugger

        self.path, self.debugger = Path(path), PrecisionDebugger(path)

    def execute(self, model, value, *, dump=True):
        self.debugger.start(model)
        forward(model, value)
        self.debugger.stop()
        if dump:
            self.debugger.step()
        else:
            self.debugger.step(dump=False)

    def set_state(self, state):
        with Path(f"{self.path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = json.loads(self.path.read_text())
            content["dump_enable"] = state
            with self.path.open("w") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
            self.debugger._maybe_reload_config(force=True)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_vllm_ascend(config, model, tmp_path, task):
    dumper = AscendDumper(config(dump_enable=False, task=task))
    run = tmp_path / "run"
    dumper.execute(model, 1.0)
    assert not run.exists()
    dumper.set_state(True)
    dumper.execute(model, 2.0, dump=False)  # a made-up batch: it leaves nothing, and does not count
    assert steps(run) == []
    dumper.execute(model, 3.0)
    dumper.set_state(False)
    dumper.execute(model, 4.0)
    assert steps(run) == [1]
    assert largest(run, 1) == 3.0


def test_vllm_ascend_with_graphs_says_what_there_is():
    with pytest.raises(ImportError, match="run eagerly"):
        from msprobe.pytorch import AclGraphDumper  # noqa: F401


# --- ms-swift 4.6: a callback of its trainer ------------------------------------------------------------------------


def test_ms_swift(model, tmp_path):
    from msprobe.pytorch.debugger.precision_debugger import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=str(tmp_path / "run"), level="mix", model=model)
    for _ in range(2):
        debugger.start()
        model(torch.ones(2, 4)).sum().backward()
        debugger.stop()
        debugger.step()
    assert steps(tmp_path / "run") == [0, 1]
    assert "Module.0.Linear.backward.0" in Recorded(tmp_path / "run", 1).data


# --- slime and others: stages with directories of their own ---------------------------------------------------------


@pytest.mark.parametrize("member", [lambda debugger: debugger.config, lambda debugger: debugger.service.config])
def test_stages_have_directories_of_their_own(config, model, tmp_path, member):
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=config())
    for number in range(2):
        for stage in ("ref_log_prob", "actor_train"):
            member(debugger).dump_path = str(tmp_path / stage)
            debugger.service.current_iter = number
            debugger.start(model)
            forward(model, number)
            debugger.stop()
            debugger.step()
    for stage in ("ref_log_prob", "actor_train"):
        assert steps(tmp_path / stage) == [0, 1]
        assert largest(tmp_path / stage, 1) == 1.0
    assert debugger.config.dump_path == tmp_path / "actor_train"
    assert not debugger.service.should_stop_service
    assert not (tmp_path / "run").exists()


def test_a_step_that_is_being_recorded_stays_where_it_is(config, model, tmp_path):
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=config(dump_enable=True))
    debugger.start(model)
    debugger.config.dump_path = tmp_path / "other"
    forward(model)
    debugger.stop()
    debugger.step()
    debugger.start(model)
    forward(model)
    debugger.stop()
    assert (steps(tmp_path / "run"), steps(tmp_path / "other")) == ([0], [1])


def test_what_there_is_not_says_so(config):
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path=config())
    with pytest.raises(AttributeError, match="edit the configuration file"):
        debugger.config.level = "L1"
    with pytest.raises(AttributeError, match="here it has config"):
        _ = debugger.service.data_collector
    assert debugger.config == PrecisionDebugger().config
    assert debugger.config.level.value == "L0"
