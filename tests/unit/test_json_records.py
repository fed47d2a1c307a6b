"""Records in their usual shape are read the quick way, all others the slow way; the rows are the same."""

import json
from pathlib import Path

import pytest
from dumps import tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from msprobe_core.store import frame as frames
from msprobe_core.store.frame import FrameBuilder
from msprobe_core.store.json_reader import read_json_dump

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"

FAILURES = (TypeError, ValueError, KeyError, AttributeError, RecursionError)


def rows_of(add, entry, record):
    """Return the rows, or ``None`` where the record is refused."""
    builder = FrameBuilder()
    builder.add_entry("Torch.before.0.forward", {"output": [tensor()]})
    try:
        add(builder)(entry, record)
    except FAILURES:
        assert builder.build().height == 1  # nothing is left of it
        return None
    return builder.build()


def assert_both_ways_agree(entry, text):
    quick = rows_of(lambda builder: builder.add_json, entry, text.encode())
    slow = rows_of(lambda builder: builder.add_entry, entry, json.loads(text))
    assert (quick is None) == (slow is None), text
    if quick is not None and slow is not None:
        assert_frame_equal(quick, slow, check_exact=True)


ODD = [
    tensor(), tensor(requires_grad="x"), tensor(shape="2"), tensor(shape=None) | {"shape": None}, tensor(shape=[-1, 2]),
    tensor(shape=[2**70]), tensor(shape=[2**40, 2**40]), tensor(shape=["x"]), tensor(shape=[1.5]), tensor(shape=[True]),
    tensor(Max=2**60, Min=-(2**60)), tensor(Max=3, Min=True), tensor(Max="NaN", Min="-Infinity", Mean="x", Norm=[1]),
    tensor(md5="0a1b2c3d"), tensor(md5=7), tensor(sketch="AAAA"), tensor(sketch="A" * 344), tensor(sketch="?"),
    tensor(sketch="AAAAAAAA" * 42 + "AAAAAA=="), tensor(data_name="Torch.f.0.forward.input.0.pt"),
    tensor(data_name="shard-0.safetensors#x"), tensor(data_name=-1), tensor(error="RuntimeError: x"), tensor(num_nan=2),
    tensor(num_nan=2**70), tensor(value=3), tensor(type="error"), tensor(dtype=3), tensor(device_mesh=[0, 1]),
    {"type": "error", "error": "x"}, {"type": "error", "value": 1}, {"type": "int", "value": 3},
    {"type": "int", "value": None}, {"type": "float", "value": "Infinity"}, {"type": "float32", "value": "NaN"},
    {"type": "str", "value": "NaN"}, {"type": "slice", "value": [0, None, 1]}, {"type": "torch.Size", "value": []},
    {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "a"}, {"type": "torch.memory_format", "f": "x"},
    {"type": 3, "value": 1}, {"type": "int", "dtype": "x", "value": 2}, {"type": "int", "shape": None, "value": 2},
    {"class_type": "torch.distributed.P2POp", "tensor": tensor(), "op": "isend"}, {"a": tensor(), "b": [None]},
    None, [], {}, [tensor(), None, [tensor()]], "text", 3, True, 1.5, [[]],
]  # fmt: skip


@pytest.mark.parametrize("leaf", ODD, ids=lambda leaf: json.dumps(leaf)[:40])
@pytest.mark.parametrize(
    "entry",
    ["Torch.f.0.forward", "Module.a.A.backward.0", "Module.a.A.parameters_grad.0", "Module.a.A.parameters_grad",
     "x.0.debug", "x"],
)  # fmt: skip
def test_odd_values(entry, leaf):
    for record in (
        {"input_args": [tensor(), leaf], "input_kwargs": {"k": leaf, "type": leaf}, "output": [leaf]},
        {"input": leaf, "output": [leaf], "output_kwargs": {"k": leaf}, "parameters": {"w": leaf}},
        {"weight": [leaf], "bias": leaf, "execution": {"sequence": 1}},
        {"execution": [leaf]},
        leaf,
        {"type": "error", "error": "x", "input_args": [leaf]},
    ):
        assert_both_ways_agree(entry, json.dumps(record))


json_values = st.recursive(
    st.sampled_from(ODD) | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "dtype", "shape", "value", "Max", "md5", "data_name", "error", "x", "0", "execution"]),
        inner,
        max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip
parts = ["input_args", "input", "input_kwargs", "parameters", "output", "output_kwargs", "type", "execution", "w"]


@given(
    entry=st.sampled_from(["Torch.f.0.forward", "Module.A.backward.0", "Module.A.parameters_grad.0", "y.0.debug"]),
    record=st.dictionaries(st.sampled_from(parts), json_values, max_size=4) | json_values,
)
@settings(max_examples=300, deadline=None)
def test_any_record(entry, record):
    assert_both_ways_agree(entry, json.dumps(record))


@pytest.mark.parametrize("release", ["26.2.0_statistics", "26.2.0_md5", "26.2.0_tensor", "8.3.3_statistics"])
def test_recorded_dumps(release, monkeypatch):
    (path,) = (DATA / release / "step0").glob("*/dump.json")
    quick = read_json_dump(path)

    def refuse(_content):
        raise frames._UnusualError

    monkeypatch.setattr(frames, "decode_call", refuse)
    monkeypatch.setattr(frames, "decode_gradients", refuse)
    slow = read_json_dump(path)
    assert_frame_equal(quick.frame, slow.frame, check_exact=True)
    assert quick.frame.height > 50


def test_calls_of_other_tools_are_read_the_quick_way(monkeypatch):
    """Bare NaN in a file, which JSON does not have, must not make all of it slow."""
    monkeypatch.setattr("msprobe_core.store.json_reader.json.loads", None)
    (path,) = (DATA / "26.2.0_statistics" / "step0").glob("*/dump.json")
    assert b": NaN" in path.read_bytes()
    calls = []
    monkeypatch.setattr(FrameBuilder, "add_entry", lambda _self, entry, _record: calls.append(entry))
    assert read_json_dump(path).frame.height > 50
    assert not calls


def test_bare_words_are_numbers_and_words_in_strings_are_not(tmp_path):
    """Alone on a line a word is a number; elsewhere the file is read by the reader that knows both."""
    record = r"""{"input_args": [
{"type": "float",
 "value": NaN
}, {"type": "float32",
 "value": -Infinity,
 "other": "\": NaN,"}, {"type": "str", "value": "\": NaN,"}], "output": [%s]}"""
    for text in (record % "", record % "NaN", record.replace("\n", "") % ""):
        path = tmp_path / "dump.json"
        path.write_text('{"task": "statistics", "data": {"Torch.f.0.forward": ' + text + "}}")
        rows = read_json_dump(path).frame
        assert rows["text"].to_list()[:3] == ["nan", "-inf", '": NaN,']
        assert rows["dtype"].to_list()[:3] == ["<class 'float'>", "float32", "<class 'str'>"]
        assert rows["max"].to_list()[1:3] == [float("-inf"), None]
        assert rows["text"].to_list()[3:] == ["nan"] * text.count("[NaN]")


def test_a_record_that_is_no_text_does_not_make_the_others_invalid(tmp_path):
    path = tmp_path / "dump.json"
    content = json.dumps(
        {
            "task": "statistics",
            "data": {
                f"Torch.f.{i}.forward": {
                    "output": [{"type": "str", "value": "marker" if i == 1 else "x"}, {"type": "float", "value": 0.5}]
                }
                for i in range(3)
            },
        }
    )
    path.write_bytes(content.encode().replace(b"marker", b"m\xff\xe4r").replace(b"0.5", b"1e999", 1))
    dump = read_json_dump(path)
    assert dump.frame["text"].to_list() == ["x", "inf", "m��r", "0.5", "x", "0.5"]
    assert not dump.notes


@pytest.mark.parametrize("name", ["data", "x"])
def test_a_record_that_is_cut_off(tmp_path, name):
    path = tmp_path / "dump.json"
    content = json.dumps(
        {"task": "statistics", "data": {"Torch.f.0.forward": {"output": [tensor()]}, name: {"output": 1}}}
    )
    path.write_text(content[:-4])
    dump = read_json_dump(path)
    assert dump.frame["entry"].to_list() == ["Torch.f.0.forward"]
    assert "cut off or damaged after 1 whole records" in dump.notes[0]
