"""compare() and compare_distributed(): the words of published tutorials, what they write, and what comes back."""

import os
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compat.functions import Comparison, compare, compare_distributed
from msprobe_core.errors import CompareError, ConfigError

X, THRICE = [[1.0, -2.0], [3.0, 4.0]], [[3.0, -6.0], [9.0, 12.0]]
ENTRY = "Functional.linear.0.forward"
STACKS = {"0": [[ENTRY], ["File model.py, line 3, in forward, \n y = f(x)"]]}


@pytest.fixture
def dumps(tmp_path):
    for rank in (0, 1):
        write_dump(tmp_path / "npu" / f"rank{rank}", {ENTRY: api(tensor(X), output=tensor(THRICE))}, stacks=STACKS)
        write_dump(tmp_path / "gpu" / f"rank{rank}", {ENTRY: api(tensor(X), output=tensor(X))})
    return tmp_path


def headers_of(path):
    return [cell.value for cell in openpyxl.load_workbook(path).active[1]]


@pytest.mark.parametrize("names", [("npu_json_path", "bench_json_path"), ("npu_path", "bench_path")])
def test_one_pair(dumps, names):
    paths = str(dumps / "npu/rank0/dump.json"), dumps / "gpu/rank0/dump.json"
    result = compare(dict(zip(names, paths, strict=True)) | {"is_print_compare_log": False}, str(dumps / "out"))
    assert isinstance(result, Comparison)
    assert not result.agrees
    assert result.first_fault[1].entry == ENTRY
    ((table,),) = result.files.tables
    (advice,) = (dumps / "out").glob("advisor_*.txt")
    assert table.suffix == ".xlsx"
    assert advice.read_text().splitlines()[:2] == ["Line: 3", f"Suspect Nodes: {ENTRY}.output.0"]
    assert {*(dumps / "out").iterdir()} == {table, advice, result.files.summary}
    headers = headers_of(table)
    assert headers[:2] == ["NPU Name", "Bench Name"]
    assert headers[-2:] == ["Result", "Err_message"]


def test_settings_by_place_as_scripts_give_them(dumps):
    request = {
        "npu_json_path": str(dumps / "npu/rank0/dump.json"),
        "bench_json_path": str(dumps / "gpu/rank0/dump.json"),
        "stack_json_path": str(dumps / "npu/rank1/stack.json"),
    }
    result = compare(request, dumps / "out", True, False, False, True)
    ((table,),) = result.files.tables
    assert not list((dumps / "out").glob("advisor*"))
    assert headers_of(table)[-1] == "NPU_Stack_Info"
    sheet = openpyxl.load_workbook(table).active
    assert sheet["A3"].fill.start_color.rgb == "FFFF0000"
    assert "maximum relative error exceeds 0.5" in [cell.value for cell in sheet[3]][-2]


def test_ranks_of_a_step(dumps):
    result = compare_distributed(str(dumps / "npu"), str(dumps / "gpu"), dumps / "out", stack_mode=True)
    assert [unit.label for unit in result.units] == ["rank0", "rank1"]
    names = sorted(path.name for (path,) in result.files.tables)
    assert [name[: len("compare_result_rank0_")] for name in names] == [
        "compare_result_rank0_",
        "compare_result_rank1_",
    ]
    assert len(list((dumps / "out").glob("advisor_rank?_*.txt"))) == 2
    assert headers_of(result.files.tables[1][0])[-1] == "NPU_Stack_Info"
    write_dump(dumps / "npu" / "rank2", {ENTRY: api(output=tensor(X))})
    assert compare_distributed(dumps / "npu", dumps / "gpu", dumps / "out").missing == [
        f"rank2 is in {dumps / 'npu'} only"
    ]


def test_names_may_be_matched(dumps):
    (dumps / "rows.yaml").write_text("Functional.dense.0.forward.output.0: Functional.linear.0.forward.output.0\n")
    write_dump(dumps / "npu" / "rank0", {"Functional.dense.0.forward": api(tensor(X), output=tensor(X))})
    write_dump(dumps / "npu" / "rank1", {"Functional.linear.7.forward": api(tensor(X), output=tensor(X))})
    files = {
        rank: {"npu_path": dumps / f"npu/rank{rank}/dump.json", "bench_path": dumps / f"gpu/rank{rank}/dump.json"}
        for rank in (0, 1)
    }
    with pytest.raises(CompareError, match="have no row in common"):
        compare(files[0], dumps / "out")
    (unit,) = compare(files[0], dumps / "out", data_mapping=dumps / "rows.yaml").units
    assert (unit.counts["pass"], unit.counts["error"]) == (1, 0)
    (unit,) = compare(files[1], dumps / "out", fuzzy_match=True).units
    assert unit.counts["pass"] == 2
    result = compare_distributed(dumps / "npu", dumps / "gpu", dumps / "out", data_mapping=dumps / "rows.yaml")
    assert result.units[0].counts["pass"] == 1
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        compare_distributed(dumps / "npu", dumps / "gpu", dumps / "out", cell_mapping="gone.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["pytorch", "mindspore"])
def test_a_script_as_tutorials_write_it(dumps, plugin):
    """It has no guard, so that starting processes that import it would run it again and again."""
    script = dumps / "run.py"
    script.write_text(
        "import sys\n"
        f"from msprobe.{plugin} import compare, compare_distributed\n"
        f"result = compare_distributed({str(dumps / 'npu')!r}, {str(dumps / 'gpu')!r}, {str(dumps / 'out')!r})\n"
        "print(result.agrees, len(result.units), 'torch' in sys.modules, 'mindspore' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # plugins need not be installed
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=environment)
    assert (run.stdout, run.stderr) == ("False 2 False False\n", "")


@pytest.mark.parametrize(
    ("request_", "error", "expected"),
    [
        ({"bench_json_path": "b"}, ConfigError, "'npu_json_path' is missing; give the path of a dump.json"),
        ({"npu_json_path": "a", "bench_json_path": ""}, ConfigError, "'bench_json_path' is missing"),
        ({"npu_json_path": [3], "bench_json_path": "b"}, ConfigError, r"'npu_json_path' is \[3\], and must be a path"),
        ({"npu_json_path": "a", "npu_path": "a", "bench_path": "b"}, ConfigError,
         "'npu_json_path' and 'npu_path' mean the same; give one of them"),
        ({"npu_path": "a", "bench_path": "b", "rank": 0}, ConfigError, "unknown field 'rank'; known are npu_json_path"),
        ({"npu_path": "gone", "bench_path": "b"}, CompareError, "gone: does not exist"),
        ({"npu_path": "a", "bench_path": "b", "stack_path": "gone"}, CompareError, "gives it as 'stack_json_path'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(request_, error, expected, tmp_path):
    with pytest.raises(error, match=expected):
        compare(request_, tmp_path / "out")


def test_the_core_is_enough(dumps):
    code = "from msprobe_core.report import compare, compare_distributed; import sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(dumps))
    assert run.stdout == "False\n"
