"""Integer results that name places: of equal elements, any may be named, and each once."""

import numpy as np
import pytest

from msprobe_core import names
from msprobe_core.model import Argument, ReplayTensor
from msprobe_core.replay.choices import chosen_from, name_the_same
from msprobe_core.replay.recorded import RecordedCall

SOURCE = np.array([3, 1, 3, 0, 1])


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([3, 4, 1, 0, 2], True),  # the ones change places
        ([3, 1, 4, 2, 0], True),
        ([3, 1, 1, 0, 2], False),  # named twice
        ([1, 3, 4, 0, 2], False),  # another element
        ([3, 1, 4, 0, 5], False),  # outside
        ([3, 1, 4, 0, -1], False),
    ],
)
def test_sorted_elements(places, expected):
    assert name_the_same(np.array(places), np.array([3, 1, 4, 0, 2]), SOURCE) == expected


def test_the_largest_along_a_dimension():
    source = np.array([[1.0, 5.0, 5.0], [7.0, 7.0, 0.0]])
    assert name_the_same(np.array([2, 0]), np.array([1, 1]), source)
    assert not name_the_same(np.array([2, 2]), np.array([1, 1]), source)
    assert name_the_same(np.array([[2], [0]]), np.array([[1], [1]]), source)  # with the dimension kept
    assert name_the_same(np.array(2), np.array(1), source)  # of the whole tensor
    assert not name_the_same(np.array(5), np.array(1), source)


def test_elements_that_are_not_numbers_are_equal():
    assert name_the_same(np.array([1, 0]), np.array([0, 1]), np.array([np.nan, np.nan]))


@pytest.mark.parametrize(
    ("entry", "kwargs", "chooses"),
    [
        ("Torch.sort.0.forward", {}, True),
        ("Tensor.topk.3.forward", {}, True),
        ("Mint.argmax.0.forward", {}, True),
        ("Torch.sort.0.forward", {"stable": Argument("bool", True)}, False),
        ("Torch.sort.0.forward", {"stable": Argument("bool", False)}, True),
        ("Torch.sort.0.backward", {}, False),
        ("Torch.cumsum.0.forward", {}, False),
    ],
)
def test_which_calls_choose(entry, kwargs, chooses):
    call = RecordedCall(
        entry=entry,
        site=names.parse_entry(entry),
        args=[ReplayTensor(values=SOURCE, dtype="int64"), Argument("int", 0)],
        kwargs=kwargs,
    )
    assert (chosen_from(call) is SOURCE) == chooses


def test_a_call_without_a_tensor_chooses_of_none():
    assert chosen_from(RecordedCall(entry="x", site=names.parse_entry("Torch.max.0.forward"))) is None
