"""Converting a run and converting it back restores it; a conversion that fails leaves no files."""

import importlib.util
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from broken_plugins import HEALTHY, plugged
from dumps import api, tensor, write_dump
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_rig import record_step
from polars.testing import assert_frame_equal

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.errors import DumpError, StoreError
from msprobe_core.store import layout
from msprobe_core.store.convert import Format, TensorFiles, convert
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.reading import read_dump

pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")

_spec = importlib.util.spec_from_file_location("arrow_cases", Path(__file__).with_name("test_arrow.py"))
arrow_cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(arrow_cases)
assert_same, every_kind_of_value, write = arrow_cases.assert_same, arrow_cases.every_kind_of_value, arrow_cases.write

DATA = Path(__file__).parents[1] / "data" / "mindstudio_probe"


def assert_equal_dumps(first, second):
    first, second = read_dump(first), read_dump(second)
    assert_frame_equal(first.frame, second.frame, check_exact=True)
    assert {name: list(frames) for name, frames in first.stacks.items()} == {
        name: list(frames) for name, frames in second.stacks.items()
    }
    assert dict(first.parents) == dict(second.parents)
    assert first.header.summary_mode == second.header.summary_mode
    assert (first.header.task, first.header.level, first.header.framework) == (
        second.header.task, second.header.level, second.header.framework
    )  # fmt: skip


def content(directory, name="dump.json"):
    """Return the content of a file, with NaN as text, and without paths."""

    def value_of(constant):
        return constant if constant == "NaN" else float(constant)

    loaded = json.loads((directory / name).read_text(), parse_constant=value_of)
    for key in ("dump_data_dir", "summary_mode"):
        loaded.pop(key, None)
    return loaded


def there_and_back(source, root):
    done = convert(source, root / "arrow")
    assert done.to is Format.ARROW
    back = convert(root / "arrow", root / "json")
    assert (back.to, back.num_units) == (Format.JSON, done.num_units)
    return root / "arrow", root / "json"


FIXTURES = sorted(path.name for path in DATA.iterdir() if path.is_dir() and "debug" not in path.name)


@pytest.mark.parametrize("name", FIXTURES)
def test_dumps_of_another_tool(tmp_path, name):
    arrow, back = there_and_back(DATA / name, tmp_path)
    for unit in layout.find_units(DATA / name / "step0"):
        place = unit.directory.relative_to(DATA / name)
        assert_equal_dumps(unit.directory, arrow / place)
        assert_equal_dumps(unit.directory, back / place)
        # Not only what compare looks at: every field of every record, and its nesting.
        assert content(unit.directory) == content(back / place)
        assert content(unit.directory, "construct.json") == content(back / place, "construct.json")
        kept = sorted(path.name for path in (unit.directory / "dump_tensor_data").glob("*"))
        assert kept == sorted(path.name for path in (back / place / "dump_tensor_data").glob("*"))
    assert compare_dumps(arrow / "step0", DATA / name / "step0").agrees


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor", "hash", "sketch", "fp8", "tensor", "shards"])
@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_recorded_dumps_of_every_mode(tmp_path, mode, writer):
    config = {"task": "tensor" if mode in {"tensor", "shards"} else "statistics", "level": "mix", "writer": writer}
    config |= {"dump_path": str(tmp_path / "run")} | ({"tensor_format": "safetensors"} if mode == "shards" else {})
    if config["task"] == "statistics":
        config["statistics"] = {"summary_mode": mode}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    record_step(load_config(path))
    done = convert(tmp_path / "run", tmp_path / "other")
    assert done.num_units == 1
    assert done.notes == []
    convert(tmp_path / "other", tmp_path / "back")
    (unit,) = layout.find_units(tmp_path / "run" / "step0")
    place = unit.directory.relative_to(tmp_path / "run")
    assert_equal_dumps(unit.directory, tmp_path / "other" / place)
    assert_equal_dumps(unit.directory, tmp_path / "back" / place)
    if writer == "json":
        assert content(unit.directory) == content(tmp_path / "back" / place)
    assert compare_dumps(tmp_path / "other" / place, unit.directory).agrees


def test_every_kind_of_value(tmp_path):
    source = write(tmp_path / "source", "arrow", [every_kind_of_value()])
    convert(source, tmp_path / "json")
    assert_equal_dumps(source, tmp_path / "json")
    convert(tmp_path / "json", tmp_path / "back")
    assert_equal_dumps(source, tmp_path / "back")
    assert_same(read_dump(write(tmp_path / "written", "json", [every_kind_of_value()])), read_dump(tmp_path / "back"))


def test_fields_that_no_reader_needs_are_kept(tmp_path):
    leaf = tensor(layout={"Device Matrix": [2]}, sliced_from=[9, 3], Max=3, Min=2**60, Mean=None, num_nan=None, md5=1.5,
                  device_mesh=[[0, 1]], placements=[{"Shard": {"dim": 0}}], local_shape=[1], data_name=-1)  # fmt: skip
    data = {
        "Torch.f.0.forward": api(leaf, {}, [], [[]], {"a": {}}, None, {"type": "int", "value": 2**70}, output=leaf)
        | {"is_nan": 1, "execution": {"sequence": 3, "micro_step": 1, "recompute": True}},
        "Torch.f.1.forward": {"input_args": [], "input_kwargs": {}, "output": None, "execution": {"sequence": "x"}},
        "Torch.f.2.forward": {"type": "error", "error": "RuntimeError", "execution": {"sequence": 4}},
        "Torch.f.3.forward": api({"type": "float", "value": "NaN"}, {"class_type": "P2POp", "tensor": leaf}, output=1),
        "Module.A.parameters_grad.0": {"w": [leaf], "w.contribution": [leaf, leaf], "execution": {"sequence": 5}},
        "Module.A.parameters_grad": {"execution": [leaf], "b": leaf},
    }
    parents = {"Torch.f.0.forward": ["Module.A.forward.0", 2], "Torch.f.1.forward": None, "optimizer": None,
               "megatron_micro_step_number": 3}  # fmt: skip
    write_dump(tmp_path / "source", data, parents=parents, stacks={"Torch.f.0.forward": ["a"]}, extra={"x": [1]})
    arrow, back = there_and_back(tmp_path / "source", tmp_path)
    assert content(back) == content(tmp_path / "source")
    assert content(back, "construct.json") == parents
    assert_equal_dumps(tmp_path / "source", arrow)
    assert_equal_dumps(tmp_path / "source", back)


leaves = st.sampled_from(
    [tensor(), tensor(md5="0a1b2c3d", Max="NaN"), {"type": "int", "value": 3}, {"type": "str", "value": "ё\x00"}, None]
)  # fmt: skip
trees = st.recursive(
    leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=3), t, max_size=3), max_leaves=8
)
RECORDS = st.dictionaries(
    st.sampled_from(["input_args", "input", "input_kwargs", "parameters", "output", "output_kwargs", "other"]), trees
)


@pytest.mark.slow
@given(records=st.lists(RECORDS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_any_nesting_is_kept(tmp_path_factory, records):
    root = tmp_path_factory.mktemp("any")
    data = {f"Torch.f.{i}.forward": record for i, record in enumerate(records)}
    write_dump(root / "source", data)
    arrow, back = there_and_back(root / "source", root)
    assert content(back)["data"] == data
    assert_equal_dumps(root / "source", arrow)


def test_a_whole_run_of_steps_and_ranks(tmp_path):
    seen = []
    for step in (0, 3):
        for rank in (0, 1):
            write_dump(
                tmp_path / "run" / f"step{step}" / f"rank{rank}", {"Torch.f.0.forward": api(output=tensor(rank))}
            )
    done = convert(tmp_path / "run", tmp_path / "to", progress=lambda *state: seen.append(state))
    assert done.num_units == 4
    assert seen[0] == (0, 4, "step0/rank0")
    assert seen[-1] == (4, 4, "")
    assert sorted(path.name for path in (tmp_path / "to").rglob("*.arrow")) == ["dump.arrow"] * 4
    rank = read_dump(tmp_path / "to" / "step3" / "rank1")
    assert rank.frame["max"].to_list() == [1.0]
    assert compare_dumps(tmp_path / "run", tmp_path / "to").agrees


def test_what_is_made_is_for_its_owner_only(tmp_path):
    write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}, parents={}, stacks={})
    (tmp_path / "s" / "dump_tensor_data").mkdir()
    (tmp_path / "s" / "dump_tensor_data" / "x.pt").write_bytes(b"x")
    convert(tmp_path / "s", tmp_path / "new" / "d")
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600, 0o700}


def test_tensors_are_copied_or_linked_and_nothing_else(tmp_path):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    tensors = source / "dump_tensor_data"
    (tensors / "folder").mkdir(parents=True)
    (tensors / "x.pt").write_bytes(b"x")
    (tensors / "y.pt").symlink_to("/etc/hostname")
    (source / "notes.txt").write_text("mine")
    done = convert(source, tmp_path / "copied")
    assert [note.split(": ", 1)[1] for note in done.notes] == [
        "left out 1 files that are of no dump; the first is notes.txt",
        "left out 2 that are no plain files; the first is folder",
    ]
    copy = tmp_path / "copied" / "dump_tensor_data" / "x.pt"
    assert copy.read_bytes() == b"x"
    assert not copy.samefile(tensors / "x.pt")
    convert(source, tmp_path / "linked", tensors=TensorFiles.LINK)
    assert (tmp_path / "linked" / "dump_tensor_data" / "x.pt").samefile(tensors / "x.pt")
    assert [path.name for path in (tmp_path / "linked" / "dump_tensor_data").iterdir()] == ["x.pt"]


def test_saved_values_stay_json(tmp_path):
    done = convert(DATA / "26.2.0_debug_tensor", tmp_path / "to")
    assert "debug.json stays as it is" in done.notes[0]
    assert compare_dumps(tmp_path / "to" / "step0", DATA / "26.2.0_debug_tensor" / "step0").agrees


# --- what goes wrong ------------------------------------------------------------------------------------------------


def refused(source, destination, error, match, **options):
    before = sorted(path.relative_to(destination.parent) for path in destination.parent.rglob("*"))
    with pytest.raises(error, match=match):
        convert(source, destination, **options)
    assert sorted(path.relative_to(destination.parent) for path in destination.parent.rglob("*")) == before


@pytest.mark.slow
def test_nothing_is_overwritten_that_is_no_dump_or_was_not_meant(tmp_path):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    target = tmp_path / "t" / "d"
    write_dump(target, {"Torch.old.0.forward": api(output=tensor())})
    refused(source, target, StoreError, "is there already; choose another directory, or give --overwrite")
    convert(source, target, overwrite=True)
    assert [path.name for path in target.iterdir()] == ["dump.arrow"]
    assert [path.name for path in target.parent.iterdir()] == ["d"]
    shutil.rmtree(target)
    target.mkdir()
    (target / "thesis.tex").write_text("x")
    refused(source, target, StoreError, "holds no dump, so it is not overwritten", overwrite=True)
    (target / "thesis.tex").unlink()
    convert(source, target)
    (tmp_path / "t" / "link").symlink_to(target)
    refused(source, tmp_path / "t" / "link", StoreError, "is a symbolic link", overwrite=True)
    for place in (source, source / "inner", tmp_path):
        refused(source, place, StoreError, "is not apart from", overwrite=True)


def test_a_failure_leaves_nothing_and_names_the_rank(tmp_path):
    for rank in range(3):
        write_dump(tmp_path / "run" / "step0" / f"rank{rank}", {"Torch.f.0.forward": api(output=tensor())})
    (tmp_path / "run" / "step0" / "rank2" / "dump.json").write_text("[")
    (tmp_path / "to").mkdir()
    refused(tmp_path / "run", tmp_path / "to" / "d", DumpError, r"rank2/dump\.json: is not valid JSON")
    former = tmp_path / "to" / "e"
    write_dump(former, {"Torch.old.0.forward": api(output=tensor())})
    refused(tmp_path / "run", former, DumpError, "rank2", overwrite=True)
    assert read_dump(former).frame["entry"].to_list() == ["Torch.old.0.forward"]


def test_an_interrupt_leaves_nothing(tmp_path):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    (tmp_path / "to").mkdir()

    def interrupt(*_state):
        raise KeyboardInterrupt

    refused(source, tmp_path / "to" / "d", KeyboardInterrupt, None, progress=interrupt)


def test_damage_costs_what_it_costs_a_reader(tmp_path):
    data = {f"Torch.f.{i}.forward": api(output=tensor(i)) for i in range(3)}
    path = write_dump(tmp_path / "s", data | {"Torch.bad.0.forward": {"output": [tensor(shape="2")]}})
    (tmp_path / "s" / "stack.json").write_text("{")
    text = path.read_text()
    done = convert(tmp_path / "s", tmp_path / "malformed")
    assert "the record 'Torch.bad.0.forward' is malformed (its shape is '2')" in done.notes[0]
    assert "stack.json: is not valid JSON" in done.notes[1]
    assert read_dump(tmp_path / "malformed").frame.height == 3
    path.write_text(text[: text.index("Torch.f.2")])
    done = convert(tmp_path / "s", tmp_path / "cut")
    assert "cut off or damaged after 2 whole records" in done.notes[0]
    assert_equal_dumps(tmp_path / "s" / "dump.json", tmp_path / "cut" / "dump.arrow")
    arrow = tmp_path / "cut" / "dump.arrow"
    arrow.write_bytes(arrow.read_bytes()[:-4])
    done = convert(tmp_path / "cut", tmp_path / "back")
    assert "cut off or damaged after 1 whole batches" in done.notes[0]
    assert read_json_dump(tmp_path / "back" / "dump.json").frame.height == 2


def test_other_content_in_rows_is_a_sentence(tmp_path):
    import pyarrow as pa

    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    convert(source, tmp_path / "a")
    with pa.ipc.open_stream((tmp_path / "a" / "dump.arrow").read_bytes()) as stream:
        table, schema = stream.read_all(), stream.schema
    number = schema.names.index("record")
    for text in (
        "[",
        "3",
        '{"tree":7,"rest":{}}',
        '{"tree":{"output":["x"]},"rest":{}}',
        '{"tree":[[],1.5],"rest":{}}',
    ):
        changed = table.set_column(number, schema.field(number), pa.array([text]).dictionary_encode())
        (tmp_path / "a" / "dump.arrow").unlink()
        with pa.ipc.new_stream(tmp_path / "a" / "dump.arrow", schema) as out:
            out.write_table(changed)
        refused(tmp_path / "a", tmp_path / "b", DumpError, "cannot be converted")


def test_a_wrong_format_or_no_dump_is_a_sentence(tmp_path):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    (tmp_path / "to").mkdir()
    refused(source, tmp_path / "to" / "d", DumpError, "is json already", to=Format.JSON)
    refused(tmp_path / "to", tmp_path / "x", DumpError, "holds no dump")
    refused(tmp_path / "missing", tmp_path / "x", DumpError, "cannot be read")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent
    (tmp_path / "to").mkdir()

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    refused(source, tmp_path / "to" / "d", StoreError, rf"{tmp_path}/to/d/dump.arrow: .*No space left on device")


def test_the_command(tmp_path, capsys):
    source = write_dump(tmp_path / "s", {"Torch.f.0.forward": api(output=tensor())}).parent

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["convert", *map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    code, out, _ = run(source / "dump.json", tmp_path / "a")
    assert code == 0
    assert out.startswith("converted 1 dump from json to arrow: ")
    code, out, err = run(source, tmp_path / "a")
    assert (code, out) == (2, "")
    assert "msprobe: error:" in err
    assert "--overwrite" in err
    assert run(source, tmp_path / "a", "--overwrite", "--tensors", "link")[0] == 0
    assert run(tmp_path / "a", tmp_path / "b", "--to", "json")[0] == 0
    assert_equal_dumps(source, tmp_path / "b")


def test_a_dump_of_another_format_is_named(tmp_path):
    unit = tmp_path / "run" / "step0" / "rank0"
    unit.mkdir(parents=True)
    (unit / "dump.broken").touch()
    with (
        plugged("readers", lambda: [HEALTHY["readers"]()]),
        pytest.raises(DumpError, match="is a dump of the format 'broken', which a plugin reads; only json and arrow"),
    ):
        convert(tmp_path / "run", tmp_path / "other")
    assert not (tmp_path / "other").exists()
