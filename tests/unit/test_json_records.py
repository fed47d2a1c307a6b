"""Records in their usual shape are read the quick way, all others the slow way; the rows are the same."""

import json
from pathlib import Path

import pytest
from dumps import api, tensor, write_dump
from hypothesis import given, settings
from hypothesis import strategies as st
from limited import deadline, grows_linearly, run_limited
from polars.testing import assert_frame_equal

from msprobe_core.findings import Finding
from msprobe_core.store import frame as frames
from msprobe_core.store.frame import FrameBuilder
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.reading_codes import DamageCode, ReadingCode
from msprobe_core.untrusted.json_text import MAX_NESTING

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
    tensor(fp8={"amax": 1.5, "e4m3_scale": 2, "x": 1}), tensor(fp8={"amax": "x"}), tensor(fp8=[1]), tensor(fp8={}),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    ["Torch.f.0.forward", "Module.a.A.backward.0", "Module.a.A.parameters_grad.0", "Module.a.A.parameters_grad",
     "x.0.debug", "x"],
)  # fmt: skip
def test_both_ways_read_odd_values_alike(entry):
    for leaf in ODD:
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


@pytest.mark.slow
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


def dump_text(num_calls, value, *, indent):
    leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": value, "Min": value, "Mean": 0.0}
    record = {"input_args": [leaf] * 4, "output": [leaf]}
    data = {f"Torch.f.{i}.forward": record for i in range(num_calls)}
    return json.dumps({"task": "statistics", "data": data}, indent=indent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "indent", "cut"),
    [(float("nan"), 1, 0), (float("-inf"), 1, 0), (float("nan"), None, 0), (1.0, 1, 300), (float("nan"), 1, 300)],
    ids=["NaN", "infinities", "NaN in one line", "cut off", "NaN and cut off"],
)
def test_a_run_that_diverged_is_read_in_linear_time(tmp_path, value, indent, cut):
    """Of 8,000 calls with NaN, each of which searched the rest of the file for infinities, reading took 38 s."""

    def read(num_calls):
        text = dump_text(num_calls, value, indent=indent)
        path = tmp_path / f"{num_calls}.json"
        if not path.exists():
            path.write_text(text[: len(text) - cut])
        assert read_json_dump(path).frame.height >= 5 * (num_calls - 1)

    assert grows_linearly(read, 300)


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


@pytest.mark.parametrize("levels", [126, 127, 128, 129, 500, 1200, 100_000])
@pytest.mark.parametrize("form", ["lists", "objects", "value", "keywords", "gradients", "NaN"])
def test_all_readers_take_the_same_depth(tmp_path, form, levels):
    """It costs the one record that is too deep, whatever decodes it, and not those after it."""
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    from msprobe_core.store.arrow_reader import read_arrow_dump
    from msprobe_core.store.convert import convert

    begin, end = ('{"a":', "}") if form in {"objects", "keywords"} else ("[", "]")
    nested = begin * levels + ("NaN" if form == "NaN" else "null") + end * levels
    around = {
        "value": ('"Torch.b.0.forward":{"output":[{"type":"x","value":%s}]}', 3),
        "keywords": ('"Torch.b.0.forward":{"input_kwargs":%s}', 1),
        "gradients": ('"Module.b.Linear.parameters_grad":{"w":%s}', 1),
    }
    record, outer = around.get(form, ('"Torch.b.0.forward":{"output":[%s]}', 2))
    good = '{"output":[{"type":"int","value":1}]}'
    text = f'{{"task":"statistics","data":{{"Torch.a.0.forward":{good},{record % nested},"Torch.c.0.forward":{good}}}}}'
    (tmp_path / "json").mkdir()
    path = tmp_path / "json" / "dump.json"
    path.write_text(text)
    dump = read_json_dump(path)
    is_too_deep = levels + outer > MAX_NESTING
    assert dump.frame.height == 2 + (not is_too_deep)
    assert [note for note in dump.notes if "nested more than 128 deep" in note.text] == dump.notes
    assert bool(dump.notes) == is_too_deep
    convert(tmp_path / "json", tmp_path / "arrow")
    assert read_arrow_dump(tmp_path / "arrow" / "dump.arrow").frame.height == dump.frame.height


NAMES = {
    "an entry": f'"{"n" * 500_000}.0.forward":{{"output":[{",".join(["null"] * 100_000)}]}}',
    "an entry of objects": f'"{"n" * 500_000}.0.forward":{{"output":[{",".join(["[]"] * 100_000)}]}}',
    "a place": f'"Torch.f.0.forward":{{"input_kwargs":{{"{"n" * 500_000}":[{",".join(["null"] * 100_000)}]}}}}',
    "no place": f'"Torch.f.0.forward":{{"input_kwargs":{{"{"n" * 500_000}":[{",".join(["[]"] * 100_000)}]}}}}',
    "places": f'"{"n" * 500_000}.0.forward":{{"output":[{",".join(["[null,null,null]"] * 30_000)}]}}',
    "gradients": f'"Module.{"n" * 500_000}.Linear.parameters_grad":{{"w":[{",".join(["null"] * 100_000)}]}}',
    "a parameter": f'"Module.a.Linear.parameters_grad":{{"{"w" * 500_000}":[{",".join(["null"] * 100_000)}]}}',
    "saved values": f'"{"n" * 500_000}.0.debug":[{",".join(["null"] * 100_000)}]',
}


def test_names_take_no_more_than_the_length_of_the_file_allows(tmp_path):
    """Each row has the whole of the name of its entry: of 1 MB came 50 GB."""
    paths = []
    for name, record in NAMES.items():
        good = '{"output":[{"type":"int","value":1}]}'
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(f'{{"task":"statistics","data":{{{record},"Torch.g.0.forward":{good}}}}}')
    program = """
import sys
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.untrusted.json_text import MAX_NESTING
from msprobe_core.store import frame
limit()
for path in map(Path, sys.argv[1:]):
    dump = read_json_dump(path)
    print(dump.frame.height, *dump.notes)
"""
    for said in run_limited(program, *paths, memory_bytes=1 << 30).splitlines():
        assert said.startswith("1 ")
        assert "names of its values are longer than those of a file of its length should be" in said


@pytest.mark.parametrize(
    "shape", [[2] * 200_000, [2**63] * 50_000, ["x", 10**9], [10**9, "x"], [[1], 10**9], [1.5], [True], [None]],
    ids=["many", "large", "text", "text last", "list", "float", "bool", "null"],
)  # fmt: skip
def test_a_shape_is_not_multiplied_before_it_is_looked_at(tmp_path, shape):
    """The product of a text and a number is a text of that length, and that of many numbers takes for ever."""
    path = write_dump(
        tmp_path,
        {"Torch.f.0.forward": api(tensor(shape=shape), output=tensor()), "Torch.g.0.forward": api(output=tensor())},
    )
    with deadline():
        dump = read_json_dump(path)
    rows = dump.frame.filter(dump.frame["entry"] == "Torch.f.0.forward")
    assert rows["numel"].to_list()[:1] in ([], [None])
    assert bool(dump.notes) == (not rows.height)


NOT_FINITE = {
    "nan": float("nan"), "NaN": float("nan"), "-nan": float("nan"), "NAN": float("nan"), "inf": float("inf"),
    "Inf": float("inf"), "+inf": float("inf"), "Infinity": float("inf"), "-inf": float("-inf"),
    "-Infinity": float("-inf"), " -INF ": float("-inf"),
}  # fmt: skip


@pytest.mark.parametrize("word", NOT_FINITE)
def test_words_for_what_is_not_finite(tmp_path, word):
    """Each tool has its own; a word that is passed over is a NaN that no reader sees."""
    path = write_dump(tmp_path, {"Torch.f.0.forward": api({"type": "float", "value": word}, output=tensor(Max=word))})
    number, statistic = read_json_dump(path).frame["max"].to_list()
    assert repr(number) == repr(statistic) == repr(NOT_FINITE[word])


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
    cut = Finding(DamageCode.RECORDS, fields={"count": 1})
    assert dump.notes == [Finding(ReadingCode.OF_FILE, fields={"path": str(path), "damage": cut})]
