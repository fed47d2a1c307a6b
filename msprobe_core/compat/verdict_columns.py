"""Verdicts and colours in the words of the established tool, as columns of the rows that its tables are made of."""

from __future__ import annotations

from enum import Enum

import polars as pl

from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compat import verdicts
from msprobe_core.compat.highlight import COLOUR, MAX_ROWS, add_highlights
from msprobe_core.compat.highlight import MESSAGES as COLOUR_MESSAGES


class Generation(Enum):
    """Whose words: those of mstt up to 8.x, or of ``mindstudio-probe`` 26.x."""

    A = "a"
    C = "c"


COMPAT_RESULT = "compat_result"
COMPAT_MESSAGES = "compat_messages"


def add_verdicts(result: UnitResult, generation: Generation, *, has_highlights: bool) -> pl.DataFrame:
    """Return the rows with ``compat_result`` and ``compat_messages``, and ``colour`` if they are highlighted.

    Args:
        result: Has the judged rows.
        generation: Whose words.
        has_highlights: Whether suspicious rows are coloured by the rules of 8.x, which then also have messages. They
            have none for checksums, nor for tables that are longer than `MAX_ROWS`.
    """
    judge = verdicts.compat_a if generation is Generation.A else verdicts.compat_c
    by_checksum = result.mode is Mode.CHECKSUM
    own = verdicts.with_metrics_of_tables(result.rows)
    judged = judge(own, by_checksum=by_checksum)
    seen = verdicts.rows_of_c(own) if generation is Generation.C else own
    rows = seen.with_columns(
        judged[verdicts.RESULT].alias(COMPAT_RESULT),
        judged[verdicts.MESSAGES].alias(COMPAT_MESSAGES),
    )
    if not has_highlights or by_checksum or rows.height > MAX_ROWS:
        return rows
    coloured = add_highlights(result.rows)
    return rows.with_columns(
        coloured[COLOUR],
        pl.concat_list(COMPAT_MESSAGES, pl.lit(coloured[COLOUR_MESSAGES])).alias(COMPAT_MESSAGES),
    )
