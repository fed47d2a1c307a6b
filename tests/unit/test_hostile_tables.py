"""Untrusted dumps: what their names and arguments say must not run, break a file or leave half of one."""

import csv
import errno
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile

import openpyxl
import polars as pl
import pytest
from dumps import api, tensor, write_dump
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_tables import write_report

from msprobe_core.compare import compare_dumps
from msprobe_core.errors import StoreError
from msprobe_core.report.escape import MAX_CELL_UNITS, guarded
from msprobe_core.report.files import TableForm, TableOptions
from msprobe_core.report.sheet import Sheet, SheetColumn, SheetPart, write_book
from msprobe_core.store.atomic_file import whole_file

WOULD_RUN = [
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\u00a0=1", "\u200b=1", "\ufeff=1", "\u202e=1",
    "\uff1d1+1", "\uff0b1", "\uff0d1+1", "\uff20x", "\ufe661", "=cmd|' /C calc'!A0", "-2+3", "--1", "+", "=",
]  # fmt: skip
HARMLESS = ["-1.5", "+3", "-1e-07", "-inf", "-5%", "a=b", "x\ny", "1-2", "", "'=1", "日本語", "🙂", "-1.0E+5"]


@pytest.mark.parametrize("text", WOULD_RUN, ids=ascii)
def test_what_would_run_is_quoted(text):
    assert guarded(pl.DataFrame({"a": ["x", text]}))["a"].to_list() == ["x", "'" + text]


@pytest.mark.parametrize("text", HARMLESS, ids=ascii)
def test_what_would_not_stays(text):
    assert guarded(pl.DataFrame({"a": ["=x", text]}))["a"].to_list() == ["'=x", text]


@pytest.mark.parametrize(
    "text", ["y" * 40_000, "🙂" * 20_000, "=" + "y" * MAX_CELL_UNITS, "é" * MAX_CELL_UNITS], ids=len
)
def test_no_cell_is_longer_than_a_spreadsheet_can_hold(text):
    (cell,) = guarded(pl.DataFrame({"a": [text]}))["a"]
    units = len(cell.encode("utf-16-le")) // 2
    assert MAX_CELL_UNITS - 1 <= units <= MAX_CELL_UNITS
    assert (cell[-1] == "…") is (cell.removeprefix("'") != text)
    assert cell.startswith("'") is text.startswith("=")


NAMES = [
    "=HYPERLINK(1)", "\uff1d1", "a\nb", "a\rb", 'a"b,c', "a;b", "a\x00b", "a\x1b[31m", "\u202eabc", "a\ud800b",
    "n" * 40_000, "_x000D_=1", "<b>&amp;</b>", "]]>", "\ufffe", "%s {} {0}", "../../x",
]  # fmt: skip


@pytest.fixture
def hostile(tmp_path):
    data = {
        f"{name}.f.{i}.forward": api({"type": "str", "value": name}, tensor([1.0]), output=tensor([1.0, 2.0]))
        for i, name in enumerate(NAMES)
    }
    other = {
        f"{name}.f.{i}.forward": api({"type": "str", "value": "c"}, output=tensor([1.0]))
        for i, name in enumerate(NAMES)
    }
    stacks = {"0": [list(data), ["=File a.py, line 1, in f, \n =x\ny", "\x1b[2J" + "s" * 40_000]]}
    return compare_dumps(write_dump(tmp_path / "target", data, stacks=stacks), write_dump(tmp_path / "golden", other))


def written(result, directory, form, layout):
    options = TableOptions(stamp="20261121000000", form=form, layout=layout, has_stacks=True, has_advice=True)
    ((path,),) = write_report(result, directory, options).tables
    return path


def is_dangerous(cell):
    begin = cell.lstrip("\u202e\ufeff\u200b \u00a0")[:1]
    is_number = re.fullmatch(r"[+-]([\d.]+(e[+-]?\d+)?%?|inf)", cell)
    return cell[:1] in {"\t", "\r", "\n"} or (begin in {*"=+-@\uff1d\uff0b\uff0d\uff20"} and not is_number)


@pytest.mark.parametrize("layout", ["ours", "a", "c"])
def test_a_csv_of_hostile_names(hostile, tmp_path, layout):
    path = written(hostile, tmp_path / "out", TableForm.CSV, layout)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + hostile.units[0].num_rows
    assert {len(row) for row in rows} == {len(rows[0])}
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if is_dangerous(cell)]
    assert max(map(len, cells)) <= MAX_CELL_UNITS
    assert not {"\x00", "\x1b", "\ufffe"} & {*"".join(cells)}
    names = [row[0] for row in rows[1:]]
    assert "'=HYPERLINK(1).f.0.forward.input.0" in names
    assert any('a"b,c.f.' in name for name in names)
    assert pl.read_csv(path, infer_schema=False).height == len(rows) - 1


@pytest.mark.parametrize("layout", ["ours", "a", "c"])
def test_a_spreadsheet_of_hostile_names(hostile, tmp_path, layout):
    path = written(hostile, tmp_path / "out", TableForm.XLSX, layout)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        root = ET.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    cells = list(root.iter(f"{space}c"))
    assert not list(root.iter(f"{space}f"))
    assert {cell.get("t") for cell in cells} <= {"inlineStr", "b", None}
    texts = ["".join(part.itertext()) for part in root.iter(f"{space}is")]
    assert not [text for text in texts if is_dangerous(text)]
    assert max(len(text.encode("utf-16-le")) // 2 for text in texts) <= MAX_CELL_UNITS + 5  # escapes are not counted
    assert any(text.startswith("_x005F_x000D_=1") for text in texts)  # Excel would read _x000D_ as a line end
    assert any(text.startswith("<b>&amp;</b>") for text in texts)
    assert any("a\rb" in text for text in texts)
    sheet = openpyxl.load_workbook(path).active
    assert sheet.max_row == 1 + hostile.units[0].num_rows
    assert [cell.get("r") for cell in cells[:2]] == ["A1", "B1"]


def test_advice_on_hostile_names_is_three_lines(hostile, tmp_path):
    written(hostile, tmp_path / "out", TableForm.CSV, "a")
    (advice,) = (tmp_path / "out").glob("advisor*.txt")
    assert len(advice.read_text().split("\n")) == 4
    assert json.loads((tmp_path / "out" / "summary.json").read_text())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(max_size=40) | st.lists(st.sampled_from(["_", "x0041", "X"])).map("".join), min_size=1, max_size=5)
)
def test_any_text_arrives_in_a_spreadsheet_or_as_its_replacement(texts):
    cells = pl.DataFrame({"a": texts}, schema={"a": pl.String})
    file = io.BytesIO()
    write_book(file, [Sheet("s", [SheetColumn("a")], len(texts), [SheetPart(cells)])])
    shown = [row[0] for row in openpyxl.load_workbook(file).active.iter_rows(min_row=2, values_only=True)]
    # What looks like an escaped character is escaped itself; spreadsheets undo that, openpyxl does not.
    undone = [re.sub("_x([0-9A-Fa-f]{4})_", lambda found: chr(int(found[1], 16)), text) for text in shown]
    assert undone == guarded(cells)["a"].to_list()


@pytest.mark.slow
@pytest.mark.parametrize("form", list(TableForm))
@pytest.mark.parametrize("limit", [0, 4096], ids=["at once", "in between"])
def test_a_full_disk_leaves_no_table(tmp_path, form, limit):
    data = {f"Torch.abs.{i}.forward": api(output=tensor([float(i)])) for i in range(200)}
    write_dump(tmp_path / "target", data)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from msprobe_core.compare import compare_dumps\n"
        "from msprobe_core.errors import StoreError\n"
        "from msprobe_core.report.files import TableForm, TableOptions, write_tables\n"
        f"path = Path({str(tmp_path / 'target' / 'dump.json')!r})\n"
        "result = compare_dumps(path, path)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try:\n"
        f"    options = TableOptions(stamp='0', form=TableForm({form.value!r}))\n"
        f"    write_tables(result.units[0], Path({str(tmp_path / 'out')!r}), options)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=300)
    name = f"compare_result_0.{form.value}"
    assert run.stdout.startswith(f"{tmp_path / 'out' / name}: cannot be written (")
    assert run.stdout.endswith("; free space or choose another directory\n")
    assert run.stderr == ""
    assert list((tmp_path / "out").iterdir()) == []


def fail_in_between(path, error):
    with whole_file(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left"), ValueError("other")])
def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path, error):
    path = tmp_path / "table.csv"
    path.write_text("of an earlier run")
    with pytest.raises(StoreError if isinstance(error, OSError) else type(error)):
        fail_in_between(path, error)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("table.csv", "of an earlier run")]
    with whole_file(path) as file:
        file.write(b"whole")
        assert path.read_text() == "of an earlier run"
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o777 == 0o600
