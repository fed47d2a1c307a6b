"""Texts of columns are made however the columns are stored."""

import itertools
from pathlib import Path

import polars as pl
import pytest

from msprobe_core.judge.formatting import formatted

REPOSITORY = Path(__file__).parents[2]
CHUNKED = pl.concat(
    [pl.DataFrame({"side": ["a"], "n": [1]}), pl.DataFrame({"side": ["b", "c"], "n": [2, 3]}),
     pl.DataFrame({"side": ["d"], "n": [None]}, schema_overrides={"n": pl.Int64})],
    rechunk=False,
)  # fmt: skip


@pytest.mark.parametrize("kept", list(itertools.product([False, True], repeat=4)))
def test_filtered_columns_of_several_chunks(kept):
    rows = CHUNKED.filter(pl.Series(kept))
    made = rows.select(text=formatted("{} has {}.", "side", pl.col("n")))["text"].to_list()
    assert made == [None if n is None else f"{side} has {n}." for side, n in rows.iter_rows()]


def test_columns_that_are_too_many_or_too_few():
    for columns in ((), ("side", "n")):
        with pytest.raises(ValueError, match="zip"):
            formatted("{} has", *columns)


def test_nothing_calls_what_panics():
    sources = [*(REPOSITORY / "msprobe_core").rglob("*.py"), *(REPOSITORY / "plugins").rglob("msprobe/**/*.py")]
    assert not [path for path in sources if "pl.format(" in path.read_text()]
