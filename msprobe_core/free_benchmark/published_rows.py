"""``free_benchmark.csv``: the reactions that were found, in the published columns.

All ranks of a job write one file, so rows are appended whole, and the heading by the process that creates it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.config.schema import PertMode
from msprobe_core.errors import StoreError
from msprobe_core.store.atomic_file import csv_text

ROWS_FILE = "free_benchmark.csv"
COLUMNS = ("rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index")


def rows_of(found: CallVerdict, mode: PertMode, step: int, rank: int | None) -> list[tuple[object, ...]]:
    """Return one row for each output that is not right.

    ``max_rel`` is the published ratio less 1.
    """
    return [
        (
            "" if rank is None else rank, mode.value, found.phase.value, step, found.api,
            "" if output.ratio is None else output.ratio - 1.0, output.dtype, list(output.shape), output.path,
        )
        for output in found.outputs
        if output.verdict in (Verdict.WRONG, Verdict.SUSPECT)
    ]  # fmt: skip


def append_rows(path: Path, rows: Iterable[tuple[object, ...]]) -> None:
    """Append rows to the file of a run, which is created for its owner only.

    Raises:
        StoreError: it cannot be written, or is a symbolic link.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        try:
            descriptor = os.open(path, flags | os.O_EXCL, 0o600)
            content = [COLUMNS, *rows]
        except FileExistsError:
            descriptor = os.open(path, flags, 0o600)
            content = list(rows)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            file.write(csv_text(content).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror or error})") from error
