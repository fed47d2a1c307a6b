"""The database of trends that the established viewer's plugin for TensorBoard reads.

Its name is ``monitor_data.trend.db``, or ``dump_data.trend.db`` for what `msprobe_core.exports.trends_of_dumps` finds.

``monitoring_targets`` are modules and parameters, ``monitoring_metrics`` quantities, ``trend_data`` has a row for each
rank, step, target and metric with a column for each statistic. ``monitoring_tags`` are parts of names by which targets
are chosen.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import polars as pl

from msprobe_core.config.text import read_json
from msprobe_core.errors import ConfigError
from msprobe_core.exports.whole_database import whole_database
from msprobe_core.monitoring.history import Monitored

FILE = "monitor_data.trend.db"

_LARGEST = 1e9
"""Largest magnitude in the file; that of an infinite value is one larger."""

_NUMBERED = re.compile(r"(?:^|\.)(\d*[^.\d][^.]*\.\d+)(?=\.|$)")
"""``layers.3`` in a name."""

_TABLES = """
CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL,
    vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0, UNIQUE (target_name, vpp_stage, micro_step));
CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, metric_name TEXT UNIQUE NOT NULL);
CREATE TABLE monitoring_tags (tag_id INTEGER PRIMARY KEY AUTOINCREMENT, tag_name TEXT NOT NULL, category TEXT NOT NULL,
    metric_id INTEGER NOT NULL, UNIQUE (tag_name, category, metric_id),
    FOREIGN KEY (metric_id) REFERENCES monitoring_metrics (metric_id));
CREATE TABLE tag_target_mapping (tag_id INTEGER NOT NULL, target_id INTEGER NOT NULL, PRIMARY KEY (tag_id, target_id),
    FOREIGN KEY (tag_id) REFERENCES monitoring_tags (tag_id),
    FOREIGN KEY (target_id) REFERENCES monitoring_targets (target_id));
"""


def read_mapping(path: Path) -> Mapping[str, str]:
    """Return what to replace in names, by the part to be replaced.

    Args:
        path: A JSON file with an object of texts.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    content = read_json(path, kind="a mapping of names", advice="give the path of a JSON file")
    items = cast("dict[str, object]", content).items() if isinstance(content, dict) else [("", None)]
    if not all(old and isinstance(new, str) for old, new in items):
        raise ConfigError(f'{path}: must hold an object of texts, such as {{"module.module.": ""}}')
    return {old: str(new) for old, new in items}


def write_trends(
    run: Monitored,
    path: Path,
    *,
    mapping: Mapping[str, str] | None = None,
    by_micro_step: bool = False,
    metrics: Sequence[str] = (),
    tags_of: Callable[[str, str], Iterable[tuple[str, str]]] | None = None,
) -> None:
    """Write the file.

    Args:
        run: What a monitor has written.
        path: Of the file; an existing one is replaced.
        mapping: Replaces parts of names.
        by_micro_step: Whether micro-batches count as steps: of two, those of step 3 are steps 6 and 7. A value of the
            whole step belongs to the first.
        metrics: Names of metrics that are in the file even if it has no value of them.
        tags_of: Returns category and name of the tags of a target, by its name and metric; ``None`` for those of a
            monitor.

    Raises:
        StoreError: it cannot be written.
    """
    frame = _prepared(run.frame, mapping or {}, by_micro_step=by_micro_step)
    found = dict.fromkeys([*metrics, *frame["quantity"].unique(maintain_order=True).to_list()])
    numbers = {name: i for i, name in enumerate(found, 1)}
    targets = frame.select("name", "stage", "micro_step").unique(maintain_order=True).with_row_index("target", 1)
    frame = frame.join(targets, on=["name", "stage", "micro_step"], maintain_order="left").with_columns(
        metric=pl.col("quantity").replace_strict(numbers, return_dtype=pl.Int64)
    )
    keys = ["rank", "step", "target", "metric"]
    data = frame.select(*keys, *run.statistics).unique(keys, keep="last", maintain_order=True)
    with whole_database(path) as connection:
        connection.executescript(_TABLES)
        connection.executemany(
            "INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)",
            targets.select("target", "name", "stage", "micro_step").rows(),
        )
        connection.executemany(
            "INSERT INTO monitoring_metrics VALUES (?, ?)", [(number, name) for name, number in numbers.items()]
        )
        _write_tags(connection, frame, tags_of or _tags_of)
        _write_extent(connection, data, numbers, run.statistics)
        _write_data(connection, data, run.statistics)


def _prepared(frame: pl.DataFrame, mapping: Mapping[str, str], *, by_micro_step: bool) -> pl.DataFrame:
    name = pl.col("name")
    for old, new in mapping.items():
        name = name.str.replace_all(old, new, literal=True)
    most = cast("int | None", frame["micro_step"].max())
    num_micro_steps = 1 + (most or 0)
    micro_step = pl.col("micro_step").fill_null(0)
    return frame.with_columns(
        name=name,
        stage=pl.col("stage").fill_null(0),
        step=pl.col("step") * num_micro_steps + micro_step if by_micro_step else pl.col("step"),
        micro_step=pl.lit(0, pl.Int64) if by_micro_step else micro_step,
    )


def _write_tags(
    connection: sqlite3.Connection,
    frame: pl.DataFrame,
    tags_of: Callable[[str, str], Iterable[tuple[str, str]]],
) -> None:
    numbers: dict[tuple[str, str, int], int] = {}
    pairs: dict[tuple[int, int], None] = {}
    columns = ("name", "quantity", "target", "metric")
    for name, quantity, target, metric in frame.select(columns).unique(maintain_order=True).rows():
        for category, tag in tags_of(name, quantity):
            number = numbers.setdefault((tag, category, metric), len(numbers) + 1)
            pairs[number, target] = None
    rows = [(number, *tag) for tag, number in numbers.items()]
    connection.executemany("INSERT INTO monitoring_tags VALUES (?, ?, ?, ?)", rows)
    connection.executemany("INSERT INTO tag_target_mapping VALUES (?, ?)", list(pairs))


def _tags_of(name: str, _metric: str) -> Iterator[tuple[str, str]]:
    """Yield category and name of the tags of a target: ``layers.3``, and ``layers``, ``mlp``, ``input``."""
    yield from (("layer", part) for part in _NUMBERED.findall(name))
    yield from (("module", part) for part in dict.fromkeys(name.split(".")) if part and not part.isdecimal())


def _write_extent(
    connection: sqlite3.Connection, data: pl.DataFrame, metrics: Mapping[str, int], statistics: Sequence[str]
) -> None:
    columns = "".join(f", {_quoted(name)} TEXT" for name in metrics)
    connection.execute(f"CREATE TABLE global_stats (min_step INTEGER, max_step INTEGER, max_rank INTEGER{columns})")
    own: list[str] = []
    for number in metrics.values():
        rows = data.filter(pl.col("metric") == number)
        own.append(",".join(name for name in statistics if rows[name].is_not_null().any()))
    extent = data.select(first=pl.col("step").min(), last=pl.col("step").max(), rank=pl.col("rank").max()).row(0)
    places = ", ".join("?" * (3 + len(own)))
    connection.execute(f"INSERT INTO global_stats VALUES ({places})", (*extent, *own))  # noqa: S608  # question marks


def _write_data(connection: sqlite3.Connection, data: pl.DataFrame, statistics: Sequence[str]) -> None:
    columns = "".join(f", {_quoted(name)} REAL" for name in statistics)
    connection.execute(
        "CREATE TABLE trend_data (rank INTEGER NOT NULL, step INTEGER NOT NULL, target_id INTEGER NOT NULL, "
        f"metric_id INTEGER NOT NULL{columns}, PRIMARY KEY (rank, step, target_id, metric_id), "
        "FOREIGN KEY (target_id) REFERENCES monitoring_targets (target_id), "
        "FOREIGN KEY (metric_id) REFERENCES monitoring_metrics (metric_id)) WITHOUT ROWID"
    )
    clamped = data.with_columns(
        pl.when(pl.col(name).is_infinite())
        .then(pl.col(name).sign() * (_LARGEST + 1))
        .otherwise(pl.col(name).clip(-_LARGEST, _LARGEST))
        .fill_nan(None)
        for name in statistics
    )
    places = ", ".join("?" * len(clamped.columns))
    connection.executemany(f"INSERT INTO trend_data VALUES ({places})", clamped.iter_rows())  # noqa: S608  # the same


def _quoted(name: str) -> str:
    """Return a column's name, which files give, as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
