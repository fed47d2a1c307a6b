"""Tables, spreadsheets and the summary: exact headers and cells, numbers as numbers, safe to open."""

import csv
import json

import openpyxl
import pytest
from dumps import api, tensor, write_dump
from written_tables import write_report

from msprobe_core.compare import compare_dumps
from msprobe_core.report.files import TableForm, TableOptions

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
NAN, INF = float("nan"), float("inf")
ENTRY = "Functional.linear.0.forward"

BASIC = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
         "NPU Requires_grad", "Bench Requires_grad"]  # fmt: skip
DIFFERENCES = ["Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr",
               "MeanRelativeErr", "NormRelativeErr"]  # fmt: skip
STATISTICS = ["NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm"]
TAIL = ["Requires_grad Consistent", "Result", "Err_message"]
METRICS = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio"]


@pytest.fixture
def report(tmp_path):
    def report(target, golden, *, xlsx=False, layout="c", stacks=None, **header):
        one = write_dump(tmp_path / "target", target, stacks=stacks, **header)
        other = write_dump(tmp_path / "golden", golden, **header)
        options = TableOptions(stamp="20261121000000", form=TableForm("xlsx" if xlsx else "csv"), layout=layout)
        files = write_report(compare_dumps(one, other), tmp_path / "out", options)
        return files.tables[0][0], json.loads(files.summary.read_text())

    return report


def read_csv(path):
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return reader.fieldnames, {
            row["NPU Name"] if row["NPU Name"] != "N/A" else row["Bench Name"]: row for row in reader
        }


def test_statistics_table(report):
    data = {ENTRY: api(tensor(X), output=tensor(TWICE))}
    path, _ = report(data, {ENTRY: api(tensor(X), output=tensor(X))})
    headers, rows = read_csv(path)
    assert headers == [*BASIC, *DIFFERENCES, *STATISTICS, *TAIL]
    same = rows[f"{ENTRY}.input.0"]
    assert [same[h] for h in DIFFERENCES] == ["0"] * 8
    assert (same["Result"], same["Err_message"], same["NPU Tensor Shape"]) == ("pass", "[]", "[2, 2]")
    other = rows[f"{ENTRY}.output.0"]
    assert [other[h] for h in DIFFERENCES[:3]] == ["4.0", "-2.0", "1.5"]
    assert other["MaxRelativeErr"] == "100.0%"
    assert other["NormRelativeErr"] == "100.0%"
    assert other["Result"] == "error"
    assert json.loads(other["Err_message"]) == [
        "error: The NormRelativeErr of output is greater than 0.5.",
        "warning: The norm relative error of output is 10 times that of input.",
    ]
    assert (other["NPU Requires_grad"], other["Requires_grad Consistent"]) == ("True", "True")


@pytest.mark.parametrize(
    ("target", "golden", "diff", "relative"),
    [
        (10.0, 5.0, "5.0", "100.0%"),
        (5.0, 0.0, "5.0", "inf"),
        (3.0, 3.0, "0", "0"),
        (1.0, 2.0, "-1.0", "50.0%"),
        (NAN, NAN, "0", "0"),
        (NAN, 1.0, "Nan", "Nan"),
        (1.0, NAN, "Nan", "Nan"),
        (INF, INF, "0", "0"),
        (INF, 1.0, "inf", "inf"),
        (-INF, 1.0, "-inf", "-inf"),
        (1.0, INF, "-inf", "-inf"),
        (1.0, -INF, "inf", "inf"),
        (INF, -INF, "inf", "inf"),
    ],
)
def test_cells_of_differences(report, target, golden, diff, relative):
    sides = [{ENTRY: api(output=tensor(X, Max=str(v) if v != v or abs(v) == INF else v))} for v in (target, golden)]
    for side in sides:
        maximum = side[ENTRY]["output"][0]["Max"]
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        side[ENTRY]["output"][0]["Max"] = names.get(maximum, maximum)
    _, rows = read_csv(report(*sides)[0])
    row = rows[f"{ENTRY}.output.0"]
    assert (row["Max diff"], row["MaxRelativeErr"]) == (diff, relative)


def test_cells_of_what_is_no_tensor_or_is_missing(report):
    def dump(number, text, other):
        arguments = {"type": "float", "value": number}, {"type": "str", "value": text}
        return {ENTRY: api(tensor(X), None, *arguments, output=tensor(X)), other: api(tensor(X), output=tensor(X))}

    target, golden = dump(1e-5, "a", "Torch.abs.0.forward"), dump(1e-6, "b", "Torch.exp.0.forward")
    _, rows = read_csv(report(target, golden)[0])
    none, number, text = (rows[f"{ENTRY}.input.{i}"] for i in (1, 2, 3))
    assert [none[h] for h in ("NPU Dtype", "NPU max", "Max diff", "Result")] == ["N/A", "None", "0", "pass"]
    assert [number[h] for h in ("NPU Dtype", "NPU max", "NPU Tensor Shape")] == ["<class 'float'>", "1e-05", "[]"]
    assert number["Result"] == "error"
    assert [text[h] for h in ("NPU max", "Bench l2norm", "Max diff")] == ["a", "b", "Diff"]
    extra, lacking = rows["Torch.abs.0.forward.output.0"], rows["Torch.exp.0.forward.output.0"]
    assert [extra[h] for h in ("Bench Name", "Bench max", "Max diff", "Result")] == ["N/A", "N/A", "N/A", "pass"]
    assert extra["Requires_grad Consistent"] == "False"
    assert [lacking[h] for h in ("NPU Name", "NPU max", "Bench Name")] == ["N/A", "N/A", "Torch.exp.0.forward.output.0"]


def test_integers_and_booleans_look_like_themselves(report):
    data = {ENTRY: api(tensor([1, 7], dtype="torch.int64"), output=tensor([0, 1], dtype="torch.bool"))}
    _, rows = read_csv(report(data, data)[0])
    assert [rows[f"{ENTRY}.input.0"][h] for h in ("NPU max", "NPU min", "NPU mean")] == ["7", "1", "4"]
    assert [rows[f"{ENTRY}.output.0"][h] for h in ("NPU max", "NPU min")] == ["True", "False"]


def test_checksum_table(report):
    path, summary = report(
        {ENTRY: api(tensor(X, md5="0000000a"), output=tensor(X, md5="0000000b"))},
        {ENTRY: api(tensor(X, md5="0000000a"), output=tensor(X, md5="0000000c"))},
    )
    headers, rows = read_csv(path)
    assert headers == [*BASIC, "NPU MD5", "BENCH MD5", *TAIL]
    assert [rows[f"{ENTRY}.output.0"][h] for h in ("NPU MD5", "BENCH MD5", "Result")] == [
        "0000000b",
        "0000000c",
        "error",
    ]
    assert summary["units"][0]["mode"] == "md5"


def test_tensor_table(report, tmp_path):
    import numpy as np

    for side, factor in (("target", 2.0), ("golden", 1.0)):
        (tmp_path / side / "dump_tensor_data").mkdir(parents=True)
        for name, values in (("input.0", np.float32(X)), ("output.0", np.float32(X) * np.float32(factor))):
            np.save(tmp_path / side / "dump_tensor_data" / f"{ENTRY}.{name}.npy", values)

    def record(values):
        files = [f"{ENTRY}.{name}.npy" for name in ("input.0", "output.0")]
        argument = {"type": "int", "value": 1}
        return {ENTRY: api(tensor(X, data_name=files[0]), argument, output=tensor(values, data_name=files[1]))}

    path, summary = report(record(TWICE), record(X), task="tensor")
    headers, rows = read_csv(path)
    assert headers == [*BASIC, *METRICS, *STATISTICS, *TAIL, "Data_name"]
    output = rows[f"{ENTRY}.output.0"]
    assert [output[h] for h in METRICS] == ["1.0", "5.477225575051661", "4.0", "1.0", "0.0", "0.0"]
    assert output["Result"] == "error"
    assert output["Data_name"] == f"['{ENTRY}.output.0.npy', '{ENTRY}.output.0.npy']"
    argument = rows[f"{ENTRY}.input.1"]
    assert [argument[h] for h in METRICS] == ["unsupported"] * 6
    assert (argument["Result"], argument["Data_name"]) == ("pass", "['-1', '-1']")
    assert summary["units"][0]["first_fault"]["entry"] == ENTRY


def test_a_missing_tensor_file_is_a_warning_of_its_row(report):
    data = {ENTRY: api(tensor(X), output=tensor(X, data_name="gone.pt"))}
    path, _ = report(data, data, layout="ours", task="tensor")
    with path.open(newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["target_name"] == "gone"]
    assert row["verdict"] == "warning"
    assert "cannot be read" in row["reason"]


def test_the_stack_is_on_the_first_row_of_each_call(report):
    stacks = {
        "0": [[ENTRY], ["File model.py, line 3, in forward, \n y = f(x)", "File main.py, line 1, in main, \n m()"]]
    }
    data = {ENTRY: api(tensor(X), output=tensor(X))}
    headers, rows = read_csv(report(data, data, stacks=stacks)[0])
    assert headers[-1] == "NPU_Stack_Info"
    assert rows[f"{ENTRY}.input.0"]["NPU_Stack_Info"].startswith("['File model.py, line 3, in forward, \\n y = f(x)'")
    assert rows[f"{ENTRY}.output.0"]["NPU_Stack_Info"] == "N/A"


@pytest.mark.parametrize("layout", ["c", "ours"], ids=["c", "ours"])
def test_spreadsheet(report, layout):
    data = {
        ENTRY: api(tensor(X), {"type": "str", "value": "=1+1"}, output=tensor(TWICE)),
        "Torch.abs.0.forward": api(output=None),
    }
    golden = {ENTRY: api(tensor(X), {"type": "str", "value": "=1+1"}, output=tensor(X))}
    path, _ = report(data, golden, xlsx=True, layout=layout)
    assert path.suffix == ".xlsx"
    sheet = openpyxl.load_workbook(path).active
    headers = [cell.value for cell in sheet[1]]
    assert sheet.freeze_panes == "B2"
    assert sheet.auto_filter.ref == f"A1:{sheet.cell(1, len(sheet[1])).column_letter}{sheet.max_row}"
    rows = {row[0].value: dict(zip(headers, row, strict=True)) for row in sheet.iter_rows(min_row=2)}
    good, text, bad = (rows[f"{ENTRY}.{row}"] for row in ("input.0", "input.1", "output.0"))
    if layout == "c":
        assert headers == [*BASIC, *DIFFERENCES, *STATISTICS, *TAIL]
        assert bad["NormRelativeErr"].value == "100.0%"  # text, as scripts that read such tables expect
        names = {"diff": "Max diff", "max": "NPU max", "verdict": "Result", "text": "NPU max"}
    else:
        assert bad["norm_rel_diff"].value == pytest.approx(1.0)
        assert bad["norm_rel_diff"].number_format == "0.0000%"
        names = {"diff": "max_diff", "max": "target_max", "verdict": "verdict", "text": "target_value"}
    assert (bad[names["diff"]].value, bad[names["max"]].value) == (4.0, 8.0)
    assert bad[names["verdict"]].fill.start_color.rgb.endswith("FFC7CE")
    assert good[names["verdict"]].fill.fill_type is None
    assert rows["Torch.abs.0.forward.output.0"][names["verdict"]].fill.start_color.rgb.endswith("D9D9D9")
    assert (text[names["text"]].data_type, text[names["text"]].value) == ("s", "'=1+1")
    assert not any(cell.data_type == "f" for row in sheet.iter_rows() for cell in row)


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "@cmd", "+1+1", "-1+1", "\t=1"])
def test_text_that_a_spreadsheet_would_run_is_quoted(report, text):
    data = {
        ENTRY: api(tensor(X), {"type": "str", "value": text}, output=tensor(X)),
        f"{text}.f.0.forward": api(output=tensor(X)),
    }
    path, _ = report(data, data)
    with path.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert text not in cells
    assert cells.count("'" + text) == 8
    assert "'" + text + ".f.0.forward.output.0" in cells
    assert "-2.0" in cells


def test_summary(report):
    stacks = {ENTRY: ["File model.py, line 3, in forward, \n y = f(x)"]}
    _, summary = report(
        {ENTRY: api(tensor(X), output=tensor(TWICE)), "Torch.abs.0.forward": api(output=tensor(X))},
        {ENTRY: api(tensor(X), output=tensor(X))},
        stacks=stacks,
    )
    assert summary["agrees"] is False
    (unit,) = summary["units"]
    assert unit["rows"] == {
        "total": 3,
        "pass": 1,
        "warning": 0,
        "error": 1,
        "unmatched": 1,
        "only target": 1,
        "only golden": 0,
        "unrecorded": 0,
    }
    assert unit["nodes"] == {"error": 1, "unmatched": 1}
    fault = unit["first_fault"]
    assert (fault["entry"], fault["is_culprit"], fault["parts"]) == (ENTRY, True, ["outputs"])
    assert fault["stack"] == stacks[ENTRY]
    assert (fault["input_error"], fault["output_error"]) == (0.0, 1.0)
    assert fault["findings"][0]["row"] == f"{ENTRY}.output.0"


def test_result_files_are_for_the_owner_only(report):
    data = {ENTRY: api(output=tensor(X))}
    path, _ = report(data, data)
    assert all(file.stat().st_mode & 0o077 == 0 for file in (path, path.parent, path.parent / "summary.json"))


def test_odd_text_in_a_spreadsheet(report):
    data = {ENTRY: api({"type": "str", "value": "#N/A"}, {"type": "str", "value": "a\x1b[0m"}, output=tensor(X))}
    path, _ = report(data, data, xlsx=True)
    rows = {row[0].value: row for row in openpyxl.load_workbook(path).active.iter_rows()}
    assert {cell.data_type for cell in rows[f"{ENTRY}.input.0"] if cell.value == "#N/A"} == {"s"}
    assert "a\ufffd[0m" in [cell.value for cell in rows[f"{ENTRY}.input.1"]]


def test_reasons_say_what_they_quote(report):
    texts = 'a"b\\\n,\x1f\x07', "c"
    sides = [{ENTRY: api({"type": "str", "value": text}, output=tensor(X))} for text in texts]
    path, _ = report(*sides, layout="ours")
    with path.open(newline="") as file:
        row = next(csv.DictReader(file))
    shown = 'a"b\\\n,\ufffd\ufffd'  # characters that a file cannot have are replaced
    assert row["reason"] == f"error: the arguments differ, {shown} and c."
    assert row["target_value"] == shown


def test_cells_of_devices_and_booleans_that_differ(report):
    def dump(device, flag):
        return {ENTRY: api({"type": "str", "value": device}, {"type": "bool", "value": flag}, output=tensor(X))}

    _, rows = read_csv(report(dump("npu:0", True), dump("cuda:1", False))[0])
    assert [rows[f"{ENTRY}.input.{i}"]["Max diff"] for i in range(2)] == ["N/A", "Diff"]
    assert [rows[f"{ENTRY}.input.{i}"]["MeanRelativeErr"] for i in range(2)] == ["N/A", "Diff"]


def test_checksums_of_what_is_no_tensor(report):
    data = {ENTRY: api({"type": "int", "value": 0}, {"type": "float", "value": -0.1}, tensor(X),
                       output=tensor(X, md5="0000000a"))}  # fmt: skip
    _, rows = read_csv(report(data, data)[0])
    assert [rows[f"{ENTRY}.input.{i}"]["NPU MD5"] for i in range(3)] == ["f4dbdf21", "0dae4479", "00000000"]


def test_two_comparisons_within_a_second_have_a_table_each(report, tmp_path):
    data = {ENTRY: api(output=tensor(X))}
    first, second = report(data, data)[0], report(data, data)[0]
    assert first != second
    assert len(list((tmp_path / "out").glob("*.csv"))) == 2
