"""merge_result: tables of ranks side by side, whatever their layout, and a sentence for what cannot be merged."""

import re

import openpyxl
import polars as pl
import pytest
from dumps import api, tensor, write_dump
from written_tables import write_report

from msprobe_core.cli.main import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compat.merge import MergeRequest, merge_results, read_request
from msprobe_core.errors import CompareError, ConfigError
from msprobe_core.report.files import TableForm, TableOptions

X = [[1.0, -2.0], [3.0, 4.0]]
LINEAR, GELU = "Functional.linear.0.forward", "Functional.gelu.1.forward"
STATISTICS = ["Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr",
              "MeanRelativeErr", "NormRelativeErr"]  # fmt: skip
OURS = ["max_diff", "min_diff", "mean_diff", "norm_diff", "max_rel_diff", "min_rel_diff", "mean_rel_diff",
        "norm_rel_diff"]  # fmt: skip


def scaled(factor):
    return tensor([[factor * value for value in row] for row in X])


@pytest.fixture
def results(tmp_path):
    """Write the results of two ranks; the second has a call more, and differs by another factor."""

    def results(*, layout="c", form=TableForm.CSV, **fields):
        extra = {"Torch.abs.0.forward": api(output=tensor(X))}
        last = {"Torch.exp.0.forward": api(output=tensor(X))}
        text = {"type": "str", "value": "a"}
        for rank, factor in ((0, 2.0), (1, 3.0)):
            middle = extra if rank else {}
            target = {LINEAR: api(tensor(X, **fields), text, output=scaled(factor) | fields)} | middle | last
            golden = {LINEAR: api(tensor(X, **fields), text, output=tensor(X, **fields))} | middle | last
            write_dump(tmp_path / "target" / f"rank{rank}", target)
            write_dump(tmp_path / "golden" / f"rank{rank}", golden)
        options = TableOptions(stamp="20261121000000", form=form, layout=layout)
        result = compare_dumps(tmp_path / "target", tmp_path / "golden")
        write_report(result, tmp_path / "result", options)
        return tmp_path / "result"

    return results


def test_tables_that_name_both_sides(results, tmp_path):
    directory = results()
    for path in directory.glob("compare_result_rank*.csv"):  # as releases up to 8.x do
        rank = path.name.split("_")[2]
        path.rename(directory / path.name.replace(rank, f"{rank}-{rank}"))
    merged = merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",)))
    assert merged.ranks == [0, 1]


def sheets_of(merged):
    book = openpyxl.load_workbook(merged.path)
    return {sheet.title: [[cell.value for cell in row] for row in sheet.iter_rows()] for sheet in book.worksheets}


@pytest.mark.parametrize("form", [TableForm.CSV, TableForm.XLSX])
@pytest.mark.parametrize("layout", ["ours", "a", "c"])
def test_ranks_stand_side_by_side(results, tmp_path, layout, form):
    merged = merge_results(
        results(layout=layout, form=form), tmp_path / "out", MergeRequest(("linear.0.forward", "Torch.abs"))
    )
    assert re.fullmatch(r"multi_ranks_compare_merge_\d{14}\.xlsx", merged.path.name)
    assert (merged.ranks, merged.num_rows, merged.unknown) == ([0, 1], 4, [])
    sheets = sheets_of(merged)
    is_ours = layout == "ours"
    assert list(sheets) == (OURS if is_ours else [*STATISTICS, "Requires_grad Consistent"])
    header, given, text, made, extra = sheets["max_diff" if is_ours else "Max diff"]
    assert header == ["target_name" if is_ours else "NPU Name", "rank0", "rank1"]
    assert given == [f"{LINEAR}.input.0", 0, 0]
    assert made == [f"{LINEAR}.output.0", 4.0, 8.0]
    assert extra == ["Torch.abs.0.forward.output.0", None, 0]  # a rank that has no such row is blank
    assert text[0] == f"{LINEAR}.input.1"
    assert text[1] == ("target:a  golden:a" if is_ours else 0)
    relative = sheets["max_rel_diff" if is_ours else "MaxRelativeErr"][3]
    assert relative[1:] == ([pytest.approx(1.0), pytest.approx(2.0)] if is_ours else ["100.0%", "200.0%"])


def test_rows_are_in_the_order_of_execution(results, tmp_path):
    merged = merge_results(
        results(), tmp_path / "out", MergeRequest(("Torch.exp.0.forward", "abs.0.forward", "linear.0"))
    )
    names = [row[0] for row in sheets_of(merged)["Max diff"][1:]]
    assert names == [*[f"{LINEAR}.{row}" for row in ("input.0", "input.1", "output.0")],
                     "Torch.abs.0.forward.output.0", "Torch.exp.0.forward.output.0"]  # fmt: skip


def test_cells_that_say_nothing_show_the_values_of_both_sides(tmp_path):
    for rank in (0, 1):
        target = {GELU: api(tensor(X), output=tensor(X, Max="NaN")), LINEAR: api(output=tensor(X))}
        write_dump(tmp_path / "target" / f"rank{rank}", target)
        write_dump(tmp_path / "golden" / f"rank{rank}", {GELU: api(tensor(X), output=tensor(X))})
    result = compare_dumps(tmp_path / "target", tmp_path / "golden")
    write_report(result, tmp_path / "c", TableOptions(stamp="20261121000000", layout="c"))
    sheets = sheets_of(merge_results(tmp_path / "c", tmp_path / "out", MergeRequest(("forward", "Functional.gelu"))))
    assert sheets["Max diff"][2] == [f"{GELU}.output.0", *["NPU:Nan  Bench:4.0"] * 2]
    assert sheets["Max diff"][3] == [f"{LINEAR}.output.0", *["NPU:4.0  Bench:N/A"] * 2]
    assert sheets["NormRelativeErr"][3][1] == "NPU:5.477225575051661  Bench:N/A"
    assert sheets["Requires_grad Consistent"][3][1] == "False"
    write_report(result, tmp_path / "ours", TableOptions(stamp="20261121000000"))
    sheets = sheets_of(merge_results(tmp_path / "ours", tmp_path / "out", MergeRequest(("forward",), ("max_diff",))))
    assert [row[1] for row in sheets["max_diff"][2:]] == ["target:NaN  golden:4.0", "target:4.0  golden:N/A"]


def test_an_index_may_be_any_column_in_the_words_of_either_layout(results, tmp_path):
    directory = results(layout="ours")
    asked = ("Max diff", "verdict", "limit", "Max diff")
    sheets = sheets_of(merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",), asked)))
    assert list(sheets) == ["Max diff", "verdict", "limit"]
    assert [row[1:] for row in sheets["verdict"][1:]] == [["pass"] * 2, ["pass"] * 2, ["error"] * 2]
    assert sheets["Max diff"][3] == [f"{LINEAR}.output.0", 4.0, 8.0]
    assert sheets["limit"][2][1:] == [None, None]
    with pytest.raises(
        ConfigError, match="'compare_index' has 'Cosine', which no table has; their columns are verdict"
    ):
        merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",), ("Cosine",)))


def test_layouts_may_be_mixed(results, tmp_path):
    one, other = tmp_path / "result", tmp_path / "mixed"
    results(layout="ours")
    one.rename(other)
    results(layout="c")
    (one / "compare_result_rank1_20261121000000.csv").replace(other / "compare_result_rank1_20261121000000.csv")
    sheets = sheets_of(merge_results(other, tmp_path / "out", MergeRequest(("linear.0.forward",))))
    assert list(sheets) == STATISTICS  # ours has nothing under the ninth
    assert sheets["L2norm diff"][0] == ["NPU Name", "rank0", "rank1"]
    assert [round(value, 3) for value in sheets["L2norm diff"][3][1:]] == [5.477, 10.954]


def test_a_sheet_that_may_be_short_is_passed_over_for_the_csv_file_beside_it(results, tmp_path):
    directory = results()
    (directory / "compare_result_rank0_20261121000000.xlsx").write_bytes(b"not read")
    (directory / "compare_result_rank1_20261121000000.xlsx").write_bytes(b"not read")
    assert merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",))).num_rows == 3


RANK0, RANK1 = (f"compare_result_rank{rank}_20261121000000.csv" for rank in (0, 1))


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda d: (d / RANK1).unlink(), "holds 1 result of a rank; give the directory"),
        (lambda d: [path.unlink() for path in d.iterdir()], "holds no results of a rank; give the directory"),
        (lambda d: (d / RANK1).rename(d / "compare_result_rank0_20261121000001.csv"),
         r"holds 2 results of rank 0, compare_result_rank0_20261121000000\.csv and .*000001\.csv; leave one"),
        (lambda d: (d / RANK0).write_text("a,b\n1,2\n"), r"000000\.csv: is no result of a comparison: it has neither"),
        (lambda d: (d / RANK0).write_bytes(b""), r"is no table that can be read"),
        (lambda d: (d / RANK0).write_bytes(bytes(range(256))), "is no (table|result)"),
        (lambda d: (d / RANK0).rename((d / RANK0).with_suffix(".xlsx")),
         r"000000\.xlsx: is no table that can be read \(BadZipFile"),
    ],
    ids=["one", "none", "twice", "other table", "empty", "garbage", "no spreadsheet"],
)  # fmt: skip
def test_what_cannot_be_merged_is_said(results, tmp_path, break_it, expected):
    directory = results()
    break_it(directory)
    with pytest.raises(CompareError, match=expected):
        merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",)))
    assert not (tmp_path / "out").exists()


def test_checksums_cannot_be_merged(results, tmp_path):
    with pytest.raises(CompareError, match="is of the mode md5, whose tables have no numbers to merge"):
        merge_results(results(md5="0000000a"), tmp_path / "out", MergeRequest(("linear.0.forward",)))


def test_results_of_two_modes_cannot_be_merged(results, tmp_path):
    directory = results()
    path = directory / "compare_result_rank1_20261121000000.csv"
    pl.read_csv(path, infer_schema=False).rename({"Max diff": "Cosine"}).write_csv(path)
    with pytest.raises(CompareError, match=r"is of the mode statistics and compare_result_rank1_.* of the mode tensor"):
        merge_results(directory, tmp_path / "out", MergeRequest(("linear.0.forward",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("api: [a", "is not valid YAML"),
        ("- a", "holds list; it needs a list 'api', for example api: "),
        ("", "holds NoneType; it needs a list 'api'"),
        ("compare_index: [Cosine]", "missing required field `api`; known fields are 'api' and 'compare_index'"),
        ("api: Functional", "Expected `array`, got `str`"),
        ("api: [1]", "Expected `str`, got `int`"),
        ("api: []", "'api' is empty; it needs a list"),
        ("api: ['']", "'api' has an empty text"),
        ("apis: [a]", "unknown field `apis`"),
        ("api: [a]\ncompare_index: Cosine", "Expected `array | null`, got `str`"),
    ],
)
def test_a_bad_request_is_said(tmp_path, text, expected):
    (tmp_path / "merge.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        read_request(tmp_path / "merge.yaml")


def test_on_the_command_line(results, tmp_path, capsys):
    directory = results()
    (tmp_path / "merge.yaml").write_text("api: [linear.0.forward, Torch.gone]\ncompare_index: [Max diff]\n")
    for option in ("-config", "--config"):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "merge_result",
                    "-i",
                    str(directory),
                    "-o",
                    str(tmp_path / "out"),
                    option,
                    str(tmp_path / "merge.yaml"),
                ]
            )
        assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert re.match(r"Merged 3 rows of 2 ranks, 1 sheets: .*multi_ranks_compare_merge_\d{14}\.xlsx\n", out)
    assert err.splitlines()[0] == "no row of any rank is of 'Torch.gone'"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "out").iterdir())
    (tmp_path / "merge.yaml").write_text("api: [Torch.gone]\n")
    with pytest.raises(SystemExit) as ended:
        main(
            ["merge_result", "-i", str(directory), "-o", str(tmp_path / "out"), "-config", str(tmp_path / "merge.yaml")]
        )
    assert ended.value.code == 2
    assert "no row of any rank is of Torch.gone; 'api' has parts of the names" in capsys.readouterr().err
