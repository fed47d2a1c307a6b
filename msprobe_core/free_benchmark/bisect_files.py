"""``bisect.json`` and ``bisect.csv``: what a bisection has found, for programs and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.findings import read_finding
from msprobe_core.free_benchmark.bisect import BisectResult, BisectVerdict, PartOfModules
from msprobe_core.model import ReferenceFormat
from msprobe_core.store.atomic_file import write_csv, write_json
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import OwnFiles, plain_result, read_result

BISECT_FILE = "bisect.json"
BISECT_TABLE = "bisect.csv"
VERSION = 1
COLUMNS = ("rank", "modules", "count", "share", "times_noise", "change", "loss", "inferred", "joint")

_COMMAND = "msprobe free_benchmark bisect"
BISECT_RESULT = OwnFiles(
    _COMMAND, {BISECT_FILE: ("version", "target", "verdict", "parts"), BISECT_TABLE: ",".join(COLUMNS).encode()}
)
_MAX_BYTES = 1 << 28


def write_bisect(found: BisectResult, directory: Path) -> list[Path]:
    """Write both files; return their paths.

    Raises:
        StoreError: one cannot be written; no part of it is left.
    """
    make_directory(directory)
    path, table = directory / BISECT_FILE, directory / BISECT_TABLE
    write_json(path, {"version": VERSION, **plain_result(found, ("headline", "notes"))})
    write_csv(table, [COLUMNS, *_rows(found.parts)])
    return [path, table]


def _rows(parts: Sequence[PartOfModules]) -> list[tuple[object, ...]]:
    return [
        (
            rank,
            part.label,
            len(part.modules),
            part.share,
            part.times,
            part.change,
            part.loss,
            part.is_inferred,
            part.is_joint,
        )
        for rank, part in enumerate(parts, 1)
    ]


class _File(msgspec.Struct):
    version: int
    target: str
    reference: ReferenceFormat
    verdict: BisectVerdict
    headline: str
    num_modules: int
    value: float
    raised_value: float
    difference: float
    repeat_difference: float
    noise: float
    num_pairs: int
    num_steps: int
    seconds: float
    parts: tuple[PartOfModules, ...]
    loss: float | None = None
    raised_loss: float | None = None
    measured: tuple[PartOfModules, ...] = ()
    headline_finding: dict[str, Any] | None = None
    notes: list[str] = []
    notes_finding: list[dict[str, Any]] = []


def read_bisect(path: Path) -> BisectResult:
    """Read a ``bisect.json``, which anyone may have written.

    Raises:
        CompareError: it cannot be read, is damaged, or of a later version.
    """
    found = read_result(path, _File, _COMMAND, VERSION, max_bytes=_MAX_BYTES, has_texts=True)
    known = {name: getattr(found, name) for name in BisectResult.__struct_fields__}
    contents = [*found.notes_finding, *([None] * len(found.notes))]
    known["headline"] = read_finding(found.headline, found.headline_finding)
    known["notes"] = tuple(map(read_finding, found.notes, contents))
    return BisectResult(**known)
