"""Write the result, in the form of another tool and completely."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe_core.findings import text_and_content
from msprobe_core.overflow.result import OverflowResult, StepResult
from msprobe_core.overflow.search import origins_by_rank
from msprobe_core.overflow.stored_records import records_of
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import OwnFiles, plain_result

RESULT_FILE = "overflow.json"
OVERFLOW_RESULT = OwnFiles("msprobe overflow_check", {RESULT_FILE: ("version", "verdict", "steps")})
VERSION = 1

_MAX_RANKS = 64
"""Maximum number of ranks whose records are written; many ranks usually fail alike."""


def write_result(result: OverflowResult, directory: Path) -> list[Path]:
    """Write ``anomaly_analyze_{time_ns}.json``, if anything was found, and ``overflow.json``; return their paths.

    Raises:
        StoreError: they cannot be written.
    """
    written: list[Path] = []
    if result.first is not None:
        path = directory / f"anomaly_analyze_{time.time_ns()}.json"
        write_json(path, dict(_anomalies(result.first)))
        written.append(path)
    path = directory / RESULT_FILE
    verdict = "found" if result.first is not None else "undecided" if result.incomplete else "clean"
    incomplete = text_and_content("incomplete", result.incomplete)
    write_json(path, {"version": VERSION, "verdict": verdict, **incomplete, **_plain(result)})
    return [*written, path]


def _plain(result: OverflowResult) -> dict[str, Any]:
    content: dict[str, Any] = plain_result(result, ("reason", "advice", "harm", "notes", "incomplete", "unread"))
    for step in content["steps"]:
        del step["dumps"]
    return content


def _anomalies(step: StepResult) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the first nodes of each rank, in the form of ``mindstudio-probe``."""
    for rank, origins in list(origins_by_rank(step).items())[:_MAX_RANKS]:
        records = records_of(step.dumps[rank], [origin.entry for origin in origins])
        yield (
            f"rank_{rank}",
            [
                {
                    "op_name": origin.entry,
                    "data_info": records.get(origin.entry, {}),
                    "construct_info": list(origin.parents),
                    "stack_info": list(origin.stack),
                }
                for origin in origins
            ],
        )
