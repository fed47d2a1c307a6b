"""Texts that are made of columns."""

from __future__ import annotations

import polars as pl


def formatted(template: str, *columns: pl.Expr | str) -> pl.Expr:
    """Return ``template`` with a column in place of each ``{}``; null where one of the columns is null.

    Not `polars.format`, which panics on some filtered columns of several chunks, from polars 1.35 up to 2.1 at least.

    Args:
        template: Text with as many ``{}`` as there are columns.
        columns: Names or expressions, of any type that can be cast to text.

    Raises:
        ValueError: there are more or fewer ``{}`` than columns.
    """
    begin, *texts = template.split("{}")
    parts = [pl.lit(begin)]
    for column, text in zip(columns, texts, strict=True):
        parts += [pl.col(column) if isinstance(column, str) else column, pl.lit(text)]
    return pl.concat_str(parts)
