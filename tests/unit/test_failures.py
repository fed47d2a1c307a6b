"""What could not be recorded says so in its place, in the dump and in a comparison, and is never equal to anything."""

import json

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from numpy_layers import Array, ArrayFramework, ArrayReducer, Network

from msprobe_core import compare_dumps
from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.guard import reason_of
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.judge.row_findings import FINDINGS, findings_of
from msprobe_core.model import Argument, Entry, Phase
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.json_writer import encoded_entry

ENTRY = "Functional.linear.0.forward"
FAILED = {"type": "error", "error": "RuntimeError: device lost"}
NUMBER = {"type": "int", "value": 3}


class Fragile(Array):
    """A tensor that cannot be described, or not be read."""

    def __init__(self, fails):
        super().__init__(np.ones(2))
        self.fails = fails


class FragileReducer(ArrayReducer):
    def statistics(self, tensor, digest):
        if getattr(tensor, "fails", None) == "read":
            raise RuntimeError("device lost")
        super().statistics(tensor, digest)


class FragileFramework(ArrayFramework):
    def reducer(self):
        return FragileReducer()

    def describe(self, tensor):
        if getattr(tensor, "fails", None) == "describe":
            raise RuntimeError("device\nlost")
        return super().describe(tensor)


class Hostile(list):
    def __iter__(self):
        raise KeyError("not now")


def test_the_reason_replaces_the_value(tmp_path, caplog):
    config = load_config(None, dump_path=str(tmp_path))
    session = Session(config, FragileFramework())
    session.start([Network()])
    recorder = session._recorder
    call = recorder.open_api("Functional", "linear")
    recorder.record_inputs(call, (Fragile("describe"), [Fragile("read"), 3], Hostile([1])), {})
    slots = recorder.output_gradients(call, (Array(np.ones(2), True),))
    recorder.expect_gradients(call, 1, 0)
    recorder.record_outputs(call, Array(np.ones(2)))
    recorder.close(call)
    recorder.record_gradient(call, slots[0][0], Fragile("describe"))
    session.close()
    data = json.loads((session.directory / "dump.json").read_text())["data"]
    record = data[ENTRY]
    assert record["input_args"][0] == FAILED
    assert record["input_args"][1][0]["error"] == "RuntimeError: device lost"
    assert record["input_args"][1][0]["shape"] == [2]
    assert record["input_args"][1][1] == NUMBER
    assert record["input_args"][2] == {"type": "error", "error": "KeyError: 'not now'"}
    assert data["Functional.linear.0.backward"]["input"] == [FAILED]
    assert caplog.text.count("RuntimeError: device lost") == 1  # said once, however often it happens


def test_an_entry_that_cannot_be_written_says_why():
    entry = Entry(name=ENTRY, phase=Phase.FORWARD, sequence=4, inputs=[Argument("slice", None, fields=3)])
    assert json.loads(encoded_entry(entry)) == {
        "type": "error",
        "error": "AttributeError",
        "execution": {"sequence": 4},
    }
    saved = Entry(name="x.0.debug", phase=Phase.DEBUG, outputs=[Argument("slice", None, fields=3)])
    assert json.loads(encoded_entry(saved)) == {"type": "error", "error": "AttributeError"}


def test_reasons_are_short_and_of_one_line():
    class Silent(Exception):  # noqa: N818
        def __str__(self):
            raise ValueError

    assert reason_of(RuntimeError("a\n  b")) == "RuntimeError: a b"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(Silent("x")) == "Silent"
    assert len(reason_of(RuntimeError("x" * 9999))) == 300


@pytest.fixture
def compare(tmp_path):
    def compare(target, golden):
        for name, value in (("target", target), ("golden", golden)):
            write_dump(tmp_path / name, {ENTRY: api(tensor(1.0), output=value)})
        return compare_dumps(tmp_path / "target", tmp_path / "golden").units[0]

    return compare


@pytest.mark.parametrize(
    ("target", "golden", "said"),
    [
        (FAILED, tensor(1.0), "target RuntimeError: device lost"),
        (tensor(1.0), FAILED, "golden RuntimeError: device lost"),
        (FAILED, FAILED, "target RuntimeError: device lost; golden RuntimeError: device lost"),
        (FAILED, None, "target RuntimeError: device lost"),
        (FAILED, NUMBER, "target RuntimeError: device lost"),
        (tensor(1.0, Max=None, Min=None, Mean=None, Norm=None, error="E"), tensor(1.0), "target E"),
    ],
    ids=["target", "golden", "both", "nothing", "a number", "a tensor without values"],
)
def test_what_was_not_recorded_is_never_equal(compare, target, golden, said):
    unit = compare(target, golden)
    row = unit.rows.row(-1, named=True)
    assert row["verdict"] == "warning"
    (found,) = findings_of(row[FINDINGS])
    assert found.code in (RowCode.NOT_RECORDED, RowCode.NOT_RECORDED_BOTH)
    assert found.text.endswith(f": {said}.")
    assert unit.notes == [
        f"values that could not be recorded, and were not compared: 1; the first is {ENTRY}.output.0 ({said})"
    ]


def test_a_tensor_that_was_recorded_in_part_is_judged_by_that(compare):
    row = compare(tensor(2.0, error="disk"), tensor(1.0)).rows.row(-1, named=True)
    assert row["verdict"] == "error"
    assert [each.code for each in findings_of(row[FINDINGS])] == [RowCode.ERROR, RowCode.NOT_RECORDED]


def test_a_whole_entry_can_have_failed(tmp_path):
    for name in ("target", "golden"):
        failed = FAILED | {"execution": {"sequence": 1}}
        write_dump(tmp_path / name, {ENTRY: api(tensor(1.0), output=tensor(1.0)), "Functional.relu.0.forward": failed})
    frame = read_json_dump(tmp_path / "target" / "dump.json").frame
    assert frame["failure"].to_list() == [None, None, "RuntimeError: device lost"]
    unit = compare_dumps(tmp_path / "target", tmp_path / "golden").units[0]
    assert unit.rows["verdict"].to_list() == ["pass", "pass", "warning"]
