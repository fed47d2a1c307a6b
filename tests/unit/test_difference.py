"""``-da``: every call of every rank with whether it is the same, and where ranks first diverge, by communication."""

import json

import msgspec
import pytest
from dumps import api, tensor, write_dump

from msprobe_core.cli import main

X, TWICE = [[1.0, -2.0], [3.0, 4.0]], [[2.0, -4.0], [6.0, 8.0]]
CALLS = ("Torch.mul.0.forward", "Distributed.all_reduce.0.forward", "Torch.exp.0.forward")
STACK = ["File train.py, line 3, in step, y = torch.exp(x)"]


def data(*wrong):
    return {call: api(tensor(X), output=tensor(TWICE if call in wrong else X)) for call in CALLS}


@pytest.fixture
def steps(tmp_path):
    """Rank 0 goes wrong after the communication, ranks 1 and 2 before it, rank 3 not at all."""
    wrong = {0: CALLS[2:], 1: CALLS, 2: CALLS, 3: ()}
    for rank, calls in wrong.items():
        stacks = dict.fromkeys(CALLS, STACK)
        write_dump(tmp_path / "golden" / f"rank{rank}", data(), stacks=stacks)
        write_dump(tmp_path / "target" / f"rank{rank}", data(*calls), stacks=stacks)
    return tmp_path


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


def test_ranks_that_part_first_are_those_with_the_least_communication(steps, capsys):
    out = steps / "out"
    assert run("compare", "-tp", steps / "target", "-gp", steps / "golden", "-o", out, "-da") == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"DIFFERENT: first at rank1: {CALLS[0]}."
    (found,) = out.glob("diff_analyze_*.json")
    first = json.loads(found.read_text())
    assert list(first) == ["rank_1", "rank_2"]
    (call,) = first["rank_1"]
    assert call["op_name"] == CALLS[0]
    assert "line 3, in step" in call["stack_info"]
    assert [row["NPU Name"] for row in call["data_info"]["input"]] == [f"{CALLS[0]}.input.0"]
    (output,) = call["data_info"]["output"]
    assert (output["NPU Name"], output["NormRelativeErr"]) == (f"{CALLS[0]}.output.0", "100.0%")


def test_each_rank_has_a_file_of_all_calls(steps):
    out = steps / "out"
    run("compare", "-tp", steps / "target", "-gp", steps / "golden", "-o", out, "-da")
    by_rank = {path.name.split("_")[2]: json.loads(path.read_text()) for path in out.glob("compare_result_rank*.json")}
    same = {rank: [call["is_same"] for call in calls.values()] for rank, calls in by_rank.items()}
    assert same == {
        "rank0": [True, True, False], "rank1": [False] * 3, "rank2": [False] * 3, "rank3": [True] * 3,
    }  # fmt: skip
    assert list(by_rank["rank0"]) == list(CALLS)
    states = [row["state"] for row in by_rank["rank0"][CALLS[0]]["op_items"]]
    assert states == ["input", "output"]


def test_runs_that_agree_have_no_first_difference(steps):
    out = steps / "out"
    assert run("compare", "-tp", steps / "golden", "-gp", steps / "golden", "-o", out, "-da") == 0
    assert not list(out.glob("diff_analyze_*.json"))
    assert len(list(out.glob("compare_result_rank*.json"))) == 4


def test_a_single_pair_of_files_is_analysed_too(steps):
    paths = [steps / side / "rank1" / "dump.json" for side in ("target", "golden")]
    assert run("compare", "-tp", paths[0], "-gp", paths[1], "-o", steps / "out", "-da") == 1
    (found,) = (steps / "out").glob("diff_analyze_*.json")
    assert [call["op_name"] for calls in json.loads(found.read_text()).values() for call in calls] == [CALLS[0]]
    assert len(list((steps / "out").glob("compare_result_*.json"))) == 1


def test_resumed_there_is_one_file_of_where_ranks_part(steps):
    out = steps / "out"
    given = ("compare", "-tp", steps / "target", "-gp", steps / "golden", "-o", out, "-da")
    assert run(*given) == 1
    (first,) = out.glob("diff_analyze_*.json")
    assert run(*given, "--resume") == 1
    (second,) = out.glob("diff_analyze_*.json")
    assert second != first
    other = out / "diff_analyze_1.json"  # of a comparison that is not resumed
    other.write_text("{}")
    for rank in range(4):
        write_dump(steps / "target" / f"rank{rank}", data(), stacks=dict.fromkeys(CALLS, STACK))
    assert run(*given, "--resume") == 0
    assert list(out.glob("diff_analyze_*.json")) == [other]


def test_nothing_else_is_removed_when_resumed(steps):
    out = steps / "out"
    given = ("compare", "-tp", steps / "target", "-gp", steps / "golden", "-o", out, "-da")
    run(*given)
    outside = steps / "diff_analyze_1.json"
    outside.write_text("{}")
    record = out / ".units" / "differences"
    record.write_bytes(msgspec.msgpack.encode(["../diff_analyze_1.json", "summary.json", str(outside)]))
    run(*given, "--resume")
    assert outside.exists()
    record.write_bytes(b"damaged")
    assert run(*given, "--resume") == 1
