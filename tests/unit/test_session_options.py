"""`tensor_list` and `slice` through a whole session, with the NumPy framework."""

import json

import numpy as np
import pytest
from numpy_layers import API, Array, ArrayFramework, Network, train_step
from recorded import Recorded, leaves

from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.plugins import registry


@pytest.fixture
def open_session(tmp_path):
    def make(*, level="L1", task="statistics", **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"task": task, "level": level, task: options}))
        config = load_config(path, dump_path=str(tmp_path / "run"))
        return Session(config, ArrayFramework(), registry().processors(), registry().writers())

    return make


def record(session, *tensors, **start):
    """Multiply each pair of tensors in a window of its own session."""
    session.start([Network()], **start)
    if session.is_running:
        for a, b in zip(tensors[::2], tensors[1::2], strict=True):
            API["multiply"](a, b)
    session.stop()


def tensors_of(dump, entry):
    found = leaves({key: part for key, part in dump.data[entry].items() if key != "execution"})
    return {path: value for path, value in found.items() if "dtype" in value}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_tensor_list_keeps_the_tensors_of_matching_entries_too(tmp_path, open_session, level):
    session = open_session(level=level, tensor_list=["middle.Relu.forward", "multiply.1", "last.Dense.backward"])
    session.start([Network()])
    train_step(session._models[0].model)
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
