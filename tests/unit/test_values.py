"""Arguments of all kinds become trees; objects that misbehave when they are looked at do not reach the training."""

import dataclasses
import enum
import zlib
from collections import OrderedDict, UserDict
from typing import NamedTuple

import numpy as np
import pytest
from numpy_layers import Array, ArrayFramework

from msprobe_core.capture.values import ValueBuilder
from msprobe_core.model import MAX_DEPTH, Argument, Failure


@dataclasses.dataclass
class Batch:
    tokens: object
    weight: object = 1.0


class Pair(NamedTuple):
    left: object
    right: object


class Mode(enum.IntEnum):
    FAST = 3


class Colour(enum.Enum):
    RED = "red"


TENSOR_LIKE = object()


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
        (Batch, Argument("type", f"{Batch.__module__}.Batch")),
        (int, Argument("type", "int")),
        (1 - 2j, Argument("complex", "(1.0-2.0j)")),
        (-1 - 0.5j, Argument("complex", "(-1.0-0.5j)")),
        (b"ab", Argument("bytes", "b'ab'")),
        (bytearray(b"ab"), Argument("bytearray", "b'ab'")),
        (range(1, 7, 2), Argument("range", "range(1, 7, 2)")),
        (Colour.RED, Argument("enum", "Colour.RED")),
        ({2, 1}, Argument("set", "{1, 2}")),
        ({TENSOR_LIKE}, None),
        (np.dtype("f4"), Argument("numpy.dtype", "float32")),
        (np.complex64(2), Argument("complex64", "(2+0j)")),
        (np.longdouble(1.5), Argument(str(np.dtype(np.longdouble)), 1.5)),
        ([[[]]], [[[]]]),
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


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(np.zeros((0, 3)), "float64"), (np.array(["a"]), "<U1"), (np.array([None]), "object")],
    ids=["empty", "text", "object"],
)
def test_an_array_without_statistics_is_described_all_the_same(array, dtype, build, failures):
    fields = {"dtype": dtype, "shape": list(array.shape), **dict.fromkeys(("Max", "Min", "Mean", "Norm"))}
    assert build({"k": [array]}) == {"k": [Argument("numpy.ndarray", None, fields)]}
    assert failures == []


def test_a_complex_array_has_the_statistics_of_its_magnitudes(build):
    fields = {"dtype": "complex64", "shape": [2], "Max": 5.0, "Min": 0.0, "Mean": 2.5, "Norm": 5.0}
    assert build(np.array([3 + 4j, 0], np.complex64)) == Argument("numpy.ndarray", None, fields)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (list(range(2000)), {"dtype": "int64", "shape": [2000], "Max": 1999, "Min": 0, "Mean": 999.5}),
        ([[0.5, -1.0]] * 1000, {"dtype": "float64", "shape": [1000, 2], "Max": 0.5, "Min": -1.0, "Mean": -0.25}),
        ([[1.0] * 2000, [3.0] * 1000], {"dtype": "float64", "shape": [3000], "Max": 3.0, "Min": 1.0}),
        (("a",) * 2000, {"dtype": "str", "shape": [2000], "Max": None}),
        ([1, None] * 1000, {"dtype": "NoneType | int", "shape": [2000], "Max": None}),
        ([2**70] * 2000, {"dtype": "int", "shape": [2000], "Max": None}),
    ],
    ids=["flat", "nested", "ragged", "texts", "mixed", "large integers"],
)
def test_of_a_long_list_statistics_are_recorded(value, expected, build):
    argument = build({"k": value})["k"]
    assert argument.type == type(value).__name__
    assert {name: argument.fields[name] for name in expected} == expected


def test_a_long_list_of_tensors_is_recorded_one_by_one(build, seen):
    build([TENSOR] * 2000)
    assert len(seen) == 2000


def test_a_list_that_holds_itself_comes_to_an_end(build):
    value = []
    value.append(value)
    assert build(value) == [None]


def test_long_texts_are_cut(build):
    text, content = build("x" * 5000).value, build(b"y" * 5000).value
    assert text.startswith("x" * 4096 + "… (5000 characters, CRC-32 ")
    assert content.endswith(f" (5000 bytes, CRC-32 {zlib.crc32(b'y' * 5000):08x})")


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


def test_a_container_in_two_places_is_recorded_twice(build):
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
