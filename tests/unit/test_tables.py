"""The layouts of tables: our numbers and reasons, the columns of mstt 8.x, names of files, Parquet."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import openpyxl
import polars as pl
import pytest
from dumps import api, tensor, write_dump
from rich.console import Console
from written_tables import write_report

from msprobe_core.compare import compare_dumps
from msprobe_core.protocols.presentation import TableChoices
from msprobe_core.report.files import TableForm, TableOptions, format_called
from msprobe_core.report.terminal import print_summary

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
THRICE = [[3.0, -6.0], [9.0, 12.0]]
ENTRY = "Functional.linear.0.forward"
STACK = "File model.py, line 3, in forward, \n y = f(x)"

OURS = ["target_name", "golden_name", "verdict", "error", "limit", "precision", "reason", "codes", "target_dtype",
        "golden_dtype", "target_shape", "golden_shape", "target_requires_grad", "golden_requires_grad"]  # fmt: skip
DIFFERENCES = ["max_diff", "min_diff", "mean_diff", "norm_diff", "max_rel_diff", "min_rel_diff", "mean_rel_diff",
               "norm_rel_diff"]  # fmt: skip
METRICS = ["cosine_similarity", "euclidean_distance", "max_abs_error", "max_rel_error", "share_within_0.001",
           "share_within_0.005"]  # fmt: skip
BASIC = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
         "NPU Requires_grad", "Bench Requires_grad"]  # fmt: skip


@pytest.fixture
def compared(tmp_path):
    def compared(target, golden, *, stacks=None, **header):
        one = write_dump(tmp_path / "target", target, stacks=stacks, **header)
        return compare_dumps(one, write_dump(tmp_path / "golden", golden, **header))

    return compared


@pytest.fixture
def report(compared, tmp_path):
    def report(target, golden, *, layout="ours", form=TableForm.CSV, rows=1 << 20, **kwargs):
        how = {name: kwargs.pop(name) for name in ("has_stacks", "has_highlights") if name in kwargs}
        options = TableOptions(stamp="20261121000000", form=form, layout=layout, max_sheet_rows=rows, **how)
        return write_report(compared(target, golden, **kwargs), tmp_path / "out", options).tables[0]

    return report


def table_of(unit, layout="ours"):
    return format_called(layout).table(unit, TableChoices())


def files_of(directory, factor):
    """Write the tensor files of a record, and return the record."""
    (directory / "dump_tensor_data").mkdir(parents=True)
    for name, values in (("input.0", np.float32(X)), ("output.0", np.float32(X) * np.float32(factor))):
        np.save(directory / "dump_tensor_data" / f"{ENTRY}.{name}.npy", values)
    files = [f"{ENTRY}.{name}.npy" for name in ("input.0", "output.0")]
    values = (np.float32(X) * np.float32(factor)).tolist()
    argument = {"type": "int", "value": 1}
    return {ENTRY: api(tensor(X, data_name=files[0]), argument, output=tensor(values, data_name=files[1]))}


def test_numbers_of_statistics_are_numbers(report):
    target = {ENTRY: api(tensor(X), {"type": "float", "value": 0.5}, None, output=tensor(TWICE, num_nan=0, num_inf=0)),
              "Torch.abs.0.forward": api(output=tensor(X))}  # fmt: skip
    golden = {ENTRY: api(tensor(X), {"type": "float", "value": 0.25}, None, output=tensor(X, num_nan=0, num_inf=0))}
    table = pl.read_csv(report(target, golden)[0])
    sides = [f"{side}_{name}" for side in ("target", "golden") for name in ("max", "min", "mean", "norm")]
    counts = ["target_num_nan", "target_num_inf", "golden_num_nan", "golden_num_inf"]
    expected = [*OURS, *DIFFERENCES, *sides[:4], *counts[:2], *sides[4:], *counts[2:], "target_value", "golden_value"]
    assert table.columns == expected
    numbers = ["error", "limit", *DIFFERENCES, *sides]
    assert all(table.schema[name] == pl.Float64 for name in numbers)
    assert all(table.schema[name] == pl.Int64 for name in counts)
    assert table.schema["target_requires_grad"] == pl.Boolean
    same, number, nothing, other, alone = table.rows(named=True)
    assert (same["verdict"], same["error"], same["limit"], same["precision"]) == ("pass", 0.0, 1e-3, "float32")
    assert [other[name] for name in DIFFERENCES[:4]] == [4.0, -2.0, 1.5, pytest.approx(math.sqrt(30))]
    assert (other["norm_rel_diff"], other["error"], other["golden_max"]) == (
        pytest.approx(1.0),
        pytest.approx(1.0),
        4.0,
    )
    assert other["reason"] == "error: the relative error 1 is over the limit 0.001."
    assert other["codes"] == "row.error"
    assert (number["target_value"], number["golden_value"], number["target_max"]) == (0.5, 0.25, None)
    assert (number["error"], number["limit"], number["max_diff"]) == (None, None, None)
    assert (nothing["target_name"], nothing["target_dtype"]) == (f"{ENTRY}.input.2", None)
    assert (alone["golden_name"], alone["golden_max"], alone["verdict"]) == (None, None, "unmatched")
    assert alone["codes"] == "row.lone"


def test_numbers_of_tensors(compared, tmp_path):
    sides = files_of(tmp_path / "target", 2.0), files_of(tmp_path / "golden", 1.0)
    table = table_of(compared(*sides, task="tensor").units[0])
    (cells,) = table.cells()
    first = cells.columns.index(METRICS[0])
    assert cells.columns[: len(OURS)] == OURS
    assert cells.columns[first : first + len(METRICS)] == METRICS
    output = cells.row(2, named=True)
    assert [output[name] for name in METRICS] == [1.0, 5.477225575051661, 4.0, 1.0, 0.0, 0.0]
    assert [output[name] for name in ("num_different", "worst_index", "worst_target", "worst_golden")] == [
        4, "(1, 1)", "8.0", "4.0",
    ]  # fmt: skip
    assert output["bias"] == pytest.approx(1.5 / math.sqrt(7.5))  # mean difference over root mean square
    assert output["ulp_max"] == 2**23  # of float32, from 4 to 8
    assert [output[f"abs_error_p{percent}"] for percent in ("50", "90", "99", "99.9")] == [
        pytest.approx(2, rel=1 / 256), 4, 4, 4,
    ]  # fmt: skip
    assert [output[f"rel_error_p{percent}"] for percent in ("50", "90", "99", "99.9")] == [1] * 4
    assert [output[f"{side}_num_nan"] for side in ("target", "golden")] == [0, 0]
    assert output["target_file"] == f"{ENTRY}.output.0.npy"
    assert cells.row(1, named=True)["cosine_similarity"] is None


def test_percentiles_are_in_json_lines_the_summary_and_the_terminal(compared, tmp_path):
    sides = files_of(tmp_path / "target", 2.0), files_of(tmp_path / "golden", 1.0)
    result = compared(*sides, task="tensor")
    files = write_report(result, tmp_path / "out", TableOptions(stamp="1", form=TableForm.JSONL))
    last = json.loads(files.tables[0][0].read_text().splitlines()[-1])
    assert (last["abs_error_p99.9"], last["rel_error_p50"]) == (4, 1)
    worst = json.loads(files.summary.read_bytes())["units"][0]["first_fault"]["worst_tensor"]
    assert (worst["row"], worst["abs_error"]["p999"]) == (f"{ENTRY}.output.0", 4)
    assert worst["rel_error"] == {"p50": 1, "p90": 1, "p99": 1, "p999": 1}
    print_summary(result, files, Console(file=(text := io.StringIO()), width=200))
    lines = [line for line in text.getvalue().splitlines() if "error by percentile" in line]
    assert lines == [
        f"  {ENTRY}.output.0  absolute error by percentile of elements: 50%: 2.01, 90%: 4, 99%: 4, 99.9%: 4",
        f"  {ENTRY}.output.0  relative error by percentile of elements: 50%: 1, 90%: 1, 99%: 1, 99.9%: 1",
    ]


def test_faults_of_statistics_have_no_percentiles(compared, tmp_path):
    target, golden = ({ENTRY: api(tensor(X), output=tensor(values))} for values in (TWICE, X))
    fault = compared(target, golden).units[0].fault
    assert fault.entry == ENTRY
    assert fault.worst_tensor is None


def test_metrics_of_plugins_follow_the_six_metrics(compared, tmp_path):
    sides = files_of(tmp_path / "target", 2.0), files_of(tmp_path / "golden", 1.0)
    unit = compared(*sides, task="tensor").units[0]
    rows = unit.rows.with_columns(
        pl.Series("metric:Manhattan", [0.0, None, 10.0]), pl.Series("metric:Word", ["same", None, "=other"])
    )
    unit = replace(unit, judged=rows)
    (ours,) = table_of(unit).cells()
    assert ours["Manhattan"].to_list() == [0.0, None, 10.0]
    for layout in ("a", "c"):
        (cells,) = table_of(unit, layout).cells()
        place = cells.columns.index("Five Thousandths Err Ratio")
        assert cells.columns[place + 1 : place + 4] == ["Manhattan", "Word", "NPU max"]
        assert cells["Manhattan"].to_list() == ["0.0", "unsupported", "10.0"]
        assert cells["Word"].to_list() == ["same", "unsupported", "=other"]


def test_checksums_stand_beside_what_statistics_there_are(report):
    data = [{ENTRY: api(output=tensor(X, md5=md5))} for md5 in ("0000000b", "0000000c")]
    row = pl.read_csv(report(*data)[0], infer_schema=False).row(0, named=True)
    assert (row["target_checksum"], row["golden_checksum"], row["verdict"]) == ("0000000b", "0000000c", "error")
    assert (row["max_diff"], row["codes"]) == ("0.0", "row.checksum-alone")


def test_empty_columns_are_left_out_except_those_of_the_mode(report):
    none = dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    # Of other shapes, so that there is something to say of the two.
    target, golden = ({ENTRY: api(output=tensor(X, shape=shape, **none))} for shape in ([2, 2], [4]))
    columns = pl.read_csv(report(target, golden)[0]).columns
    assert set(DIFFERENCES) < set(columns)
    assert not {"target_value", "target_checksum", "target_file", "cosine_similarity", "target_num_nan"} & set(columns)


def test_no_number_in_a_csv_and_in_a_sheet(report):
    target = {ENTRY: api(tensor(X), output=tensor(X, Max="NaN", Min="-Infinity"))}
    golden = {ENTRY: api(tensor(X), output=tensor(X, Max="NaN", Min=1.0))}
    row = pl.read_csv(report(target, golden)[0]).row(1, named=True)
    assert math.isnan(row["target_max"])
    assert (row["max_diff"], row["target_min"], row["min_diff"]) == (0.0, -math.inf, -math.inf)
    sheet = openpyxl.load_workbook(report(target, golden, form=TableForm.XLSX)[0]).active
    cells = dict(zip((cell.value for cell in sheet[1]), sheet[3], strict=True))
    assert [cells[name].value for name in ("target_max", "target_min", "golden_min")] == ["NaN", "-inf", 1.0]
    assert cells["target_requires_grad"].value is True
    assert cells["precision"].value is None


@pytest.mark.parametrize("layout", ["ours", "a", "c"])
def test_stacks_where_the_layout_has_them(report, layout):
    stacks = {"0": [[ENTRY, "Torch.abs.0.forward"], [STACK, "File main.py, line 1, in main, \n m()"]]}
    data = {ENTRY: api(tensor(X), output=tensor(X)), "Torch.abs.0.forward": api(output=tensor(X))}
    header = "stack" if layout == "ours" else "NPU_Stack_Info"
    by_itself = pl.read_csv(report(data, data, stacks=stacks, layout=layout)[0]).columns
    assert (header in by_itself) is (layout != "a")
    assert header not in pl.read_csv(report(data, data, stacks=stacks, layout=layout, has_stacks=False)[0]).columns
    shown = pl.read_csv(report(data, data, stacks=stacks, layout=layout, has_stacks=True)[0])[header].to_list()
    if layout == "ours":
        text = "File model.py, line 3, in forward, y = f(x) < File main.py, line 1, in main, m()"
        assert shown == [text, None, text]
    else:
        text = f"[{STACK!r}, 'File main.py, line 1, in main, \\n m()']"
        assert shown == [text, "N/A", text]


def test_columns_of_mstt_8(report, tmp_path):
    def headers(path):
        with path.open(newline="") as file:
            return next(csv.reader(file))

    statistics = [*BASIC, "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr",
                  "MeanRelativeErr", "NormRelativeErr"]  # fmt: skip
    values = ["NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm"]
    data = {ENTRY: api(output=tensor(X))}
    found = headers(report(data, data, layout="a")[0])
    assert found == [*statistics, *values, "Requires_grad Consistent", "Result", "Err_message"]
    with_checksums = {ENTRY: api(output=tensor(X, md5="0000000b"))}
    found = headers(report(with_checksums, with_checksums, layout="a", has_stacks=True,
                           stacks={"0": [[ENTRY], [STACK]]})[0])  # fmt: skip
    assert found == [*BASIC, "NPU MD5", "BENCH MD5", "Requires_grad Consistent", "Result", "NPU_Stack_Info"]
    sides = files_of(tmp_path / "target", 0.0), files_of(tmp_path / "golden", 1.0)
    (path,) = report(*sides, layout="a", task="tensor", has_stacks=True)
    metrics = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio",
               "Five Thousandths Err Ratio"]  # fmt: skip
    tail = ["Requires_grad Consistent", "Accuracy Reached or Not", "Err_message", "NPU_Stack_Info", "Data_name"]
    assert headers(path) == [*BASIC, *metrics, *values, *tail]
    table = pl.read_csv(path, infer_schema=False)
    assert table["Cosine"].to_list() == ["1.0", "unsupported", "N/A"]  # of one zero vector; the others have "Nan" there
    assert table["Data_name"][1] == "['-1', '-1']"


def lines_of(paths):
    with paths[0].open() as file:
        return list(csv.DictReader(file))


ARGUMENTS = {
    "size": ({"type": "torch.Size", "value": [2, 3]}, ("torch.Size", "[2, 3]", "None", "3f72ac6e")),
    "slice": ({"type": "slice", "value": [0, 1, None]}, ("slice", "(3,)", "None", "448f424d")),
    "group": ({"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"},
              ("torch.ProcessGroup", "[]", "[0, 1]", "[0, 1]")),
    "format": ({"type": "torch.memory_format", "format": "torch.channels_last"},
               ("<class 'NoneType'>", "[]", "None", "00000000")),
    "dots": ({"type": "ellipsis", "value": "..."}, ("ellipsis", "[]", "...", "1a43b61b")),
    "scalar": ({"type": "float32", "value": 1.5}, ("<class 'float'>", "[]", "1.5", "875c9bba")),
}  # fmt: skip
"""Arguments, and what 26.2.0 shows of each: dtype, shape, statistics, checksum."""


@pytest.mark.parametrize("by_checksum", [False, True])
def test_arguments_in_the_words_of_26(report, by_checksum):
    given = tensor(X, md5="12345678") if by_checksum else tensor(X)
    data = {ENTRY: api(given, output=given, **{name: record for name, (record, _) in ARGUMENTS.items()})}
    found = {row["NPU Name"]: row for row in lines_of(report(data, data, layout="c"))}
    for name, (_, (dtype, shape, text, checksum)) in ARGUMENTS.items():
        row = found[f"{ENTRY}.input.{name}"]
        assert (row["NPU Dtype"], row["NPU Tensor Shape"], row["Result"]) == (dtype, shape, "pass")
        assert row["NPU MD5" if by_checksum else "Bench max"] == (checksum if by_checksum else text)


def test_pairs_of_other_dtypes_have_no_golden_side_in_26(report):
    sides = [api(tensor(X, dtype=f"torch.int{bits}"), output=tensor(X, dtype=dtype))
             for bits, dtype in ((64, "torch.float16"), (32, "torch.bfloat16"))]  # fmt: skip
    given, made = lines_of(report({ENTRY: sides[0]}, {ENTRY: sides[1]}, layout="c"))
    golden = [header for header in given if header.startswith(("Bench", "Max", "Norm"))]
    assert {given[header] for header in golden} == {"N/A"}
    assert (given["Result"], given["Requires_grad Consistent"]) == ("pass", "False")
    assert (made["Bench Dtype"], made["NormRelativeErr"], made["Result"]) == ("torch.bfloat16", "0", "error")


def test_messages_of_mstt_8_stand_one_below_the_other(report):
    target = {ENTRY: api(output=tensor(THRICE, Max="NaN"))}
    golden = {ENTRY: api(output=tensor(X, requires_grad=False))}
    (path,) = report(target, golden, layout="a", form=TableForm.XLSX)
    assert cells_of(path)["Result"].value == "Warning"
    assert cells_of(path)["Err_message"].value == "Need double check api accuracy."
    assert cells_of(path)["Result"].fill.start_color.rgb.endswith("FFC7CE")  # by our verdict
    (path,) = report(target, golden, layout="a", form=TableForm.XLSX, has_highlights=True)
    assert cells_of(path)["Err_message"].value.split("\n") == [
        "Need double check api accuracy.",
        "maximum or minimum is nan, -inf, or inf",
        "requires_grad is inconsistent",
    ]
    assert cells_of(path)["Result"].fill.start_color.rgb == "FFFF0000"
    data = {ENTRY: api(output=tensor(X))}
    table = pl.read_csv(report(data, data, layout="a", has_highlights=True)[0], infer_schema=False)
    assert table["Err_message"].to_list() == table["Result"].to_list() == [""]


def cells_of(path):
    sheet = openpyxl.load_workbook(path).active
    return dict(zip((cell.value for cell in sheet[1]), sheet[2], strict=True))


@pytest.mark.parametrize("layout", ["ours", "c"])
def test_highlights_are_those_of_mstt_8_only(report, layout):
    data = [{ENTRY: api(output=tensor(X, Max=value))} for value in ("NaN", 4.0)]
    (path,) = report(*data, layout=layout, form=TableForm.XLSX, has_highlights=True)
    column = cells_of(path)["verdict" if layout == "ours" else "Result"]
    assert column.fill.start_color.rgb.endswith("FFC7CE")


def test_verdicts_of_both_generations_and_ours(report):
    target = {ENTRY: api(tensor(X), output=tensor(THRICE)), "Torch.abs.0.forward": api(output=tensor(X))}
    golden = {ENTRY: api(tensor(X), output=tensor(X))}
    found = {
        layout: pl.read_csv(report(target, golden, layout=layout)[0], infer_schema=False)[header].to_list()
        for layout, header in (("ours", "verdict"), ("a", "Result"), ("c", "Result"))
    }
    assert found["ours"] == ["pass", "error", "unmatched"]
    assert found["a"] == ["", "Warning", ""]
    assert found["c"] == ["pass", "error", "pass"]
    target, golden = ({ENTRY: api(output=tensor(X, md5=md5))} for md5 in ("0000000b", "0000000c"))
    for layout, expected in (("a", "Different"), ("c", "error")):
        table = pl.read_csv(report(target, golden, layout=layout)[0], infer_schema=False)
        assert table["Result"].to_list() == [expected]


def test_advice_is_written_next_to_the_table(compared, tmp_path):
    sides = [{"Functional.a\nb\x1b.0.forward": api(tensor(X), output=tensor(value))} for value in (THRICE, X)]
    options = TableOptions(stamp="20261121000000", layout="a", has_advice=True)
    write_report(compared(*sides), tmp_path / "out", options)
    path = tmp_path / "out" / "advisor_20261121000000.txt"
    assert path.stat().st_mode & 0o077 == 0
    line, node, advice = path.read_text().splitlines()
    assert (line, node) == ("Line: 3", r"Suspect Nodes: Functional.a\nb\x1b.0.forward.output.0")
    assert advice.startswith("Expert Advice: The output of a forward differs.")


def test_saved_values_have_a_name_of_their_own(tmp_path):
    for side in ("target", "golden"):
        directory = tmp_path / side / "rank3"
        write_dump(directory, {"loss.0.debug": tensor(X)}, level="debug").rename(directory / "debug.json")
    options = TableOptions(stamp="20261121000000")
    ((path,),) = write_report(compare_dumps(tmp_path / "target", tmp_path / "golden"), tmp_path / "out", options).tables
    assert path.name == "debug_compare_result_rank3_20261121000000.csv"
    files = [tmp_path / side / "rank3" / "debug.json" for side in ("target", "golden")]
    ((path,),) = write_report(compare_dumps(*files), tmp_path / "out", options).tables
    assert path.name == "debug_compare_result_20261121000000.csv"


def test_parquet_has_types_and_texts_as_they_are(report):
    text = {"type": "str", "value": "=1+1"}
    data = {ENTRY: api(tensor(X), text, output=tensor(TWICE))}
    (path,) = report(data, {ENTRY: api(tensor(X), text, output=tensor(X))}, form=TableForm.PARQUET)
    assert path.name == "compare_result_20261121000000.parquet"
    assert path.stat().st_mode & 0o077 == 0
    table = pl.read_parquet(path)
    assert (table.schema["max_diff"], table.schema["target_requires_grad"]) == (pl.Float64, pl.Boolean)
    assert table.schema["target_name"] == table.schema["verdict"] == pl.String
    assert table["target_value"].to_list() == [None, "=1+1", None]
    assert table["max_diff"].to_list() == [0.0, None, 4.0]


def test_json_lines_hold_every_row_and_are_strict_json(report):
    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    values = {ENTRY: api(tensor([[1.0, float("inf")]]), {"type": "str", "value": "=1+1"}, output=tensor(X))}
    (path,) = report(values, values, form=TableForm.JSONL)
    assert path.name == "compare_result_20261121000000.jsonl"
    assert path.stat().st_mode & 0o077 == 0
    rows = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert [row["target_name"] for row in rows] == [f"{ENTRY}.{place}" for place in ("input.0", "input.1", "output.0")]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert (rows[0]["target_max"], rows[1]["target_max"], rows[2]["max_diff"]) == ("Infinity", None, 0.0)
    assert rows[1]["target_value"] == "=1+1"


def test_parquet_is_read_by_others(report):
    parquet = pytest.importorskip("pyarrow.parquet")
    data = {ENTRY: api(tensor(X), output=tensor(X))}
    (path,) = report(data, data, form=TableForm.PARQUET, stacks={"0": [[ENTRY], [STACK]]})
    table = parquet.read_table(path)
    assert table.schema.field("target_max").type == "double"
    assert table.column("stack").to_pylist() == ["File model.py, line 3, in forward, y = f(x)", None]


def test_a_sheet_that_is_too_short_has_the_worst_rows_and_says_so(report):
    values = {0: 1.0, 1: 1.5, 2: 1.0001, 3: 3.0, 4: float("nan"), 5: 1.0, 6: 2.0}
    target = {f"Torch.abs.{i}.forward": api(output=tensor(value)) for i, value in values.items()}
    golden = {f"Torch.abs.{i}.forward": api(output=tensor(1.0)) for i in values}
    paths = report(target, golden, form=TableForm.XLSX, rows=5)
    assert [path.name for path in paths] == [f"compare_result_20261121000000.{end}" for end in ("xlsx", "csv")]
    book = openpyxl.load_workbook(paths[0])
    assert book.sheetnames == ["compare", "note"]
    shown = [row[0].value for row in book["compare"].iter_rows(min_row=2)]
    assert shown == [f"Torch.abs.{i}.forward.output.0" for i in (1, 3, 4, 6)]  # errors, in the order of execution
    assert book["compare"].auto_filter.ref.endswith("5")
    assert book["note"]["A2"].value.startswith("Of 7 rows, the sheet 'compare' has the 4 worst")
    assert paths[1].name in book["note"]["A2"].value
    assert pl.read_csv(paths[1]).height == 7
    shown = [row[0].value for row in openpyxl.load_workbook(report(target, golden, form=TableForm.XLSX, rows=3)[0])
             ["compare"].iter_rows(min_row=2)]  # fmt: skip
    assert shown == ["Torch.abs.3.forward.output.0", "Torch.abs.4.forward.output.0"]  # NaN is beyond any limit
    assert len(report(target, golden, form=TableForm.XLSX, rows=8)) == 1


def test_a_sheet_that_is_too_short_is_said_on_the_terminal_and_in_the_summary(compared, tmp_path):
    data = {f"Torch.abs.{i}.forward": api(output=tensor(X)) for i in range(3)}
    options = TableOptions(stamp="20261121000000", form=TableForm.XLSX, max_sheet_rows=3)
    result = compared(data, data)
    files = write_report(result, tmp_path / "out", options)
    note = (
        "3 rows are more than a sheet holds: compare_result_20261121000000.xlsx has the worst, "
        "compare_result_20261121000000.csv all"
    )
    text = io.StringIO()
    print_summary(result, files, Console(file=text, width=200))
    assert f"Note: {note}\n" in text.getvalue()
    (unit,) = json.loads(files.summary.read_text())["units"]
    assert unit["notes"] == [note]
    assert unit["tables"] == [str(path) for path in files.tables[0]]
