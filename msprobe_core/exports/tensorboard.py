"""Event files for TensorBoard: the statistics of layers over steps, one run per side and rank."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msprobe_core.errors import CompareError
from msprobe_core.protocols.presentation import Page
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.event_file import event_file_name, first_record, scalars
from msprobe_core.store.layout import make_directory
from msprobe_core.view.data import Number, Trend, ViewData


def write(page: Page) -> Sequence[Path]:
    """Write an event file for each side and rank, and return the paths.

    Raises:
        CompareError: there is only one step of one rank, so there are no series to show.
        StoreError: a file cannot be written.
    """
    data: ViewData = page.data
    if not data.trends:
        raise CompareError(
            "TensorBoard shows statistics over steps, and there is one step here; give a run with several"
        )
    paths: list[Path] = []
    for side in ("target", "golden"):
        for rank in dict.fromkeys(rank for trend in data.trends for rank in _series(trend, side)):
            place = page.directory / "tensorboard" / (side if rank == "-" else f"{side}_rank{rank}")
            make_directory(place, below=page.directory)
            paths.append(place / event_file_name())
            with whole_file(paths[-1]) as file:
                for record in _records(data.trends, side, rank):
                    file.write(record)
    return paths


def _series(trend: Trend, side: str) -> dict[str, Sequence[Number]]:
    return trend.target if side == "target" else trend.golden or {}


def _records(trends: Sequence[Trend], side: str, rank: str) -> Iterator[bytes]:
    now = time.time()
    yield first_record(now)
    by_step: dict[int, list[tuple[str, float]]] = {}
    for trend in trends:
        micro_step = "" if trend.micro_step is None else f".micro{trend.micro_step}"
        tag = f"{trend.statistic}/{trend.name}.{trend.slot}{micro_step}"
        for step, value in zip(trend.steps, _series(trend, side).get(rank, ()), strict=False):
            if value is not None:
                by_step.setdefault(step, []).append((tag, float(value)))
    for step, values in sorted(by_step.items()):
        yield scalars(step, values, now)
