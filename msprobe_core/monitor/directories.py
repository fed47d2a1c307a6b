"""Where the results of a rank go: a new directory, or one of an earlier training that is continued."""

from __future__ import annotations

import logging
import secrets
from datetime import datetime, timedelta, timezone
from pathlib import Path

from msprobe_core.errors import DumpError
from msprobe_core.monitor.plan import MonitorPlan
from msprobe_core.monitoring.rank_directories import (
    ARROW_FILE,
    TIME_FORMAT,
    VALUE_FILE,
    began_between,
    parse_time,
    rank_directories,
)

_logger = logging.getLogger(__name__)

_ZONE = timezone(timedelta(hours=8))
"""Readers parse the directory's time, which the established monitor gives in this zone."""


def directory_of(plan: MonitorPlan, rank: int) -> Path:
    """Return the directory for a rank's results; it may not exist yet."""
    if plan.named_by == "rank":
        return plan.output / f"rank_{rank}"
    earlier = _earlier_directory(plan, rank) if plan.append_output else None
    if earlier is not None:
        return earlier
    began = datetime.now(_ZONE).strftime(TIME_FORMAT)
    return plan.output / f"{began}-rank{rank}-{secrets.token_hex(4)}"


def _earlier_directory(plan: MonitorPlan, rank: int) -> Path | None:
    """Return the latest directory of a rank that began between the plan's two times; ``None``, and say so, if none."""
    start, end = plan.append_output
    try:
        found = began_between(rank_directories(plan.output), parse_time(start), parse_time(end))
    except OSError as error:
        _logger.warning("%s cannot be read (%s); a new directory is written", plan.output, error.strerror)
        return None
    own = [each for each in found if each.rank == rank]
    if own:
        return max(own, key=lambda each: each.time).path
    ranks = ", ".join(map(str, sorted({each.rank for each in found}))) or "none"
    _logger.warning(
        "'append_output': nothing of rank %d in %s began between %s and %s (ranks there: %s); a new directory is "
        "written, beside which the earlier one can be read",
        rank, plan.output, start, end, ranks,
    )  # fmt: skip
    return None


def step_after(directory: Path) -> int:
    """Return the step after the last one in a directory's files; 0 if there are none."""
    if not directory.is_dir():
        return 0
    return max(map(_step_after_file, directory.iterdir()), default=0)


def _step_after_file(path: Path) -> int:
    if (match := VALUE_FILE.match(path.name)) is not None:
        return int(match["last"]) + 1
    if ARROW_FILE.match(path.name) is None:
        return 0
    from msprobe_core.monitoring.arrow_files import read_table  # imports polars, which other trainings do not need

    try:
        steps = read_table(path, [])["step"].to_list()
    except DumpError as error:
        _logger.warning("%s; its steps are not counted", error)
        return 0
    return max(steps, default=-1) + 1
