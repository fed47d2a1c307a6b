"""What two dumps have in common if one of them ends early: what lies behind its end is not judged, and that is said."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.errors import CompareError
from msprobe_core.judge.columns import Match
from msprobe_core.model import Ending, EndState, Phase
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.ending import ending_of, sentence

_LATE = (Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value)


@dataclass(frozen=True)
class Ends:
    """How the recordings of a pair ended.

    Attributes:
        target: Of the target dump.
        golden: Of the golden dump.
        lines: In words, which of them ended early or is damaged; empty if both are whole.
    """

    target: Ending
    golden: Ending
    lines: Sequence[str]


def ends_of(target: Dump, golden: Dump) -> Ends:
    """Return how the recordings of a pair ended.

    One that was stopped, and whose process was killed before the step was ended, counts as whole unless the other side
    has more windows than it.
    """
    own, other = ending_of(target), ending_of(golden)
    lines = [
        f"{side}: {sentence(dump.path, ending)}"
        for side, dump, ending, partner in (("target", target, own, other), ("golden", golden, other, own))
        if _may_lack_calls(ending, partner)
    ]
    return Ends(own, other, lines)


def _may_lack_calls(ending: Ending, partner: Ending) -> bool:
    if ending.state is EndState.STOPPED:
        return partner.state is EndState.EARLY or 0 < ending.num_windows < partner.num_windows
    return not ending.is_whole


def without_missing_calls(rows: pl.DataFrame, target: Dump, golden: Dump, ends: Ends) -> tuple[pl.DataFrame, list[str]]:
    """Return aligned rows without calls that one side lacks because its recording ended early, and what was left out.

    These are the calls behind the last one that both have and, of a window that was broken off, gradients anywhere:
    what a call gets of them is written once all of it is there.

    Args:
        rows: See `msprobe_core.compare.align.Alignment`.
        target: Whose rows these are.
        golden: Likewise.
        ends: How they ended.

    Raises:
        CompareError: nothing is left.
    """
    notes: list[str] = []
    sides = (
        ("target", ends.target, ends.golden, golden, Match.GOLDEN, "entry_golden"),
        ("golden", ends.golden, ends.target, target, Match.TARGET, "entry"),
    )
    missing: set[str] = set()
    for side, ending, partner, whole, match, column in sides:
        if not _may_lack_calls(ending, partner):
            continue
        found = _missing(rows, whole, match, column, lacks_gradients=ending.state is not EndState.STOPPED)
        if found:
            notes.append(f"calls that the {side} lacks, which ended early, and that were not compared: {len(found):,}")
            missing.update(found)
    if not missing:
        return rows, notes
    left = rows.filter(~pl.col("entry").is_in(list(missing)))
    if not (left["match"] == Match.BOTH.value).any():
        raise CompareError(f"{'; '.join(ends.lines)}: the two have no call in common")
    return left, notes


def _missing(rows: pl.DataFrame, whole: Dump, match: Match, column: str, *, lacks_gradients: bool) -> Collection[str]:
    """Return the entries, as ``rows`` call them, that one side lacks because it ended early.

    Args:
        rows: Aligned.
        whole: The dump of the other side, which has them.
        match: Of a row that this side alone has.
        column: Of the entry's name in that dump.
        lacks_gradients: Whether gradients may be missing anywhere.
    """
    places = {entry: i for i, entry in enumerate(whole.frame["entry"].unique(maintain_order=True))}
    calls = rows.group_by("entry", maintain_order=True).agg(
        is_lone=(pl.col("match") == match.value).all(),
        phase=pl.col("phase").first(),
        place=pl.col(column).drop_nulls().first().replace_strict(places, default=None, return_dtype=pl.Int64),
    )
    last = calls.filter(~pl.col("is_lone"))["place"].max()
    is_behind = pl.lit(value=True) if last is None else pl.col("place") > last
    may_wait = pl.col("phase").is_in(_LATE) if lacks_gradients else pl.lit(value=False)
    return set(calls.filter("is_lone", (is_behind | may_wait).fill_null(value=False))["entry"])
