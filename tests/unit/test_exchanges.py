"""Communication judged by itself, and state of replicas judged by replicas: without any measure of noise."""

import numpy as np
import pytest
from dumps import tensor
from rank_dumps import Rank, group, make_ranks, value, write_ranks

from msprobe_core.judge.limits import conventional
from msprobe_core.locate import LocateVerdict, locate
from msprobe_core.locate.exchanges import broken_exchanges
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.replicas import parted_states

PARTS = [np.linspace(-1, 2, 64), np.cos(np.arange(64)), np.sin(np.arange(64)) * 3]
WORLD = group(0, 1, 2)


def rounded(values, dtype=np.float32):
    return np.asarray(values, dtype).astype(np.float64)


def job(name, given, got, **kwargs):
    """Each rank gives and gets something in one collective."""

    def work(number, rank: Rank):
        rank.call("Torch.relu")
        if name.endswith(("_tensor", "_single")):
            inputs = [tensor(got[number]), tensor(given[number])]
        else:
            inputs = [tensor(given[number])]
        rank.call(f"Distributed.{name}", *inputs, output=[tensor(got[number])], group=WORLD, **kwargs)
        rank.call("Torch.exp")

    return make_ranks(3, work)


def of_all_reduce(change=lambda number, summed: summed, op="SUM", made=None):
    summed = rounded(sum(PARTS) if made is None else made)
    operation = {"type": "torch.distributed.ReduceOp", "value": f"RedOpType.{op}"}
    return job("all_reduce", PARTS, [change(i, summed) for i in range(3)], op=operation)


def in_parts(values):
    return list(np.split(np.asarray(values), 3))


WHOLE = [np.linspace(-1, 3, 63), np.cos(np.arange(63)), np.sin(np.arange(63)) * 3]
SCATTERED, TOGETHER = in_parts(rounded(sum(WHOLE))), np.concatenate(WHOLE)
DEALT = [np.concatenate([in_parts(each)[rank] for each in WHOLE]) for rank in range(3)]


def only(rank, change):
    return lambda number, result: change(result) if number == rank else result


def broken(tmp_path, target, golden):
    for name, ranks in (("target", target), ("golden", golden)):
        write_ranks(tmp_path / name, ranks)
    sides = [{rank: tmp_path / name / f"rank{rank}" for rank in target} for name in ("target", "golden")]
    found = broken_exchanges(sides[0], sides[1], 0)
    return [(rank, suspect.reason.code) for rank, suspect in found]


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        (of_all_reduce(), of_all_reduce(), []),
        (of_all_reduce(only(1, lambda x: x * 1.1)), of_all_reduce(), [(1, LocateCode.EXCHANGE_UNLIKE)]),
        # All ranks get the same, which is not the sum.
        (of_all_reduce(made=sum(PARTS[:2])), of_all_reduce(), [(i, LocateCode.EXCHANGE_SUM) for i in range(3)]),
        (of_all_reduce(made=sum(PARTS) / 3, op="AVG"), of_all_reduce(), []),
        (of_all_reduce(made=np.maximum.reduce(PARTS), op="MAX"), of_all_reduce(), []),
        # A backend that does the same in the golden run is not judged.
        (of_all_reduce(made=sum(PARTS) * 2), of_all_reduce(made=sum(PARTS) * 2), []),
        (
            job("reduce_scatter_tensor", WHOLE, SCATTERED),
            job("reduce_scatter_tensor", WHOLE, SCATTERED),
            [],
        ),
        (
            job("reduce_scatter_tensor", WHOLE, [SCATTERED[0], SCATTERED[1] * 1.1, SCATTERED[2]]),
            job("reduce_scatter_tensor", WHOLE, SCATTERED),
            [(i, LocateCode.EXCHANGE_SUM) for i in range(3)],
        ),
        (
            job("all_gather_into_tensor", WHOLE, [TOGETHER] * 3),
            job("all_gather_into_tensor", WHOLE, [TOGETHER] * 3),
            [],
        ),
        (
            job("all_gather_into_tensor", WHOLE, [TOGETHER, TOGETHER, np.concatenate([*WHOLE[:2], WHOLE[0]])]),
            job("all_gather_into_tensor", WHOLE, [TOGETHER] * 3),
            [(2, LocateCode.EXCHANGE_UNLIKE)],
        ),
        (job("all_to_all_single", WHOLE, DEALT), job("all_to_all_single", WHOLE, DEALT), []),
        (
            job("all_to_all_single", WHOLE, [DEALT[0], DEALT[1], DEALT[1]]),
            job("all_to_all_single", WHOLE, DEALT),
            [(i, LocateCode.EXCHANGE_MOVED) for i in range(3)],
        ),
    ],
)  # fmt: skip
def test_what_comes_out_follows_from_what_went_in(tmp_path, target, golden, expected):
    assert broken(tmp_path, target, golden) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_roundings_of_a_sum_are_allowed_and_no_more(tmp_path, dtype):
    """As far as mean and norm say it: all elements of a sum of two rounded in one direction, and twice as far."""
    unit = {"bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    parts = [np.full(64, 1.0) + np.arange(64) / 1e3, np.full(64, 1.0) - np.arange(64) / 1e3]

    def with_factor(factor):
        def work(number, rank):
            summed = tensor(sum(parts) * factor, dtype=f"torch.{dtype}")
            rank.collective("all_reduce", group(0, 1), given=tensor(parts[number], dtype=f"torch.{dtype}"), got=summed)

        return make_ranks(2, work)

    assert broken(tmp_path / "rounded", with_factor(1 + 0.9 * unit), with_factor(1)) == []
    # In float32 the statistics themselves may be off by as much.
    assert broken(tmp_path / "wrong", with_factor(1 + (2.5 if dtype == "bfloat16" else 40) * unit), with_factor(1))


def test_a_message_that_arrives_otherwise_is_named_at_its_receiver(tmp_path):
    def work(number, rank, got=PARTS[0]):
        if number == 0:
            rank.send(1, tensor(PARTS[0]))
        else:
            rank.receive(0, tensor(got))

    target, golden = make_ranks(2, lambda n, rank: work(n, rank, PARTS[1])), make_ranks(2, work)
    assert broken(tmp_path, target, golden) == [(1, LocateCode.EXCHANGE_MOVED)]
    assert broken(tmp_path / "healthy", golden, golden) == []


def updating(gap, *, reduces=True):
    """Two ranks that reduce a gradient and update a parameter with it; ``gap`` is how far apart they do that."""

    def work(number, rank):
        rank.module("", tensor(), parameters={"weight": tensor(PARTS[2])})
        if reduces:
            rank.collective("all_reduce", group(0, 1), given=tensor(PARTS[number]), got=tensor(PARTS[0] + PARTS[1]))
        gradient = (PARTS[0] + PARTS[1]) * (1 + gap * (number - 0.5))
        entry = rank.call("Tensor.mul", tensor(gradient), value(0.1), output=tensor(gradient * 0.1))
        rank.parents[entry] = "optimizer"

    return make_ranks(2, work)


@pytest.mark.parametrize(("gap", "is_parted"), [(0.0, False), (1e-5, False), (0.02, True)])
def test_an_update_that_parts_replicas_needs_no_noise(tmp_path, gap, is_parted):
    for name, ranks in (("target", updating(gap)), ("golden", updating(0.0))):
        write_ranks(tmp_path / name, ranks)
    sides = [{rank: tmp_path / name / f"rank{rank}" for rank in range(2)} for name in ("target", "golden")]
    found = parted_states(sides[0], sides[1], conventional())
    assert [(each.name, each.odd_ranks) for each in found[:1]] == (
        [("Tensor.mul.0.forward.input.0", (1,))] if is_parted else []
    )
    assert parted_states(sides[1], sides[0], conventional()) == []  # ranks that differ in the golden run may do so


def test_a_missing_reduction_is_named_if_replicas_part_without_it(tmp_path):
    """Each rank by itself is within the limits, of 1e-3."""
    for name, ranks in (("target", updating(0.0005, reduces=False)), ("golden", updating(0.0))):
        write_ranks(tmp_path / name / "step0", ranks)
    assert locate(tmp_path / "target", tmp_path / "golden").verdict is LocateVerdict.AGREE
    write_ranks(tmp_path / "parted" / "step0", updating(0.0013, reduces=False))
    first = locate(tmp_path / "parted", tmp_path / "golden").suspects[0]
    assert (first.entry, first.only_on, list(first.ranks)) == (
        "Distributed.all_reduce.0.forward", "golden", [0, 1]
    )  # fmt: skip
    assert first.reason.code is LocateCode.REPLICAS


def test_communication_is_not_judged_by_what_one_rank_put_in(tmp_path):
    """Its rank's part is equal in both runs; what it gives differs by what the other rank put in, within its limit."""
    for name, last_digit in (("target", 1e-4), ("golden", 0.0)):

        def work(number, rank, last_digit=last_digit):
            given = PARTS[number] * (1 + last_digit * number)
            summed = PARTS[0] + PARTS[1] * (1 + last_digit)
            rank.collective("all_reduce", group(0, 1), given=tensor(given), got=tensor(summed))
            rank.call("Torch.exp", tensor(), output=tensor(PARTS[2] * (1.5 if number and last_digit else 1)))

        write_ranks(tmp_path / name / "step0", make_ranks(2, work))
    found = locate(tmp_path / "target", tmp_path / "golden")
    assert [suspect.entry for suspect in found.suspects] == ["Torch.exp.0.forward"]
