"""Whether a dump holds all of its step: what the mark at its end says, and that in words.

A writer puts the mark behind everything else, after each window and at the end of the step, and takes it back before it
writes more. So a process that is killed at any time leaves a dump that is whole, or one without a mark. Dumps of other
tools and of earlier versions say in no header who recorded them and have no mark either; nothing is known of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.model import Ending, EndState, RunHeader, Task
from msprobe_core.protocols.storage import Dump, MarkedDump
from msprobe_core.store import layout


def says_anything(ending: Ending) -> bool:
    """Whether there is something to put into a file: a recording that just breaks off cannot say so."""
    return ending.state is not EndState.UNKNOWN and (ending.state is not EndState.EARLY or bool(ending.reason))


def ending_in(header: RunHeader, mark: Any, num_calls: int, damage: Sequence[str] = ()) -> Ending:
    """Return how a recording ended, by what its file says and what could be read of it.

    Args:
        header: Of the file.
        mark: What the file has as its mark, decoded; ``None`` if it has none.
        num_calls: How many calls could be read.
        damage: What is wrong with the file, in words.
    """
    said = _said(mark)
    if header.task == Task.STRUCTURE.value and said is not None:
        num_calls = said.num_calls
    if said is None and header.run is not None:
        return Ending(state=EndState.EARLY, num_calls=num_calls)
    if said is not None and said.num_calls > num_calls:
        reason = f"{said.num_calls - num_calls:,} of {said.num_calls:,} calls are lost"
        return Ending(state=EndState.DAMAGED, num_calls=num_calls, reason=reason)
    if damage:
        return Ending(state=EndState.DAMAGED, num_calls=num_calls, reason=damage[0])
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
    """Return what holds for several dumps together: that of the one of which most is missing; all calls count."""
    endings = [ending_of(dump) for dump in dumps]
    worst = min(endings, key=lambda ending: _SEVERITY.index(ending.state), default=Ending())
    broken = [sentence(dump.path, own) for dump, own in zip(dumps, endings, strict=True) if not own.is_whole]
    return msgspec.structs.replace(
        worst, num_calls=sum(ending.num_calls for ending in endings), reason="; ".join(broken) or worst.reason
    )


_SEVERITY = (EndState.DAMAGED, EndState.EARLY, EndState.STOPPED, EndState.UNKNOWN, EndState.COMPLETE)


def sentence(path: Path, ending: Ending) -> str:
    """Say what is known of a recording that may lack calls at its end.

    Args:
        path: Of the dump.
        ending: Not ``COMPLETE`` nor ``UNKNOWN``.
    """
    calls = f"{ending.num_calls:,} {'call' if ending.num_calls == 1 else 'calls'}"
    because = f" ({ending.reason})" if ending.reason else ""
    place = layout.place_of(path)
    if ending.state is EndState.DAMAGED:
        return f"{place} is damaged{because}: {calls} could be read"
    where = ", between two windows" if ending.state is EndState.STOPPED else ""
    return f"{place} ended early{where}, after {calls}{because}"


def sentence_of_empty(directory: Path) -> str | None:
    """Say what is known of a rank's directory without any file; ``None`` if it has one, or is no rank's directory.

    A process that is killed as soon as its directory has been made leaves one.
    """
    if not (layout.is_unit(directory.name) and directory.is_dir()) or any(directory.iterdir()):
        return None
    return f"{layout.place_of(directory)} ended early, after 0 calls: {directory} is empty"
