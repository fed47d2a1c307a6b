"""`tensor_list` and `slice` through a whole session, with the NumPy framework."""

import json
import zlib

import numpy as np
import pytest
from broken_plugins import plugged
from numpy_layers import API, Array, ArrayFramework, Network, train_step
from recorded import Recorded, leaves

from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.errors import PluginError
from msprobe_core.plugin import TrainerStages


@pytest.fixture
def open_session(tmp_path):
    def make(*, level="L1", task="statistics", settings=None, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": task, "level": level, task: options, **(settings or {})}))
        config = load_config(path, dump_path=str(tmp_path / "run"))
        return Session(config, ArrayFramework())

    return make


def record(session, *tensors, **start):
    """Multiply each pair of tensors in a window of its own session."""
    session.start([Network()], **start)
    if session.is_running:
        for a, b in zip(tensors[::2], tensors[1::2], strict=True):
            API["multiply"](a, b)
    session.stop()


@pytest.mark.parametrize("hides", [False, True])
def test_stacks_are_without_the_frames_that_trainers_hide(open_session, hides):
    prefixes = [__file__] if hides else []
    with plugged("stages", lambda: [TrainerStages("broken", {"train": "one step"}, prefixes)]):
        session = open_session()
        record(session, Array(np.ones((2, 2))), Array(np.ones((2, 2))))
        session.step()
        (unit,) = session.directory.parent.iterdir()
        session.close()
    frames = [frame for _, frames in json.loads((unit / "stack.json").read_text()).values() for frame in frames]
    assert any(__file__ in frame for frame in frames) is not hides
    assert frames  # of pytest


def tensors_of(dump, entry):
    found = leaves({key: part for key, part in dump.data[entry].items() if key != "execution"})
    return {path: value for path, value in found.items() if "dtype" in value}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tensor_list_keeps_the_tensors_of_matching_entries_too(tmp_path, open_session, level):
    session = open_session(level=level, tensor_list=["middle.Relu.forward", "multiply.1", "last.Dense.backward"])
    model = Network()
    session.start([model])
    train_step(model)
    session.stop()
    session.close()
    dump = Recorded(tmp_path / "run")
    kept = set()
    for entry in dump.data:
        for value in tensors_of(dump, entry).values():
            assert value["Max"] is not None  # the statistics of all
            if "data_name" in value:
                kept.add(entry)
                assert dump.tensor(value).max() == value["Max"]
    expected = {"Module.middle.Relu.forward.0", "Module.last.Dense.backward.0"} if level != "L1" else set()
    assert kept == expected | ({"Functional.multiply.1.forward"} if level != "L0" else set())
    assert dump.header["dump_data_dir"] == str(dump.directory / "dump_tensor_data")
    num_files = len(list((dump.directory / "dump_tensor_data").iterdir()))
    assert num_files == sum("data_name" in v for entry in dump.data for v in tensors_of(dump, entry).values())


def test_without_a_tensor_list_there_are_no_files(tmp_path, open_session):
    session = open_session()
    record(session, Array(np.ones((2, 2))), Array(np.ones((2, 2))))
    session.close()
    dump = Recorded(tmp_path / "run")
    assert dump.header["dump_data_dir"] is None
    assert not (dump.directory / "dump_tensor_data").exists()


VALUES = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{"dim": 0, "size": 4, "begin": 1, "end": 3}], VALUES[1:3]),
        ([{"begin": 2}], VALUES[2:]),
        ([{"dim": 1, "end": -2}], VALUES[:, :-2]),
        ([{"dim": 0, "end": 2}, {"dim": 1, "size": 6, "begin": 5}], VALUES[:2, 5:]),
        ([{"begin": 1}, {"end": 3}], VALUES[1:3]),
        ([{"end": 1}, {"begin": 3}], VALUES[:0]),
    ],
    ids=["rows", "open end", "counted from the end", "two dimensions", "one dimension twice", "nothing left"],
)
def test_a_slice_is_recorded_like_a_tensor_of_its_own(tmp_path, open_session, rules, expected):
    session = open_session(task="tensor", slice=rules, summary_mode="md5")
    record(session, Array(VALUES.copy()), Array(np.ones((6, 5))))
    session.close()
    dump = Recorded(tmp_path / "run")
    value = dump.data["Functional.multiply.0.forward"]["input_args"][0]
    assert (value["shape"], value["sliced_from"]) == (list(expected.shape), [4, 6])
    assert np.array_equal(dump.tensor(value), expected)
    assert value["md5"] == f"{zlib.crc32(np.ascontiguousarray(expected).tobytes()):08x}"
    assert value.get("Max") == (expected.max() if expected.size else None)


@pytest.mark.parametrize("rules", [[{"dim": 2}], [{"dim": 0, "size": 5, "end": 1}], [{"end": 9}], []], ids=str)
def test_where_no_rule_applies_the_whole_is_recorded(tmp_path, open_session, rules):
    session = open_session(task="tensor", slice=rules)
    record(session, Array(VALUES.copy()), Array(np.ones((6, 1))))
    session.close()
    dump = Recorded(tmp_path / "run")
    value = dump.data["Functional.multiply.0.forward"]["input_args"][0]
    assert "sliced_from" not in value
    assert np.array_equal(dump.tensor(value), VALUES)


def test_one_request_of_a_batch_is_recorded(tmp_path, open_session, caplog):
    session = open_session(request_id="b", slice=[{"dim": 1, "size": 6, "end": 3}])
    pair = Array(VALUES.copy()), Array(np.ones((6, 2)))
    batches = [{"a": 1, "b": 2, "c": 1}, {"a": 4}, {"b": 4}, {"a": 1, "b": 0}, {1: 4}, None, {}]
    for batch in batches:
        record(session, *pair, scheduled_tokens=batch)
        session.step()
    session.close()
    recorded = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert recorded == ["step0", "step2", "step3", "step4", "step5", "step6"]  # step 1 does not hold the request
    for step, expected in ((0, VALUES[1:3, :3]), (2, VALUES[:, :3]), (3, VALUES[:, :3])):
        value = Recorded(tmp_path / "run", step).data["Functional.multiply.0.forward"]["input_args"][0]
        assert (value["shape"], value["Max"]) == (list(expected.shape), expected.max())
    said = [message for message in caplog.messages if "whole batches are recorded" in message]
    assert len(said) == 4
    assert "start() got {'a': 1, 'b': 0} as scheduled_tokens" in said[0]
    assert "start() got nothing" in said[2]


def test_without_a_request_id_the_batch_is_of_no_interest(tmp_path, open_session, caplog):
    session = open_session()
    record(session, Array(VALUES.copy()), Array(np.ones((6, 2))), scheduled_tokens={"a": 1})
    session.close()
    assert Recorded(tmp_path / "run").data["Functional.multiply.0.forward"]["input_args"][0]["shape"] == [4, 6]
    assert not caplog.messages


def test_async_dump_and_precision_change_nothing(tmp_path, open_session, monkeypatch):
    """Recording never waits for a device, so that the restrictions that other tools put on `async_dump` do not hold."""
    monkeypatch.setattr(ArrayFramework, "rank", lambda _self: 0)
    recorded = []
    for settings in ({}, {"async_dump": True, "precision": "high"}):
        for task in ("statistics", "tensor"):
            session = open_session(task=task, settings=settings, summary_mode="md5")
            record(session, Array(VALUES.copy()), Array(np.ones((6, 5))))
            session.close()
            dump = Recorded(tmp_path / "run")
            recorded.append((task, dump.data, dump.json("stack.json").keys()))
    assert recorded[:2] == recorded[2:]
    assert recorded[0][1]["Functional.multiply.0.forward"]["input_args"][0]["Norm"] is not None


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_without_extra_info_only_the_records_are_written(tmp_path, open_session, level):
    session = open_session(level=level, settings={"extra_info": False})
    record(session, Array(VALUES.copy()), Array(np.ones((6, 5))))
    session.close()
    assert {path.name for path in Recorded(tmp_path / "run").directory.iterdir()} == {"dump.json", "manifest.json"}


def test_a_framework_that_sees_no_operators_says_so(open_session):
    with pytest.raises(PluginError, match="'aten' is not available for numpy: its plugin does not see"):
        open_session(settings={"aten": True})


class BareReducer:
    is_complete = True

    def statistics(self, tensor, digest):
        pass


def test_a_framework_without_statistics_of_fp8_says_so(open_session, monkeypatch):
    monkeypatch.setattr(ArrayFramework, "reducer", lambda self: BareReducer())
    with pytest.raises(PluginError, match="'fp8' is not available for numpy: its plugin does not compute it"):
        open_session(summary_mode="fp8")


def test_a_window_without_calls_is_said_once(tmp_path, caplog):
    config = load_config(None, dump_path=str(tmp_path), level="mix")
    session = Session(config, ArrayFramework())
    for _ in range(3):
        session.start([Network()])
        session.step()
    session.close()
    said = [record.getMessage() for record in caplog.records if "no call that the configuration" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("step 0: nothing was recorded")
