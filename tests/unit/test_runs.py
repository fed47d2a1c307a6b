"""Whole runs: steps and ranks are paired by number, worked off by executors, and resumed after an interruption."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.compare import Chosen, CompareOptions, compare_dumps
from msprobe_core.compare.pairs import find_pairs
from msprobe_core.compare.post_processing import Factors, PostProcessing
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.errors import CompareError, ConfigError
from msprobe_core.execute.kept import KEPT_DIRECTORY, num_kept
from msprobe_core.findings import worded
from msprobe_core.hookspecs import hookimpl
from msprobe_core.plugins import Plugin, registry
from msprobe_core.report.files import ResultFiles, TableOptions, time_stamp

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
FIRST, SECOND = "Functional.linear.0.forward", "Functional.gelu.0.forward"


def data(*, first=X, second=X):
    return {FIRST: api(tensor(X), output=tensor(first)), SECOND: api(tensor(X), output=tensor(second))}


@pytest.fixture
def runs(tmp_path):
    """Two runs of three steps and two ranks; in the target rank 1 goes wrong at step 1, both at step 2."""
    for step in range(3):
        for rank in range(2):
            write_dump(tmp_path / "golden" / f"step{step}" / f"rank{rank}", data())
            bad = {(1, 1): {"second": TWICE}, (2, 0): {"second": TWICE}, (2, 1): {"first": TWICE}}
            write_dump(tmp_path / "target" / f"step{step}" / f"rank{rank}", data(**bad.get((step, rank), {})))
    return tmp_path


def compare(runs, *, progress=None, chosen=None, out="out", **options):
    return compare_run(
        runs / "target",
        runs / "golden",
        ResultFiles(runs / out, TableOptions(stamp=time_stamp())),
        chosen=chosen,
        run=RunOptions(**options),
        progress=progress,
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_every_step_and_rank_is_compared(runs, executor):
    seen = []
    result, files = compare(runs, executor=executor, progress=lambda *call: seen.append(call))
    labels = [unit.label for unit in result.units]
    assert labels == [f"step{step}/rank{rank}" for step in range(3) for rank in range(2)]
    assert [unit.agrees for unit in result.units] == [True, True, True, False, False, False]
    unit, fault = result.first_fault
    assert (unit.label, fault.entry) == ("step1/rank1", SECOND)
    for label, (path,) in zip(labels, files.tables, strict=True):
        step, rank = label.split("/")
        assert path.parent == runs / "out" / step
        assert path.name.startswith(f"compare_result_{rank}_")
    assert seen == [(n, 6, "pairs") for n in range(1, 7)]
    summary = json.loads(files.summary.read_text())
    assert [unit["agrees"] for unit in summary["units"]] == [True, True, True, False, False, False]


@pytest.mark.slow
def test_executors_agree_on_everything(runs):
    results = [compare(runs, executor=name, out=name)[0].units for name in ("inline", "processes")]
    assert results[0] == results[1]
    in_memory = compare_dumps(runs / "target", runs / "golden")
    assert [unit.summary() for unit in in_memory.units] == list(results[0])


def test_chosen_steps_and_ranks(runs):
    result, _ = compare(runs, chosen=Chosen(steps=(1, 2), ranks=(1,)))
    assert [unit.label for unit in result.units] == ["step1/rank1", "step2/rank1"]
    result, _ = compare(runs, chosen=Chosen(steps=(0, 7)))
    assert [unit.label for unit in result.units] == ["step0/rank0", "step0/rank1"]
    assert result.missing == [f"step7 is in neither {runs / 'target'} nor {runs / 'golden'}"]
    assert not result.agrees


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (Chosen(steps=(9,)), "have no step to compare: step9 is in neither"),
        (Chosen(ranks=(9,)), r"have no rank in common, of those asked for \(rank9\)"),
    ],
    ids=["step", "rank"],
)
def test_a_choice_of_nothing_is_an_error(runs, chosen, expected):
    with pytest.raises(CompareError, match=expected):
        compare(runs, chosen=chosen)


def test_a_choice_needs_something_to_choose_from(runs):
    with pytest.raises(CompareError, match=r"is a single step: there are no steps to choose from; leave out --steps"):
        compare_dumps(runs / "target/step0", runs / "golden/step0", chosen=Chosen(steps=(0,)))
    with pytest.raises(CompareError, match=r"is a single dump: there are no ranks to choose from"):
        compare_dumps(runs / "target/step0/rank0", runs / "golden/step0/rank0", chosen=Chosen(ranks=(0,)))


def test_a_run_against_a_step_is_an_error_that_shows_what_to_give(runs):
    with pytest.raises(CompareError, match=r"holds whole steps and .*step1 is a single one; give .*target/step0"):
        compare_dumps(runs / "target", runs / "golden/step1")


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_rank_that_cannot_be_read_costs_only_itself(runs, executor):
    (runs / "target/step0/rank1/dump.json").write_text("not json")
    result, _ = compare(runs, executor=executor)
    assert len(result.units) == 5
    (line,) = result.missing
    assert line.startswith("step0/rank1 could not be compared: ")
    assert "is not valid JSON" in line


def test_nothing_that_can_be_compared_is_an_error(runs):
    for path in (runs / "target").rglob("dump.json"):
        path.write_text("not json")
    with pytest.raises(CompareError, match=r"nothing of .* could be compared; step0/rank0 could not be compared"):
        compare(runs)


def test_an_unknown_executor_is_said(runs):
    with pytest.raises(ConfigError, match="no executor 'cloud'; known are inline, processes, ray"):
        compare(runs, executor="cloud")


# --- resuming ---------------------------------------------------------------------------------------------------


def times_of(files):
    return {path: path.stat().st_mtime_ns for paths in files.tables for path in paths}


def test_finished_pairs_are_taken_over(runs):
    first, files = compare(runs)
    again, files_again = compare(runs, resume=True)
    assert again == first
    assert times_of(files_again) == times_of(files)


def test_without_resume_everything_is_compared_again(runs):
    _, files = compare(runs)
    _, files_again = compare(runs)
    assert not set(times_of(files)) & set(times_of(files_again))


def test_changed_and_missing_units_are_compared_again(runs):
    _, files = compare(runs)
    before = times_of(files)
    changed, gone = files.tables[0][0], files.tables[3][0]
    write_dump(runs / "target/step0/rank0", data(first=TWICE))
    gone.unlink()
    result, files_again = compare(runs, resume=True)
    kept = before.items() & times_of(files_again).items()
    assert {path for path, _ in kept} == set(before) - {changed, gone}
    assert not result.units[0].agrees


def test_other_options_are_another_comparison(runs):
    _, files = compare(runs)
    stacks = runs / "stack.json"
    stacks.write_text("{}")
    _, files_again = compare_run(
        runs / "target",
        runs / "golden",
        ResultFiles(runs / "out", TableOptions(stamp=time_stamp())),
        options=CompareOptions(stack_path=stacks),
        run=RunOptions(resume=True),
    )
    assert not set(times_of(files)) & set(times_of(files_again))


@pytest.mark.parametrize(("golden", "recorded"), [("proc7", True), ("proc7", False), ("rank0", True), ("rank0", False)])
def test_a_layout_is_advised_for_ranks_that_hold_parts(tmp_path, golden, recorded):
    spread = {
        "device_mesh": [0, 1],
        "placements": [{"Shard": {"dim": 0}}],
        "local_shape": [1, 2],
        "local_offset": [0, 0],
    }
    for rank in (0, 1):
        part = tensor([X[rank]]) | ({**spread, "local_offset": [rank, 0]} if recorded else {})
        write_dump(tmp_path / "target" / f"rank{rank}", {FIRST: api(part, output=part)})
    write_dump(tmp_path / "golden" / golden, {FIRST: api(tensor(X), output=tensor(X))})
    try:
        said = worded(find_pairs(tmp_path / "target", tmp_path / "golden").missing[-1])
    except CompareError as error:
        said = str(error)
    advice = f"tensors of {tmp_path / 'target'} are parts that --layout auto puts together"
    assert (advice in said) == recorded


@pytest.mark.slow
@pytest.mark.parametrize("named", ["stacks", "matrix"])
def test_files_that_options_name_are_part_of_the_comparison(runs, named):
    stacks, matrix = runs / "stack.json", runs / "rotation.npy"
    stacks.write_text("{}")
    matrix.write_bytes(b"first")
    options = CompareOptions(stack_path=stacks, post_processing=PostProcessing(target={"a.pt": Factors(right=matrix)}))

    def tables():
        _, files = compare_run(
            runs / "target",
            runs / "golden",
            ResultFiles(runs / "out", TableOptions(stamp=time_stamp())),
            options=options,
            run=RunOptions(resume=True),
        )
        return set(times_of(files))

    first = tables()
    assert tables() == first
    if named == "stacks":
        stacks.write_text('{"Torch.mul.0.forward": []}')
    else:
        matrix.write_bytes(b"second")
    assert not tables() & first


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'{"key": 7}'])
def test_a_damaged_record_is_no_record(runs, content):
    first, _ = compare(runs)
    records = sorted((runs / "out" / KEPT_DIRECTORY).iterdir())
    assert len(records) == 6
    records[2].write_bytes(content)
    again, _ = compare(runs, resume=True)
    assert again == first


def test_an_interrupted_comparison_resumes_where_it_was(runs):
    slow = registry()
    name = "slow-executor"

    class Slow:
        name = "slow"

        def check(self, options):
            pass

        def run(self, function, tasks, options):
            for number, task in enumerate(tasks):
                if number == 2:
                    raise KeyboardInterrupt
                yield number, function(task)

    class Module:
        """Stops after two."""

        @staticmethod
        @hookimpl
        def msprobe_register_executors():
            return [Slow()]

    slow.add(Plugin(name, None, "test"), lambda: Module)
    try:
        with pytest.raises(KeyboardInterrupt):
            compare(runs, executor="slow")
    finally:
        slow.manager.unregister(name=name)
    assert num_kept(runs / "out") == 2
    seen = []
    result, _ = compare(runs, resume=True, progress=lambda *call: seen.append(call))
    assert len(result.units) == 6
    assert seen == [(n, 6, "pairs") for n in range(2, 7)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals")
@pytest.mark.parametrize(
    ("executor", "number", "status"),
    [
        ("inline", signal.SIGINT, 130),
        ("inline", signal.SIGHUP, 129),
        ("processes", signal.SIGINT, 130),
        ("processes", signal.SIGTERM, 143),
    ],
    ids=str,
)
def test_an_interrupted_comparison_says_how_to_resume(runs, number, status, executor):
    for step in range(3, 20):
        for side in ("target", "golden"):
            for rank in range(2):
                write_dump(
                    runs / side / f"step{step}" / f"rank{rank}",
                    {f"Functional.f{i}.0.forward": api(tensor(X), output=tensor(X)) for i in range(200)},
                )
    command = [sys.executable, "-m", "msprobe_core", "compare", "-tp", runs / "target", "-gp", runs / "golden"]
    job = subprocess.Popen(
        [*command, "-o", runs / "out", "--executor", executor],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while num_kept(runs / "out") < 3 and time.monotonic() < deadline:
        pass  # a pause may be longer than all that is left to compare, on a busy machine
    os.kill(job.pid, number)
    _, err = job.communicate(timeout=120)
    finished = num_kept(runs / "out")
    assert job.returncode == status, (finished, err)
    assert "Traceback" not in err
    assert "Give the same command with --resume to go on from there" in err, finished
    while time.monotonic() < deadline:  # its workers end with it
        try:
            os.killpg(job.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("workers are left")


# --- the command line -------------------------------------------------------------------------------------------


def run_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "msprobe_core", "compare", *map(str, arguments)], capture_output=True, text=True
    )


def test_many_pairs_are_summed_up(runs):
    done = run_command("-tp", runs / "target", "-gp", runs / "golden", "-o", runs / "out")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "Compared 6 pairs of ranks of 3 steps (statistics), 24 rows of 12 calls:",
        "  3  agree",
        "  3  differ",
    ]
    assert f"  step 1, rank 1: {SECOND}" in lines
    assert f"  step 2, rank 1: {FIRST}" in lines
    assert f"Tables:  6 files in {runs / 'out'}" in lines
    assert lines[-1] == f"DIFFERENT: first at step1/rank1: {SECOND}."


@pytest.mark.slow
def test_ranges_on_the_command_line(runs):
    done = run_command(
        "-tp", runs / "target", "-gp", runs / "golden", "-o", runs / "out", "--steps", "0-1", "--ranks", "0"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "AGREE: every row is matched and within its limit."
    done = run_command("-tp", runs / "target", "-gp", runs / "golden", "-o", runs / "out", "--steps", "3-1")
    assert done.returncode == 2
    assert "--steps has the range '3-1', which runs backwards" in done.stderr


def test_static_and_dynamic_graphs_of_one_run(runs):
    """Beside each other, as MindSpore's mixed programs are dumped; the dynamic ones agree."""
    for side in ("target", "golden"):
        (runs / f"both_{side}").mkdir()
        (runs / side).rename(runs / f"both_{side}" / "graph")
        for step in range(2):
            write_dump(runs / f"both_{side}" / "pynative" / f"step{step}" / "rank0", data())
        (runs / f"both_{side}").rename(runs / side)
    result, files = compare(runs)
    labels = [unit.label for unit in result.units]
    assert labels == [f"graph/step{s}/rank{r}" for s in range(3) for r in range(2)] + [
        "pynative/step0/rank0", "pynative/step1/rank0",
    ]  # fmt: skip
    assert [unit.label for unit in result.units if not unit.agrees] == labels[3:6]
    assert [path.parent.relative_to(runs / "out").as_posix() for (path,) in files.tables[-2:]] == [
        "pynative/step0", "pynative/step1",
    ]  # fmt: skip
    assert [unit.label for unit in compare(runs, chosen=Chosen(steps=(1,)), out="one")[0].units] == labels[
        2:4
    ] + labels[-1:]
    with pytest.raises(
        CompareError, match="holds graph and pynative, which were recorded of one run each; give one of"
    ):
        find_pairs(runs / "target", runs / "golden")


def test_a_static_graph_that_one_side_lacks_is_missing(runs):
    for side in ("target", "golden"):
        (runs / side).rename(runs / f"pynative_{side}")
        (runs / side).mkdir()
        (runs / f"pynative_{side}").rename(runs / side / "pynative")
    (runs / "golden" / "graph").mkdir()
    result, _ = compare(runs)
    assert result.missing == [f"graph is in {runs / 'golden'} only"]
    assert len(result.units) == 6
