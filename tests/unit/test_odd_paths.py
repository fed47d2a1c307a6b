"""Names of directories that are no UTF-8: every command works with them, and says and writes them in a way to read."""

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main
from msprobe_core.untrusted.paths import path_of, shown

NAME = os.fsdecode(b"r\xff\xfe")
SHOWN = "r\\xff\\xfe"
X = [[1.0, -2.0], [3.0, 4.0]]


@pytest.fixture
def root(tmp_path):
    """Return a directory with two runs that differ from step 1 on."""
    path = tmp_path / NAME
    try:
        path.mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    for side, value in (("t", 2.0), ("g", 1.0)):
        for step in range(2):
            for rank in range(2):
                calls = {
                    "Functional.linear.0.forward": api(tensor(X), output=tensor(value if step else 1.0)),
                    "Functional.relu.0.forward": api(tensor(X), output=tensor(X)),
                }
                write_dump(path / side / f"step{step}" / f"rank{rank}", calls, parents={}, stacks={})
    (path / "config.json").write_text('{"dump_enable": true}')
    (path / "merge.yaml").write_text("api: [Functional.linear.0.forward]")
    return path


@pytest.fixture
def run(root, capsys, monkeypatch):
    """Run a command, with ``@`` for the directory; return exit code and what it said."""
    monkeypatch.delenv("MSPROBE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "300")

    def run(line):
        arguments = [argument.replace("@", str(root)) for argument in line.split()]
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = "".join(capsys.readouterr())
        assert "internal error" not in said
        assert "Traceback" not in said
        said.encode()
        return ended.value.code, said

    return run


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("compare -tp @/t -gp @/g -o @/out --executor inline", 1),
        ("compare -tp @/t -gp @/g -o @/out --executor processes --workers 1", 1),
        ("compare -tp @/t -gp @/g -o @/out --format xlsx", 1),
        ("compare -tp @/t -gp @/g -o @/out --format parquet", 1),
        ("compare -tp @/t -gp @/g -o @/out --compat a", 1),
        ("compare -tp @/t -gp @/g -o @/out --compat c -da", 1),
        ("locate @/t @/g -o @/out", 1),
        ("overflow_check @/t -o @/out", 0),
        ("view @/t @/g -o @/out/page.html", 0),
        ("view @/t -o @/out/page.html", 0),
        ("graph_visualize -tp @/t -gp @/g -o @/out", 0),
        ("export @/t @/g -o @/out --model-explorer --perfetto --tensorboard --tb-database", 0),
        ("calibrate @/g @/t -o @/out/noise_profile.parquet", 0),
        ("control @/config.json set level=mix", 0),
        ("control @/config.json status", 0),
        ("control @/none.json status", 2),
        ("estimate @/none.py", 2),
        ("compare -tp @/t -gp @/none -o @/out", 2),
        ("compare -i @/config.json -o @/out", 2),
        ("compare -tp @/t -gp @/g -o @/out --limits @/config.json", 2),
        ("compare -tp @/t -gp @/g -o @/out --layout @/config.json", 2),
        ("compare -tp @/t -gp @/g -o @/config.json", 2),
        ("confirm @/t @/g Functional.linear.0.forward -o @/out", 2),
    ],
)  # fmt: skip
def test_a_command(root, run, line, code):
    (root / "out").mkdir()
    found, said = run(line)
    assert found == code, said
    if code == 2 and "@/none" in line:
        assert SHOWN in said
    for path in (root / "out").rglob("*.json"):
        assert json.loads(path.read_text("utf-8"))
    for path in (root / "out" / name for name in ("summary.json", "locate.json")):
        assert not path.exists() or f"{SHOWN}/t" in json.loads(path.read_text("utf-8"))["target"]
    for path in (root / "out").rglob("*.csv"):
        pl.read_csv(path.read_bytes(), infer_schema=False)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["compare -tp @/t -gp @/g -o @/out", "locate @/t @/g -o @/out"])
def test_a_result_finds_its_runs_again(root, run, line):
    run(line)
    code, said = run("view @/out -o @/page.html")
    assert (code, "diverge" in said) == (0, True)
    # Runs that are not there any more are a sentence with their names.
    shutil.move(root / "g", root / "gone")
    code, said = run("view @/out -o @/page.html")
    assert code == 2
    assert f"{SHOWN}/g is not there" in said


def test_a_comparison_is_resumed(root, run):
    (root / "g" / "step1" / "rank1" / "dump.json").write_text("{")
    run("compare -tp @/t -gp @/g -o @/out")
    before = {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*.csv")}
    run("compare -tp @/t -gp @/g -o @/out --resume")
    assert before == {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*.csv")}
    assert len(before) == 3


def test_a_noise_profile_is_measured_and_used(root, run):
    assert run("calibrate @/g @/t")[0] == 0
    code, said = run("locate @/t @/g -o @/out --noise measured")
    assert code == 0, said


def test_results_of_ranks_are_merged(root, run):
    assert run("compare -tp @/t/step1 -gp @/g/step1 -o @/out")[0] == 1
    code, said = run("merge_result -i @/out -o @/merged -config @/merge.yaml")
    assert code == 0, said


def test_a_run_is_converted(root, run):
    pytest.importorskip("pyarrow", reason="the extra msprobe-core[arrow] is not installed")
    assert run("convert @/t @/arrow")[0] == 0
    assert run("convert @/arrow @/json")[0] == 0
    assert run("compare -tp @/arrow -gp @/json -o @/out")[0] == 0


def test_kernels_of_a_net_of_such_a_name(root, run):
    for side, value in (("kt", 2.0), ("kg", 1.0)):
        directory = root / side / "rank_0" / NAME / "0" / "0"
        directory.mkdir(parents=True)
        (directory / "statistic.csv").write_text(
            "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value\n"
            f'MatMul,Default_a,0,0,1,output,0,24,float32,"(2,3)",{value},1\n'
        )
        (directory / os.fsdecode(b"MatMul.Default_\xff.0.0.1.output.0.ND.Float32.npy")).write_bytes(b"")
    assert run("compare -tp @/kt -gp @/kg -o @/out")[0] == 1
    assert run("view @/kt @/kg -o @/page.html")[0] == 0


def test_a_name_is_shown_and_found_again(tmp_path):
    names = [os.fsdecode(name) for name in (b"a\xff", "ä".encode(), b"\\xff", b"\xc3", b"plain")]
    for name in names:
        (tmp_path / name).touch()
        text = shown(str(tmp_path / name))
        text.encode()
        assert path_of(text) == tmp_path / name
    assert shown("\ud800") == "\\ud800"
    assert path_of("\\xfe") == Path(os.fsdecode(b"\xfe"))
