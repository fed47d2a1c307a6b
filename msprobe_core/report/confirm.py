"""A confirmation as text for a terminal, and as ``confirm.json`` for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_core.confirm import Confirmation, Side, Verdict
from msprobe_core.console import print_lines
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import OwnFiles, plain_result

if TYPE_CHECKING:
    from rich.console import Console

CONFIRM_FILE = "confirm.json"
CONFIRM_RESULT = OwnFiles("msprobe confirm", {CONFIRM_FILE: ("version", "entry", "verdict")})
VERSION = 1

HEADLINES = {
    Verdict.TARGET: "the target is wrong",
    Verdict.GOLDEN: "the golden run is wrong",
    Verdict.BOTH: "both are wrong",
    Verdict.NEITHER: "neither is wrong: both computed right what came in",
    Verdict.ILL_CONDITIONED: "neither is wrong: the call is ill-conditioned, and amplifies rounding",
    Verdict.CANNOT_TELL: "cannot tell",
}


def write_confirmation(found: Confirmation, directory: Path) -> Path:
    """Write ``confirm.json``; return its path.

    Raises:
        StoreError: it cannot be written.
    """
    path = directory / CONFIRM_FILE
    content = {"version": VERSION, **plain_result(found, ("reason", "notes", "problem", "note", "next_command"))}
    write_json(path, content)
    return path


def print_confirmation(found: Confirmation, path: Path | None, console: Console) -> None:
    """Print which side is wrong, why, and the figures."""
    print_lines(console, confirmation_lines(found))
    if path is not None:
        print_lines(console, [f"written: {path}"])


def confirmation_lines(found: Confirmation) -> Iterator[str]:
    """Yield the lines of the printed text."""
    yield f"{found.asked}: {HEADLINES[found.verdict]}"
    if found.entry != found.asked:
        yield f"  at {found.entry}"
    yield f"  {found.reason}"
    for name, side in (("target", found.target), ("golden", found.golden)):
        if side is not None:
            yield from _side_lines(name, side)
    for name, difference in (("what came in", found.input_difference), ("what came out", found.output_difference)):
        if difference is not None:
            yield f"  target against golden, {name}: relative difference {difference:.2g}"
    if found.looked_at:
        yield f"  calls inside that were replayed, in order: {len(found.looked_at)}"
        yield from (f"    {verdict.value:<16}{entry}" for entry, verdict in found.looked_at)
    yield from (f"  note: {note}" for note in found.notes)
    if found.next_command is not None:
        yield f"  next: {found.next_command}"
    if found.next_config is not None:
        yield "  configuration that records what is missing:"
        yield from (f"    {line}" for line in found.next_config.splitlines())


def _side_lines(name: str, side: Side) -> Iterator[str]:
    if side.problem is not None:
        yield f"  {name}: not replayed: {side.problem}"
    elif side.outputs:
        yield f"  {name}, as recorded, against a float64 replay of the inputs that the {name} recorded:"
    for output in side.outputs:
        own = "" if output.own_error is None else f", a replay in {output.dtype} is off by {output.own_error:.2g}"
        yield (
            f"    output {output.path} ({output.dtype}): {output.held.value}, error {output.error:.2g}, rounding "
            f"explains {output.rounding:.2g}, rounding the inputs {output.condition:.2g}{own}"
        )
