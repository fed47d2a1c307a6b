"""``twin_{unit}.jsonl``: what a follower found, one line a step."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from msprobe_core.errors import StoreError
from msprobe_core.locate.result import LocateResult, LocateVerdict

FILE_NAME = "twin_{unit}.jsonl"


class StepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one step.

    Attributes:
        step: Number of the follower's step.
        leader_step: Number of the leader's step.
        verdict: ``agree``, ``fault``, ``insufficient``.
        calls: Number of judged calls.
        seconds: What judging took.
        entry: The first call that disagrees, by its name in the follower's dump.
        leader_entry: Its name in the leader's dump, if that is another one.
        kind: Kind of fault.
        reason: Why it is suspected.
        excess: Its error divided by its limit; absent where there is no limit.
    """

    step: int
    leader_step: int
    verdict: LocateVerdict
    calls: int
    seconds: float
    entry: str | None = None
    leader_entry: str | None = None
    kind: str | None = None
    reason: str | None = None
    excess: float | None = None


def line_of(result: LocateResult, step: int, leader_step: int, seconds: float) -> StepLine:
    """Return the line for the result of one step."""
    line = StepLine(
        step=step, leader_step=leader_step, verdict=result.verdict, calls=result.num_nodes, seconds=round(seconds, 4)
    )
    if not result.suspects:
        return line
    first = result.suspects[0]
    return msgspec.structs.replace(
        line, entry=first.entry, kind=first.kind.value, reason=first.reason.text,
        leader_entry=None if first.golden_entry == first.entry else first.golden_entry,
        excess=first.excess if first.excess < float("inf") else None,
    )  # fmt: skip


def append_line(path: Path, line: StepLine) -> None:
    """Append a line to a file, which is created for its owner only; one write, so that no line is half there.

    Raises:
        StoreError: it cannot be written, or is a symbolic link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error
