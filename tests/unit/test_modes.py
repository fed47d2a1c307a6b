"""What two dumps allow to compare: kinds of checksums, tasks, calls without values, saved values, nothing at all."""

import json

import pytest
from dumps import api, tensor, write_dump
from row_findings import has, of_all

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.result import Mode
from msprobe_core.errors import CompareError
from msprobe_core.judge.row_codes import RowCode
from msprobe_core.model import Batch, Digest, Entry, Phase, RunHeader, Stats, TensorMeta, TensorValue
from msprobe_core.store.json_reader import read_json_dump
from msprobe_core.store.json_writer import JsonWriterFactory

META = TensorMeta("torch.Tensor", "torch.float32", (2,), True)
DIGESTS = {
    "statistics": Digest(Stats(1.0, 0.0, 0.5, 1.0, 0, 0)),
    "md5": Digest(Stats(1.0, 0.0, 0.5, 1.0, 0, 0), "0a1b2c3d"),
    "xor": Digest(checksum="0x0123456789abcdef"),
    "hash": Digest(checksum="0xfedcba9876543210"),
    "sketch": Digest(Stats(1.0, 0.0, 0.5, 1.0, 0, 0), sketch=bytes(256)),
}


def record(directory, mode, writer="json", task="statistics"):
    if writer == "arrow":
        pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
        from msprobe_core.store.arrow import ArrowWriterFactory as WriterFactory
    else:
        WriterFactory = JsonWriterFactory  # noqa: N806
    directory.mkdir(parents=True)
    header = RunHeader(task=task, level="L1", framework="pytorch", summary_mode=mode)
    entry = Entry(name="Torch.f.0.forward", phase=Phase.FORWARD, outputs=[TensorValue(META, DIGESTS[mode])])
    written = WriterFactory().open(directory, header)
    written.write(Batch([entry], {entry.name: None}))
    written.close()
    return directory


def run(capsys, target, golden, out):
    with pytest.raises(SystemExit) as ended:
        main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return ended.value.code, captured.out + captured.err


@pytest.mark.parametrize("mode", list(DIGESTS))
@pytest.mark.parametrize("writer", ["json", "arrow"])
def test_a_dump_says_its_summary_mode(tmp_path, mode, writer):
    from msprobe_core.store.reading import read_dump

    assert read_dump(record(tmp_path / "a", mode, writer)).header.summary_mode == mode


@pytest.mark.parametrize(
    ("leaf", "is_ours", "mode"),
    [
        (tensor(), True, "statistics"), (tensor(md5="0a1b2c3d"), True, "md5"), (tensor(sketch="A" * 342 + "=="), True,
         "sketch"), (tensor(md5="0x0123456789abcdef"), False, "xor"), (tensor(md5="0x0123456789abcdef"), True, ""),
    ],
)  # fmt: skip
def test_older_dumps_do_not_say_it(tmp_path, leaf, is_ours, mode):
    """Those of early releases of ours hold `execution`, those of other tools do not."""
    data = {"Torch.f.0.forward": api(output=leaf) | ({"execution": {"sequence": 0}} if is_ours else {})}
    assert read_json_dump(write_dump(tmp_path, data)).header.summary_mode == mode


COMPARABLE = {
    ("statistics", "statistics"): Mode.STATISTICS, ("statistics", "md5"): Mode.STATISTICS,
    ("statistics", "sketch"): Mode.STATISTICS, ("md5", "sketch"): Mode.STATISTICS, ("md5", "md5"): Mode.CHECKSUM,
    ("sketch", "sketch"): Mode.STATISTICS, ("xor", "xor"): Mode.CHECKSUM, ("hash", "hash"): Mode.CHECKSUM,
}  # fmt: skip


@pytest.mark.parametrize("target", list(DIGESTS))
@pytest.mark.parametrize("golden", list(DIGESTS))
def test_summary_modes_against_each_other(tmp_path, target, golden):
    paths = record(tmp_path / "t", target), record(tmp_path / "g", golden)
    expected = COMPARABLE.get((target, golden)) or COMPARABLE.get((golden, target))
    if expected is not None:
        result = compare_dumps(*paths)
        assert (result.units[0].mode, result.agrees) == (expected, True)
        return
    with pytest.raises(CompareError, match="cannot be compared; record both with the same 'summary_mode'") as raised:
        compare_dumps(*paths)
    for path, mode in zip(paths, (target, golden), strict=True):
        said = f"checksums of summary_mode {mode}" if mode in {"xor", "hash", "md5"} else "statistics"
        assert str(path) in str(raised.value)
        assert said in str(raised.value)


def test_xor_of_another_tool_is_compared_with_ours_and_not_with_hash(tmp_path):
    xor, hashed = record(tmp_path / "xor", "xor"), record(tmp_path / "hash", "hash")
    data = {"Torch.f.0.forward": {"output": [tensor(shape=[2], md5="0x0123456789abcdef")]}}
    for leaf in data["Torch.f.0.forward"]["output"]:
        for name in ("Max", "Min", "Mean", "Norm"):
            del leaf[name]
    other = write_dump(tmp_path / "other", data)
    assert compare_dumps(other, xor / "dump.json").agrees
    with pytest.raises(CompareError, match="cannot be compared"):
        compare_dumps(other, hashed / "dump.json")


def test_other_checksums_beside_statistics_are_passed_over_with_a_note(tmp_path):
    ours = record(tmp_path / "ours", "md5")
    leaf = tensor([0.0, 1.0], md5="0123456789abcdef0123", num_nan=0)
    other = write_dump(tmp_path / "other", {"Torch.f.0.forward": {"output": [leaf]}}, summary_mode="sha")
    [unit] = compare_dumps(ours / "dump.json", other).units
    assert unit.mode is Mode.STATISTICS
    assert any("the checksums are of different kinds, 0a1b2c3d of summary_mode md5 and" in note for note in unit.notes)


def test_two_tasks_are_compared_in_what_they_share(tmp_path, capsys):
    a, b = record(tmp_path / "a", "statistics", task="tensor"), record(tmp_path / "b", "statistics")
    code, said = run(capsys, a, b, tmp_path / "out")
    assert code == 0
    assert "Note: the target is of the task 'tensor' and the golden of 'statistics'; what both keep of" in said


# --- calls without values -------------------------------------------------------------------------------------------

PARENTS = {
    "Module.a.A.forward.0": "Module.M.forward.0",
    "Torch.f.0.forward": "Module.a.A.forward.0",
    "Module.b.B.forward.0": "Module.M.forward.0",
    "Module.M.forward.0": None,
    "Tensor.lerp_.0.forward": "optimizer",
    "optimizer": None,
    "Module.b.B.backward.0": "Module.M.backward.0",
}


def structure(directory, parents, data=None, **header):
    header = {"task": "structure", "level": "mix"} | header
    return write_dump(
        directory, data or {}, parents=parents, stacks={"0": [list(parents), ["File a, line 1"]]}, **header
    )


def test_structures_of_one_program_agree(tmp_path, capsys):
    code, said = run(capsys, structure(tmp_path / "a", PARENTS), structure(tmp_path / "b", PARENTS), tmp_path / "out")
    assert code == 0
    assert "Compared 6 rows of 6 calls (structure)" in said
    (table,) = (tmp_path / "out").glob("*.csv")
    header = table.read_text().splitlines()[0]
    assert "target_name,golden_name" in header
    assert "max" not in header


def test_other_calls_and_another_nesting_are_found(tmp_path, capsys):
    other = {key: parent for key, parent in PARENTS.items() if "backward" not in key}
    other["Torch.f.0.forward"] = "Module.b.B.forward.0"
    code, said = run(capsys, structure(tmp_path / "a", other), structure(tmp_path / "b", PARENTS), tmp_path / "out")
    assert code == 1
    assert "First fault: Torch.f.0.forward" in said
    assert "it is called within Module.b.B.forward, and in the golden run within Module.a.A.forward." in said
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["units"][0]
    assert (summary["mode"], summary["rows"]["error"], summary["rows"]["only golden"]) == ("structure", 1, 1)
    assert summary["first_lone_call"]["entry"] == "Module.b.B.backward.0"


def test_a_structure_is_compared_with_a_dump_that_has_values(tmp_path):
    values = {"Module.a.A.forward.0": {"output": [tensor()]}, "Module.a.A.parameters_grad.0": {"weight": [tensor()]}}
    full = write_dump(tmp_path / "full", values, parents=PARENTS)
    [unit] = compare_dumps(structure(tmp_path / "a", PARENTS), full).units
    assert (unit.mode, unit.agrees, unit.rows.height) == (Mode.STRUCTURE, True, 6)
    assert any("the golden of 'statistics'; the order of calls is compared" in note for note in unit.notes)
    bare = write_dump(tmp_path / "bare", {entry: {"output": []} for entry in PARENTS if entry != "optimizer"})
    [unit] = compare_dumps(structure(tmp_path / "a", PARENTS), bare).units
    assert not unit.counts["only target"]


def test_structures_with_descriptions_compare_shapes_dtypes_and_arguments(tmp_path):
    def described(shape, number, dtype="torch.float32"):
        leaf = {"type": "torch.Tensor", "dtype": dtype, "shape": shape}
        return {"Torch.f.0.forward": api(leaf, {"type": "int", "value": number}, output=leaf)}

    golden = structure(tmp_path / "g", PARENTS, described([2, 3], 1))
    [unit] = compare_dumps(structure(tmp_path / "a", PARENTS, described([2, 3], 1)), golden).units
    assert (unit.mode, unit.agrees, unit.rows.height) == (Mode.STRUCTURE, True, 3)
    [unit] = compare_dumps(structure(tmp_path / "b", PARENTS, described([2, 4], 2, "torch.int64")), golden).units
    found = of_all(unit.rows)
    assert has(found, RowCode.SHAPE, target="[2, 4]", golden="[2, 3]")
    assert has(found, RowCode.ARGUMENT, target="2", golden="1")
    assert has(found, RowCode.DTYPE_KIND)


def test_dumps_without_values_say_so(tmp_path, capsys):
    empty = write_dump(tmp_path / "a", {})
    code, said = run(capsys, empty, write_dump(tmp_path / "b", {"Torch.f.0.forward": api(output=tensor())}), tmp_path)
    assert code == 2
    assert f"{empty}: holds no values to compare (task 'statistics'), because nothing was recorded" in said
    bare = write_dump(tmp_path / "c", {}, task="structure")
    code, said = run(capsys, bare, structure(tmp_path / "d", PARENTS), tmp_path)
    assert code == 2
    assert f"{bare}: holds neither values nor calls (task 'structure')" in said


def test_saved_values_are_compared(tmp_path, capsys):
    def saved(directory, value):
        directory.mkdir()
        data = {"x.0.debug": tensor([value, 2.0]), "nest.0.debug": {"k": [tensor(value), {"type": "int", "value": 3}]},
                "x_grad.0.debug": None}  # fmt: skip
        header = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
        (directory / "debug.json").write_text(json.dumps(header | {"data": data}))
        return directory

    code, said = run(capsys, saved(tmp_path / "a", 1.0), saved(tmp_path / "b", 2.0), tmp_path / "out")
    assert code == 1
    assert "First fault: x.0.debug" in said
    (table,) = (tmp_path / "out").glob("*compare_result_*.csv")
    names = [line.partition(",")[0] for line in table.read_text().splitlines()[1:]]
    assert names == ["x.0.debug", "nest.0.debug.k.0", "nest.0.debug.k.1", "x_grad.0.debug"]
