"""Ranks that diverge first are found by causality, not by how much they communicate."""

import json

import pytest
from dumps import tensor
from rank_dumps import Rank, group, make_ranks, value, write_ranks

from msprobe_core.cli import main
from msprobe_core.compare import compare_dumps
from msprobe_core.compare.divergence import first_of_step

RIGHT, WRONG = [[1.0, -2.0], [3.0, 4.0]], [[1.3, -2.6], [3.9, 5.2]]


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code


@pytest.fixture
def parted(tmp_path, capsys):
    """Compare what ``work(number, rank, wrong, is_target)`` does on each rank, and return what parts first."""

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
