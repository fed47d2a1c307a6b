"""`api_precision_compare`: cell by cell what mindstudio-probe writes, except where that is misleading."""

import csv
import math
from pathlib import Path

import pytest

from msprobe_core.api_check.standards import standards
from msprobe_core.cli import main
from msprobe_core.compat.published_tables import DETAIL_COLUMNS, TableFormatError
from msprobe_core.compat.ratio_compare import (
    RATIO_DETAIL_COLUMNS,
    RATIO_RESULT_COLUMNS,
    compare_published_tables,
    write_ratio_tables,
)

DATA = Path(__file__).parents[1] / "data" / "api_precision_compare"
BENCHMARK = {"误差均衡性": "0.01", "均方根误差": "0.01", "小值域错误占比": "0.01", "相对误差最大值": "0.01",
             "相对误差平均值": "0.01"}  # fmt: skip
OF_BENCHMARK = slice(10, 15)
OF_RATES = slice(15, 18)
SKIPPED = "This data type does not support benchmark compare."


def read(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def row(name, dtype="torch.float32", **cells):
    return {**dict.fromkeys(DETAIL_COLUMNS, " "), "API Name": name, "DEVICE Dtype": dtype, **cells}


def write(path, rows, columns=DETAIL_COLUMNS):
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def compared(tmp_path):
    def compared(target, golden=None):
        rows = target if golden is None else golden
        return compare_published_tables(write(tmp_path / "t.csv", target), write(tmp_path / "g.csv", rows))

    return compared


@pytest.fixture
def run(capsys, tmp_path):
    def run(target, golden):
        with pytest.raises(SystemExit) as ended:
            main(["api_precision_compare", "-npu", str(target), "-gpu", str(golden), "-o", str(tmp_path / "out")])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return ended.value.code, out, err

    return run


# --- against the published tool -------------------------------------------------------------------------------------


def why_other(target, golden, published, ours):
    """Say why a row may differ from the published one; ``None`` if it must not."""
    if published[-1] == "nan":
        return "dtype that is skipped" if ours[-2:] == [" ", SKIPPED] else None
    if published[-1] == "'float' object has no attribute 'isspace'":
        return "rate that is NaN"
    of_standard = target[OF_RATES] if target[16] != " " else target[OF_BENCHMARK] + golden[OF_BENCHMARK] + [target[20]]
    return "blank" if ours[25] == "SKIP" and " " in of_standard else None


def test_details_are_those_of_the_published_tool(tmp_path):
    _, details = write_ratio_tables(
        compare_published_tables(DATA / "target.csv", DATA / "golden.csv"), tmp_path, "20260101000000"
    )
    published, ours = read(DATA / "published_details.csv"), read(details)
    assert published[0] == ours[0] == list(RATIO_DETAIL_COLUMNS)
    assert [line[0] for line in published] == [line[0] for line in ours]
    target, golden = ({line[0]: line for line in read(DATA / f"{name}.csv")} for name in ("target", "golden"))
    same = 0
    for theirs, mine in zip(published[1:], ours[1:], strict=True):
        name = theirs[0]
        if mine != theirs:
            assert why_other(target[name], golden[name], theirs, mine), (mine, theirs)
        same += mine == theirs
    assert same > 100


def test_results_are_those_of_the_published_tool_unless_a_row_was_skipped(tmp_path):
    results, details = write_ratio_tables(
        compare_published_tables(DATA / "target.csv", DATA / "golden.csv"), tmp_path, "20260101000000"
    )
    published, ours = read(DATA / "published_result.csv"), read(results)
    assert published[0] == ours[0] == list(RATIO_RESULT_COLUMNS)
    lines = read(details) + read(DATA / "published_details.csv")
    skipped = {line[0].split(".forward")[0].split(".backward")[0] for line in lines if line[25] == "SKIP"}
    mine, theirs = ([line for line in each if line[0] not in skipped] for each in (ours, published))
    theirs = [line for line in theirs if ".output." not in line[0]]
    assert len(mine) > 30
    assert mine == theirs


# --- where we differ, and edges -------------------------------------------------------------------------------------


def test_an_error_is_not_hidden_by_a_skipped_row(compared):
    bad = {**BENCHMARK, "均方根误差": "0.9"}
    mm, sin = "Torch.mm.0", "Torch.sin.0"
    rows = [row(f"{mm}.forward.output.0", **bad), row(f"{mm}.backward.output.0", "torch.float64"),
            row(f"{sin}.forward.output.0", **bad), row(f"{sin}.forward.output.1", "torch.float64")]  # fmt: skip
    golden = [{**each, **BENCHMARK} for each in rows]
    (mm, sin) = compared(rows, golden).apis
    assert (mm.forward, mm.backward, mm.message) == ("error", "SKIP", SKIPPED)
    assert (sin.forward, sin.backward) == ("error", " ")


@pytest.mark.parametrize("blank", ["", " "])
def test_a_row_without_values_does_not_pass(compared, blank):
    name = "Torch.sin.0.forward.output.0"
    for only in (row(name, **{**BENCHMARK, "均方根误差": blank}), row(name, "torch.int64", 二进制一致错误率=blank),
                 row(name, "torch.float8_e5m2", ULP误差大于阈值占比=blank)):  # fmt: skip
        result = compared([only])
        assert [each.status for each in result.rows] == ["SKIP"]
        assert result.apis[0].message == "ERROR: Input data is an empty string"
        assert not result.is_judged


def test_text_in_the_place_of_a_number_is_said(compared):
    result = compared([row("Torch.sin.0.forward.output.0", **{**BENCHMARK, "均方根误差": "x"})])
    assert result.rows[0].message == "ERROR: Input data cannot be converted to float"


@pytest.mark.parametrize(
    ("api", "ratio", "status"),
    [("Torch.sin", 9.99, "pass"), ("Torch.sin", 10.01, "error"), ("Functional.embedding", 4.99, "pass"),
     ("Functional.embedding", 5.01, "error"), ("Torch.mm", 1.99, "pass"), ("Torch.mm", 2.01, "error"),
     ("Functional.gelu", 9.99, "pass")],
)  # fmt: skip
def test_the_class_of_the_api_sets_the_limit(compared, api, ratio, status):
    name = f"{api}.3.backward.output.0"
    result = compared([row(name, **{**BENCHMARK, "相对误差最大值": str(0.01 * ratio)})], [row(name, **BENCHMARK)])
    assert result.rows[0].status == status
    limit = standards().class_of(api.split(".")[1])[1].max_relative
    assert result.rows[0].excess == pytest.approx(ratio / limit)


def test_small_golden_errors_count_as_the_minimum_error(compared):
    for dtype, least in (("torch.float32", 2.0**-14), ("torch.float16", 2.0**-11), ("torch.bfloat16", 2.0**-8)):
        mine = {**BENCHMARK, "均方根误差": repr(1.5 * least)}
        golden = {**BENCHMARK, "均方根误差": "0"}
        name = "Torch.sin.0.forward.output.0"
        (found,) = compared([row(name, dtype, **mine)], [row(name, dtype, **golden)]).rows
        assert (found.cells["均方根误差比值"], found.status) == ("1.50000000000000", "pass")


def test_nan_on_one_side_is_far_over_the_limit(compared):
    name = "Torch.sin.0.forward.output.0"
    (found,) = compared([row(name, **{**BENCHMARK, "均方根误差": "nan"})], [row(name, **BENCHMARK)]).rows
    assert (found.status, found.excess) == ("error", math.inf)


def test_the_command(run, tmp_path):
    good = [row("Torch.sin.0.forward.output.0", **BENCHMARK), row("Torch.sin.1.forward.output.0", **BENCHMARK)]
    bad = [{**good[0], "均方根误差": "0.9"}, good[1]]
    target, golden = write(tmp_path / "t.csv", good), write(tmp_path / "g.csv", good)
    code, out, err = run(target, golden)
    assert (code, err) == (0, "")
    assert "2 rows of 2 APIs: 2 pass, 0 do not, 0 skipped, 0 in one table only" in out
    assert out.splitlines()[-1] == "AGREE: every row that was compared is within its limits."
    assert {path.name.rsplit("_", 1)[0] for path in (tmp_path / "out").iterdir()} == {
        "api_precision_compare_result", "api_precision_compare_details"}  # fmt: skip
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "out").iterdir())
    write(target, bad)
    code, out, err = run(target, golden)
    assert code == 1
    assert "Torch.sin.0.forward.output.0, 45 times its limit: ERROR: 均方根误差比值超过阈值" in out
    assert out.splitlines()[-1] == "WORSE: 1 rows are over the limits of their standards."
    write(golden, good[1:])
    code, out, err = run(target, golden)
    assert code == 0
    assert f"warning: {golden} has no row Torch.sin.0.forward.output.0; not compared" in err
    write(golden, [])
    code, out, err = run(target, golden)
    assert (code, out.splitlines()[-1]) == (2, "UNDECIDED: no row could be compared.")


def test_unusable_tables(run, tmp_path):
    good = write(tmp_path / "g.csv", [row("Torch.sin.0.forward.output.0", **BENCHMARK)])
    link = tmp_path / "link.csv"
    link.symlink_to(good)
    lacking = write(tmp_path / "l.csv", [], [name for name in DETAIL_COLUMNS if name != "均方根误差"])
    twice = write(tmp_path / "2.csv", [row("Torch.sin.0.forward.output.0")] * 2)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path, problem in (
        (tmp_path / "nowhere.csv", "cannot be read (No such file"), (link, "is a symbolic link"),
        (lacking, "has no column '均方根误差'"), (twice, "several rows with the name 'Torch.sin.0.forward.output.0'"),
        (tmp_path / "empty.csv", "is empty"), (tmp_path / "binary.csv", "is no csv table in UTF-8"),
        (tmp_path, "cannot be read"),
    ):  # fmt: skip
        for pair in ((path, good), (good, path)):
            code, out, err = run(*pair)
            assert (code, out) == (2, "")
            assert f"{path}: " in err
            assert problem in err


def test_names_of_other_forms_are_skipped_and_cannot_run(compared, tmp_path):
    names = ["Torch.sin.forward.output.0", "Torch", "=cmd|' /C calc'!A0.sin.0.forward.output.0", "Torch.a.1.x.output.0"]
    result = compared([row(name, **BENCHMARK) for name in names])
    assert [each.status for each in result.rows] == ["SKIP", "SKIP", "pass", "SKIP"]
    results, details = write_ratio_tables(result, tmp_path, "20260101000000")
    for path in (results, details):
        assert not any(cell.startswith("=") for line in read(path) for cell in line)


def test_a_row_of_another_length_is_an_error(tmp_path):
    path = write(tmp_path / "t.csv", [row("Torch.sin.0.forward.output.0", **BENCHMARK)])
    path.write_text(
        path.read_text(encoding="utf-8-sig") + "Torch.sin.1.forward.output.0" + ",x" * 23 + "\n", encoding="utf-8"
    )
    with pytest.raises(TableFormatError, match="row 3 has 24 cells, and the header has 23"):
        compare_published_tables(path, path)
