"""The common part of two dumps: calls after the end of one that ended early are not judged, and a note says so.

Whole tensors that cannot be read are another part that the two do not have in common.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.errors import NothingInCommonError
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.columns import Match
from msprobe_core.judge.joining import any_of, filtered, kept
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Ending, EndState, Phase
from msprobe_core.protocols.storage import Dump
from msprobe_core.store.ending import ending_of, sentence
from msprobe_core.store.stored_dump import rows_of
from msprobe_core.store.stored_rows import Rows, frame_of

_LATE = (Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value)


@dataclass(frozen=True)
class Ends:
    """How the recordings of a pair ended.

    Attributes:
        target: Ending of the target dump.
        golden: Ending of the golden dump.
        findings: The dumps that ended early or are damaged; empty if both are complete.
    """

    target: Ending
    golden: Ending
    findings: Sequence[Finding]

    @property
    def text(self) -> str:
        """All findings as one text."""
        return "; ".join(finding.text for finding in self.findings)


def ends_of(target: Dump, golden: Dump) -> Ends:
    """Return how the recordings of a pair ended.

    A recording that was stopped, and whose process was killed before the step ended, counts as complete unless the
    other side has more windows.
    """
    own, other = ending_of(target), ending_of(golden)
    sides = ((CompareCode.TARGET_ENDED, target, own, other), (CompareCode.GOLDEN_ENDED, golden, other, own))
    found = [
        Finding(code, Level.WARNING, {"ending": sentence(dump.path, ending)})
        for code, dump, ending, partner in sides
        if _may_lack_calls(ending, partner)
    ]
    return Ends(own, other, found)


def _may_lack_calls(ending: Ending, partner: Ending) -> bool:
    if ending.state is EndState.STOPPED:
        return partner.state is EndState.EARLY or 0 < ending.num_windows < partner.num_windows
    return not ending.is_whole


def without_missing_calls(rows: Rows, target: Dump, golden: Dump, ends: Ends) -> tuple[Rows, list[Finding]]:
    """Return aligned rows without calls that one side lacks because it ended early, and notes on them.

    These are the calls after the last one that both sides have and, in an interrupted window, gradients anywhere,
    because the gradients of a call are written only when all of them exist.

    Args:
        rows: Aligned rows, see `msprobe_core.compare.align.Alignment`.
        target: The target dump.
        golden: The golden dump.
        ends: How the recordings ended.

    Raises:
        CompareError: the dumps have no call in common.
    """
    notes: list[Finding] = []
    sides = (
        (CompareCode.LEFT_OUT_OF_TARGET, ends.target, ends.golden, golden, Match.GOLDEN, "entry_golden"),
        (CompareCode.LEFT_OUT_OF_GOLDEN, ends.golden, ends.target, target, Match.TARGET, "entry"),
    )
    missing: set[str] = set()
    for code, ending, partner, whole, match, column in sides:
        if not _may_lack_calls(ending, partner):
            continue
        found = _missing(rows, whole, match, column, lacks_gradients=ending.state is not EndState.STOPPED)
        if found:
            notes.append(Finding(code, Level.WARNING, {"count": len(found)}))
            missing.update(found)
    if not missing:
        return rows, notes
    left = kept(rows, ~pl.col("entry").is_in(list(missing)))
    if not any_of(left, pl.col("match") == Match.BOTH.value):
        raise NothingInCommonError(f"{ends.text}: the two have no call in common")
    return left, notes


def unread_tensors(rows: Rows) -> list[Finding]:
    """Return a note on the tensors that a side could not read, so that only statistics of them are compared.

    Args:
        rows: Judged rows of whole tensors. Those that pass although a side is unread are excused, by the user or else.
    """
    is_open = pl.col("unread").is_not_null() & (pl.col("verdict") != Verdict.PASS.value)
    unread = filtered(rows, ["name_target", "unread"], is_open)
    return [
        Finding(CompareCode.UNREAD, Level.WARNING, {"count": unread.height, "first": name, "why": why})
        for name, why in unread.head(1).select("name_target", "unread").rows()
    ]


def _missing(rows: Rows, whole: Dump, match: Match, column: str, *, lacks_gradients: bool) -> Collection[str]:
    """Return the entries, as named in ``rows``, that one side lacks because it ended early.

    Args:
        rows: Aligned rows.
        whole: The dump of the other side, which has them.
        match: Match of a row that only the other side has.
        column: Column with the entry's name in ``whole``.
        lacks_gradients: Whether gradients may be missing anywhere.
    """
    places = {entry: i for i, entry in enumerate(rows_of(whole)["entry"].unique(maintain_order=True))}
    calls = (
        frame_of(rows, dict.fromkeys(["entry", "match", "phase", column]))
        .group_by("entry", maintain_order=True)
        .agg(
            is_lone=(pl.col("match") == match.value).all(),
            phase=pl.col("phase").first(),
            place=pl.col(column).drop_nulls().first().replace_strict(places, default=None, return_dtype=pl.Int64),
        )
    )
    last = calls.filter(~pl.col("is_lone"))["place"].max()
    is_behind = pl.lit(value=True) if last is None else pl.col("place") > last
    may_wait = pl.col("phase").is_in(_LATE) if lacks_gradients else pl.lit(value=False)
    return set(calls.filter("is_lone", (is_behind | may_wait).fill_null(value=False))["entry"])
