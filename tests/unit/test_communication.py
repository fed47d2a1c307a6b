"""What calls of communication have in common: what is no input, how they are described, and what is waited for."""

import gc
import inspect
import itertools

import pytest

from msprobe_core.interception.communication import RECEIVES, SENDS, Describer, PendingWorks
from msprobe_core.model import Argument


class Operation:
    def __init__(self, op, tensor, peer=1, group=None, tag=0):
        self.op, self.tensor, self.peer, self.group, self.tag = op, tensor, peer, group, tag


class Work:
    """What an asynchronous call returns."""


class ClosedCalls:
    """A recorder, as far as it is asked to end calls."""

    def __init__(self):
        self.closed = []

    def close(self, call, *, keep=True):
        assert keep
        self.closed.append(call)


def all_gather(tensor_list, tensor, group=None, async_op=False): ...


def isend(tensor, dst=0, group=None): ...


@pytest.fixture
def describer():
    return Describer(Operation, "P2POp", lambda group: "world" if group is None else f"group {group}")


@pytest.mark.parametrize("num_positional", range(4))
def test_what_is_only_written_to_is_no_input_and_the_group_is_always_there(describer, num_positional):
    given = {"tensor_list": ["old"], "tensor": "sent", "group": "a"}
    args = list(given.values())[:num_positional]
    kwargs = dict(itertools.islice(given.items(), num_positional, None))
    positional, named = describer.inputs("all_gather", inspect.signature(all_gather), args, kwargs)
    expected = {"tensor_list": None, "tensor": "sent", "group": "group a"}
    assert [*positional, *named.values()] == list(expected.values())
    assert (args, kwargs) == (list(given.values())[:num_positional], dict(list(given.items())[num_positional:]))


@pytest.mark.parametrize(("args", "kwargs"), [(("x",), {}), (("x", 1, None), {}), (("x",), {"group": None})])
def test_the_group_of_all_ranks_is_named_where_none_is_given(describer, args, kwargs):
    positional, named = describer.inputs("isend", inspect.signature(isend), args, kwargs)
    assert "world" in [*positional, *named.values()]


def test_operations_are_described_with_the_tensors_of_some(describer):
    operations = [Operation(isend, "sent", group="a"), Operation("irecv", "received")]
    sent, received = describer.operations(operations, SENDS)
    assert (sent["tensor"], received["tensor"]) == ("sent", None)
    assert (sent["op"], received["op"]) == (Argument("", "isend"), Argument("", "irecv"))
    assert (sent["group"], received["group"]) == ("group a", "world")
    assert [part["tensor"] for part in describer.operations(operations, RECEIVES)] == [None, "received"]
    assert describer.operations(["no", "operations"], SENDS) == ["no", "operations"]


def test_a_call_ends_when_everything_it_returned_has_been_waited_for():
    works, recorder = PendingWorks(), ClosedCalls()
    first, second, other = Work(), Work(), Work()
    works.add([first, second], "call", "output")
    assert works.pop(other) is None
    pending = works.pop(first)
    assert not pending.note_wait()
    assert works.pop(first) is None
    assert works.pop(second) is pending
    assert pending.note_wait()
    works.give_up(recorder)
    assert recorder.closed == []
    assert not works


def test_calls_that_were_never_waited_for_end_once_and_keep_nothing_alive():
    works, recorder = PendingWorks(), ClosedCalls()
    never, kept, lost = Work(), Work(), Work()
    works.add([never], "first", "output")
    works.add([lost, kept], "second", ["large"])
    pending = works.pop(kept)
    assert pending.output == ["large"]
    del lost
    gc.collect()
    assert pending.output is None
    works.give_up(recorder)
    assert sorted(recorder.closed) == ["first", "second"]
    works.give_up(recorder)
    assert len(recorder.closed) == 2
