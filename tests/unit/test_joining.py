"""Columns are added to and shared between frames, which say the same as before."""

import polars as pl
import pytest

from msprobe_core.judge.joining import joined, numbered, with_texts_of


def test_joined_rows_keep_their_order_and_number():
    rows = pl.DataFrame({"row": [2, 0, None, 2], "a": [1, 2, 3, 4]})
    found = pl.DataFrame({"b": ["zero", "two"], "row": [0, 2]})
    assert joined(rows, found, on="row").rows() == [(2, 1, "two"), (0, 2, "zero"), (None, 3, None), (2, 4, "two")]


@pytest.mark.parametrize("texts", [["a", "a", "b", "c", "c"], ["a", "b", "a", "a", "c", "b"]])
def test_equal_texts_have_one_number(texts):
    numbers = numbered(pl.Series(texts)).to_list()
    assert [numbers.index(number) for number in numbers] == [texts.index(text) for text in texts]


def test_only_columns_of_equal_texts_are_shared():
    frame = pl.DataFrame({"a": ["x", None], "b": ["y", "y"], "c": [1, 2]})
    other = pl.DataFrame({"a": ["x", None], "b": ["y", "z"], "c": [3, 4]})
    assert with_texts_of(frame, other).equals(frame)
    assert with_texts_of(frame, other.head(1)).equals(frame)
