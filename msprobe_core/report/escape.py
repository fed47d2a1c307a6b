"""Make texts of dumps safe to show, above all in a spreadsheet: they execute nothing and do not break the file.

Names and arguments in a dump are arbitrary text from a program, and the dump may come from an untrusted source.
"""

from __future__ import annotations

import re

import polars as pl

MAX_CELL_UNITS = 32_767
"""Maximum length of text in a cell of a spreadsheet, in UTF-16 code units. When a csv file with longer text is opened,
the rest goes to other cells, where it may begin a formula. Source: Microsoft, *Excel specifications and limits*."""

_NO_CHARACTER = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"
"""Characters that the format of spreadsheets, XML 1.0, cannot hold (section 2.2), and that terminals may interpret."""

_FORMULA_SIGNS = re.escape("=+-@") + "".join(map(chr, (0xFF1D, 0xFF0B, 0xFF0D, 0xFF20, 0xFE66, 0xFE62, 0xFE63, 0xFE6B)))
"""Beginnings of formulas, including full-width and small signs in spreadsheets set to East Asian languages."""

_WOULD_RUN = rf"^[\s\p{{Cf}}]*[{_FORMULA_SIGNS}]|^[\t\r\n]"
"""Source: OWASP, *CSV Injection*; also blanks and invisible characters before the sign, which importers may strip."""

_SIGNED_NUMBER = r"^[+-](\d+(\.\d*)?([eE][+-]?\d+)?%?|inf)$"

_RISKY = f"{_NO_CHARACTER}|{_WOULD_RUN}"


def guarded(cells: pl.DataFrame) -> pl.DataFrame:
    """Return ``cells`` with safe texts; columns of other types are unchanged.

    A text that a spreadsheet would execute gets an apostrophe in front, unless it is a signed number. Characters that a
    file cannot hold become U+FFFD. A text that is too long for a cell is cut, and ends in an ellipsis.
    """
    risky = [name for name, kind in cells.schema.items() if kind == pl.String and _is_risky(cells[name])]
    quoted = cells.with_columns(_quoted(name) for name in risky)
    return quoted.with_columns(_shortened(quoted[name]) for name in risky if _is_long(quoted[name]).any())


def _is_risky(texts: pl.Series) -> bool:
    # Test first, because texts hardly ever need a change.
    return bool((texts.str.contains(_RISKY) | _is_long(texts)).any())


def _is_long(texts: pl.Series) -> pl.Series:
    return texts.str.len_bytes() > MAX_CELL_UNITS


def _quoted(name: str) -> pl.Expr:
    text = pl.col(name).str.replace_all(_NO_CHARACTER, "\ufffd")
    would_run = text.str.contains(_WOULD_RUN) & ~text.str.contains(_SIGNED_NUMBER)
    return pl.when(would_run).then("'" + text).otherwise(text).alias(name)


def _shortened(texts: pl.Series) -> pl.Series:
    return pl.Series(texts.name, [None if text is None else _cut(text) for text in texts], dtype=pl.String)


def _cut(text: str) -> str:
    if len(text) <= MAX_CELL_UNITS // 2:
        return text
    units = text.encode("utf-16-le")
    if len(units) <= 2 * MAX_CELL_UNITS:
        return text
    return units[: 2 * (MAX_CELL_UNITS - 1)].decode("utf-16-le", "ignore") + "…"
