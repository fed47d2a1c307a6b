"""The parts of tables that several formats share: call stacks, and colours by verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from msprobe_core.compare.result import UnitResult
from msprobe_core.judge.columns import Match
from msprobe_core.judge.verdict import Verdict
from msprobe_core.protocols.presentation import Colours

STACK_COLUMN = "stack_info"

BY_VERDICT = Colours(
    "verdict",
    {
        Verdict.ERROR.value: "FFC7CE",
        Verdict.WARNING.value: "FFEB9C",
        Verdict.UNMATCHED.value: "D9D9D9",
    },
)


def with_stacks(result: UnitResult, text_of: Callable[[Sequence[str]], str]) -> pl.DataFrame:
    """Return the rows with a column ``stack_info``: the target's stack on the first row of each entry, else null.

    Args:
        result: Provides the rows and the stacks.
        text_of: Formats a stack as text.
    """
    is_first = (pl.int_range(pl.len()).over("entry") == 0) & (pl.col("match") != Match.GOLDEN.value)
    texts = _texts_of(result.stacks, text_of)
    entries = result.rows.select(pl.when(is_first).then(pl.col("entry")))["entry"].to_list()
    found = [None if entry is None else texts.get(entry) for entry in entries]
    # Many calls share one stack of several kilobytes: an enum stores each text once.
    kind = pl.Enum(list(dict.fromkeys(text for text in found if text is not None)))
    return result.rows.with_columns(pl.Series(STACK_COLUMN, found, dtype=kind))


def _texts_of(stacks: Mapping[str, Sequence[str]], text_of: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """Return the text of each entry's stack, formatted once for entries that share one."""
    texts: dict[int, str] = {}
    for frames in stacks.values():
        if id(frames) not in texts:
            texts[id(frames)] = text_of(frames)
    return {entry: texts[id(frames)] for entry, frames in stacks.items()}
