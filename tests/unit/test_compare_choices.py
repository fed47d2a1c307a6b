"""What is asked for and cannot be is said, whatever else there is to compare; and what is resumed is what was found."""

import json
import math
from dataclasses import replace

import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main
from msprobe_core.compare import run as run_module
from msprobe_core.compare.run import RunOptions, compare_run
from msprobe_core.report.files import ResultFiles, TableOptions, time_stamp

ENTRY = "Functional.linear.0.forward"
DATA = {ENTRY: api(tensor([1.0, 2.0]), output=tensor([3.0, 4.0]))}
WRONG = {ENTRY: api(tensor([1.0, 2.0]), output=tensor([6.0, 8.0]))}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a comparison of ``target`` with ``golden`` and return exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*options, target="target", golden="golden"):
        arguments = ["compare", "-tp", tmp_path / target, "-gp", tmp_path / golden, "-o", tmp_path / "out", *options]
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def ranks(tmp_path):
    for side in ("target", "golden"):
        for rank in range(2):
            write_dump(tmp_path / side / f"rank{rank}", DATA)


@pytest.fixture
def processes(tmp_path):
    for side, number in (("target", 11), ("golden", 12)):
        write_dump(tmp_path / side / f"proc{number}", DATA)


@pytest.mark.parametrize("layout", [(), ("--layout", "auto")])
def test_processes_have_no_ranks_to_choose_from(run, processes, layout):
    code, _, err = run("--ranks", "3", *layout)
    assert code == 2
    assert "holds proc11 without a rank: there are no ranks to choose from; leave out --ranks" in err


def test_missing_ranks_are_reported_with_layouts(run, ranks):
    code, out, _ = run("--ranks", "0,5", "--layout", "auto")
    assert code == 2
    assert "Not compared: rank5 is in neither" in out
    code, _, err = run("--ranks", "5", "--layout", "auto")
    assert code == 2
    assert "target: has none of the ranks asked for (rank5)" in err


def test_a_directory_without_dumps_is_not_called_a_step(run, tmp_path):
    write_dump(tmp_path / "golden" / "step0" / "rank0", DATA)
    (tmp_path / "target").mkdir()
    code, _, err = run()
    assert code == 2
    assert "target: holds no dump" in err


def test_an_unknown_executor_is_reported_for_a_single_pair(run, processes):
    code, _, err = run("--executor", "foo")
    assert code == 2
    assert "there is no executor 'foo'; known are inline, processes, ray" in err


def test_two_forms_at_once_are_refused(run, processes):
    code, _, err = run("--xlsx", "--format", "csv")
    assert code == 2
    assert "--xlsx and --format csv contradict each other" in err
    assert run("--xlsx", "--format", "xlsx")[0] == 0


def test_a_call_without_values_makes_no_table_of_saved_values(run, tmp_path):
    for side in ("target", "golden"):
        write_dump(tmp_path / side, {ENTRY: {"input_args": [], "input_kwargs": {}, "output": []}})
    assert run()[0] == 0
    assert [path.name[:14] for path in (tmp_path / "out").glob("*.csv")] == ["compare_result"]


def test_errors_that_are_no_numbers_are_resumed_as_they_were(tmp_path, monkeypatch):
    for rank in range(2):
        write_dump(tmp_path / "golden" / f"rank{rank}", DATA)
        write_dump(tmp_path / "target" / f"rank{rank}", WRONG)
    plain = run_module.compare_unit

    def with_infinite_error(*arguments, **options):
        found = plain(*arguments, **options)
        return replace(found, fault=replace(found.fault, output_error=math.inf))

    monkeypatch.setattr(run_module, "compare_unit", with_infinite_error)

    def compare(**options):
        writer = ResultFiles(tmp_path / "out", TableOptions(stamp=time_stamp()))
        run = RunOptions(executor="inline", **options)
        return compare_run(tmp_path / "target", tmp_path / "golden", writer, run=run)

    first, files = compare()
    again, files_again = compare(resume=True)
    assert again == first
    assert files_again.tables == files.tables
    faults = [unit["first_fault"] for unit in json.loads(files.summary.read_text())["units"]]
    assert [fault["output_error"] for fault in faults] == ["inf", "inf"]


def test_a_limit_whose_pattern_is_found_nowhere_is_said(run, processes):
    limits = ("--limit", "lm_haed", "rel<=0.1", "--limit", "linear", "rel<=0.1", "--limit", "linear", "rel<=0.2")
    code, out, _ = run(*limits)
    assert code == 0
    notes = [line for line in out.splitlines() if line.startswith("Note: limits whose")]
    assert notes == [
        "Note: limits whose pattern is found in no row's name: 1; the first is --limit 'lm_haed' 'rel<=0.1'"
    ]


NOTHING = dict.fromkeys(("Max", "Min", "Mean", "Norm"))


def test_two_dumps_of_which_no_tensor_can_be_compared_do_not_agree(run, tmp_path):
    for side in ("target", "golden"):
        data = {ENTRY: api(tensor([1.0], **NOTHING), 7, output=tensor([2.0], **NOTHING))}
        write_dump(tmp_path / side, data)
    code, out, err = run()
    assert code == 2
    assert "AGREE" not in out
    assert "none of the 2 tensors that both sides have could be compared" in err


def test_the_first_difference_of_a_call_that_only_golden_has_is_that_call(run, tmp_path):
    def value(number):
        return tensor([number, 1.0])

    calls = [api(value(number), output=value(number + 1)) for number in (1.0, 2.0, 3.0)]
    for side, kept in (("target", [calls[0], calls[2]]), ("golden", calls)):
        data = {f"Functional.gelu.{i}.forward": call for i, call in enumerate(kept)}
        write_dump(tmp_path / side / "rank0", data)
    code, out, _ = run("-da")
    assert (code, "First fault: Functional.gelu.1.forward" in out) == (1, True)
    (path,) = (tmp_path / "out").glob("diff_analyze_*.json")
    (call,) = json.loads(path.read_text())["rank_0"]
    rows = [*call["data_info"]["input"], *call["data_info"]["output"]]
    assert [(row["NPU Name"], row["Bench Name"]) for row in rows] == [
        ("N/A", f"Functional.gelu.1.forward.{place}.0") for place in ("input", "output")
    ]


def module(weight):
    return api(tensor([1.0, 2.0]), output=tensor([3.0, 4.0])) | {"parameters": {"weight": tensor(weight)}}


@pytest.mark.parametrize(("other", "code"), [([5.0, 6.0], 0), ([5.0, 6.1], 1)])
def test_a_parameter_that_one_of_two_ranks_has_otherwise_is_no_agreement(run, tmp_path, other, code):
    name = "Module.fc.Linear.forward.0"
    write_dump(tmp_path / "golden" / "rank0", {name: module([5.0, 6.0])})
    write_dump(tmp_path / "target" / "rank0", {name: module([5.0, 6.0])})
    write_dump(tmp_path / "target" / "rank1", {name: module(other)})
    ended, out, _ = run("--layout", "auto")
    assert ended == code
    assert (f"{name}.parameters.weight: rank 1 differs from rank 0" in out) == bool(code)


@pytest.mark.parametrize(("other", "code"), [([5.0, 6.0], 0), ([5.0, 6.1], 1)])
def test_replicas_without_a_counterpart_are_said_and_checked(run, tmp_path, other, code):
    name = "Module.fc.Linear.forward.0"
    write_dump(tmp_path / "golden" / "step0" / "rank0", {name: module([5.0, 6.0])})
    write_dump(tmp_path / "target" / "step0" / "rank0", {name: module([5.0, 6.0])})
    write_dump(tmp_path / "target" / "step0" / "rank1", {name: module(other)})
    layout = tmp_path / "layout.yaml"
    layout.write_text("parallel: {target: {dp: 2}}\n")
    ended, out, _ = run("--layout", layout)
    assert ended == code
    assert "that were not compared, because the other side has fewer replicas: rank1" in out
    assert (f"{name}.parameters.weight: rank 1 differs from rank 0" in out) == bool(code)
    assert run("--layout", layout, "--no-replicas")[0] == 0


def test_what_comes_of_a_call_that_one_side_lacks_is_not_called_unrecorded(run, tmp_path):
    def linear(first, last):
        return api(tensor([first, 1.0]), output=tensor([last, 1.0]))

    write_dump(tmp_path / "golden", {ENTRY: linear(1.0, 2.0), "Functional.gelu.0.forward": linear(2.0, 3.0)})
    data = {ENTRY: linear(1.0, 2.0), "Tensor.mul.0.forward": linear(2.0, 4.0)}
    write_dump(tmp_path / "target", data | {"Functional.gelu.0.forward": linear(4.0, 6.0)})
    _, out, _ = run()
    second = out[out.index("Then also: Functional.gelu.0.forward") :]
    assert "What it got differs already; the call above, which one side lacks, may be why." in second
    assert "outside of what was recorded" not in out


def test_a_coarser_precision_is_said(run, tmp_path):
    for side, dtype in (("target", "torch.bfloat16"), ("golden", "torch.float32")):
        output = tensor([3.0, 4.0], dtype=dtype)
        write_dump(tmp_path / side, {ENTRY: api(tensor([1.0]), tensor([1.0], dtype="torch.int64"), output=output)})
    code, out, _ = run()
    assert code == 0
    assert (
        "Note: tensors whose precision differs between the sides, and whose limits are those of the coarser: 1; "
        f"the first is {ENTRY}.output.0 (torch.bfloat16, golden torch.float32)"
    ) in out
    assert "whose precision" not in run(target="golden")[1]


def test_values_that_cannot_be_put_together_are_not_called_unrecorded(run, tmp_path):
    write_dump(tmp_path / "golden" / "rank0", DATA)
    for rank, data in enumerate((DATA, WRONG)):
        write_dump(tmp_path / "target" / f"rank{rank}", data)
    _, out, _ = run("--layout", "auto")
    assert (
        f"put together from several ranks, and were not compared: 1; the first is {ENTRY}.output.0 (target the" in out
    )
