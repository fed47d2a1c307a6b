"""Integer results that name places: of equal elements, any may be named, and each once."""

import numpy as np
import pytest

from msprobe_core import names
from msprobe_core.model import Argument, ReplayTensor
from msprobe_core.replay.choices import chosen_from, name_the_same
from msprobe_core.replay.recorded import RecordedCall

SOURCE = np.array([3, 1, 3, 0, 1])
PLACES = ReplayTensor(values=np.array([3, 1, 4, 0, 2]), dtype="int64")


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
        outputs=dict.fromkeys(["0"] if "arg" in entry else ["0.0", "0.1"], PLACES),
    )
    assert list(chosen_from(call)) == (["0" if "arg" in entry else "0.1"] if chooses else [])


def test_a_call_without_a_tensor_chooses_of_none():
    call = RecordedCall(entry="x", site=names.parse_entry("Torch.argmax.0.forward"), outputs={"0": PLACES})
    assert chosen_from(call) == {}


@pytest.mark.parametrize(("function", "outputs"), [("sort", ["0.0"]), ("max", ["0"]), ("cumsum", ["0.1"])])
def test_elements_that_are_integers_are_no_places(function, outputs):
    source = ReplayTensor(values=SOURCE, dtype="int64")
    site = names.parse_entry(f"Torch.{function}.0.forward")
    call = RecordedCall(entry="x", site=site, args=[source], outputs=dict.fromkeys(outputs, source))
    assert chosen_from(call) == {}
