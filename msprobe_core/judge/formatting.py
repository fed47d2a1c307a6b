"""Texts built from columns."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from msprobe_core.findings import Code, Finding, Language, Place, as_text, template_of, worded, wording


def formatted(template: str, *columns: pl.Expr | str) -> pl.Expr:
    """Return ``template`` with a column in place of each ``{}``; null if one of the columns is null.

    Does not use `polars.format`, which panics on some filtered columns of several chunks, at least from polars 1.35 to
    2.1.

    Args:
        template: Text with as many ``{}`` as there are columns.
        columns: Names or expressions, of any type that can be cast to text.

    Raises:
        ValueError: the numbers of ``{}`` and of columns differ.
    """
    begin, *texts = template.split("{}")
    parts = [pl.lit(begin)]
    for column, text in zip(columns, texts, strict=True):
        parts += [pl.col(column) if isinstance(column, str) else column, pl.lit(text)]
    return pl.concat_str(parts)


def rendered(code: Code, fields: pl.DataFrame, height: int) -> pl.Series:
    """Return a finding's English text for each row, as `msprobe_core.findings.worded` returns it for one finding.

    Args:
        code: Code of the finding.
        fields: A column for each field of its template: text, integers or floats.
        height: Number of rows; ``fields`` may have no columns.
    """
    words = wording(code.package(), Language.ENGLISH).words
    parts = [
        _as_text(fields[part.field], part.spec, words) if isinstance(part, Place) else pl.lit(part)
        for part in template_of(code)
    ]
    if not any(isinstance(part, pl.Series) for part in parts):
        return pl.Series([worded(Finding(code))] * height, dtype=pl.String)
    return pl.select(pl.concat_str(parts)).to_series()


def _as_text(values: pl.Series, spec: str, words: Mapping[str, str]) -> pl.Series:
    if values.dtype == pl.String:
        known = pl.lit(values).fill_null(as_text(None, spec, Language.ENGLISH, words))
        return pl.select(known.replace(words) if spec == "word" else known).to_series()
    # Format each distinct number in Python, whose formats polars lacks; there are few distinct limits.
    unique = values.unique()
    texts = [as_text(value, spec, Language.ENGLISH, words) for value in unique.to_list()]
    return pl.select(pl.lit(values).replace_strict(unique, texts, return_dtype=pl.String)).to_series()
