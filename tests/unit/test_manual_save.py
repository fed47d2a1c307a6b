"""`save` at level debug: names, nesting, gradients early, late and never, files, and what compare makes of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework, Network

from msprobe_core import compare_dumps
from msprobe_core.capture import Session
from msprobe_core.cli import main
from msprobe_core.compare.result import Mode
from msprobe_core.config import load_config
from msprobe_core.errors import ConfigError
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.tensors import read_tensor


@pytest.fixture
def open_session(tmp_path):
    def make(*, run="run", task="statistics", level="debug", options=None, **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": task, "level": level, task: options or {}, **settings}))
        config = load_config(path, dump_path=str(tmp_path / run))
        return Session(config, ArrayFramework())

    return make


def save(session, variable, name, *, save_backward=True):
    session.save(variable, name, save_backward=save_backward)


def saved(session):
    return json.loads((session.directory / "debug.json").read_text())["data"]


def array(value=1.0, requires_grad=False):
    return Array(np.full(2, value), requires_grad)


def test_values_are_named_by_order_and_nested_like_the_variable(open_session):
    session = open_session()
    save(session, array(1.0), "x", save_backward=False)
    save(session, {"k": [array(2.0), 3, True], "t": (0.5, "text", None), "empty": {}}, "x", save_backward=False)
    save(session, 7, "n", save_backward=False)
    session.close()
    content = json.loads((session.directory / "debug.json").read_text())
    assert content["end"]["state"] == "complete"
    assert {key: content[key] for key in content if key not in {"data", "run", "end"}} == {
        "task": "statistics", "level": "debug", "framework": "numpy", "dump_data_dir": None,
        "summary_mode": "statistics",
    }  # fmt: skip
    first, second, number = content["data"].values()
    assert list(content["data"]) == ["x.0.debug", "x.1.debug", "n.0.debug"]
    assert first["Max"] == 1.0
    assert (second["k"][0]["Max"], second["k"][1:]) == (
        2.0, [{"type": "int", "value": 3}, {"type": "bool", "value": True}],
    )  # fmt: skip
    assert second["t"] == [{"type": "float", "value": 0.5}, {"type": "str", "value": "text"}, None]
    assert number == {"type": "int", "value": 7}
    assert {path.name for path in session.directory.iterdir()} == {"debug.json", "manifest.json"}


def test_gradients_fill_a_skeleton_of_the_variable(open_session):
    session = open_session()
    watched, plain = array(requires_grad=True), array()
    save(session, {"k": [watched, 3], "w": plain}, "nest")
    save(session, plain, "plain")
    [hook] = watched.gradient_hooks
    hook(array(5.0))
    session._output.queue.wait()
    data = saved(session)  # on disk as soon as it is complete
    assert list(data) == ["nest.0.debug", "plain.0.debug", "plain_grad.0.debug", "nest_grad.0.debug"]
    assert (data["nest_grad.0.debug"]["k"][0]["Max"], data["nest_grad.0.debug"]["k"][1]) == (5.0, None)
    assert data["nest_grad.0.debug"]["w"] is None
    assert data["plain_grad.0.debug"] is None
    session.close()


def test_a_gradient_that_never_comes_is_null_at_the_end_of_the_step(open_session, caplog):
    session = open_session()
    first, second = array(requires_grad=True), array(requires_grad=True)
    save(session, [first, second], "pair")
    hooks = [*first.gradient_hooks, *second.gradient_hooks]
    hooks[1](array(2.0))
    session.stop()
    assert "pair_grad.0.debug" not in saved(session)  # it may still come
    session.step()
    data = saved(session)
    assert (data["pair_grad.0.debug"][0], data["pair_grad.0.debug"][1]["Max"]) == (None, 2.0)
    assert first.gradient_hooks == second.gradient_hooks == []
    hooks[0](array(9.0))
    assert (
        "pair_grad.0.debug: a gradient came a second time in one backward pass or after its step was over"
        in caplog.text
    )
    session.close()
    assert saved(session) == data


def test_only_the_first_gradient_of_a_tensor_counts(open_session):
    session = open_session()
    tensor = array(requires_grad=True)
    save(session, [tensor, array(requires_grad=True)], "x")
    [hook] = tensor.gradient_hooks
    hook(array(1.0))
    assert not tensor.gradient_hooks
    hook(array(2.0))
    session.close()
    assert saved(session)["x_grad.0.debug"][0]["Max"] == 1.0


def test_steps_are_separate_and_selected(tmp_path, open_session):
    session = open_session(step=[0, 2], rank=[0])
    for step in range(3):
        save(session, array(float(step)), "x", save_backward=False)
        save(session, array(float(step)), "x", save_backward=False)
        session.step()
    session.close()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step0", "step2"]
    assert list(saved(session)) == ["x.0.debug", "x.1.debug"]
    assert saved(session)["x.0.debug"]["Max"] == 2.0


def test_a_tensor_is_read_each_time_it_is_saved(open_session):
    session = open_session()
    tensor = array(1.0)
    save(session, tensor, "x", save_backward=False)
    tensor.values[...] = 4.0  # without changing any version counter
    save(session, tensor, "x", save_backward=False)
    session.close()
    assert [value["Max"] for value in saved(session).values()] == [1.0, 4.0]


def test_values_called_like_gradients_count_on(open_session):
    session = open_session()
    save(session, array(1.0), "x")
    save(session, array(2.0), "x_grad", save_backward=False)
    session.close()
    assert list(saved(session)) == ["x.0.debug", "x_grad.0.debug", "x_grad.1.debug"]


def test_what_cannot_be_saved_is_said_and_skipped(open_session, caplog):
    session = open_session()
    for _ in range(2):
        save(session, object(), "thing")
    save(session, 1, "thing", save_backward=False)
    session.close()
    assert list(saved(session)) == ["thing.0.debug"]
    assert caplog.text.count("save() takes tensors, numbers and text, not object") == 1


def test_whole_tensors_are_kept_under_their_paths(open_session):
    session = open_session(task="tensor")
    tensor = array(3.0, requires_grad=True)
    save(session, {"k": [tensor]}, "nest")
    save(session, tensor, "x", save_backward=False)
    tensor.gradient_hooks[0](array(8.0))
    session.close()
    directory = session.directory / "dump_tensor_data"
    contents = {path.name: read_tensor(path).max() for path in directory.iterdir()}
    assert contents == {"nest.0.debug.k.0.npy": 3.0, "nest_grad.0.debug.k.0.npy": 8.0, "x.0.debug.npy": 3.0}
    assert saved(session)["nest_grad.0.debug"]["k"][0]["data_name"] == "nest_grad.0.debug.k.0.npy"


def test_start_and_stop_change_nothing(tmp_path, open_session):
    session, model = open_session(), Network()
    session.start([model])
    assert "forward" not in vars(model)
    session.stop()
    assert not (tmp_path / "run").exists()
    session.close()


def test_settings_that_select_calls_are_said_to_mean_nothing(open_session, caplog):
    open_session(options={"list": ["x"], "tensor_list": ["x"], "slice": [{"end": 1}]}).close()
    assert caplog.text.count("has no meaning at level debug and is ignored") == 3


def test_a_directory_that_cannot_be_made_ends_recording_not_the_training(tmp_path, open_session, caplog):
    (tmp_path / "run").write_text("")
    session = open_session()
    for _ in range(2):
        save(session, 1, "x")
    assert caplog.text.count("recording ends at step 0") == 1
    session.close()


# --- reading and comparing ------------------------------------------------------------------------------------


def record(open_session, run, scale, **settings):
    session = open_session(run=run, **settings)
    for value in (1.0, 2.0 * scale):
        tensor = array(value, requires_grad=True)
        save(session, {"loss": tensor, "tokens": 5}, "out")
        tensor.gradient_hooks[0](array(value))
    save(session, array(4.0), "last", save_backward=False)
    session.close()
    return session.directory


def test_rows_are_named_by_entry_and_path(open_session):
    frame = read_json_dump(record(open_session, "run", 1.0) / "debug.json").frame
    assert frame["name"].to_list() == [
        "out.0.debug.loss", "out.0.debug.tokens", "out_grad.0.debug.loss", "out_grad.0.debug.tokens",
        "out.1.debug.loss", "out.1.debug.tokens", "out_grad.1.debug.loss", "out_grad.1.debug.tokens", "last.0.debug",
    ]  # fmt: skip
    assert set(frame["phase"]) == {"debug"}
    assert frame["max"].to_list() == [1.0, 5.0, 1.0, None, 2.0, 5.0, 2.0, None, 4.0]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("give", [lambda path: path, lambda path: path / "debug.json", lambda path: path.parent])
def test_two_debug_dumps_are_compared(open_session, task, give):
    golden = record(open_session, "golden", 1.0, task=task)
    same, other = (record(open_session, run, scale, task=task) for run, scale in (("same", 1.0), ("other", 3.0)))
    assert compare_dumps(give(same), give(golden)).agrees
    result = compare_dumps(give(other), give(golden))
    assert not result.agrees
    [unit] = result.units
    assert unit.mode is (Mode.TENSOR if task == "tensor" else Mode.STATISTICS)
    assert unit.fault.entry == "out.1.debug"
    assert unit.rows.height == 9  # also those that are named like their entry
    failed = unit.rows.filter(verdict="error")["name_target"].to_list()
    assert failed == ["out.1.debug.loss", "out_grad.1.debug.loss"]


def test_the_command_line_names_the_first_saved_value_that_differs(tmp_path, open_session, capsys):
    golden, target = (record(open_session, run, scale) for run, scale in (("golden", 1.0), ("other", 3.0)))
    arguments = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "First fault: out.1.debug" in said
    assert "This saved value differs, and none before it does." in said
    assert said.rstrip().endswith("DIFFERENT: first at out.1.debug.")


def test_files_of_the_other_kind_of_an_earlier_run_go(open_session, monkeypatch):
    monkeypatch.setattr(ArrayFramework, "rank", lambda _self: 0)
    session = open_session(level="L0")
    session.start([Network()])
    session.close()
    directory: Path = session.directory
    records = {"dump.json", "stack.json", "construct.json"}
    assert {path.name for path in directory.iterdir()} == records | {"manifest.json"}
    record(open_session, "run", 1.0)
    assert {path.name for path in directory.iterdir()} == {"debug.json", "manifest.json"}
    session = open_session(level="L0")
    session.start([Network()])
    session.close()
    assert {path.name for path in directory.iterdir()} == records | {"manifest.json"}


def test_other_tasks_refuse_saved_values(tmp_path):
    config = load_config(None, dump_path=str(tmp_path), level="debug", task="overflow_check")
    with pytest.raises(ConfigError, match="the task 'overflow_check' does not apply at level debug; use statistics"):
        Session(config, ArrayFramework())
