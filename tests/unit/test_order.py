"""The order across ranks: from communication only, with data going where a kind of call sends them."""

from functools import cache

import pytest
from dumps import tensor
from limited import grows_linearly
from rank_dumps import Rank, group, make_ranks, value, write_ranks

from msprobe_core.errors import DumpError
from msprobe_core.findings import Finding
from msprobe_core.order import order_of
from msprobe_core.order.communication_calls import is_communication, kind_of
from msprobe_core.order.order_codes import OrderCode
from msprobe_core.store.reading import read_dump


def ordered(directory, ranks):
    write_ranks(directory, ranks)
    return order_of({number: read_dump(directory / f"rank{number}") for number in ranks})


def check_consistent(order, ranks):
    """Depths are a linear extension of the order, and the order is one."""
    nodes = [(number, entry) for number, rank in ranks.items() for entry in rank.data]
    for a in nodes:
        assert not order.precedes(a, a)
        for b in nodes:
            if order.precedes(a, b):
                assert not order.precedes(b, a)
                assert order.depth(*a) < order.depth(*b), (a, b)
    return order


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("Distributed.all_reduce.0.forward", "all_reduce"),
        ("Distributed.all_reduce_.0.forward", "all_reduce"),
        ("MintDistributed.all_gather.12.forward", "all_gather"),
        ("Distributed.AllGather.0.forward", "all_gather"),
        ("Primitive.reduce.AllReduce.0.backward", "all_reduce"),
        ("Primitive.x.AlltoAll.0.forward", "all_to_all"),
        ("Primitive.next.Send.0.forward", "send"),
        ("Primitive.last.Receive.0.forward", "receive"),
        ("Distributed.get_rank.0.forward", None),
        ("Torch.scatter.0.forward", None),
        ("Module.reduce.Linear.forward.0", None),
    ],
)
def test_calls_of_communication_are_known_by_name(entry, kind):
    assert is_communication(entry) == (kind is not None)
    if kind is not None:
        assert kind_of(entry) == kind


def test_calls_before_a_collective_precede_calls_after_it_on_all_ranks(tmp_path):
    def work(number, rank):
        for _ in range(number * 3):  # counters of ranks say nothing
            rank.call("Torch.relu")
        rank.call("Torch.log")
        rank.collective("all_reduce", group(0, 1))
        rank.call("Torch.exp")

    ranks = make_ranks(2, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    log, reduced, exp = "Torch.log.0.forward", "Distributed.all_reduce.0.forward", "Torch.exp.0.forward"
    for a, b in ((0, 1), (1, 0)):
        assert order.precedes((a, log), (b, reduced))
        assert order.precedes((a, log), (b, exp))
        assert not order.precedes((a, log), (b, log))
        assert not order.precedes((a, reduced), (b, reduced))
        assert order.precedes((a, reduced), (b, exp))
        assert order.depth(a, reduced) == order.depth(b, reduced)
        assert order.senders(a, reduced) == [(0, reduced), (1, reduced)]
        assert order.senders(a, log) == []
        assert [order.layer(a, entry) for entry in (log, reduced, exp)] == [0, 1, 1]
    nodes = [(0, reduced), (0, exp), (1, log), (1, exp)]
    assert order.earliest(nodes) == [(1, log)]
    assert order.notes == []


def test_two_groups_are_not_compared(tmp_path):
    def work(number, rank):
        members = group(0, 1) if number < 2 else group(2, 3)
        for _ in range(3 if number < 2 else 1):
            rank.call("Torch.mul")
            rank.collective("all_reduce", members)
        rank.call("Torch.mul")

    ranks = make_ranks(4, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    first, last = (2, "Torch.mul.1.forward"), (0, "Torch.mul.3.forward")
    assert not order.precedes(first, last)
    assert not order.precedes(last, first)
    assert order.earliest([last, first, (3, "Torch.mul.1.forward"), (1, "Torch.mul.3.forward")])[0] == first


def test_collectives_of_one_group_are_numbered_together_whichever_rank_is_the_root(tmp_path):
    def work(number, rank):
        for root in (0, 1):  # as when each rank sends the parameters that it has updated
            rank.collective("broadcast", group(0, 1), src=value(root))
            rank.call("Torch.exp")

    ranks = make_ranks(2, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    first, second = ("Distributed.broadcast.0.forward", "Distributed.broadcast.1.forward")
    assert order.notes == []
    assert order.senders(1, first) == [(0, first)]
    assert order.senders(0, second) == [(1, second)]
    assert not order.precedes((1, first), (0, first))


@pytest.mark.parametrize(
    ("name", "flows"),
    [
        ("broadcast", {(1, 0), (1, 2)}),
        ("scatter", {(1, 0), (1, 2)}),
        ("reduce", {(0, 1), (2, 1)}),
        ("gather", {(0, 1), (2, 1)}),
        ("all_gather", {(a, b) for a in range(3) for b in range(3) if a != b}),
    ],
)
@pytest.mark.parametrize("how", ["positional", "named", "within"])
def test_data_flow_from_the_source_and_to_the_destination_only(tmp_path, name, flows, how):
    side = "src" if name in {"broadcast", "scatter"} else "dst"

    def work(number, rank):
        rank.call("Torch.log")
        if name == "all_gather":
            rank.collective(name)
        elif how == "positional":
            rank.call(f"Distributed.{name}", tensor(), value(1))
        else:
            key = f"group_{side}" if how == "within" else side
            rank.collective(name, group(0, 1, 2), **{key: value(1)})
        rank.call("Torch.exp")

    ranks = make_ranks(3, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    found = {
        (a, b)
        for a in range(3)
        for b in range(3)
        if a != b and order.precedes((a, "Torch.log.0.forward"), (b, "Torch.exp.0.forward"))
    }
    assert found == flows


def test_a_root_may_be_counted_within_a_group(tmp_path):
    def work(number, rank):
        rank.call("Torch.log")
        rank.collective("broadcast", group(4, 7), group_src=value(1))
        rank.call("Torch.exp")

    ranks = {number: Rank() for number in (4, 7)}
    for number, rank in ranks.items():
        work(number, rank)
    order = ordered(tmp_path, ranks)
    assert order.precedes((7, "Torch.log.0.forward"), (4, "Torch.exp.0.forward"))
    assert not order.precedes((4, "Torch.log.0.forward"), (7, "Torch.exp.0.forward"))


def test_messages_between_two_ranks_meet_by_tag_and_number(tmp_path):
    ranks = {0: Rank(), 1: Rank()}
    for tag in (5, 6):
        ranks[0].call("Torch.log")
        ranks[0].send(1, tag=value(tag))
    ranks[0].call("Torch.late")
    for tag in (6, 5):
        ranks[1].receive(0, tag=value(tag))
        ranks[1].call("Torch.exp")
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    # The one that is received first was sent second.
    assert order.precedes((0, "Torch.log.1.forward"), (1, "Torch.exp.0.forward"))
    assert order.precedes((0, "Distributed.send.1.forward"), (1, "Distributed.recv.0.forward"))
    assert order.senders(1, "Distributed.recv.0.forward") == [(0, "Distributed.send.1.forward")]
    assert order.senders(0, "Distributed.send.1.forward") == []
    assert not order.precedes((0, "Torch.late.0.forward"), (1, "Torch.exp.1.forward"))
    assert not order.precedes((1, "Torch.exp.0.forward"), (0, "Torch.late.0.forward"))
    assert order.depth(0, "Distributed.send.1.forward") < order.depth(1, "Distributed.recv.0.forward")


def test_a_pipeline_is_ordered_by_what_is_sent(tmp_path):
    """1F1B of two stages: the first runs ahead by a micro-batch, and its numbers mean nothing to the second."""
    first, last = Rank(), Rank()
    for _ in range(2):
        first.call("Functional.linear")
        first.send(1)
    for micro in range(3):
        last.receive(0)
        forward = last.call("Functional.linear")
        last.backward(forward)
        last.send(0)
        first.receive(1)
        first.backward(f"Functional.linear.{micro}.forward")
        if micro == 0:
            first.call("Functional.linear")
            first.send(1)
    ranks = {0: first, 1: last}
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    forward, backward = (lambda n: f"Functional.linear.{n}.forward"), (lambda n: f"Functional.linear.{n}.backward")
    for n in range(3):
        assert order.precedes((0, forward(n)), (1, forward(n)))
        assert order.precedes((1, forward(n)), (1, backward(n)))
        assert order.precedes((1, backward(n)), (0, backward(n)))
    # What the first does ahead does not bear on what the second does meanwhile, though it may be long done.
    assert not order.precedes((0, forward(1)), (1, backward(0)))
    assert order.earliest([(0, backward(0)), (0, backward(1)), (1, backward(1)), (1, backward(0))]) == [
        (1, backward(0))
    ]
    assert order.earliest([(0, forward(1)), (1, backward(0))]) == [(0, forward(1)), (1, backward(0))]
    assert order.notes == []


def test_batches_of_sends_and_receives_go_both_ways(tmp_path):
    def work(number, rank):
        rank.call("Torch.log")
        rank.batch(("isend", (number + 1) % 4), ("irecv", (number - 1) % 4))
        rank.call("Torch.exp")

    ranks = make_ranks(4, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    for number in range(4):
        assert order.precedes((number, "Torch.log.0.forward"), ((number + 1) % 4, "Torch.exp.0.forward"))
        assert not order.precedes((number, "Torch.log.0.forward"), ((number + 2) % 4, "Torch.exp.0.forward"))
    assert order.notes == []


def test_asynchronous_calls_deliver_when_they_are_waited_for(tmp_path):
    def work(number, rank):
        rank.call("Torch.log")
        rank.data_before = rank.call("Torch.meanwhile")
        rank.collective("all_reduce", async_op=value(True))
        rank.call("Torch.exp")

    ranks = make_ranks(2, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    assert order.precedes((0, "Torch.log.0.forward"), (1, "Torch.exp.0.forward"))
    assert not order.precedes((0, "Torch.log.0.forward"), (1, "Torch.meanwhile.0.forward"))


def test_a_send_that_is_waited_for_late_was_begun_before_its_answer_came(tmp_path):
    ranks = {0: Rank(), 1: Rank()}
    ranks[0].call("Torch.log")
    ranks[0].receive(1)
    ranks[0].call("Torch.exp")
    ranks[0].send(1, name="isend")  # stands where it was waited for
    ranks[1].receive(0)
    ranks[1].call("Torch.mul")
    ranks[1].send(0)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    assert order.precedes((0, "Torch.log.0.forward"), (1, "Torch.mul.0.forward"))
    assert order.precedes((1, "Torch.mul.0.forward"), (0, "Torch.exp.0.forward"))
    assert not order.precedes((0, "Torch.exp.0.forward"), (1, "Torch.mul.0.forward"))
    assert order.notes == []


def test_calls_that_are_waited_for_in_another_order_meet_by_their_numbers(tmp_path):
    ranks = {0: Rank(), 1: Rank()}
    names = [ranks[0].send(1, name="isend") for _ in range(2)]
    ranks[0].data = {name: ranks[0].data[name] for name in reversed(names)}
    for _ in range(2):
        ranks[1].receive(0)
        ranks[1].call("Torch.exp")
    order = ordered(tmp_path, ranks)
    assert order.precedes((0, "Distributed.isend.0.forward"), (1, "Torch.exp.0.forward"))
    assert not order.precedes((0, "Distributed.isend.1.forward"), (1, "Torch.exp.0.forward"))


def test_gradients_go_back_the_way_the_data_came(tmp_path):
    def work(number, rank):
        forward = rank.collective("broadcast", src=value(0))
        rank.call("Torch.log")
        rank.backward("Torch.log.0.forward")
        rank.backward(forward)
        rank.call("Torch.exp")

    ranks = make_ranks(2, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    assert order.precedes((1, "Torch.log.0.backward"), (0, "Torch.exp.0.forward"))
    assert not order.precedes((0, "Torch.log.0.backward"), (1, "Torch.exp.0.forward"))


def test_ranks_without_a_dump_and_calls_without_counterpart_are_said(tmp_path):
    def work(number, rank):
        rank.call("Torch.log")
        rank.collective("all_reduce", group(0, 1, 2, 3))
        rank.call("Torch.exp")
        if number == 0:
            rank.collective("all_gather", group(0, 1))
            rank.send(1)
            rank.call("Torch.far")

    ranks = make_ranks(2, work)
    order = check_consistent(ordered(tmp_path, ranks), ranks)
    assert order.precedes((0, "Torch.log.0.forward"), (1, "Torch.exp.0.forward"))
    missing, unmatched = order.notes
    assert missing == Finding(OrderCode.ABSENT_RANKS, fields={"ranks": [2, 3]})
    calls = {"call": "all_gather", "ranks": [0, 1], "few": 1, "fewest": 0, "many": 0, "most": 1}
    messages = {"source": 0, "sent": 1, "destination": 1, "received": 0}
    channels = [Finding(OrderCode.COLLECTIVES, fields=calls), Finding(OrderCode.MESSAGES, fields=messages)]
    assert unmatched == Finding(OrderCode.UNMATCHED, fields={"channels": channels})


def test_circles_are_cut(tmp_path):
    ranks = {0: Rank(), 1: Rank()}
    for number, rank in ranks.items():
        rank.receive(1 - number)
        rank.call("Torch.exp")
        rank.send(1 - number)
    order = ordered(tmp_path, ranks)
    assert order.notes == [Finding(OrderCode.CIRCLE, fields={"count": 1})]
    assert order.depth(0, "Torch.exp.0.forward") > 0


def test_calls_of_other_groups_and_unknown_peers_are_passed_over(tmp_path):
    def work(number, rank):
        rank.collective("all_reduce", group(5, 6))  # not a member
        rank.call("Distributed.recv", tensor())  # from any rank
        rank.call("Torch.exp")

    ranks = make_ranks(2, work)
    order = ordered(tmp_path, ranks)
    assert not order.precedes((0, "Distributed.all_reduce.0.forward"), (1, "Torch.exp.0.forward"))
    first = {"first": "Distributed.recv.0.forward", "rank": 0}
    assert Finding(OrderCode.UNKNOWN_PEER, fields={"count": 2, **first}) in order.notes


def test_what_is_not_there_is_an_error_in_a_sentence(tmp_path):
    order = ordered(tmp_path, make_ranks(1, lambda _, rank: rank.call("Torch.exp")))
    with pytest.raises(DumpError, match="no dump of rank 3"):
        order.depth(3, "Torch.exp.0.forward")
    with pytest.raises(DumpError, match=r"rank 0 has no entry 'Torch\.log"):
        order.precedes((0, "Torch.exp.0.forward"), (0, "Torch.log.0.forward"))


def test_dumps_of_mindstudio_probe_are_ordered():
    from pathlib import Path

    directory = Path(__file__).parents[1] / "data" / "mindstudio_probe" / "26.2.0_two_ranks" / "step0"
    order = order_of({number: read_dump(directory / f"rank{number}") for number in range(2)})
    assert order.precedes((1, "Torch.relu.0.forward"), (0, "Tensor.pow.0.forward"))
    assert not order.precedes((1, "Torch.relu.0.forward"), (0, "Torch.relu.0.forward"))
    assert order.notes == []


def test_time_grows_with_the_number_of_calls_and_not_with_its_square(tmp_path):
    from msprobe_core.order.causality import Order
    from msprobe_core.order.communication_calls import calls_of

    @cache
    def calls(size):
        def work(number, rank):
            for _ in range(size):
                rank.call("Torch.log")
                rank.collective("all_reduce", group(0, 1))

        place = tmp_path / str(size)
        write_ranks(place, make_ranks(2, work))
        return [calls_of(read_dump(place / f"rank{number}"), number) for number in range(2)]

    def put_in_order(size):
        order = Order([0, 1], calls(size))
        assert order.depth(0, f"Distributed.all_reduce.{size - 1}.forward") == 3 * size

    calls(2000)
    assert grows_linearly(put_in_order, 250)
