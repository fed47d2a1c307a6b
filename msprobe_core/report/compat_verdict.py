"""Verdicts and messages in the words of the established tool.

One place decides where they come from: `_JUDGES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import polars as pl

from msprobe_core.report.table import TableLayout

COMPAT_RESULT = "compat_result"
COMPAT_MESSAGES = "compat_messages"

Judge: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]
"""Gives ``result``, text, and ``messages``, a list of texts, for judged rows."""


def add_verdicts(rows: pl.DataFrame, layout: TableLayout) -> pl.DataFrame:
    """Return ``rows`` with ``compat_result`` and ``compat_messages``.

    Args:
        rows: Judged rows.
        layout: Whose words.
    """
    judged = _JUDGES[layout](rows)
    return rows.with_columns(
        judged["result"].alias(COMPAT_RESULT),
        judged["messages"].alias(COMPAT_MESSAGES),
    )


def _in_our_words(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(result="verdict", messages="messages")


_JUDGES: dict[TableLayout, Judge] = {TableLayout.A: _in_our_words, TableLayout.C: _in_our_words}
