"""The arrow format holds what the json format does, in a tenth of the room; what is cut off or hostile is an error."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_rig import record_step
from polars.testing import assert_frame_equal

import msprobe_core
from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.config import load_config
from msprobe_core.errors import DumpError
from msprobe_core.model import (
    Argument,
    Batch,
    Digest,
    Distribution,
    Entry,
    Fp8Stats,
    GradientSlot,
    Phase,
    Placement,
    RunHeader,
    Stats,
    TensorMeta,
    TensorValue,
)
from msprobe_core.store.arrow import ArrowReader, ArrowWriterFactory
from msprobe_core.store.json_reader import JsonReader
from msprobe_core.store.json_writer import JsonWriterFactory
from msprobe_core.store.reading_codes import DamageCode, ReadingCode

pa = pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")

REPOSITORY = Path(msprobe_core.__file__).parents[1]
HEADER = RunHeader(task="statistics", level="mix", framework="pytorch", summary_mode="md5")
META = TensorMeta("torch.Tensor", "torch.float32", (2, 3), True)
FORMATS = {"json": (JsonWriterFactory(), JsonReader()), "arrow": (ArrowWriterFactory(), ArrowReader())}


def tensor(meta=META, file_name=None, checksum=None, **stats):
    return TensorValue(meta, Digest(Stats(**stats), checksum), file_name)


def write(directory, name, batches, header=HEADER):
    directory.mkdir(parents=True, exist_ok=True)
    writer = FORMATS[name][0].open(directory, header)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return directory


def read_both(root, batches, header=HEADER):
    return [FORMATS[name][1].read(write(root / name, name, batches, header)) for name in FORMATS]


def assert_same(json_dump, arrow_dump):
    assert json_dump.frame.schema == arrow_dump.frame.schema
    assert_frame_equal(json_dump.frame, arrow_dump.frame, check_exact=True)
    assert {name: list(frames) for name, frames in arrow_dump.stacks.items()} == json_dump.stacks
    assert arrow_dump.parents == json_dump.parents
    assert not arrow_dump.notes


def every_kind_of_value():
    wide = TensorMeta("torch.Tensor", "torch.int64", (), None)
    numbers = [tensor(wide, max=2**53 + 1, min=-3, mean=0.5, l2_norm=1.0), tensor(wide, max=True, min=False),
               tensor(max=float("nan"), min=float("-inf"), mean=float("inf"), l2_norm=0.1, num_nan=3, num_inf=2),
               tensor(TensorMeta("t", "d", (0, 5), False)), tensor(max=-0.0, min=5e-324)]  # fmt: skip
    arguments = [Argument("int", 3), Argument("int", 2**70), Argument("float", float("nan")), Argument("bool", True),
                 Argument("float", float("inf")), Argument("str", "a\udc80 \x00 ключ"), Argument("slice", [0, None, 1]),
                 Argument("torch.memory_format", None, {"format": "x"}), Argument("torch.Size", [1, 2]),
                 Argument("numpy.ndarray", None, {"dtype": "float64", "shape": [2], "Max": 1.0, "Min": float("nan")}),
                 Argument("torch.ProcessGroup", None, {"group_ranks": [0, 1], "group_id": "a"})]  # fmt: skip
    forward = Entry(
        name="Module.a.A.forward.0", phase=Phase.FORWARD, sequence=0, stack=("File a, line 1", "File ё\udc80, line 2"),
        inputs=[*numbers, None, [], [None, [numbers[0]]], {"x": numbers[1], "type": Argument("str", "y")}, *arguments],
        input_kwargs={"mask": None, "a.b": numbers[2], "": numbers[0], "deep": {"": numbers[1], "b": []}},
        parameters={"weight": tensor(max=1.0)}, outputs=[{"logits": tensor(max=2.0)}],
    )  # fmt: skip
    backward = Entry(
        name="Module.a.A.backward.0", phase=Phase.BACKWARD, sequence=1, parent="x", outputs=[GradientSlot()],
        inputs=[GradientSlot(tensor(max=1.0))], output_kwargs={"mask": GradientSlot(tensor(max=2.0))},
    )  # fmt: skip
    gradients = Entry(
        name="Module.a.A.parameters_grad.0", phase=Phase.PARAMETERS_GRAD, sequence=2,
        parameters={"weight": tensor(max=1.0), "bias": None, "execution": tensor(), "": tensor(),
                    "many": [tensor()] * 2},
    )  # fmt: skip
    others = [
        Entry(name="Tensor.add.0.forward", phase=Phase.FORWARD, stack=("File a, line 1", "File ё\udc80, line 2")),
        Entry(name="Tensor.add.1.forward", phase=Phase.FORWARD, inputs=[], outputs=[], stack=("File b",)),
        Entry(name="Tensor.add.2.forward", phase=Phase.FORWARD, inputs=[tensor(), Argument("x", ["\udc80"])]),
        Entry(name="Module.A.parameters_grad.0", phase=Phase.PARAMETERS_GRAD, parameters={}),
        Entry(name="Tensor.add.3.forward", phase=Phase.FORWARD, outputs=[
            TensorValue(META, Digest(None, "0x0123456789abcdef")), TensorValue(META, Digest(sketch=bytes(range(256)))),
            tensor(checksum="0a1b2c3d", max=1.0),
            tensor(file_name="Tensor.add.3.forward.kwargs.x.pt"), tensor(file_name=".pt"), tensor(file_name="none"),
        ]),
    ]  # fmt: skip
    entries = [forward, backward, gradients, *others]
    parents = {entry.name: entry.parent for entry in entries} | {"Module.b.B.forward.0": "ключ\udc80"}
    return Batch(entries, parents)


def test_every_kind_of_value_survives_as_it_does_in_json(tmp_path):
    assert_same(*read_both(tmp_path, [every_kind_of_value()]))


META_STRATEGY = st.builds(
    TensorMeta, st.sampled_from(["torch.Tensor", "a.B"]), st.sampled_from(["torch.float32", "Float16"]),
    st.lists(st.integers(0, 2**20), max_size=3).map(tuple), st.sampled_from([None, True, False]),
)  # fmt: skip
EXTREMES = st.sampled_from([st.none(), st.floats(), st.integers(-(2**63), 2**64 - 1), st.booleans()]).flatmap(
    lambda number: st.tuples(number, number)
)
COUNT = st.integers(0, 2**40)
REAL = st.none() | st.floats()
STATS = st.tuples(EXTREMES, REAL, REAL, COUNT, COUNT).map(lambda cells: Stats(*cells[0], *cells[1:]))
DIGEST = st.builds(Digest, st.none() | STATS, st.none() | st.text("0123456789abcdef", min_size=8, max_size=8))
LEAF = st.one_of(
    st.none(), st.builds(TensorValue, META_STRATEGY, DIGEST, st.none() | st.just("x.pt")),
    st.builds(Argument, st.just("int"), st.integers()), st.builds(Argument, st.just("str"), st.text()),
    st.builds(Argument, st.just("float"), st.floats()), st.builds(GradientSlot, st.none()),
)  # fmt: skip
TREE = st.recursive(LEAF, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=3), t, max_size=3))
ENTRIES = st.lists(
    st.builds(
        dict, inputs=st.none() | st.lists(TREE, max_size=3), outputs=st.none() | st.lists(TREE, max_size=2),
        input_kwargs=st.none() | st.dictionaries(st.text(max_size=3), TREE, max_size=2),
    ),
    max_size=4,
)  # fmt: skip


@pytest.mark.slow
@given(parts=ENTRIES)
@settings(max_examples=60, deadline=None)
def test_any_values_survive_as_they_do_in_json(tmp_path_factory, parts):
    entries = [
        Entry(name=f"Tensor.add.{i}.forward", phase=Phase.FORWARD, sequence=i, **part) for i, part in enumerate(parts)
    ]
    root = tmp_path_factory.mktemp("any")
    assert_same(*read_both(root, [Batch(entries[:2], {}), Batch(entries[2:], {})]))


def test_a_digest_of_other_types_is_stored_as_far_as_it_goes(tmp_path):
    """A processor of others may put anything there; it must not end the recording."""
    values = [
        TensorValue(META, Digest(Stats(max=np.float32(0.5), min=1, mean="x", num_nan=np.int64(3)), 77)),
        TensorValue(META, Digest(Stats(max=2**80, num_nan=2**80, num_inf=True), "a\udc80")),
    ]
    write(tmp_path, "arrow", [Batch([Entry(name="Tensor.add.0.forward", phase=Phase.FORWARD, inputs=values)], {})])
    columns = ["max", "min", "mean", "num_nan", "num_inf", "checksum"]
    assert ArrowReader().read(tmp_path).frame.select(columns).rows() == [
        (0.5, 1.0, None, 3, None, "77"), (2.0**80, None, None, None, 1, "a\\udc80")
    ]  # fmt: skip


def test_a_dump_without_values_is_read(tmp_path):
    for batches in ([], [Batch([], {})], [Batch([], {"Module.A.forward.0": None})]):
        _, dump = read_both(tmp_path, batches)
        assert (dump.frame.height, dump.header, dump.notes) == (0, HEADER, [])
    header = RunHeader(task="structure", level="mix", framework="numpy")
    json_dump, dump = read_both(tmp_path / "structure", [every_kind_of_value()], header)
    assert dump.frame.height == json_dump.frame.height == 0
    assert dump.stacks
    assert dump.parents == json_dump.parents


EXAMPLES = {
    Stats: {"max": 2.0, "min": -1.0, "mean": 0.5, "l2_norm": 3.0, "num_nan": 1, "num_inf": 2},
    Digest: {"stats": Stats(max=1.0), "checksum": "0a1b2c3d", "sketch": bytes(range(256)),
             "fp8": Fp8Stats(amax=2.0, e4m3_scale=224.0, e4m3_underflow=0.25), "extra": {"zeros": 0.5}},
    TensorMeta: {"type": "a.B", "dtype": "x", "shape": (7,), "requires_grad": False,
                 "distribution": Distribution((0, 1), (Placement("Shard", 0), Placement("Partial", None, "a")), (3,)),
                 "transforms": "BatchedTensor(lvl=1)"},
    TensorValue: {"meta": TensorMeta("a", "b", ()), "digest": Digest(Stats(max=1.0)), "file_name": "x.pt",
                  "sliced_from": (9, 3), "failure": "RuntimeError: x"},
    Entry: {"name": "Tensor.add.1.forward", "phase": Phase.FORWARD, "parent": None, "stack": ("File a",), "sequence": 9,
            "micro_step": 2,
            "is_recomputed": True,
            "inputs": [Argument("int", 1)], "input_kwargs": {"x": None}, "outputs": [Argument("int", 2)],
            "output_kwargs": {"y": None}, "parameters": {"w": tensor(max=1.0)}},
}  # fmt: skip
"""Another value for each field; what is not stored in the dump's own file: the parent, which is in another."""


def content_of(directory, name, entry):
    write(directory, name, [Batch([entry], {entry.name: entry.parent})])
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_field_is_stored(tmp_path, name, kind):
    """A field that is new to the model has to be given a place in either format; see `arrow_columns.COLUMNS`."""
    assert set(EXAMPLES[kind]) == set(kind.__struct_fields__), "give an example of the new field"

    def entry_with(**changed):
        def make(this, **values):
            return this(**values | (changed if this is kind else {}))

        meta = make(TensorMeta, type="torch.Tensor", dtype="torch.float32", shape=(2, 3), requires_grad=True)
        value = make(TensorValue, meta=meta, digest=make(Digest, stats=make(Stats, num_nan=0, num_inf=0)))
        return make(Entry, name="Tensor.add.0.backward", phase=Phase.BACKWARD, inputs=[value], parent="p")

    plain = content_of(tmp_path, name, entry_with())
    for field, value in EXAMPLES[kind].items():
        if field in {"input_kwargs", "parameters", "phase"}:  # of a forward
            assert field in Entry.__struct_fields__
            continue
        assert content_of(tmp_path, name, entry_with(**{field: value})) != plain, field


def many(num_entries, seed=0):
    """Return entries of three tensors each, whose statistics are random in all bits."""
    rng = random.Random(seed)
    names = ["Functional.linear", "Tensor.__add__", "Functional.softmax"]

    def value():
        stats = [rng.uniform(-3, 3) for _ in range(4)]
        return TensorValue(META, Digest(Stats(*stats, 0, 0), f"{rng.getrandbits(32):08x}"))

    return [
        Entry(
            name=f"{names[i % 3]}.{i // 3}.forward", phase=Phase.FORWARD, sequence=i, inputs=[value(), value()],
            outputs=[value()], stack=(f"File a, line {i % 7}",),
        )
        for i in range(num_entries)
    ]  # fmt: skip


def test_a_record_takes_no_more_than_60_bytes_and_a_quarter_of_json(tmp_path):
    batch = Batch(many(5000), {})
    for name in FORMATS:
        write(tmp_path / name, name, [batch])
    size = (tmp_path / "arrow" / "dump.arrow").stat().st_size
    assert size < 60 * 15_000
    assert size < (tmp_path / "json" / "dump.json").stat().st_size / 4


# --- through the whole program ------------------------------------------------------------------------------------


def record(tmp_path, name, fault=1.0, **settings):
    settings = {"task": "statistics", "level": "mix", "writer": name, **settings}
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings))
    return record_step(load_config(path, dump_path=str(tmp_path / name)), fault=fault)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("summary_mode", ["statistics", "md5"])
def test_a_run_compares_the_same_in_either_format(tmp_path, task, summary_mode):
    options = {"task": task, task: {"summary_mode": summary_mode}}
    golden = {name: record(tmp_path / "golden", name, **options) for name in FORMATS}
    target = {name: record(tmp_path / "target", name, fault=1.5, **options) for name in FORMATS}
    pairs = [(t, g) for t in FORMATS for g in FORMATS]
    results = [compare_dumps(target[t], golden[g]).units[0] for t, g in pairs]
    first = results[0]
    assert not first.agrees
    for unit in results[1:]:
        assert unit.rows.equals(first.rows)
        assert unit.entries.equals(first.entries)
        assert (unit.mode, unit.counts, unit.first_difference) == (first.mode, first.counts, first.first_difference)
        assert (unit.fault, unit.lone_call, unit.notes) == (first.fault, first.lone_call, first.notes)
        assert dict(unit.stacks) == dict(first.stacks)
    same = compare_dumps(golden["arrow"], golden["json"])
    assert same.agrees
    assert same.units[0].first_difference is None


def test_the_command_line_compares_arrow_with_json(tmp_path, capsys):
    golden, target = (record(tmp_path / side, name) for side, name in (("golden", "json"), ("target", "arrow")))
    for path in (target.parent, target, target / "dump.arrow"):
        partner = golden.parent if path == target.parent else golden
        with pytest.raises(SystemExit) as ended:
            main(["compare", "-tp", str(path), "-gp", str(partner), "-o", str(tmp_path / "out")])
        assert ended.value.code == 0
        assert "AGREE" in capsys.readouterr().out


def test_a_run_in_another_format_replaces_the_earlier_one(tmp_path):
    for name, suffix in (("json", ".json"), ("arrow", ".arrow"), ("json", ".json")):
        write(tmp_path, name, [Batch(many(2), {"a": None})])
        assert {path.suffix for path in tmp_path.iterdir()} == {suffix}
        assert len(list(tmp_path.iterdir())) == 3
        assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_without_extra_info_there_is_one_file(tmp_path):
    header = RunHeader(task="statistics", level="L1", framework="x", has_extra_info=False)
    write(tmp_path, "arrow", [Batch(many(2), {})], header)
    assert [path.name for path in tmp_path.iterdir()] == ["dump.arrow"]
    dump = ArrowReader().read(tmp_path)
    assert (dump.stacks, dump.parents) == ({}, {})


# --- cut off, hostile, missing ------------------------------------------------------------------------------------


@cache
def whole():
    """Return the content of a dump of 5 batches, and where its head and each batch end."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "dump.arrow"
        writer = ArrowWriterFactory().open(path.parent, HEADER)
        ends = [path.stat().st_size - 8]
        for i in range(5):
            writer.write(Batch(many(60)[i * 12 : i * 12 + 12], {}))
            ends.append(path.stat().st_size - 8)
        writer.close()
        return path.read_bytes(), ends


@given(share=st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_a_file_cut_off_anywhere_gives_all_whole_batches(tmp_path_factory, share):
    content, ends = whole()
    cut = int(share * len(content))
    path = tmp_path_factory.mktemp("cut") / "dump.arrow"
    path.write_bytes(content[:cut])
    num_whole = sum(end <= cut for end in ends[1:])
    if not num_whole:
        with pytest.raises(DumpError, match=r"dump\.arrow: is "):
            ArrowReader().read(path)
        return
    dump = ArrowReader().read(path)
    assert dump.frame.height == num_whole * 36
    assert dump.frame["entry"][-1] == many(60)[num_whole * 12 - 1].name
    if cut < len(content):
        damage = dump.notes[0].fields["damage"]
        assert damage.code is DamageCode.BATCHES
        assert (damage.fields["batches"], damage.fields["rows"]) == (num_whole, num_whole * 36)
    else:
        assert not dump.notes


@pytest.mark.parametrize("which", range(6))
def test_a_cut_between_two_batches_is_said_too(tmp_path, which):
    content, ends = whole()
    (tmp_path / "dump.arrow").write_bytes(content[: ends[which]])
    if which == 0:
        with pytest.raises(DumpError, match="cut off or damaged before its first whole batch"):
            ArrowReader().read(tmp_path)
    else:
        (note,) = ArrowReader().read(tmp_path).notes
        assert note.fields["damage"].fields["why"] == "its end is missing"


@pytest.mark.slow
def test_a_killed_process_leaves_all_batches_that_it_had_written(tmp_path):
    program = f"""
import sys, time
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(__file__).parent)!r}, {str(REPOSITORY / "tests" / "support")!r}]
from pathlib import Path
from test_arrow import ArrowWriterFactory, Batch, HEADER, many
writer = ArrowWriterFactory().open(Path({str(tmp_path)!r}), HEADER)
entries = many(3000)
for i in range(1000):
    writer.write(Batch(entries[i * 3 : i * 3 + 3], {{entries[i * 3].name: None}}))
    print(i, flush=True)
time.sleep(600)  # if it was faster than who kills it
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) == 20:
                time.sleep(0.02)
                process.kill()
                break
        num_written = 21 + len(process.stdout.read().split())
    assert process.returncode == -signal.SIGKILL
    dump = ArrowReader().read(tmp_path)
    assert dump.frame.height in {num_written * 9, num_written * 9 + 9}
    assert len(dump.stacks) >= num_written * 3
    assert len(dump.parents) >= num_written


@pytest.mark.slow
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_flipped_bytes_are_an_error_or_are_read(tmp_path_factory, flips):
    content = bytearray(whole()[0])
    for share, mask in flips:
        content[int(share * len(content))] ^= mask
    path = tmp_path_factory.mktemp("flipped") / "dump.arrow"
    path.write_bytes(content)
    try:
        dump = ArrowReader().read(path)
    except DumpError as error:
        assert str(error).startswith(str(path))  # noqa: PT017  # being read is right as well
    else:
        dump.frame.rows()


def stream(path, fields, header=None, columns=None):
    """Write an Arrow stream with another schema."""
    head = {b"msprobe": json.dumps(header).encode()} if header is not None else None
    schema = pa.schema(fields, head)
    with path.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns or [pa.array([], f.type) for f in schema], schema=schema))


RUN = {"version": 1, "run": {"task": "statistics", "level": "L1", "framework": "x"}}
TEXT = pa.dictionary(pa.int32(), pa.string())
NEEDED = [("entry", TEXT), ("phase", TEXT), ("part", TEXT), ("path", TEXT), ("value", TEXT)]


def texts(*columns):
    return [pa.array([cell], pa.string()).dictionary_encode() for cell in columns]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b""), "is not an Arrow stream"),
        (lambda path: path.write_bytes(b"garbage" * 1000), "is not an Arrow stream"),
        (lambda path: path.write_bytes(b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x" * 100), "is not an Arrow stream"),
        (lambda path: path.write_bytes(b"\xff\xff\xff\xff" + b"\0" * 4000), "is not an Arrow stream"),
        (lambda path: path.mkdir(), "cannot be read"),
        (lambda path: stream(path, [("a", pa.int64())]), "is an Arrow stream, but not a dump"),
        (lambda path: stream(path, NEEDED, "text"), "its header is not that of a dump"),
        (lambda path: stream(path, NEEDED, {**RUN, "version": 2}), "has version 2 of the format, and this release"),
        (lambda path: stream(path, NEEDED[1:], RUN), "lacks the columns entry"),
        (lambda path: stream(path, [*NEEDED, ("max", pa.string())], RUN), "its column 'max' does not hold"),
        (lambda path: stream(path, [*NEEDED, NEEDED[0]], RUN), "its column 'entry' does not hold"),
        (lambda path: stream(path, NEEDED, RUN, texts(None, "forward", "input", "0", None)), "belongs to no entry"),
        (lambda path: stream(path, NEEDED, RUN, texts("e", "sideways", "input", "0", None)), "is not a sound dump"),
        (lambda path: stream(path, NEEDED, RUN, texts("e", "forward", "middle", "0", None)), "is not a sound dump"),
        (lambda path: stream(path, NEEDED, RUN, texts("e", "forward", "input", "0", "{")), "is not a sound dump"),
        (lambda path: stream(path, NEEDED, RUN, texts("e", "forward", "input", "0", "{}")), "is not a sound dump"),
    ],
)  # fmt: skip
def test_what_is_no_dump_is_an_error_in_a_sentence(tmp_path, make, message):
    path = tmp_path / "dump.arrow"
    make(path)
    with pytest.raises(DumpError, match=message) as error:
        ArrowReader().read(path)
    assert str(error.value).startswith(str(path))


def test_numbers_of_texts_that_are_not_there_are_refused(tmp_path):
    columns = texts("e", "forward", "input", "0", None)
    columns[0] = pa.DictionaryArray.from_arrays(pa.array([7_000_000], pa.int32()), ["e"], safe=False)
    stream(tmp_path / "dump.arrow", NEEDED, RUN, columns)
    with pytest.raises(DumpError, match="cut off or damaged before its first whole batch"):
        ArrowReader().read(tmp_path)


def test_files_of_other_releases_are_read(tmp_path):
    """Columns that are missing are null; unknown columns, and unknown fields of the header, are passed over."""
    leaf = '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2],"novel":1}'
    columns = [*texts("Tensor.add.0.forward", "forward", "input_args", "0", leaf), pa.array([5])]
    stream(tmp_path / "dump.arrow", [*NEEDED, ("novel", pa.int64())], {**RUN, "novel": [1]}, columns)
    (row,) = ArrowReader().read(tmp_path).frame.rows(named=True)
    assert (row["name"], row["shape"], row["max"]) == ("Tensor.add.0.forward.input.0", "[2]", None)


def test_a_damaged_file_beside_the_dump_costs_a_note(tmp_path):
    write(tmp_path, "arrow", [Batch(many(8), {"a": None}), Batch(many(8), {"b": "a"})])
    content = (tmp_path / "construct.arrow").read_bytes()
    (tmp_path / "construct.arrow").write_bytes(content[:-10])
    (tmp_path / "stack.arrow").write_bytes(b"garbage")
    dump = ArrowReader().read(tmp_path)
    assert (dict(dump.parents), dict(dump.stacks)) == ({"a": None}, {})
    cut, lost = dump.notes
    assert (cut.code, cut.fields["path"]) == (ReadingCode.OF_FILE, str(tmp_path / "construct.arrow"))
    assert (cut.fields["damage"].code, cut.fields["damage"].fields["batches"]) == (DamageCode.BATCHES, 1)
    assert lost.code is ReadingCode.WITHOUT_FILE
    assert "stack.arrow: is not an Arrow stream" in lost.fields["why"]


def test_after_a_full_disk_nothing_is_appended_any_more(tmp_path):
    """A later batch leaves out what the one before has said, so it must not be written without that one."""
    program = f"""
import resource, signal, sys
sys.path[:0] = [{str(REPOSITORY)!r}, {str(Path(__file__).parent)!r}, {str(REPOSITORY / "tests" / "support")!r}]
from pathlib import Path
from test_arrow import ArrowWriterFactory, Batch, HEADER, many
from msprobe_core.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = ArrowWriterFactory().open(Path({str(tmp_path)!r}), HEADER)
writer.write(Batch(many(100), {{}}))
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
for number in (1000, 1):
    try:
        writer.write(Batch(many(number, seed=1), {{}}))
    except StoreError as error:
        print(error)
writer.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be written (File too large); what was recorded before is kept") == 2
    dump = ArrowReader().read(tmp_path)
    assert (dump.frame.height, dump.notes) == (300, [])


MISSING = """
import sys
sys.modules["pyarrow"] = None
"""


def run_without_pyarrow(program, *arguments):
    command = [sys.executable, "-c", MISSING + program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)


def test_without_pyarrow_a_dump_is_refused_in_a_sentence(tmp_path):
    write(tmp_path / "rank0", "arrow", [Batch(many(2), {})])
    done = run_without_pyarrow(
        "from msprobe_core.cli import main; main(sys.argv[1:])",
        *("compare", "-tp", tmp_path / "rank0", "-gp", tmp_path / "rank0", "-o", tmp_path / "out"),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"{tmp_path}/rank0/dump.arrow: dumps in Arrow's format need the library pyarrow" in done.stderr.replace(
        "\n", ""
    )
    assert "pip install 'msprobe-core[arrow]'" in " ".join(done.stderr.split())


def test_without_pyarrow_the_setting_is_refused_when_the_session_is_made():
    program = """
sys.path[:0] = ["tests/support"]
from numpy_rig import ArrayRig
from polars.testing import assert_frame_equal
from msprobe_core.capture import Session
from msprobe_core.config import load_config
from msprobe_core.errors import PluginError
try:
    Session(load_config(writer=sys.argv[1]), ArrayRig().framework)
except PluginError as error:
    print(error)
"""
    assert "pip install 'msprobe-core[arrow]'" in run_without_pyarrow(program, "arrow").stdout
    assert run_without_pyarrow(program, "json").stdout == ""
