"""The parts of tables that several formats share: call stacks, and colours by verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from msprobe_core.compare.result import UnitResult
from msprobe_core.judge.columns import Match
from msprobe_core.judge.verdict import Verdict
from msprobe_core.protocols.presentation import Colours
from msprobe_core.store.stored_rows import Rows, StoredRows, frame_of

STACK_COLUMN = "stack_info"

BY_VERDICT = Colours(
    "verdict",
    {
        Verdict.ERROR.value: "FFC7CE",
        Verdict.WARNING.value: "FFEB9C",
        Verdict.UNMATCHED.value: "D9D9D9",
    },
)


def with_stacks(result: UnitResult, rows: Rows, text_of: Callable[[Sequence[str]], str]) -> Rows:
    """Return rows with a column ``stack_info``: the target's stack on the first row of each entry, else null.

    Args:
        result: Provides the stacks.
        rows: Its rows, with ``entry`` and ``match``.
        text_of: Formats a stack as text.
    """
    texts = _texts_of(result.stacks, text_of)
    # Many calls share one stack of several kilobytes: an enum stores each text once.
    kind = pl.Enum(list(dict.fromkeys(texts.values())))

    def found(part: pl.DataFrame) -> pl.DataFrame:
        is_first = (pl.int_range(pl.len()).over("entry") == 0) & (pl.col("match") != Match.GOLDEN.value)
        entries = part.select(pl.when(is_first).then(pl.col("entry")))["entry"].to_list()
        stacks = [None if entry is None else texts.get(entry) for entry in entries]
        return pl.DataFrame({STACK_COLUMN: pl.Series(stacks, dtype=kind)})

    if isinstance(rows, StoredRows) and rows.has_whole_entries:
        return rows.with_each(found, ["entry", "match"])
    return rows.hstack(found(frame_of(rows, ["entry", "match"])))


def _texts_of(stacks: Mapping[str, Sequence[str]], text_of: Callable[[Sequence[str]], str]) -> dict[str, str]:
    """Return the text of each entry's stack, formatted once for entries that share one."""
    texts: dict[int, str] = {}
    for frames in stacks.values():
        if id(frames) not in texts:
            texts[id(frames)] = text_of(frames)
    return {entry: texts[id(frames)] for entry, frames in stacks.items()}
