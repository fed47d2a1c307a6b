"""The tables of acc_check: columns, numbers and words as published, complete after each API, and resumed."""

import csv
import math
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from limited import num_calls

from msprobe_core.api_check.published import published_columns
from msprobe_core.api_check.verdict import CallVerdict, Mutant, OutputVerdict, PublishedColumns, Verdict
from msprobe_core.compat import published_tables
from msprobe_core.compat.mindspore_tables import MINDSPORE
from msprobe_core.compat.published_tables import (
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    PublishedFiles,
    PublishedTables,
    TableFormatError,
    number,
    read_rows,
    write_published_tables,
    write_spreadsheets,
)
from msprobe_core.compat.ratio_compare import compare_published_tables
from msprobe_core.errors import StoreError
from msprobe_core.findings import Finding, NoteCode
from msprobe_core.model import Phase, ReplayTensor

STAMP = "20260102030405"
PUBLISHED_COLUMNS = (
    "API Name,Bench Dtype,DEVICE Dtype,Shape,余弦相似度,最大绝对误差,双百指标,双千指标,双万指标,二进制一致错误率,"
    "误差均衡性,均方根误差,小值域错误占比,相对误差最大值,相对误差平均值,inf/nan错误率,相对误差错误率,绝对误差错误率,"
    "ULP误差最大值,ULP误差平均值,ULP误差大于阈值占比,Status,Message"
)


def said(text):
    return Finding(NoteCode.TEXT, fields={"text": text})


def output(verdict=Verdict.RIGHT, *, path="0", side="recorded", dtype="float32", shape=(8, 32), why="why", **fields):
    return OutputVerdict(path=path, side=side, dtype=dtype, shape=shape, verdict=verdict, reason=said(why), error=0.0,
                         rounding=0.0, condition=0.0, own_error=None, times=1.0, amplification=None, worst_index=None,
                         bias=None, **fields)  # fmt: skip


def call(api="Functional.linear.0", phase=Phase.FORWARD, *outputs, reason=None):
    verdict = min((each.verdict for each in outputs), key=list(Verdict).index, default=Verdict.CANNOT_TELL)
    return CallVerdict(entry=f"{api}.{phase.value}", api=api, phase=phase, verdict=verdict, outputs=outputs,
                       reason=None if reason is None else said(reason))  # fmt: skip


def read(path):
    raw = path.read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    return list(csv.reader(raw.decode("utf-8-sig").splitlines()))


def finished(files):
    return {row["API name"].removeprefix("'") for row in read_rows(files.results, RESULT_COLUMNS)}


@pytest.fixture
def files(tmp_path):
    return PublishedFiles.of(tmp_path, STAMP)


def test_columns_are_the_published_ones(files):
    assert ",".join(DETAIL_COLUMNS) == PUBLISHED_COLUMNS
    assert len(DETAIL_COLUMNS) == 23
    write_published_tables([], files)
    assert files.results.name == f"accuracy_checking_result_{STAMP}.csv"
    assert files.details.name == f"accuracy_checking_details_{STAMP}.csv"
    assert read(files.details) == [list(DETAIL_COLUMNS)]
    assert read(files.results) == [["API name", "Forward Test Success", "Backward Test Success", "Message"]]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (files.results, files.details))


def test_a_row_has_the_form_of_the_published_sample(files):
    # The sample: Functional.linear.0.forward.output.0,torch.float64,torch.float32,"(8, 32)",1.00000000000000,
    # 0.00000011826402, , , , ,0.01171875000000,0.00000003542709,0,0.00000306766005,0.00000013336513, , , , , , ,pass,
    metrics = PublishedColumns(
        cosine=1.0, max_absolute=0.00000011826402, within_percent=1.0, within_thousandth=1.0, within_ten_thousandth=1.0,
        error_balance=3 / 256, rmse=0.00000003542709, small_value_error_share=0.0, max_relative=0.00000306766005,
        mean_relative=0.00000013336513, non_finite_error_rate=0.0, relative_error_rate=0.1, absolute_error_rate=0.0,
        max_ulp=3.0, mean_ulp=1.0, ulp_share=0.0, standard="benchmark",
    )  # fmt: skip
    write_published_tables([call("Functional.linear.0", Phase.FORWARD, output(published=metrics))], files)
    line = files.details.read_text(encoding="utf-8-sig").splitlines()[1]
    assert line == (
        'Functional.linear.0.forward.output.0,torch.float64,torch.float32,"(8, 32)",1.00000000000000,'
        "0.00000011826402, , , , ,0.01171875000000,0.00000003542709,0,0.00000306766005,0.00000013336513, , , , , , ,"
        "pass,"
    )
    assert files.results.read_text(encoding="utf-8-sig").splitlines()[1] == "Functional.linear.0,pass, ,"


@pytest.mark.parametrize(
    ("standard", "filled"),
    [("absolute_threshold", {15, 16, 17}), ("binary", {9}), ("ulp", {18, 19, 20}), ("benchmark", {*range(10, 15)})],
)
def test_each_standard_fills_its_own_cells(files, standard, filled):
    values = {name: 0.999 for name in PublishedColumns.__struct_fields__
              if PublishedColumns.__annotations__[name] == "float | None"}  # fmt: skip
    metrics = PublishedColumns(**values, standard=standard)
    write_published_tables([call("Torch.sin.0", Phase.FORWARD, output(published=metrics))], files)
    cells = read(files.details)[1]
    of_one_side = set() if standard == "binary" else {4, 5, 7, 8}
    assert {place for place in range(4, 21) if cells[place] != " "} == of_one_side | filled


def test_numbers():
    assert [number(value) for value in (None, 0.0, 1.0, math.nan, math.inf, -math.inf, 1e-20)] == [
        " ", "0.00000000000000", "1.00000000000000", "nan", "inf", "-inf", "0.00000000000000"]  # fmt: skip
    assert number(1 / 3, 4) == "0.3333"


def test_statuses_are_those_of_our_verdicts(files):
    weak = {"applied": (Mutant.ZEROS, Mutant.SCALED), "accepted": (Mutant.ZEROS,)}
    outputs = [output(Verdict.WRONG, why="off"), output(Verdict.SUSPECT, path="1")]
    outputs += [output(Verdict.ILL_CONDITIONED, path="2"), output(Verdict.RIGHT, path="3")]
    outputs += [output(Verdict.RIGHT, path="4", **weak), output(Verdict.CANNOT_TELL, path="5", why="random")]
    write_published_tables([call("Torch.sin.0", Phase.FORWARD, *outputs)], files)
    rows = read(files.details)[1:]
    assert [row[21] for row in rows] == ["error", "warning", "warning", "pass", "warning", "SKIP"]
    assert [row[0] for row in rows] == [f"Torch.sin.0.forward.output.{i}" for i in range(6)]
    assert [row[22] for row in rows] == ["off", "why", "why", "", "why", "random"]
    assert read(files.results)[1] == ["Torch.sin.0", "error", " ", "forward: off"]


def test_forward_and_backward_share_a_row_of_the_results(files):
    verdicts = [call("Torch.a.0", Phase.FORWARD, output()), call("Torch.b.0", Phase.FORWARD, output()),
                call("Torch.b.0", Phase.BACKWARD, output(Verdict.WRONG, why="off")),
                call("Torch.a.0", Phase.BACKWARD, reason="no gradient"),
                call("Torch.c.0", Phase.FORWARD, reason="not in the replay table")]  # fmt: skip
    write_published_tables(verdicts, files)
    assert read(files.results)[1:] == [
        ["Torch.a.0", "pass", "SKIP", "backward: no gradient"],
        ["Torch.b.0", "pass", "error", "backward: off"],
        ["Torch.c.0", "SKIP", " ", "forward: not in the replay table"],
    ]
    assert [row[0] for row in read(files.details)[1:]] == [
        "Torch.a.0.forward.output.0", "Torch.b.0.forward.output.0", "Torch.b.0.backward.output.0"]  # fmt: skip


def test_of_several_sides_the_worst_is_shown_and_named(files):
    outputs = [output(), output(Verdict.WRONG, side="cuda:0", why="off")]
    write_published_tables([call("Torch.sin.0", Phase.FORWARD, *outputs)], files)
    assert [row[21:] for row in read(files.details)[1:]] == [["error", "cuda:0: off"]]


def test_dtypes_have_the_framework_in_front(files):
    outputs = [output(dtype="bfloat16"), output(path="1", dtype="int64"), output(path="2", dtype="complex64")]
    write_published_tables([call("Torch.sin.0", Phase.FORWARD, *outputs)], files)
    assert [row[1:3] for row in read(files.details)[1:]] == [
        ["torch.float64", "torch.bfloat16"], ["torch.int64", "torch.int64"],
        ["torch.complex128", "torch.complex64"]]  # fmt: skip


# The rows of the table of details that the published tool writes for MindSpore, but for the dtype of its reference.
MINDSPORE_DETAILS = """\
API Name,Bench Dtype,Tested Dtype,Shape,Cosine,MaxAbsErr,MaxRelativeErr,Status,Message
Mint.matmul.0.backward.output.0,Float64,Float32,"(4, 8)",0.9999999999999988,2.384185791015625e-07,3.08e-07,pass,
Mint.matmul.0.backward.output.1,Bool,Bool,"(4, 8)",,,,error,why
"""
MINDSPORE_RESULTS = """\
API name,Forward Test Success,Backward Test Success,Message
Mint.matmul.0,,error,backward: why
Mint.where.0,SKIP,,forward: it has no kernel here
"""


def test_the_tables_of_mindspore(files):
    metrics = PublishedColumns(cosine=0.9999999999999988, max_absolute=2.384185791015625e-07, max_relative=3.08e-07)
    results = (output(shape=(4, 8), published=metrics), output(Verdict.WRONG, path="1", shape=(4, 8), dtype="bool"))
    verdicts = [
        call("Mint.matmul.0", Phase.BACKWARD, *results),
        call("Mint.where.0", Phase.FORWARD, reason="it has no kernel here"),
    ]
    write_published_tables(verdicts, files, form=MINDSPORE)
    assert files.details.read_text() == MINDSPORE_DETAILS
    assert files.results.read_text() == MINDSPORE_RESULTS
    tables = PublishedTables(files, form=MINDSPORE, resumes=True)
    tables.close()
    assert tables.finished == {"Mint.matmul.0", "Mint.where.0"}
    assert write_spreadsheets(files, MINDSPORE).details.exists()
    assert files.details.read_text() == MINDSPORE_DETAILS
    with pytest.raises(TableFormatError, match="has no column"):
        PublishedTables(files, resumes=True)


@pytest.mark.parametrize(
    ("dtype", "named"),
    [("bfloat16", "BFloat16"), ("uint8", "UInt8"), ("complex64", "Complex64"), ("float8_e4m3fn", "Float8E4M3FN")],
)
def test_dtypes_as_mindspore_names_them(files, dtype, named):
    write_published_tables([call("Mint.sin.0", Phase.FORWARD, output(dtype=dtype))], files, form=MINDSPORE)
    assert files.details.read_text().splitlines()[1].split(",")[2] == named


def test_tables_are_complete_after_each_api_and_can_be_continued(files):
    tables = PublishedTables(files)
    tables.append([call("Torch.a.0", Phase.FORWARD, output()), call("Torch.a.0", Phase.BACKWARD, output())])
    assert [row[0] for row in read(files.results)] == ["API name", "Torch.a.0"]
    assert len(read(files.details)) == 3
    tables.close()
    assert finished(files) == {"Torch.a.0"}
    tables = PublishedTables(files, resumes=True)
    assert tables.finished == {"Torch.a.0"}
    tables.append([call("Torch.b.0", Phase.FORWARD, output())])
    tables.close()
    assert [row[0] for row in read(files.results)[1:]] == ["Torch.a.0", "Torch.b.0"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (files.results, files.details))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_what_a_killed_process_left_in_part_is_removed(files, cut):
    tables = PublishedTables(files)
    for name in ("Torch.a.0", "Torch.b.0"):
        tables.append([call(name, Phase.FORWARD, output(why='say "it", twice'), output(Verdict.WRONG, path="1"))])
    tables.close()
    whole = files.results.read_bytes(), files.details.read_bytes()
    # Killed while it wrote the details of b, of which the results have nothing yet.
    files.results.write_bytes(b"".join(whole[0].splitlines(keepends=True)[:2]))
    files.details.write_bytes(whole[1][:-cut])
    tables = PublishedTables(files, resumes=True)
    assert tables.finished == {"Torch.a.0"}
    tables.append([call("Torch.b.0", Phase.FORWARD, output(why='say "it", twice'), output(Verdict.WRONG, path="1"))])
    tables.close()
    assert (files.results.read_bytes(), files.details.read_bytes()) == whole


def test_foreign_tables_are_not_continued(files, tmp_path):
    with pytest.raises(TableFormatError, match="cannot be read"):
        PublishedTables(files, resumes=True)
    write_published_tables([], files)
    content = files.results.read_bytes()
    files.results.write_bytes(content.replace(b"Backward Test Success", b"Backward"))
    with pytest.raises(TableFormatError, match="has no column 'Backward Test Success'"):
        PublishedTables(files, resumes=True)
    files.results.write_bytes(content.replace(b"Message", b"Message,More"))
    with pytest.raises(TableFormatError, match="has other columns than"):
        PublishedTables(files, resumes=True)
    files.results.unlink()
    (tmp_path / "real.csv").write_bytes(content)
    files.results.symlink_to(tmp_path / "real.csv")
    with pytest.raises(TableFormatError, match="is a symbolic link"):
        PublishedTables(files, resumes=True)
    with pytest.raises(TableFormatError, match="must begin with accuracy_checking_result_"):
        PublishedFiles.beside(tmp_path / "real.csv")
    assert PublishedFiles.beside(files.results) == files


def test_cells_that_the_published_tool_leaves_out_are_empty(files):
    write_published_tables([], files)
    with files.results.open("ab") as file:
        file.write(b"Torch.a.0,pass,pass\r\nTorch.b.0,pass, ,\r\n")
    assert finished(files) == {"Torch.a.0", "Torch.b.0"}
    assert [row["Message"] for row in read_rows(files.results, RESULT_COLUMNS)] == ["", ""]


def test_too_large_tables_are_refused(files, monkeypatch):
    write_published_tables([], files)
    monkeypatch.setattr(published_tables, "MAX_BYTES", 10)
    with pytest.raises(TableFormatError, match="larger than"):
        read_rows(files.results, RESULT_COLUMNS)


def test_no_place_for_tables(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        PublishedTables(PublishedFiles.of(tmp_path / "file", STAMP))


def test_names_and_messages_run_nothing(files):
    name = "=cmd|' /C calc'!A0.x.0"
    write_published_tables([call(name, Phase.FORWARD, output(Verdict.WRONG, why="=1+1\n@x"))], files)
    for path in (files.results, files.details):
        assert not any(cell.startswith(("=", "@", "\n")) for row in read(path) for cell in row)
    assert finished(files) == {name}


def test_spreadsheets_have_the_same_cells(files):
    write_published_tables([call("Torch.a.0", Phase.FORWARD, output(), output(Verdict.WRONG, path="1"))], files)
    sheets = write_spreadsheets(files)
    for path, origin in ((sheets.results, files.results), (sheets.details, files.details)):
        assert path.suffix == ".xlsx"
        assert path.stat().st_mode & 0o777 == 0o600
        cells = [["" if cell is None else str(cell) for cell in row]
                 for row in openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)]  # fmt: skip
        assert cells == read(origin)


def test_two_of_our_tables_can_be_compared(tmp_path):
    golden = np.linspace(1, 2, 256)
    paths: list[Path] = []
    for name, factor in (("target", 1e-3), ("golden", 1e-6)):
        values = ReplayTensor(values=(golden * (1 + factor)).astype(np.float32), dtype="float32")
        metrics = published_columns(values, golden, own=None, api="Torch.sin.0")
        files = PublishedFiles.of(tmp_path / name, STAMP)
        write_published_tables([call("Torch.sin.0", Phase.FORWARD, output(published=metrics))], files)
        paths.append(files.details)
    (row,) = compare_published_tables(*paths).rows
    assert row.status == "error"
    assert compare_published_tables(paths[1], paths[1]).rows[0].status == "pass"


def test_appending_takes_as_little_however_many_rows_there_are(files):
    tables = PublishedTables(files)
    costs = [num_calls(lambda i=i: tables.append([call(f"Torch.a.{i}", Phase.FORWARD, output())])) for i in range(30)]
    tables.close()
    assert costs[-1] <= 1.1 * costs[1] < 3000, costs  # half a millisecond
    assert len(read(files.results)) == 31
    assert list(RESULT_COLUMNS) == read(files.results)[0]
