"""Whether a dump holds all of its step: the end mark, and its description in words.

A writer puts the mark after everything else, after each window and at the end of the step, and removes it before it
writes more. So a process that is killed at any time leaves a complete dump, or one without a mark. Dumps of other tools
and of earlier versions have neither a recorder in their header nor a mark; their ending is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.findings import Finding, Level
from msprobe_core.model import Ending, EndState, RunHeader, Task
from msprobe_core.protocols.storage import Dump, MarkedDump
from msprobe_core.store import layout
from msprobe_core.store.ending_codes import EndingCode
from msprobe_core.store.reading_codes import DamageCode


class ExplainedEnding(Ending, frozen=True, kw_only=True):
    """An ending whose ``reason`` is the text of a finding. Files have the text only."""

    why: Finding


def explained(ending: Ending, num_calls: int, why: Finding) -> ExplainedEnding:
    """Return an ending with a number of calls, and a finding as its reason."""
    return ExplainedEnding(
        state=ending.state, num_calls=num_calls, num_windows=ending.num_windows, reason=why.text, ended=ending.ended,
        why=why,
    )  # fmt: skip


def says_anything(ending: Ending) -> bool:
    """Whether there is a mark to store: a recording that is cut off cannot store one."""
    return ending.state is not EndState.UNKNOWN and (ending.state is not EndState.EARLY or bool(ending.reason))


def ending_in(header: RunHeader, mark: Any, num_calls: int, damage: Sequence[Finding] = ()) -> Ending:
    """Return how a recording ended, from its file's mark and what could be read.

    Args:
        header: Header of the file.
        mark: The file's mark, decoded; ``None`` if it has none.
        num_calls: Number of calls that could be read.
        damage: Damage of the file.
    """
    said = _said(mark)
    if header.task == Task.STRUCTURE.value and said is not None:
        num_calls = said.num_calls
    if said is None and header.run is not None:
        return Ending(state=EndState.EARLY, num_calls=num_calls)
    if said is not None and said.num_calls > num_calls:
        fields = {"count": said.num_calls - num_calls, "total": said.num_calls}
        damage = [Finding(DamageCode.CALLS_LOST, fields=fields)]
    if damage:
        return explained(Ending(state=EndState.DAMAGED), num_calls, damage[0])
    return msgspec.structs.replace(said or Ending(), num_calls=num_calls)


def _said(mark: Any) -> Ending | None:
    try:
        said = msgspec.convert(mark, Ending)
    except msgspec.ValidationError:
        return None
    return None if said.state is EndState.UNKNOWN or said.num_calls < 0 else said


def ending_of(dump: Dump) -> Ending:
    """Return how the recording of a dump ended, as far as its reader knows."""
    return dump.ending if isinstance(dump, MarkedDump) else Ending()


def ending_of_all(dumps: Sequence[Dump]) -> Ending:
    """Return the ending of several dumps together: that of the least complete one; all calls are counted."""
    endings = [ending_of(dump) for dump in dumps]
    worst = min(endings, key=lambda ending: _SEVERITY.index(ending.state), default=Ending())
    broken = [sentence(dump.path, own) for dump, own in zip(dumps, endings, strict=True) if not own.is_whole]
    num_calls = sum(ending.num_calls for ending in endings)
    if broken:
        return explained(worst, num_calls, Finding(DamageCode.PARTS, fields={"parts": broken}))
    return msgspec.structs.replace(worst, num_calls=num_calls)


_SEVERITY = (EndState.DAMAGED, EndState.EARLY, EndState.STOPPED, EndState.UNKNOWN, EndState.COMPLETE)


_CODES = {
    EndState.EARLY: (EndingCode.EARLY, EndingCode.EARLY_BECAUSE),
    EndState.STOPPED: (EndingCode.BETWEEN_WINDOWS, EndingCode.BETWEEN_WINDOWS_BECAUSE),
    EndState.DAMAGED: (EndingCode.DAMAGED, EndingCode.DAMAGED_BECAUSE),
}
"""Without a reason, and with one."""


def sentence(path: Path, ending: Ending) -> Finding:
    """Describe a recording that may lack calls at its end.

    Args:
        path: Path of the dump.
        ending: Neither ``COMPLETE`` nor ``UNKNOWN``.
    """
    alone, because = _CODES[ending.state]
    why = ending.why if isinstance(ending, ExplainedEnding) else ending.reason
    fields = {"place": layout.place_of(path), "calls": ending.num_calls, "why": why}
    return Finding(because if ending.reason else alone, Level.WARNING, fields)


def sentence_of_empty(directory: Path) -> str | None:
    """Describe a rank's directory without files; ``None`` if it has one, or is not a rank's directory.

    A process that is killed right after it has created its directory leaves an empty one.
    """
    if not (layout.is_unit(directory.name) and directory.is_dir()) or any(directory.iterdir()):
        return None
    return f"{layout.place_of(directory)} ended early, after 0 calls: {directory} is empty"
