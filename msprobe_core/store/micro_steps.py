"""The micro-steps of recorded calls, which their records have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msprobe_core.errors import MsprobeError
from msprobe_core.store import layout
from msprobe_core.store.json_reader import micro_steps_in


def micro_steps_of(dump: Path) -> Mapping[str, int] | None:
    """Return the micro-step of each call of a dump; ``None`` if it is of another tool, or cannot be read.

    Args:
        dump: A file, or a rank's directory.
    """
    arrow, json = (dump / layout.ARROW_DUMP_FILE, dump / layout.DUMP_FILE) if dump.is_dir() else (dump, dump)
    try:
        if arrow.is_file() and arrow.suffix == ".arrow":
            from msprobe_core.store import arrow_reader  # imports polars

            return arrow_reader.micro_steps_in(arrow)
        return micro_steps_in(json) if json.is_file() and json.suffix == ".json" else None
    except MsprobeError:
        return None
