"""Arguments of all kinds become trees; objects that misbehave when they are looked at do not reach the training."""

import dataclasses
import enum
from collections import OrderedDict, UserDict
from typing import NamedTuple

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework

from msprobe_core.capture.values import MAX_DEPTH, ValueBuilder
from msprobe_core.model import Argument, Failure


@dataclasses.dataclass
class Batch:
    tokens: object
    weight: object = 1.0


class Pair(NamedTuple):
    left: object
    right: object


class Mode(enum.IntEnum):
    FAST = 3


class Name(str):
    __slots__ = ()


@pytest.fixture
def seen():
    return []


@pytest.fixture
def failures():
    return []


@pytest.fixture
def build(seen, failures):
    def note(tensor, path):
        seen.append(path)
        return Argument("tensor", path)

    def build(value, **options):
        builder = ValueBuilder(ArrayFramework(), lambda what, error: failures.append((what, str(error))), **options)
        return builder.named({"x": value}, note)["x"]

    return build


TENSOR = Array(np.ones(2))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, Argument("bool", True)),
        (7, Argument("int", 7)),
        (0.5, Argument("float", 0.5)),
        ("sum", Argument("str", "sum")),
        (Mode.FAST, Argument("int", 3)),
        (Name("n"), Argument("str", "n")),
        (slice(1, None, 2), Argument("slice", [1, None, 2])),
        (..., Argument("ellipsis", "...")),
        (np.float32(0.25), Argument("float32", 0.25)),
        (object(), None),
        (Batch, None),
        ([1, (2, None)], [Argument("int", 1), [Argument("int", 2), None]]),
        ({"a": 1, 2: "b"}, {"a": Argument("int", 1), "2": Argument("str", "b")}),
        (Pair(1, 2), {"left": Argument("int", 1), "right": Argument("int", 2)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_tensor(value, expected, build, failures):
    assert build(value) == expected
    assert failures == []


def test_a_numpy_array_is_summarised(build):
    argument = build(np.array([3.0, -4.0], dtype=np.float16))
    assert argument == Argument(
        "numpy.ndarray", None, {"dtype": "float16", "shape": [2], "Max": 3.0, "Min": -4.0, "Mean": -0.5, "Norm": 5.0}
    )


def test_tensors_are_found_in_every_container_with_their_paths(build, seen):
    value = [Batch(TENSOR), {"k": TENSOR}, Pair(TENSOR, (TENSOR,)), OrderedDict(o=TENSOR), UserDict(u=TENSOR)]
    tree = build(value)
    assert seen == ["x.0.tokens", "x.1.k", "x.2.left", "x.2.right.0", "x.3.o", "x.4.u"]
    assert tree[0] == {"tokens": Argument("tensor", "x.0.tokens"), "weight": Argument("float", 1.0)}
    assert tree[2]["right"] == [Argument("tensor", "x.2.right.0")]


def test_only_tensors(build):
    value = [1, "a", slice(1), {"k": TENSOR, "n": 3}, np.ones(2)]
    assert build(value, tensors_only=True) == [None, None, None, {"k": Argument("tensor", "x.3.k"), "n": None}, None]


def test_a_container_that_holds_itself_comes_to_an_end(build, failures):
    parent = Batch([])
    parent.tokens.extend([Batch(TENSOR, parent), Batch(TENSOR, parent)])
    tree = build(parent)
    assert [child["weight"] for child in tree["tokens"]] == [None, None]
    assert [child["tokens"].value for child in tree["tokens"]] == ["x.tokens.0.tokens", "x.tokens.1.tokens"]
    assert failures == []


def test_one_container_in_two_places_is_there_twice(build):
    shared = [TENSOR]
    assert build([shared, shared]) == [[Argument("tensor", "x.0.0")], [Argument("tensor", "x.1.0")]]


def test_depth_is_limited(build):
    value = [1]
    for _ in range(MAX_DEPTH + 10):
        value = [value]
    tree, depth = build(value), 0
    while isinstance(tree, list):
        tree, depth = tree[0], depth + 1
    assert (tree, depth) == (None, MAX_DEPTH)


class Hostile(UserDict):
    def items(self):
        raise KeyError("not now")


def test_an_object_that_raises_is_named_and_left_out(failures):
    builder = ValueBuilder(ArrayFramework(), lambda what, error: failures.append((what, type(error))))
    failure = Failure("KeyError: 'not now'")
    values = builder.positional([1, Hostile(a=1), 2], lambda t, p: None)
    assert values == [Argument("int", 1), failure, Argument("int", 2)]
    assert failures == [("argument 1, a Hostile", KeyError)]
