"""Dumps are read whatever wrote them; what is damaged is recovered or refused, in a sentence."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from dumps import api, tensor, write_dump
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe_core.errors import DumpError, MsprobeError
from msprobe_core.store import frame, json_pieces, json_reader
from msprobe_core.store.frame import COLUMNS
from msprobe_core.store.json_reader import JsonReader, read_json_dump, read_parents, read_stacks
from msprobe_core.store.layout import find_units
from msprobe_core.store.reading_codes import DamageCode, ReadingCode
from msprobe_core.store.tensors import read_tensor

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"


def write(path, data, **header):
    path.write_text(json.dumps({"task": "statistics", "level": "L1", "framework": "pytorch", "data": data, **header}))
    return path


def rows(frame):
    return {row["name"]: row for row in frame.rows(named=True)}


def norm_of_stored(stem):
    values = read_tensor(DATA / "26.2.0_tensor" / "step0" / "proc1" / "dump_tensor_data" / f"{stem}.pt")
    return np.sqrt((values.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize(
    ("release", "unit"),
    [("26.2.0_statistics", "proc1"), ("26.2.0_md5", "proc1"), ("26.2.0_tensor", "proc1"),
     ("8.3.3_statistics", "rank"), ("1.2.2_statistics", "rank")],
)  # fmt: skip
def test_dumps_of_mindstudio_probe(release, unit):
    (found,) = find_units(DATA / release / "step0")
    assert (found.label, found.rank) == (unit, None)
    dump = JsonReader().read(found.directory)
    assert dump.frame.columns == list(COLUMNS)
    by_name = rows(dump.frame)
    stem = "Module.fc1.Linear.forward.0.output.0"
    assert by_name["Module.fc1.Linear.forward.0.output.0"]["norm"] == pytest.approx(norm_of_stored(stem))
    # Bare NaN tokens are numbers again; null is null.
    multiplied = by_name["Tensor.__mul__.1.forward.output.0"]
    assert all(value != value for value in (multiplied["max"], multiplied["mean"], multiplied["norm"]))
    assert by_name["Tensor.__mul__.1.forward.input.1"]["text"] == "nan"
    assert dump.frame.filter(key="Module.fc1.Linear.parameters_grad.0.weight").height == 1
    assert dump.header.summary_mode == ("md5" if "md5" in release else "statistics")
    stack = dump.stacks["Functional.layer_norm.0.forward"]
    assert any("in forward" in frame for frame in stack)
    assert dump.parents["Functional.layer_norm.0.forward"] == "Module.norm.LayerNorm.forward.0"


@pytest.mark.parametrize(
    "minus_infinity", ["-1e999", '"-Infinity"', "-Infinity"], ids=["ours", "earlier releases", "mindstudio-probe"]
)
def test_every_spelling_of_infinities_is_read(tmp_path, minus_infinity):
    mask = {"type": "float", "value": -math.inf}
    record = api(tensor([1.0], Min=-math.inf), mask, output=None)
    path = write(tmp_path / "dump.json", {"Functional.f.0.forward": record})
    path.write_text(path.read_text().replace("-Infinity", minus_infinity))
    found, recomputed = JsonReader().read(path), read_json_dump(path).recomputed
    assert found.frame["min"].to_list()[:2] == [-math.inf, -math.inf]
    assert found.frame["text"].to_list()[1] == "-inf"
    assert not found.notes
    assert not recomputed


def test_a_number_out_of_range_hides_no_recomputation(tmp_path):
    record = api(tensor([1.0], Min=-math.inf), output=None) | {"execution": {"sequence": 0, "recompute": True}}
    path = write(tmp_path / "dump.json", {"Functional.f.0.forward": record})
    path.write_text(path.read_text().replace("-Infinity", "-1e999"))
    assert read_json_dump(path).recomputed == {"Functional.f.0.forward"}


def test_stored_tensors_of_mindstudio_probe():
    (unit,) = find_units(DATA / "26.2.0_tensor" / "step0")
    dump = JsonReader().read(unit.directory)
    kept = dump.frame.filter(dump.frame["file_name"].is_not_null())
    assert kept.height > 30
    for row in kept.rows(named=True):
        values = read_tensor(dump.tensor_path(row["file_name"]))
        assert str(list(values.shape)) == row["shape"]
        if row["max"] == row["max"] and row["dtype"] == "torch.float32":
            assert values.max() == row["max"]


def read_in_pieces(path, monkeypatch, piece_bytes):
    """Return the dump, and how many pieces it was read in, 0 if as a whole."""
    pieces = []

    def spied(path, size):
        for piece in json_pieces.read_pieces(path, size):
            pieces.append(piece)
            yield piece

    with monkeypatch.context() as patched:
        patched.setattr(json_reader, "PIECE_BYTES", piece_bytes)
        patched.setattr(json_reader, "read_pieces", spied)
        patched.setattr(frame, "_BATCH_ROWS", 7)
        dump = read_json_dump(path)
    return dump, len(pieces)


def assert_same_dump(dump, other):
    assert dump.frame.equals(other.frame)
    assert (dump.frame.schema, dump.header, dump.notes) == (other.frame.schema, other.header, other.notes)


@pytest.mark.parametrize("path", sorted(DATA.glob("**/dump.json")), ids=lambda path: str(path.relative_to(DATA)))
@pytest.mark.parametrize("piece_bytes", [2_000, 9_000])
def test_a_dump_in_pieces_is_the_same(path, piece_bytes, monkeypatch):
    whole = read_json_dump(path)
    dump, num_pieces = read_in_pieces(path, monkeypatch, piece_bytes)
    assert_same_dump(dump, whole)
    assert num_pieces > 1 or path.stat().st_size < 2 * piece_bytes


@pytest.mark.slow
@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_dump_in_pieces_is_the_same(indent, tmp_path, monkeypatch):
    number = {"type": "float", "value": float("nan") if indent else "nan"}  # other tools write the bare word
    data = {f"Functional.linear.{i}.forward": api(tensor(i), number, output=tensor(i)) for i in range(1_000)}
    data |= {f"Module.a.{i}.Linear.parameters_grad": {"weight": [tensor(i)]} for i in range(50)}
    data["Odd.x.0.forward"] = {"input_args": 3}
    document = {"task": "statistics", "level": "L1", "data": data, "framework": "pytorch", "summary_mode": "statistics"}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(document, indent=indent))
    dump, num_pieces = read_in_pieces(path, monkeypatch, 20_000)
    assert num_pieces > 10
    assert_same_dump(dump, read_json_dump(path))
    assert dump.header.framework == "pytorch"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("linear.90.", "linear.10."),
        lambda text: text.replace('"output"', '"output', 1),
        lambda text: text.replace('"data"', '"dada"', 1),
        lambda text: "\ufeff" + text,
    ],
    ids=["cut off", "one name twice", "a quote lost", "no data", "a byte order mark"],
)
def test_what_is_no_sound_document_is_read_as_a_whole(damage, tmp_path, monkeypatch):
    data = {f"Functional.linear.{i}.forward": api(tensor(i), output=tensor(i)) for i in range(100)}
    path = tmp_path / "dump.json"
    path.write_text(damage(write(path, data).read_text()))
    outcomes = []
    for read in (read_json_dump, lambda path: read_in_pieces(path, monkeypatch, 3_000)[0]):
        try:
            dump = read(path)
            outcomes.append((dump.frame.rows(), dump.header, dump.notes))
        except DumpError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_rows_follow_the_published_names_and_order(tmp_path):
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 0.0, "Mean": 0.5,
              "Norm": 1.0, "requires_grad": True}  # fmt: skip
    forward = {
        "parameters": {"weight": tensor},
        "input_args": [tensor, [tensor, None], {"type": "int", "value": 3}],
        "input_kwargs": {"mask": tensor, "nested": {"a": tensor}, "empty": []},
        "output": [{"logits": tensor}],
    }
    data = {
        "Module.a.A.forward.0": forward,
        "Module.a.A.backward.0": {"input": [tensor], "output": [tensor], "output_kwargs": {"mask": tensor}},
        "Module.a.A.parameters_grad.0": {"weight": [tensor]},
    }
    frame = read_json_dump(write(tmp_path / "dump.json", data)).frame
    assert frame["name"].to_list() == [
        "Module.a.A.forward.0.input.0", "Module.a.A.forward.0.input.1.0", "Module.a.A.forward.0.input.1.1",
        "Module.a.A.forward.0.input.2", "Module.a.A.forward.0.input.mask", "Module.a.A.forward.0.input.nested.a",
        "Module.a.A.forward.0.parameters.weight", "Module.a.A.forward.0.output.0.logits",
        "Module.a.A.backward.0.input.0", "Module.a.A.backward.0.output.0", "Module.a.A.backward.0.output.mask",
        "Module.a.A.parameters_grad.0.weight",
    ]  # fmt: skip
    assert frame["phase"].unique().sort().to_list() == ["forward", "backward", "parameters_grad"]
    by_name = rows(frame)
    assert by_name["Module.a.A.forward.0.input.1.1"]["kind"] == "none"
    assert by_name["Module.a.A.forward.0.input.2"]["dtype"] == "<class 'int'>"
    assert by_name["Module.a.A.forward.0.input.2"]["max"] == 3.0


@pytest.mark.parametrize(
    ("leaf", "kind", "dtype", "text", "number"),
    [
        ({"type": "float", "value": 1e-6}, "scalar", "<class 'float'>", "1e-06", 1e-6),
        ({"type": "float", "value": "NaN"}, "scalar", "<class 'float'>", "nan", "nan"),
        ({"type": "bool", "value": True}, "scalar", "<class 'bool'>", "True", 1.0),
        ({"type": "str", "value": "sum"}, "scalar", "<class 'str'>", "sum", None),
        ({"type": "torch.dtype", "value": "torch.bfloat16"}, "scalar", "<class 'str'>", "torch.bfloat16", None),
        ({"type": "slice", "value": [0, None, 1]}, "scalar", "<class 'slice'>", "[0, None, 1]", None),
        ({"type": "torch.Size", "value": [2, 3]}, "scalar", "torch.Size", "[2, 3]", None),
        ({"type": "torch.ProcessGroup", "group_ranks": [0]}, "scalar", "torch.ProcessGroup", "[0]", None),
        ("isend", "scalar", "<class 'str'>", "isend", None),
        (None, "none", None, None, None),
    ],
)  # fmt: skip
def test_values_that_are_no_tensors(tmp_path, leaf, kind, dtype, text, number):
    frame = read_json_dump(write(tmp_path / "d.json", {"Torch.f.0.forward": {"input_args": [leaf]}})).frame
    row = frame.row(0, named=True)
    assert (row["kind"], row["dtype"], row["text"]) == (kind, dtype, text)
    assert row["max"] == number or (number == "nan" and row["max"] != row["max"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[1]", "holds list, not an object"),
        ("{}", "is not a dump: it has no 'task' and 'data'"),
        ('{"task": "statistics", "data": []}', "is not a dump"),
        (
            '{"task": "statistics", "data": {"a": {"input_args": [{"type": "t", "dtype": "x", "shape": "2"}]}}}',
            "malformed",
        ),
        ('{"task": "statistics", "data": {"a": 3}}', "the record 'a' is malformed"),
        ("\x00\x01\x02", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_other_files_are_refused(tmp_path, content, expected):
    path = tmp_path / "dump.json"
    path.write_text(content)
    with pytest.raises(DumpError, match=expected) as raised:
        read_json_dump(path)
    assert str(raised.value).startswith(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DumpError, match="cannot be read"):
        read_json_dump(tmp_path / "dump.json")


@given(cut=st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_a_cut_off_dump_of_another_tool_gives_its_whole_records(tmp_path_factory, cut):
    source = DATA / "26.2.0_statistics" / "step0" / "proc1" / "dump.json"
    content, whole = source.read_bytes(), read_json_dump(source).frame
    path = tmp_path_factory.mktemp("cut") / "dump.json"
    path.write_bytes(content[: cut % len(content)])
    try:
        dump = read_json_dump(path)
    except DumpError:
        assert cut % len(content) < content.index(b"Functional.layer_norm")
        return
    assert dump.frame.equals(whole.head(dump.frame.height))
    assert dump.notes or dump.frame.height == whole.height


leaves = st.none() | st.booleans() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@given(st.binary(max_size=200) | trees)
@settings(max_examples=150, deadline=None)
def test_garbage_never_ends_in_another_exception(tmp_path_factory, garbage):
    path = tmp_path_factory.mktemp("garbage") / "dump.json"
    if isinstance(garbage, bytes):
        path.write_bytes(garbage)
    else:
        path.write_text(
            json.dumps({"task": "statistics", "data": {"Torch.f.0.forward": garbage, "x": {"output": garbage}}})
        )
    for read in (read_json_dump, read_stacks, read_parents):
        try:
            read(path)
        except MsprobeError as error:
            assert str(path) in str(error)  # noqa: PT017  # any other exception fails the test


def test_a_tensor_file_name_cannot_lead_out_of_the_dump(tmp_path):
    dump = read_json_dump(write(tmp_path / "dump.json", {}))
    with pytest.raises(DumpError, match="leads out of"):
        dump.tensor_path("../../etc/passwd")


def test_step_directories_that_hold_no_rank_say_what_they_are(tmp_path):
    with pytest.raises(DumpError, match=r"holds no dump; expected dump\.json"):
        find_units(tmp_path)
    (tmp_path / "step0").mkdir()
    (tmp_path / "step12").mkdir()
    with pytest.raises(DumpError, match=r"holds whole steps \(step0, step12\); give one of them, for example .*step0"):
        find_units(tmp_path)


def test_both_layouts_of_stacks(tmp_path):
    grouped, single = tmp_path / "a.json", tmp_path / "b.json"
    grouped.write_text('{"0": [["x", "y"], ["frame"]], "1": [["z"], []]}')
    single.write_text('{"x": ["frame"], "y": ["frame"], "z": []}')
    assert read_stacks(grouped) == read_stacks(single) == {"x": ["frame"], "y": ["frame"], "z": []}


def test_parents_with_micro_steps(tmp_path):
    path = tmp_path / "construct.json"
    path.write_text('{"a": ["Module.M.forward.0", 1], "b": null, "optimizer": null, "megatron_micro_step_number": 2}')
    assert read_parents(path) == {"a": "Module.M.forward.0", "b": None, "optimizer": None}


def test_a_dump_without_its_companions_is_read(tmp_path):
    shutil.copy(DATA / "26.2.0_statistics" / "step0" / "proc1" / "dump.json", tmp_path)
    dump = read_json_dump(tmp_path / "dump.json")
    assert dump.stacks == {}
    assert dump.parents == {}


def test_odd_values_do_not_cost_the_file(tmp_path):
    leaf = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [1], "Max": 10**400, "Min": -(10**400)}
    data = {
        "Torch.a.0.forward": {"input_args": [{**leaf, "data_name": -1}], "output": [{"type": "str", "value": "x"}]},
        "Torch.b.0.forward": None,
        "Torch.c.0.forward": {"input_args": [{"type": "torch.Tensor", "dtype": "x", "shape": "2"}], "output": [leaf]},
    }
    text = json.dumps({"task": "statistics", "data": data}).replace('"x"}]}', '"\\ud800"}]}')
    path = tmp_path / "dump.json"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    dump = read_json_dump(path)
    assert dump.frame["entry"].to_list() == ["Torch.a.0.forward"] * 2
    assert dump.frame["max"].to_list()[0] == float("inf")
    assert dump.frame["file_name"].to_list() == [None, None]
    assert dump.frame["text"].to_list()[1] == "?"
    [note] = dump.notes
    malformed = note.fields["damage"]
    assert (note.code, note.fields["path"], malformed.code) == (ReadingCode.OF_FILE, str(path), DamageCode.MALFORMED)
    assert (malformed.fields["record"], malformed.fields["count"]) == ("'Torch.b.0.forward'", 2)


@pytest.mark.parametrize("name", ["stack.json", "construct.json"])
def test_a_damaged_companion_costs_a_note(tmp_path, name):
    write_dump(tmp_path, {"Torch.a.0.forward": api(output=tensor())})
    (tmp_path / name).write_text('{"0": [["Torch.a.0.forward"')
    dump = read_json_dump(tmp_path / "dump.json")
    assert (dict(dump.stacks), dict(dump.parents)) == ({}, {})
    [note] = dump.notes
    assert note.code is ReadingCode.WITHOUT_FILE
    assert f"{name}: is not valid JSON" in note.fields["why"]
