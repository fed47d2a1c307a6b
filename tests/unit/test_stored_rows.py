"""Rows in files: the same answers as of the frame that they were, and the same result of a comparison."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from msprobe_core.compare import CompareOptions
from msprobe_core.compare.mapping import Matching
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.unit import compare_unit
from msprobe_core.compat.call_table import table_of_a, table_of_c
from msprobe_core.compat.first_differences import DifferenceFiles, _rows_of
from msprobe_core.errors import StoreError
from msprobe_core.judge.joining import any_of, by_entry, filtered, joined, of_entry, with_added, with_marks
from msprobe_core.judge.noise import NoiseModel
from msprobe_core.report.files import TableOptions
from msprobe_core.store import stored_rows
from msprobe_core.store.stored_rows import StoredRows, frame_of, has_any, narrowed, stored

FRAME = pl.DataFrame(
    {
        "entry": ["a", "a", "b", "b", "b", "c", "d", "d"],
        "key": ["a.0", "a.1", "b.0", "b.1", "b.2", "c.0", "d.0", "d.1"],
        "name": ["a.0", "a.1", "b.0", "b.1", "b.2", "c.0", "d.0", "d.1"],
        "x": [1.0, float("nan"), None, -0.0, 5.0, 6.0, 7.0, 8.0],
        "nothing": pl.Series([None] * 8, dtype=pl.Int64),
        "kind": pl.Series(["u", "v"] * 4, dtype=pl.Enum(["u", "v"])),
        "texts": [["m"], [], [], ["n", "o"], [], [], [], []],
    }
)


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(stored_rows, "PART_ROWS", 3)
    monkeypatch.setattr(stored_rows, "LONG_ROWS", 3)
    found = stored(FRAME)
    assert isinstance(found, StoredRows)
    return found


def test_parts_are_whole_entries_and_hold_the_frame(rows):
    assert rows.heights == [5, 3]
    assert rows.has_whole_entries
    assert rows.schema == FRAME.schema
    assert_frame_equal(frame_of(rows), FRAME)
    assert_frame_equal(pl.concat(rows.iter_slices(5)), FRAME)
    assert [part.height for part in rows.iter_slices(5)] == [5, 3]
    assert_frame_equal(rows.slice(1, 5), FRAME.slice(1, 5))


@pytest.mark.parametrize(
    "work",
    [
        lambda own: frame_of(own.with_columns(x=pl.col("x").cum_max(), entry=pl.col("key"), key=pl.col("entry"))),
        lambda own: frame_of(own.with_columns(pl.lit(2).alias("two"), pl.Series("number", range(8)))),
        lambda own: own.select("x", rank=pl.col("x").rank(), number=pl.int_range(pl.len())),
        lambda own: own.filter(pl.col("x") > 4, pl.col("kind") == "u"),
        lambda own: frame_of(own.drop(["x", "texts"]).with_row_index("row"), ["row", "kind"]),
        lambda own: frame_of(with_marks(own, "is_marked", [0, 7])),
        lambda own: frame_of(with_added(own, lambda part: part.select(double=pl.col("x") * 2), ["x"])),
        lambda own: frame_of(joined(own, pl.DataFrame({"entry": ["b"], "beside": [3]}), on="entry")),
        lambda own: filtered(own, ["key"], pl.col("x") > 4, "row"),
        lambda own: of_entry(own, "d"),
        lambda own: of_entry(own, "e", ["key"]),
        lambda own: by_entry(own, ["entry", "x"], lambda part: part.group_by("entry", maintain_order=True).agg("x")),
        lambda own: frame_of(narrowed(own, ["key", "absent", "x"])),
    ],
)
def test_they_answer_as_the_frame_does(rows, work):
    assert_frame_equal(work(rows), work(FRAME))


def test_whether_any_row_has_a_value_or_meets_a_condition(rows):
    assert [has_any(rows, name) for name in ("nothing", "x")] == [False, True]
    assert [any_of(rows, pl.col("x") < limit) for limit in (2, -1)] == [True, False]


def test_the_directory_is_private_and_removed_with_the_last_rows(rows):
    path = rows._disks[0].path
    assert path.stat().st_mode & 0o777 == 0o700
    rows = rows.drop("x")
    assert path.is_dir()


def test_a_directory_without_room_is_an_error_that_says_what_to_do(rows):
    shutil.rmtree(rows._disks[0].path)
    with pytest.raises(StoreError, match="set TMPDIR"):
        rows.with_row_index("row")


DATA = Path(__file__).parents[1] / "data"
TOOL = DATA / "mindstudio_probe"
PAIRS = {
    "statistics": (TOOL / "8.3.3_statistics/step0/rank", TOOL / "26.2.0_statistics/step0/proc1"),
    "checksums": (TOOL / "26.2.0_md5/step0/proc1", TOOL / "26.2.0_md5/step0/proc1"),
    "structure": (TOOL / "26.2.0_structure/step0/proc1", TOOL / "26.2.0_L1/step0/proc1"),
    "tensors": (TOOL / "26.2.0_tensor/step0/proc1", TOOL / "26.2.0_tensor/step0/proc1"),
    "two tools": (TOOL / "26.2.0_statistics/step0/proc1", DATA / "frameworks/pytorch"),
    "frameworks": (DATA / "frameworks/mindspore_fault", DATA / "frameworks/pytorch"),
    "equal calls": (TOOL / "26.2.0_statistics/step0/proc1", TOOL / "26.2.0_statistics/step0/proc1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [CompareOptions(), CompareOptions(noise=NoiseModel())], ids=["limits", "noise"])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_comparison_in_files_has_the_result_of_one_in_memory(pair, options, monkeypatch):
    unit = UnitPair("", None, None, *pair)
    own = compare_unit(unit, options)
    for name in ("PART_ROWS", "LONG_ROWS", "LONG_BYTES"):
        monkeypatch.setattr(stored_rows, name, 10)
    found = compare_unit(unit, options, in_files=True)
    assert isinstance(found.judged, StoredRows)
    assert found.summary() == own.summary()
    assert_frame_equal(found.rows, own.rows, check_column_order=False)
    assert_frame_equal(found.entries, own.entries)
    assert_frame_equal(found.weigh().rows, own.weigh().rows, check_column_order=False)
    assert_frame_equal(found.weigh().nodes, own.weigh().nodes)


def _with_other_calls(path, make):
    """Copy the dump of calls for which `make` returns other records."""
    document = json.loads((PAIRS["statistics"][1] / "dump.json").read_bytes())
    document["data"] = make(list(document["data"].items()))
    path.mkdir()
    (path / "dump.json").write_text(json.dumps(document))
    return path


def _with_keyword(records):
    """Pass an argument of one call by keyword."""
    for _, record in records:
        if len(record.get("input_args", ())) > 1:
            record["input_kwargs"] = {"other": record["input_args"].pop()}
            break
    return dict(records)


OTHER_CALLS = {
    "lacks a call": lambda records: dict(records[:7] + records[8:]),
    "lacks the first and the last": lambda records: dict(records[1:-1]),
    "other order": lambda records: dict(records[:4] + records[5:9] + records[4:5] + records[9:]),
    "other name": lambda records: dict([*records[:5], ("Functional.other.0.forward", records[5][1]), *records[6:]]),
    "by keyword": _with_keyword,
}


@pytest.mark.slow
@pytest.mark.parametrize("is_fuzzy", [False, True], ids=["in sequence", "fuzzy"])
@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize("make", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_other_calls_are_aligned_in_files_as_in_memory(make, side, is_fuzzy, monkeypatch, tmp_path):
    pair = _with_other_calls(tmp_path / "other", make), PAIRS["statistics"][1]
    unit = UnitPair("", None, None, *(pair if side == "target" else pair[::-1]))
    options = CompareOptions(matching=Matching(is_fuzzy=is_fuzzy))
    own = compare_unit(unit, options)
    for name in ("PART_ROWS", "LONG_ROWS", "LONG_BYTES"):
        monkeypatch.setattr(stored_rows, name, 10)
    found = compare_unit(unit, options, in_files=True)
    assert isinstance(found.judged, StoredRows)
    assert len(found.judged.heights) > 2
    assert found.summary() == own.summary()
    assert_frame_equal(found.rows, own.rows, check_column_order=False)


@pytest.mark.parametrize(
    "numbers",
    [[0, 1, 2, 3, 4, 5, 6, 7], [7, None, 0, 3, 3, None], [5, 6], [None], []],
    ids=["all", "any", "part", "null", "none"],
)
def test_rows_are_taken_by_their_numbers(rows, numbers):
    wanted = pl.Series(numbers, dtype=pl.Int64)
    assert_frame_equal(rows.taken(wanted), FRAME.select(pl.all().gather(wanted)))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_tables_of_other_tools_are_those_of_rows_in_memory(pair, monkeypatch, tmp_path):
    unit = UnitPair("", None, None, *pair)
    choices = TableOptions(stamp="1", has_stacks=True, has_highlights=True, has_advice=True)
    own = compare_unit(unit)
    for name in ("PART_ROWS", "LONG_ROWS", "LONG_BYTES"):
        monkeypatch.setattr(stored_rows, name, 10)
    found = compare_unit(unit, in_files=True)
    for table_of in (table_of_a, table_of_c):
        tables = [table_of(each, choices) for each in (own, found)]
        assert isinstance(tables[1].rows, StoredRows) == found.judged.has_whole_entries
        assert_frame_equal(*[pl.concat(table.cells()) for table in tables])
        assert tables[0].companions == tables[1].companions
    files = [
        DifferenceFiles(tmp_path / name, TableOptions(stamp="1")).write_unit(each).calls
        for name, each in (("own", own), ("found", found))
    ]
    assert json.loads(files[0].read_bytes()) == json.loads(files[1].read_bytes())
    if (fault := own.first_fault) is not None:
        assert _rows_of(files[0], fault) == _rows_of(files[1], fault) != []
