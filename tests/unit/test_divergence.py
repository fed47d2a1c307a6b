"""Which of several ranks diverges first: by what can have affected what, not by how much a rank communicates."""

import json

import pytest
from dumps import tensor
from rank_dumps import Rank, group, make_ranks, value, write_ranks

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.divergence import first_of_step
from msprobe_core.compare.layouts.rules import load_layouts
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.locate import LocateOptions, locate

RIGHT, WRONG = [[1.0, -2.0], [3.0, 4.0]], [[1.3, -2.6], [3.9, 5.2]]


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def parted(tmp_path, capsys):
    """Compare what ``work(number, rank, wrong, is_target)`` does on each rank, and return what diverges first.

    Whatever it is, `compare` and `locate` name the same call of the same rank.
    """

    def parted(world, work):
        for side in ("target", "golden"):
            is_target = side == "target"
            wrong = tensor(WRONG if is_target else RIGHT)
            write_ranks(tmp_path / side, make_ranks(world, lambda n, rank: work(n, rank, wrong, is_target)))  # noqa: B023
        out = tmp_path / "out"
        assert run("compare", "-tp", tmp_path / "target", "-gp", tmp_path / "golden", "-o", out, "-da") == 1
        (found,) = out.glob("diff_analyze_*.json")
        listed = [(rank, call["op_name"]) for rank, (call,) in json.loads(found.read_text()).items()]
        result = compare_dumps(tmp_path / "target", tmp_path / "golden")
        unit, fault = result.first_fault
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"DIFFERENT: first at rank{unit.rank}: {fault.entry}."
        assert listed[0] == (f"rank_{unit.rank}", fault.entry)
        first = locate(tmp_path / "target", tmp_path / "golden").suspects[0]
        assert (first.entry, unit.rank in first.ranks) == (fault.entry, True)
        assert list(result.parted_first) == [rank.replace("_", "") for rank, _ in listed]
        return listed

    return parted


right = tensor(RIGHT)


def test_a_factor_on_one_rank_is_found_there_and_not_after_the_all_reduce(parted):
    def work(number, rank: Rank, wrong, _):
        own = wrong if number == 1 else right
        rank.call("Functional.linear", right, output=right)
        rank.call("Torch.mul", right, output=own)
        rank.collective("all_reduce", given=own, got=wrong)
        rank.call("Functional.linear", wrong, output=wrong)

    assert parted(2, work) == [("rank_1", "Torch.mul.0.forward")]


def test_a_rank_that_has_communicated_more_may_be_the_first(parted):
    """Rank 2 exchanges three times with 3; then it goes wrong, and sends it to 0, whose first communication that is."""

    def work(number, rank: Rank, wrong, _):
        if number >= 2:
            for _ in range(3):
                rank.collective("all_reduce", group(2, 3), given=right, got=right)
        if number == 2:
            rank.call("Torch.mul", right, output=wrong)
            rank.send(0, wrong)
        if number == 0:
            rank.receive(2, wrong)
            rank.call("Torch.exp", wrong, output=wrong)

    assert parted(4, work) == [("rank_2", "Torch.mul.0.forward")]


def test_what_has_nothing_to_do_with_each_other_is_first_together(parted):
    def work(number, rank: Rank, wrong, _):
        pair = (0, 1) if number < 2 else (2, 3)
        is_source = number in {0, 3}
        rank.call("Torch.mul", right, output=wrong if is_source else right)
        rank.collective("all_reduce", group(*pair), given=wrong if is_source else right, got=wrong)

    assert parted(4, work) == [("rank_0", "Torch.mul.0.forward"), ("rank_3", "Torch.mul.0.forward")]


def test_a_result_of_communication_that_is_wrong_is_so_on_all_ranks(parted):
    def work(number, rank: Rank, wrong, _):
        rank.collective("all_reduce", given=right, got=wrong)

    assert parted(2, work) == [(f"rank_{number}", "Distributed.all_reduce.0.forward") for number in (0, 1)]


@pytest.mark.parametrize("has_calls_before", [True, False])
def test_a_call_that_the_target_lacks_has_its_place_among_the_others(parted, has_calls_before):
    def work(number, rank: Rank, wrong, is_target):
        if has_calls_before:
            rank.call("Torch.exp", right, output=right)
        if number == 1 and not is_target:
            rank.call("Torch.neg", right, output=right)
        own = wrong if number == 1 else right
        rank.call("Torch.add", own, output=own)
        rank.collective("all_reduce", given=own, got=wrong)

    assert parted(2, work) == [("rank_1", "Torch.neg.0.forward")]


def test_where_dumps_cannot_be_read_again_the_fewest_calls_of_communication_decide(tmp_path):
    for side in ("target", "golden"):
        wrong = tensor(WRONG if side == "target" else RIGHT)

        def work(number, rank: Rank):
            if number == 0:
                rank.collective("all_reduce", group(0, 2), given=right, got=right)
            rank.call("Torch.mul", right, value(number), output=wrong)  # noqa: B023

        write_ranks(tmp_path / side, make_ranks(3, work))
    units = compare_dumps(tmp_path / "target", tmp_path / "golden").units
    assert [unit.rank for unit in first_of_step(units)] == [1, 2, 0]
    (tmp_path / "target" / "rank2" / "dump.json").write_text("gone")
    assert [unit.rank for unit in first_of_step(units)] == [1, 2]


def test_what_is_barely_beyond_its_limit_comes_after_all_else(parted):
    def work(number, rank: Rank, wrong, is_target):
        given, barely = (tensor([[1.0 + gap * is_target, -2.0], [3.0, 4.0]]) for gap in (4e-3, 1.1e-2))
        if number == 0:
            rank.call("Torch.mul", given, output=barely)
        else:
            rank.call("Torch.exp", right, output=right)
            rank.call("Torch.mul", right, output=wrong)

    assert parted(2, work) == [("rank_1", "Torch.mul.0.forward")]


def test_a_suspect_of_one_replica_is_kept_where_ranks_are_merged(tmp_path):
    """Replicas of merged ranks have no number of their own, so that none may stand for the other."""
    for side, world in (("target", 4), ("golden", 2)):
        wrong = tensor(WRONG if side == "target" else RIGHT)

        def work(number, rank: Rank):
            rank.call("Torch.mul", right, output=wrong if number < 2 and side == "target" else right)  # noqa: B023

        write_ranks(tmp_path / side, make_ranks(world, work))
    rules = tmp_path / "layouts.yaml"
    rules.write_text("parallel: {target: {tp: 2, dp: 2}, golden: {dp: 2}}")
    options = LocateOptions(compare=CompareOptions(layouts=load_layouts(rules)))
    result = locate(tmp_path / "target", tmp_path / "golden", options)
    assert [suspect.entry for suspect in result.suspects] == ["Torch.mul.0.forward"]


def test_a_step_that_differs_in_form_only_is_not_the_first(tmp_path):
    """Within the decisive step, the order by communication still tells which rank is the first."""
    for side in ("target", "golden"):
        wrong = tensor(WRONG if side == "target" else RIGHT)

        def form(number, rank: Rank):
            rank.call("Torch.mul", right, output=right)
            if side == "target" and number == 0:  # noqa: B023
                rank.call("Torch.clone", right, output=right)

        def fault(number, rank: Rank):
            if number == 1:
                rank.collective("all_reduce", group(1, 2), given=right, got=right)
                rank.call("Torch.mul", right, output=wrong)  # noqa: B023
            if number < 2:
                rank.collective("all_reduce", group(0, 1), given=wrong if number else right, got=wrong)  # noqa: B023

        for step, work in enumerate((form, fault)):
            write_ranks(tmp_path / side / f"step{step}", make_ranks(3, work))
    result = compare_dumps(tmp_path / "target", tmp_path / "golden")
    assert list(result.parted_first) == ["step1/rank1"]
    unit, found = result.first_fault
    assert (unit.label, found.entry) == ("step1/rank1", "Torch.mul.0.forward")
