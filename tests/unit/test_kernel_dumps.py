"""Dumps of kernels as MindSpore writes them: tables of statistics, files of tensors, and the files beside them."""

import csv
import json

import numpy as np
import polars as pl
import pytest
from limited import grows_linearly

from msprobe_core.cli import main
from msprobe_core.compare.pairing_codes import PairingCode
from msprobe_core.compare.pairs import Chosen, find_pairs
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.findings import Finding
from msprobe_core.store.kernel_files import find_kernel_units, read_code
from msprobe_core.store.reading import read_dump
from msprobe_core.store.reading_codes import ReadingCode
from msprobe_core.store.tensors import read_tensor

HEADER = [
    "Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type", "Shape",
    "Max Value", "Min Value", "Avg Value", "L2Norm Value",
]  # fmt: skip

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
OUTPUT = np.array([[8.0, 1.0]], np.float32)

IR = """\
# Params:
%para6_a.weight: <Ref[Tensor[Float32]], (2, 3), ref_key=a.weight>  :  has_default  :  <x>  :  IsWeight: true
%para7_inputs0: <Tensor[Float32], (1, 3)> : [1, 3]  :  <Float32xDefaultFormat[const vector]{1, 3}>  :  IsWeight: false

subgraph @kernel_graph0() {
  %0(equiv_11_CNode_39) = Load(%para6_a.weight, UMonad[U]) cnode_attrs: {checkpoint: Bool(1)}
      # Fullname with scope: (Default/network-Net/Load-op0)
  %1(equiv_10_x) = PrimFunc_MatMul(%para7_inputs0, %0, Bool(0), Bool(1))
      # Fullname with scope: (Default/network-Net/a-Dense/MatMul-op0)
      # In file /site-packages/mindspore/nn/wrap/cell_wrapper.py:423~438, 4~19/    def construct(self, *inputs):/
      # In file train.py:12, 38~44/        return self.c(self.a(x))/
      # In file /site-packages/mindspore/nn/layer/basic.py:807, 12~39/        x = self.matmul(x, self.weight)/
  %2(CNode_1) = PrimFunc_Mul(%1, Tensor(shape=[2, 2], dtype=Float32, value=
[[ 1, 2],
 [ 3, 4]]), F32(1e-05), (I64(0), I64(1)), %0) primitive_attrs: {IsFeatureMapInputList: (0, 1)}
      # Fullname with scope: (Default/network-Net/Mul-op0)
  %3 = Cut(
"""


def unit(root, rank=0, net="Net", graph=0, iteration=0, prefix="rank_"):
    directory = root / f"{prefix}{rank}" / net / str(graph) / str(iteration)
    directory.mkdir(parents=True)
    return directory


def write_table(directory, *lines, header=HEADER):
    with (directory / "statistic.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(lines)
    return directory


def line(name, side, slot, time, values=(2.0, 1.0, 1.5, 3.0), dtype="float32", shape="(2,3)", kind="MatMul"):
    return (kind, name, 0, 0, time, side, slot, 24, dtype, shape, *values)


def write_tensor(directory, name, side, slot, time, values, kind="MatMul", suffix=".Float32"):
    path = directory / f"{kind}.{name}.0.0.{time}.{side}.{slot}.DefaultFormat{suffix}.npy"
    np.save(path, values)
    return path


def write_tensors(root, *, fault=1.0, first_time=1000, **place):
    """A run of two kernels, the second of which is wrong by a factor; on the clock it ran first."""
    directory = unit(root, **place)
    scope = "Default_network-Net_"
    for time, (name, side, slot, values) in enumerate([
        (scope + "c_ReLU-op0", "input", 0, OUTPUT),
        (scope + "c_ReLU-op0", "output", 0, OUTPUT * np.float32(fault)),
        (scope + "a-Dense_MatMul-op0", "input", 0, np.ones((1, 3), np.float32)),
        (scope + "a-Dense_MatMul-op0", "input", 1, WEIGHT),
        (scope + "a-Dense_MatMul-op0", "output", 0, OUTPUT),
    ], first_time):  # fmt: skip
        write_tensor(directory, name, side, slot, time, values, kind="ReLU" if "ReLU" in name else "MatMul")
    write_tensor(directory, "a_weight", "output", 0, first_time + 9, WEIGHT, kind="Parameter")
    beside = directory.parents[2]
    (beside / "execution_order").mkdir(exist_ok=True)
    order = (
        "NodeExecutionOrder-FullNameWithScope\nDefault/network-Net/a-Dense/MatMul-op0\nDefault/network-Net/c/ReLU-op0\n"
    )
    (beside / "execution_order" / "ms_execution_order_graph_0.csv").write_text(order)
    (beside / "graphs").mkdir(exist_ok=True)
    (beside / "graphs" / "ms_output_trace_code_graph_0.ir").write_text(IR)
    return directory


def keys(dump):
    return dump.frame["key"].to_list()


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_table_gives_a_row_for_each_line(tmp_path):
    directory = write_table(
        unit(tmp_path),
        line("Conv2D-op12", "output", 0, 20, ("inf", "-1", "nan", "")),
        line("Conv2D-op12", "input", 0, 10),
        line("Conv2D-op12", "input", 1, 11, ("9007199254740993", "0", "1", "2"), "Int64", '"[4]"'),
        line("Default/a/Gather-op1", "output", 0, 30, ("True", "False", "", ""), "bool_", "()"),
    )
    dump = read_dump(directory)
    assert (dump.header.task, dump.header.level, dump.header.framework) == ("statistics", "L2", "mindspore")
    assert keys(dump) == [
        "Conv2D-op12.0.input.0", "Conv2D-op12.0.input.1", "Conv2D-op12.0.output.0", "Default_a_Gather-op1.0.output.0",
    ]  # fmt: skip
    assert dump.frame["name"].to_list() == keys(dump)
    assert dump.frame.select("dtype", "shape", "max", "min", "mean", "norm").rows() == [
        ("float32", "[2, 3]", 2.0, 1.0, 1.5, 3.0),
        ("int64", "[4]", 9007199254740992.0, 0.0, 1.0, 2.0),
        ("float32", "[2, 3]", float("inf"), -1.0, pytest.approx(float("nan"), nan_ok=True), None),
        ("bool", "[]", 1.0, 0.0, None, None),
    ]
    assert dump.frame["exact"][1] == "9007199254740993 and 0"
    assert dump.notes == []


def test_further_columns_of_a_table_are_read(tmp_path):
    header = [*HEADER, "NaN Count", "Negative Inf Count", "Positive Inf Count", "MD5 Value"]
    directory = write_table(unit(tmp_path), (*line("Add-op0", "output", 0, 1), 3, 1, 2, "ab12"), header=header)
    dump = read_dump(directory / "statistic.csv")
    assert dump.header.summary_mode == "md5"
    assert dump.frame.select("num_nan", "num_inf", "checksum").rows() == [(3, 3, "ab12")]


@pytest.mark.parametrize(("cells", "problem"), [
    (("MatMul", "x"), "it has 2 cells of 14"),
    (line("x", "output", 0, 1, ("many", 0, 0, 0)), "could not convert string to float: 'many'"),
    (line("x", "sideways", 0, 1), "IO is 'sideways'"),
    (line("x", "output", "first", 1), "invalid literal for int"),
    (line("x", "output", 0, ""), "invalid literal for int"),
], ids=["short", "number", "side", "slot", "time"])  # fmt: skip
def test_a_malformed_line_costs_a_note(tmp_path, cells, problem):
    directory = write_table(unit(tmp_path), line("a", "input", 0, 1), cells, line("a", "output", 0, 2))
    dump = read_dump(directory)
    assert keys(dump) == ["a.0.input.0", "a.0.output.0"]
    (note,) = dump.notes
    assert (note.code, note.fields["count"], note.fields["line"]) == (ReadingCode.LINES, 1, 3)
    assert note.fields["why"].startswith(problem)


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"\xff\xfe\0\0", b'Op Type,"Op'], ids=["empty", "other", "bytes", "cut"]
)
def test_a_table_of_something_else_is_an_error(tmp_path, content):
    directory = unit(tmp_path)
    (directory / "statistic.csv").write_bytes(content)
    with pytest.raises(DumpError, match=r"statistic\.csv: is no table of a dump of kernels: it has no column"):
        read_dump(directory)


def test_files_of_tensors_are_in_the_order_that_the_graph_was_compiled_to(tmp_path):
    directory = write_tensors(tmp_path)
    dump = read_dump(directory)
    assert (dump.header.task, dump.header.keeps_tensors) == ("tensor", True)
    matmul, relu = "Default_network-Net_a-Dense_MatMul-op0.0", "Default_network-Net_c_ReLU-op0.0"
    expected = [f"{matmul}.input.0", f"{matmul}.input.1", f"{matmul}.output.0", f"{relu}.input.0", f"{relu}.output.0"]
    assert keys(dump) == [*expected, "Parameter.a_weight.0.output.0"]
    assert dump.frame.select("dtype", "shape").row(1) == ("float32", "[2, 3]")
    found = np.concatenate(list(dump.open_tensor(dump.frame["file_name"][1]).chunks(4)))
    assert found.tolist() == WEIGHT.ravel().tolist()
    (directory.parents[2] / "execution_order" / "ms_execution_order_graph_0.csv").unlink()
    assert keys(read_dump(directory)) == [*expected[3:], *expected[:3], "Parameter.a_weight.0.output.0"]


def test_a_kernel_says_where_in_the_program_it_comes_from(tmp_path):
    assert dict(read_dump(write_tensors(tmp_path)).stacks) == {
        "Default_network-Net_a-Dense_MatMul-op0.0": [
            "File /site-packages/mindspore/nn/layer/basic.py, line 807, x = self.matmul(x, self.weight)",
            "File train.py, line 12, return self.c(self.a(x))",
        ]
    }


@pytest.mark.parametrize(
    "comment", ["\n", "# Fullname with scope: (", "# In file a.py:1, 1~2/ ", ":1", "# ", "%1("],
    ids=["lines", "scopes", "files", "places", "comments", "definitions"],
)  # fmt: skip
def test_a_graph_is_read_in_linear_time(tmp_path, comment):
    def read(size):
        directory = tmp_path / f"rank_{size}" / "Net" / "0" / "0"
        directory.mkdir(parents=True, exist_ok=True)
        graphs = tmp_path / f"rank_{size}" / "graphs"
        graphs.mkdir(parents=True, exist_ok=True)
        long = comment * (size // len(comment))
        (graphs / "ms_output_trace_code_graph_0.ir").write_text(
            f"{IR}\n      # In file {long}\n      {long}\n  %4(x) = A(\n"
        )
        assert "Default_network-Net_Mul-op0" in read_code(directory)

    assert grows_linearly(read, 20_000)


def test_inputs_that_no_kernel_has_made_are_parameters(tmp_path):
    directory = write_tensors(tmp_path)
    for slot in range(5):
        write_tensor(directory, "Default_network-Net_Mul-op0", "input", slot, 5000 + slot, WEIGHT)
    frame = read_dump(directory).frame.filter(pl.col("key").str.contains("M(atM)?ul.*input"))
    assert [(key.rpartition("_")[2], role) for key, role in frame.select("key", "role").rows()] == [
        ("MatMul-op0.0.input.0", "input"),
        ("MatMul-op0.0.input.1", "parameters"),
        ("Mul-op0.0.input.0", "input"),
        *((f"Mul-op0.0.input.{slot}", "parameters") for slot in (1, 2, 3, 4)),
    ]


def test_a_kernel_that_runs_several_times_is_numbered_by_time(tmp_path):
    directory = unit(tmp_path)
    for n, time in enumerate((30, 9, 200)):
        write_tensor(directory, "Sin-op0", "output", 0, time, np.float32(n))
        write_tensor(directory, "Add-op0", "output", 0, time + 1, np.float32(n))
    dump = read_dump(directory)
    assert dump.frame["entry"].to_list() == [
        "Sin-op0.0", "Add-op0.0", "Sin-op0.0.1", "Add-op0.0.1", "Sin-op0.0.2", "Add-op0.0.2",
    ]  # fmt: skip
    assert [file.split(".")[4] for file in dump.frame["file_name"]] == ["9", "10", "30", "31", "200", "201"]


def test_a_kernel_without_a_place_in_the_order_comes_behind_the_one_before_it_in_time(tmp_path):
    directory = unit(tmp_path)
    order = directory.parents[2] / "execution_order"
    order.mkdir()
    (order / "ms_execution_order_graph_0.csv").write_text("title\nDefault/A-op0\nDefault/B-op0\n")
    for time, name in enumerate(["X-op0", "B-op0", "Y-op0", "A-op0"]):
        write_tensor(directory, name, "output", 0, time, np.float32(0))
    entries = read_dump(directory).frame["entry"].to_list()
    assert entries == ["X-op0.0", "A-op0.0", "B-op0.0", "Y-op0.0"]


def test_names_that_were_too_long_are_looked_up(tmp_path):
    directory = unit(tmp_path)
    write_tensor(directory, "Add-op0", "output", 0, 7, np.float32(1)).rename(directory / "1234.npy")
    assert read_dump_or_none(directory) is None
    (directory / "mapping.csv").write_text(f"1234.npy,Add.{'long_' * 60}Add-op0.0.0.7.output.0.DefaultFormat.npy\n")
    dump = read_dump(directory)
    assert keys(dump) == [f"{'long_' * 60}Add-op0.0.output.0"]
    assert dump.frame["file_name"].to_list() == ["1234.npy"]
    np.save(directory / "5678.npy", 1)
    (note,) = read_dump(directory).notes
    fields = {"path": str(directory), "count": 1, "first": "5678.npy"}
    assert note == Finding(ReadingCode.OTHER_FILES, fields=fields)


def read_dump_or_none(directory):
    try:
        return read_dump(directory)
    except CompareError:
        return None


def test_a_file_that_is_no_array_costs_its_row_and_a_note(tmp_path):
    directory = write_tensors(tmp_path)
    broken = next(directory.glob("MatMul.*.output.*"))
    for content in (b"", b"\x93NUMPY\x01\x00", b"no array", b"\x93NUMPY\x01\x00\x05\x00{'a'}"):
        broken.write_bytes(content)
        dump = read_dump(directory)
        assert dump.frame["kind"].to_list() == ["tensor", "tensor", "none", "tensor", "tensor", "tensor"]
        (note,) = dump.notes
        assert (note.code, note.fields["count"]) == (ReadingCode.UNREADABLE, 1)
        assert note.fields["first"] == broken.name


def test_nothing_leads_out_of_the_directory(tmp_path):
    dump = read_dump(write_tensors(tmp_path))
    with pytest.raises(DumpError, match="leads out of it"):
        dump.open_tensor("../secret.npy")


def test_a_table_beside_the_files_gives_them_statistics(tmp_path):
    directory = unit(tmp_path)
    write_tensor(directory, "Add-op0", "output", 0, 70, np.ones(6, np.float32), suffix="")
    write_table(directory, line("Add-op0", "output", 0, 71, shape="(6)"), line("Add-op0", "input", 0, 72, shape="(6)"))
    dump = read_dump(directory)
    assert dump.header.task == "tensor"
    assert dump.frame.select("key", "max", pl.col("file_name").is_null()).rows() == [
        ("Add-op0.0.input.0", 2.0, True), ("Add-op0.0.output.0", 2.0, False),
    ]  # fmt: skip


def test_bfloat16_as_mindspore_writes_it(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([0x3F80, 0xC040, 0x7F80], np.uint16))
    path.write_bytes(path.read_bytes().replace(b"'<u2'", b"'<E2'", 1))
    assert read_tensor(path).tolist() == [1.0, -3.0, float("inf")]


# --- pairing --------------------------------------------------------------------------------------------------------


def labels(target, golden, **chosen):
    pairing = find_pairs(target, golden, Chosen(**chosen))
    return [pair.label for pair in pairing.pairs], list(pairing.missing)


def make(root, places, prefix="rank_"):
    for rank, net, graph, iteration in places:
        write_table(unit(root, rank, net, graph, iteration, prefix), line("a", "output", 0, 1))
    return root


def test_runs_of_graphs_are_paired_by_step_and_rank(tmp_path):
    target = make(tmp_path / "t", [(0, "Net", 0, 0), (0, "Net", 0, 10), (0, "Net", 0, 2), (1, "Net", 0, 2)])
    golden = make(tmp_path / "g", [(0, "Other", 3, 0), (0, "Other", 3, 10), (0, "Other", 3, 2)], prefix="")
    assert len(find_kernel_units(golden)) == 3
    found, missing = labels(target, golden)
    assert found == ["step0/rank0", "step2/rank0", "step10/rank0"]
    assert missing == [Finding(PairingCode.ONLY_IN, fields={"what": "step2/rank1", "path": str(target)})]
    both = {"target": str(target), "golden": str(golden)}
    assert labels(target, golden, steps=(0, 2, 7), ranks=(0, 5)) == (
        ["step0/rank0", "step2/rank0"],
        [Finding(PairingCode.IN_NEITHER, fields={"what": what, **both}) for what in ("step7", "rank5")],
    )


def test_several_graphs_are_told_apart(tmp_path):
    places = [(0, "Net", 0, 0), (0, "Net", 1, 0), (0, "Net", 1, 1)]
    assert labels(make(tmp_path / "t", places), make(tmp_path / "g", places))[0] == [
        "step0/graph0/rank0", "step0/graph1/rank0", "step1/graph1/rank0",
    ]  # fmt: skip
    places = [(0, "Net", 0, 0), (0, "Eval", 0, 0)]
    assert labels(make(tmp_path / "t2", places), make(tmp_path / "g2", places))[0] == [
        "step0/Eval_graph0/rank0", "step0/Net_graph0/rank0",
    ]  # fmt: skip


def test_what_cannot_be_paired_is_an_error(tmp_path):
    target = make(tmp_path / "t", [(0, "Net", 0, 0)])
    other = tmp_path / "step0" / "rank0"
    other.mkdir(parents=True)
    (other / "dump.json").write_text('{"task": "statistics", "data": {}}')
    with pytest.raises(CompareError, match="step0: holds no dump of kernels"):
        find_pairs(target, other.parent)
    with pytest.raises(CompareError, match="no run of a graph in common: step5 is in neither"):
        find_pairs(target, target, Chosen(steps=(5,)))
    (tmp_path / "empty" / "rank_0").mkdir(parents=True)
    with pytest.raises(CompareError, match="empty: holds no dump of kernels"):
        find_pairs(target, tmp_path / "empty")


def test_own_dumps_are_not_taken_for_kernels(tmp_path):
    directory = tmp_path / "rank0" / "dump_tensor_data"
    directory.mkdir(parents=True)
    np.save(directory / "Functional.linear.0.forward.input.0.npy", 1)
    assert read_dump_or_none(directory) is None
    assert find_kernel_units(tmp_path) == []


# --- the command ----------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    return ended.value.code, capsys.readouterr().out


def test_the_command_names_the_first_kernel_that_differs(tmp_path, capsys):
    for rank in (0, 1):
        for step in (0, 1):
            fault = 1.5 if (rank, step) == (1, 1) else 1.0
            write_tensors(tmp_path / "t", fault=fault, rank=rank, iteration=step)
            write_tensors(tmp_path / "g", rank=rank, iteration=step, first_time=5000)
    given = ("-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out")
    code, text = run(capsys, *given)
    assert code == 1
    assert (
        "First fault: Default_network-Net_c_ReLU-op0.0\n  Its inputs agree (relative error 0), its output does not"
        in text
    )
    assert text.endswith("DIFFERENT: first at step1/rank1: Default_network-Net_c_ReLU-op0.0.\n")
    assert len(list((tmp_path / "out" / "step1").glob("compare_result_rank1_*.csv"))) == 1
    code, text = run(capsys, *given, "--rank", "0", "--step", "0-1")
    assert (code, text.splitlines()[-1]) == (0, "AGREE: every row is matched and within its limit.")
    code, text = run(capsys, *given, "--rank", "0-1", "--step", "0")
    assert code == 0


def test_a_compare_json_chooses_ranks_and_steps(tmp_path, capsys):
    for step in (0, 1):
        write_tensors(tmp_path / "t", fault=1.0 + step, iteration=step)
        write_tensors(tmp_path / "g", iteration=step)
    request = tmp_path / "compare.json"
    fields = {"npu_path": str(tmp_path / "t"), "bench_path": str(tmp_path / "g")}
    for steps, expected in (([0], 0), ([1], 1), ([], 1)):
        request.write_text(json.dumps({**fields, "rank_id": [0], "step_id": steps}))
        assert run(capsys, "-i", request, "-o", tmp_path / "out", "-c")[0] == expected


def test_damage_is_told_and_is_no_agreement(tmp_path, capsys):
    cut = next(write_tensors(tmp_path / "t").glob("MatMul.*.output.*"))
    gone = next(write_tensors(tmp_path / "g").glob("ReLU.*.output.*"))
    cut.write_bytes(cut.read_bytes()[:-4])
    gone.write_bytes(b"")
    code, text = run(capsys, "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out")
    assert code == 1
    table = pl.read_csv(next((tmp_path / "out" / "step0").glob("*.csv"))).filter(pl.col("verdict") != "pass")
    reasons = table["reason"].to_list()
    assert (
        f"a tensor could not be read, so that at most its statistics were compared: {cut}: is cut off: its header"
        in reasons[0]
    )
    assert reasons[1:] == ["error: the target has a tensor, the golden nothing."]
    assert f"files that cannot be read: 1; the first is {gone.name}" in text.replace("\n", "")


def test_a_table_and_files_are_compared_by_statistics(tmp_path, capsys):
    directory = write_tensors(tmp_path / "t")
    lines = []
    for name, values in (("a-Dense_MatMul-op0", OUTPUT), ("c_ReLU-op0", OUTPUT * 2)):
        numbers = (values.max(), values.min(), values.mean(), np.linalg.norm(values))
        kind = name.rpartition("_")[2].partition("-")[0]
        lines.append(line(f"Default_network-Net_{name}", "output", 0, 1, numbers, shape="(1, 2)", kind=kind))
    for path in (*directory.glob("*input*"), *directory.glob("Parameter*")):
        path.unlink()
    write_table(unit(tmp_path / "g"), *lines)
    code, text = run(capsys, "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out")
    assert code == 1
    assert "Compared 2 rows of 2 calls (step0/rank0, statistics)" in text
    assert "DIFFERENT: first at Default_network-Net_c_ReLU-op0.0." in text


@pytest.mark.parametrize("layout", ["a", "c"])
@pytest.mark.parametrize("has_tensors", [True, False], ids=["tensors", "table"])
def test_other_tables_can_be_had(tmp_path, capsys, layout, has_tensors):
    for side, fault in (("t", 2.0), ("g", 1.0)):
        if has_tensors:
            write_tensors(tmp_path / side, fault=fault)
        else:
            lines = [line("a", "input", 0, 1), line("a", "output", 0, 2, (2 * fault, 1, 1.5, 3 * fault))]
            write_table(unit(tmp_path / side), *lines)
    given = ("-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out", "--compat", layout, "-da")
    assert run(capsys, *given)[0] == 1
    table = pl.read_csv(next((tmp_path / "out" / "step0").glob("compare*.csv")), infer_schema=False)
    first, wrong = ("Default_network-Net_a-Dense_MatMul-op0.0", "Default_network-Net_c_ReLU-op0.0")
    name = str(table["NPU Name"][0])
    if layout == "c" and has_tensors:
        assert name.startswith(f"{tmp_path}/t/rank_0/Net/0/0/MatMul.{first.removesuffix('.0')}.")
    else:
        assert name == (f"{first}.input.0" if has_tensors else "a.0.input.0")
    (found,) = (tmp_path / "out" / "step0").glob("diff_analyze_*.json")
    assert [call["op_name"] for call in json.loads(found.read_text())["rank_0"]] == [wrong if has_tensors else "a.0"]


def table_of_26(tmp_path, capsys):
    run(capsys, "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out", "--compat", "c")
    (path,) = (tmp_path / "out" / "step0").glob("compare_result_0_0_*.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_table_of_statistics_that_26_writes(tmp_path, capsys):
    """The cells of 26.2.0 for the same two tables, but for the order of rows."""
    healthy = (1.0, 1.0, 1.5, 3.0)
    cases = {
        "same": (healthy, healthy, "Yes", "0.0", "0.0%"),
        "half": ((1.5, 1, 1.5, 3), healthy, "Yes", "0.5", "50.0%"),
        "far": ((5.0, 1, 1.5, 3), (2.0, 1, 1.5, 3), "No", "3.0", "150.0%"),
        "zero": ((2.0, 1, 1.5, 3), (0.0, 1, 1.5, 3), "No", "2.0", "N/A"),
        "zeros": ((0.0, 0, 0, 0), (0.0, 0, 0, 0), "Yes", "0.0", "N/A"),
        "minimum": ((1.0, 9, 1.5, 3), healthy, "Yes", "0.0", "0.0%"),
        "inf": (("inf", 1, 1.5, 3), healthy, "No", "inf", "inf%"),
        "both inf": (("inf", 1, 1.5, 3), ("inf", 1, 1.5, 3), "No", "", "Nan"),
        "nan": (("nan", 1, 1.5, 3), healthy, "No", "", "Nan"),
        "both nan": (("nan", 1, 1.5, 3), ("nan", 1, 1.5, 3), "Yes", "", "Nan"),
        "single": ((1.2, 1, 1.5, 3), healthy, "Yes", "0.20000004768371582", "20.000004768371582%"),
    }
    for side in range(2):
        lines = [line(name, "output", 0, i, case[side]) for i, (name, case) in enumerate(cases.items())]
        lines.append(line("dtype", "output", 0, 90, dtype=("float16", "float32")[side]))
        lines.append(line("shape", "output", 0, 91, shape=("(3,2)", "(2,3)")[side]))
        lines += [line("lone", "output", 0, 92)] * (side == 0)
        write_table(unit(tmp_path / "tg"[side]), *lines)
    rows = {row["NPU Name"].removesuffix(".0.output.0"): row for row in table_of_26(tmp_path, capsys)}
    assert list(rows["same"]) == [
        "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU max",
        "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
        "Accuracy Reached or Not", "Err_message", "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr",
        "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr", "NPU CSV File", "Bench CSV File",
    ]  # fmt: skip
    for name, (_, _, accuracy, difference, ratio) in cases.items():
        row = rows[name]
        cells = (row["Accuracy Reached or Not"], row["Err_message"], row["Max diff"], row["MaxRelativeErr"])
        assert cells == (accuracy, "", difference, ratio), name
    assert (rows["minimum"]["MinRelativeErr"], rows["same"]["NPU Tensor Shape"]) == ("800.0%", "[2,3]")
    dtype, shape, lone = rows["dtype"], rows["shape"], rows["lone"]
    assert dtype["Err_message"] == "Dtype of NPU and bench Tensor do not match. Skipped.\n"
    assert shape["Err_message"] == "Tensor shapes do not match.\n"
    assert lone["Err_message"] == shape["Err_message"] + dtype["Err_message"]
    for row in (dtype, shape, lone):
        assert (row["Accuracy Reached or Not"], row["Max diff"], row["NormRelativeErr"]) == ("", "", "")
    assert (lone["Bench Name"], lone["Bench CSV File"]) == ("", "")
    assert lone["NPU CSV File"] == str(tmp_path / "t/rank_0/Net/0/0/statistic.csv")


def test_the_table_of_tensors_that_26_writes(tmp_path, capsys):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with_nan, zeros, ones = values.copy(), np.zeros(3, np.float32), np.ones(3, np.float32)
    with_nan[0, 0] = np.nan
    cases = {
        "same": (values, values, "Yes", "", "1.0"),
        "thrice": (values * np.float32(3), values, "No", "", "1.0"),
        "nan": (with_nan, values, "", "The position of inf or nan in NPU and bench Tensor do not match.\n", ""),
        "both nan": (with_nan, with_nan, "Yes", "", "1.0"),
        "shape": (values, values.T.copy(), "", "Shape of NPU and bench Tensor do not match.\n", ""),
        "number": (np.float32(6), np.float32(2), "", "This is type of scalar data, can not compare.\n", ""),
        "zeros": (
            zeros,
            ones,
            "Yes",
            "Cannot compare by Cosine Similarity, All the data is Zero in npu dump data.",
            "Nan",
        ),
        "lone": (values, None, "", "Dump file is not ndarray.\n", ""),
    }
    for side in range(2):
        directory = unit(tmp_path / "tg"[side])
        for i, (name, case) in enumerate(cases.items()):
            if case[side] is not None:
                write_tensor(directory, name.replace(" ", ""), "output", 0, i, case[side])
    rows = {row["NPU Name"].split("/")[-1].split(".")[1]: row for row in table_of_26(tmp_path, capsys)}
    for name, (_, _, accuracy, message, cosine) in cases.items():
        row = rows[name.replace(" ", "")]
        assert (row["Accuracy Reached or Not"], row["Err_message"], row["Cosine"]) == (accuracy, message, cosine), name
    same, zero = rows["same"], rows["zeros"]
    assert (same["NPU max"], same["Bench mean"], same["EucDist"]) == ("5.0", "2.5", "0.0")
    assert (zero["NPU Tensor Shape"], same["NPU Tensor Shape"]) == ("[3,]", "[2, 3]")
