"""A monitor's files as event files for TensorBoard: one directory for each rank and quantity."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from msprobe_core.errors import ConfigError
from msprobe_core.monitoring.files import monitored_directory, read_monitored
from msprobe_core.monitoring.history import Monitored
from msprobe_core.monitoring.quantities import tag_of
from msprobe_core.monitoring.rank_directories import TIME_FORMAT, parse_time
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.event_file import event_file_name, first_record, scalars
from msprobe_core.store.layout import make_directory

_logger = logging.getLogger(__name__)

_NAME = "csv2tensorboard_by_step"


def csv2tensorboard_by_step(
    monitor_path: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | os.PathLike[str] | None = None,
) -> Path:
    """Write what a monitor has written as event files, and return their directory.

    Args:
        monitor_path: Directory with one directory for each rank.
        time_start: When the first training to convert began, as directories have it: ``Nov21_05-57-08``.
        time_end: When the last one began.
        process_num: Accepted; one process converts all files, and a larger number is a warning.
        data_type_list: Quantities to convert; all by default.
        output_dirpath: Where to make the directory; by default in ``monitor_path``.

    Raises:
        ConfigError: an argument is wrong.
        DumpError: there are no files of a monitor, or none of what was asked for.
        StoreError: a file cannot be written.
    """
    if process_num > 1:
        _logger.warning("process_num is %d: one process converts all files, and it has no effect", process_num)
    path = Path(monitor_path)
    place = monitored_directory(path)
    between = _time(time_start, "time_start"), _time(time_end, "time_end")
    run = read_monitored(place, between=between)
    known = sorted(set(run.frame["quantity"].to_list()))
    for quantity in data_type_list or ():
        if quantity not in known:
            raise ConfigError(f"data_type_list has {quantity!r}; in {place} there are: {', '.join(known)}")
    output = path if output_dirpath is None else Path(output_dirpath)
    directory = output / f"{datetime.now().astimezone().strftime(TIME_FORMAT)}-{_NAME}"
    write_events(run, directory, data_type_list or known)
    return directory


def _time(text: str | None, name: str) -> datetime | None:
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; give a time as directories have it, such as Nov21_05-57-08") from error


def write_events(run: Monitored, directory: Path, quantities: Sequence[str]) -> list[Path]:
    """Write an event file for each rank and quantity, and return their paths.

    Args:
        run: What a monitor has written.
        directory: Gets ``rank0/grad_reduced`` and so on.
        quantities: Those to write.

    Raises:
        StoreError: a file cannot be written.
    """
    paths: list[Path] = []
    chosen = run.frame.filter(pl.col("quantity").is_in(list(quantities)))
    for (rank, quantity), rows in chosen.group_by("rank", "quantity", maintain_order=True):
        place = directory / f"rank{rank}" / str(quantity)
        make_directory(place, below=directory.parent)
        paths.append(place / event_file_name())
        with whole_file(paths[-1]) as file:
            for record in _records(rows, run.statistics):
                file.write(record)
    return paths


def _records(rows: pl.DataFrame, statistics: Sequence[str]) -> Iterator[bytes]:
    now = time.time()
    yield first_record(now)
    own = [name for name in statistics if rows[name].is_not_null().any()]
    for (step,), part in rows.sort("step", maintain_order=True).group_by("step", maintain_order=True):
        told: list[tuple[Any, ...]] = part.select("stage", "name", "micro_step", *own).rows()
        values: list[tuple[str, float]] = [
            (tag_of(stage, name, micro_step, statistic), number)
            for stage, name, micro_step, *numbers in told
            for statistic, number in zip(own, numbers, strict=True)
            if number is not None
        ]
        assert isinstance(step, int)
        yield scalars(step, values, now)
