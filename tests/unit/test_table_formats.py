"""Table formats of plugins: ``msprobe compare --compat NAME`` writes their columns and the files that go with them."""

import csv
from types import SimpleNamespace

import openpyxl
import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main
from msprobe_core.hookspecs import hookimpl
from msprobe_core.plugin import Colours, Column, Companion, Table
from msprobe_core.plugins import Plugin, registry

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
ENTRY = "Functional.linear.0.forward"
VALUE = Column("value", pl.col("name_target"))


class Brief:
    name = "brief"
    summary = "two columns"

    def table(self, unit, choices):
        fine = Column("is fine", pl.col("verdict") == "pass")
        note = Companion("note", "txt", f"{unit.num_rows} rows".encode())
        colours = Colours("verdict", {"error": "0000FF"})
        return Table([VALUE, fine], unit.rows, colours, companions=[note] if choices.has_advice else [])

    def titles(self):
        return ["value", "is fine"]


class Wrong(Brief):
    """Has a column that the rows lack, which shows when the cells are computed."""

    def table(self, unit, choices):
        return Table([VALUE, Column("other", pl.col("no such column"))], unit.rows)


@pytest.fixture
def compare(tmp_path, request):
    """Compare two dumps with a plugin that offers a table format."""
    module = SimpleNamespace(msprobe_register_tables=hookimpl(lambda: [request.param()]), __doc__="An example.")
    registry().add(Plugin("example", None, "test"), lambda: module)
    for side, values in (("target", TWICE), ("golden", X)):
        write_dump(tmp_path / side / "rank0", {ENTRY: api(tensor(X), output=tensor(values))})

    def compare(*arguments):
        sides = ("-tp", tmp_path / "target", "-gp", tmp_path / "golden", "-o", tmp_path / "out")
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in ("compare", *sides, *arguments)])
        return ended.value.code, sorted((tmp_path / "out").glob("*_rank0_*"))

    yield compare
    registry().manager.unregister(name="example")
    registry()._plugins.pop("example", None)


@pytest.mark.parametrize("compare", [Brief], indirect=True)
def test_a_table_and_the_file_beside_it(compare):
    status, (table, note) = compare("--compat", "brief")
    assert status == 1
    with table.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["value", "is fine"], [f"{ENTRY}.input.0", "true"], [f"{ENTRY}.output.0", "false"],
        ]  # fmt: skip
    assert (note.name.partition("_")[0], note.read_text()) == ("note", "2 rows")
    assert [path.stat().st_mode & 0o077 for path in (table, note)] == [0, 0]


@pytest.mark.parametrize("compare", [Brief], indirect=True)
def test_a_spreadsheet_with_the_colours_of_the_format(compare):
    _, (path,) = compare("--compat", "brief", "--xlsx", "--compare_only")
    sheet = openpyxl.load_workbook(path).active
    fills = [sheet.cell(row, 1).fill.start_color.rgb for row in (2, 3)]
    assert (fills[0].endswith("0000FF"), fills[1].endswith("0000FF")) == (False, True)


@pytest.mark.parametrize("compare", [Wrong], indirect=True)
def test_what_a_format_raises_names_its_plugin_and_leaves_no_table(compare, capsys):
    status, files = compare("--compat", "brief")
    assert (status, files) == (2, [])
    assert "the table 'brief' of the plugin 'example' failed at writing the table of rank0" in capsys.readouterr().err


@pytest.mark.parametrize("compare", [Brief], indirect=True)
def test_the_help_lists_the_formats(compare, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "--compat [a|c|brief] Write tables in the format of mstt 8.x (a; implied by -i), mindstudio-probe 26.x (c) or "
        "two columns (brief)." in text
    )
    assert compare("--compat", "other")[0] == 2
    assert "'other' is not one of 'a', 'c', 'brief'" in capsys.readouterr().err


@pytest.mark.parametrize("compare", [Brief], indirect=True)
def test_headers_of_a_format_are_no_names_of_metrics(compare):
    from msprobe_core.compare.custom_metrics import CustomMetrics

    assert not CustomMetrics([SimpleNamespace(name="Is Fine")])
