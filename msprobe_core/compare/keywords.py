"""Pairing of an argument that one side passes by position and the other by keyword, within one framework.

A dump has positions and keywords, but no signatures. Among the unmatched arguments of a call, those passed by position
on one side are paired with those passed by keyword on the other: in order, each with the next one of its kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from msprobe_core import names
from msprobe_core.compare.canonical_names import ONLY_TARGET
from msprobe_core.judge.joining import filtered_parts, hashed, with_added
from msprobe_core.model import Phase, Role
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import Rows, roots_of


class _Argument(NamedTuple):
    key: str
    place: str
    kind: str

    @property
    def is_positional(self) -> bool:
        return self.place.isdigit()


def with_keywords_paired(target: Rows, golden: Rows) -> Rows:
    """Return the golden rows, with the target's ``key`` for arguments that are passed differently.

    Args:
        target: Rows with ``entry`` and ``key``.
        golden: Rows with ``unit``, the target's name of their entry, and ``key``.
    """
    hashes, golden_hashes = hashed(target, "key"), hashed(golden, "key")
    if hashes.equals(golden_hashes):
        return golden
    own = _lone(target, golden_hashes, "entry")
    other = _lone(golden, hashes, "unit")
    renamed = dict(pair for entry in own.keys() & other.keys() for pair in _pairs(own[entry], other[entry]))
    if not renamed:
        return golden
    argument = pl.col("key").str.extract(names.ARGUMENT)
    replaced = argument.replace_strict(renamed, default=None, return_dtype=pl.String)
    rest = pl.col("key").str.slice(argument.str.len_chars())
    is_argument = (pl.col("role") == Role.INPUT.value) & replaced.is_not_null()
    key = pl.when(is_argument).then(pl.concat_str(replaced, rest)).otherwise("key")
    return with_added(golden, lambda part: part.select(key=key), roots_of(key))


def _lone(rows: Rows, others: pl.Series, entry: str) -> Mapping[str, Sequence[_Argument]]:
    """Return the unmatched arguments of each call, in order.

    Args:
        rows: Rows of one side.
        others: Hashes of the other side's keys.
        entry: Column with the name of the call.
    """
    is_argument = (pl.col("role") == Role.INPUT.value) & (pl.col("phase") == Phase.FORWARD.value)
    kind = pl.when(pl.col("kind") == RowKind.SCALAR.value).then("type").otherwise(pl.col("kind").cast(pl.String))
    known = others.unique().alias("hash").to_frame()
    listed = pl.concat(
        part.with_columns(hash=pl.col("key").hash()).join(known, on="hash", how="anti", maintain_order="left")
        for part in filtered_parts(rows, ["key", entry, "kind", "type"], is_argument)
    )
    lone = (
        listed.with_columns(argument=pl.col("key").str.extract(names.ARGUMENT), kind=kind)
        .drop_nulls("argument")
        .filter(~pl.col("argument").str.contains(ONLY_TARGET, literal=True))
        .group_by("argument", maintain_order=True)
        .agg(pl.col(entry).first().alias("call"), pl.col("kind").fill_null("").str.join(" "))
    )
    found: dict[str, list[_Argument]] = defaultdict(list)
    for key, call, text in lone.rows():
        found[call].append(_Argument(key, key.rpartition(".")[2], text))
    return found


def _pairs(own: Sequence[_Argument], others: Sequence[_Argument]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a golden argument and the target's."""
    left = list(others)
    for argument in own:
        fits = (o for o in left if o.kind == argument.kind and o.is_positional != argument.is_positional)
        if (found := next(fits, None)) is not None:
            left.remove(found)
            yield found.key, argument.key
