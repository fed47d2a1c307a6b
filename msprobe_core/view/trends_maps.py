"""Maps of monitored values: the rank and step that is furthest from usual, for each value of the model and each step.

What is *usual* is the median magnitude of up to 50 values before, on the same rank; for the first ten, that of these.
The page does the same with the trends that it holds (``view_page/src/monitor_data.ts``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import polars as pl

from msprobe_core.monitoring.divergence import relative_difference
from msprobe_core.monitoring.history import Monitored, Place
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.view.data import MonitorMap, MonitorRows, Number, number

MAX_CELLS = 600_000
"""Maximum number of cells of all maps of a page. Beyond it, only the first statistic is shown, then a column is several
steps."""

_WINDOW, _FIRST = 50, 10
_PLACE = ["quantity", "stage", "name", "micro_step"]
_DIGITS = 5
_BEYOND = 700.0
"""Distance of a value that is 0 or not finite from one that is neither: more than logarithms of doubles can have."""


@dataclass(frozen=True)
class Indexed:
    """A training, or two, with numbers instead of names.

    Attributes:
        places: Rows of maps, in the order of the model.
        frame: Columns ``row``, ``rank``, ``step``, the statistics, and those of golden with ``_golden`` after their
            names, sorted by row, rank and step.
        ranks: Ascending.
        steps: Ascending.
        statistics: That maps can show.
        has_golden: Whether there are two trainings.
        resolution: Differences below it are none.
    """

    places: Sequence[Place]
    frame: pl.DataFrame
    ranks: Sequence[int]
    steps: Sequence[int]
    statistics: Sequence[str]
    has_golden: bool
    resolution: float

    @property
    def rows(self) -> MonitorRows:
        """What the rows are."""
        places = self.places
        return MonitorRows(
            quantity=[place.quantity for place in places],
            name=[place.shown for place in places],
            micro_step=[place.micro_step for place in places],
        )


def indexed(target: Monitored, golden: Monitored | None) -> Indexed:
    """Return a training in the form that maps are made of, with the values of golden beside its own."""
    places = model_order(target)
    statistics = [name for name in target.statistics if golden is None or name in golden.statistics]
    numbers = pl.DataFrame(
        [(each.quantity, each.stage, each.name, each.micro_step, i) for i, each in enumerate(places)],
        schema={"quantity": pl.String, "stage": pl.Int64, "name": pl.String, "micro_step": pl.Int64, "row": pl.Int32},
        orient="row",
    )

    def numbered(run: Monitored) -> pl.DataFrame:
        own = run.frame.join(numbers, on=_PLACE, how="inner", nulls_equal=True)
        return own.select("row", pl.col("rank").cast(pl.Int32), "step", *statistics)

    frame = numbered(target)
    if golden is not None:
        frame = frame.join(numbered(golden), on=["row", "rank", "step"], how="left", suffix="_golden")
    resolution = 1.5 * max(target.resolution, 0.0 if golden is None else golden.resolution)
    return Indexed(
        places=places,
        frame=frame.sort("row", "rank", "step"),
        ranks=target.ranks,
        steps=target.steps,
        statistics=statistics,
        has_golden=golden is not None,
        resolution=resolution,
    )


# --- the order of the model ---------------------------------------------------------------------------------------


def model_order(run: Monitored) -> list[Place]:
    """Return all values of a training by quantity, and in each in the order of the model.

    Files have the order of computation, and every rank of a pipeline its own part of the model. So names are taken
    apart at their dots: parts that are numbers are sorted as such, others in the order in which they appear first.
    """
    order = {each.value: i for i, each in enumerate(Quantity)}
    # Gradients of activations are computed from the end of the model to its beginning.
    backward = pl.when(pl.col("quantity") == Quantity.ACTIVATION_GRADIENT.value).then(-pl.col("place"))
    first = (
        run.frame.select(*_PLACE, "rank", _at=backward.otherwise(pl.col("place")))
        .group_by(*_PLACE, "rank")
        .agg(pl.col("_at").min())
        .sort("rank")
        .unique(_PLACE, keep="first", maintain_order=True)
        .with_columns(_quantity=pl.col("quantity").replace_strict(order, default=len(order), return_dtype=pl.Int64))
        .sort("_quantity", "rank", "_at")
    )
    places = [
        Place(quantity=quantity, stage=stage, name=name, micro_step=micro)
        for quantity, stage, name, micro in first.select(_PLACE).iter_rows()
    ]
    ordinals: dict[tuple[str, ...], int] = {}
    for place in places:
        parts = _parts(place)
        for end in range(1, len(parts) + 1):
            ordinals.setdefault(parts[:end], len(ordinals))

    def key(place: Place) -> tuple[int, list[tuple[int, int]], int]:
        parts = _parts(place)
        at = [_ordinal(part, ordinals[parts[: i + 1]]) for i, part in enumerate(parts)]
        return order.get(place.quantity, len(order)), at, -1 if place.micro_step is None else place.micro_step

    return sorted(places, key=key)


def _parts(place: Place) -> tuple[str, ...]:
    return (str(place.stage or 0), *place.name.split("."))


def _ordinal(part: str, first: int) -> tuple[int, int]:
    """Return the place of a part of a name among those beside it: what goes in, what is inside, what comes out."""
    if re.match(r"input\b", part):
        return 0, first
    if re.match(r"output\b", part):
        return 2, first
    return 1, int(part) if re.fullmatch(r"[0-9]{1,9}", part) else first


# --- what is usual ------------------------------------------------------------------------------------------------


def with_usual(frame: pl.DataFrame, source: Indexed, statistic: str) -> pl.DataFrame:
    """Return rank, step and row of values with ``value``, ``usual``, ``value_golden`` and ``apart``.

    ``apart`` is how far a value is from golden, relative, or else from usual, as a logarithm; null without a value.

    Args:
        frame: Rows of ``source.frame``, whole series in their order.
        source: Of them.
        statistic: Which.
    """
    value, series = pl.col("value"), ["row", "rank"]
    has_golden = f"{statistic}_golden" in frame.columns
    golden = pl.col(f"{statistic}_golden") if has_golden else pl.lit(None, pl.Float64)
    own = frame.select("row", "rank", "step", value=pl.col(statistic), value_golden=golden)
    own = own.with_columns(_size=pl.when(value.is_finite()).then(value.abs()))
    past = pl.col("_size").rolling_median(_WINDOW, min_samples=_FIRST).shift(1)
    own = own.with_columns(
        usual=pl.coalesce(
            past.over(series), pl.col("_size").filter(pl.col("_size").is_not_null()).head(_FIRST).median().over(series)
        )
    )
    if source.has_golden:
        apart = relative_difference("value", source.resolution).fill_null(0.0)
    else:
        size, usual = pl.col("_size"), pl.col("usual")
        apart = (
            pl.when(~value.is_finite()).then(2 * _BEYOND)
            .when((size == 0) & (usual == 0)).then(0.0)
            .when((size == 0) | (usual == 0)).then(_BEYOND)
            .otherwise((size / usual).log().abs().fill_null(0.0))
        )  # fmt: skip
    return own.with_columns(apart=pl.when(value.is_not_null()).then(apart)).drop("_size")


# --- maps ---------------------------------------------------------------------------------------------------------


def columns_of(source: Indexed, num_statistics: int) -> list[tuple[int, int]]:
    """Return the first and last step of each column, so many that all maps fit."""
    steps = source.steps
    width = max(1, -(-len(steps) * len(source.places) * num_statistics // MAX_CELLS))
    parts = [steps[i : i + width] for i in range(0, len(steps), width)]
    return [(part[0], part[-1]) for part in parts]


def worst_map(source: Indexed, statistic: str, columns: Sequence[tuple[int, int]]) -> MonitorMap:
    """Return a statistic of all rows over the columns, from the rank and step that is furthest from usual."""
    number_of = {step: i for i, step in enumerate(source.steps)}
    width = -(-len(source.steps) // max(1, len(columns)))
    of_step = pl.DataFrame(
        {"step": list(number_of), "column": [i // width for i in number_of.values()]},
        schema={"step": pl.Int64, "column": pl.Int32},
    )
    rows = with_usual(source.frame, source, statistic).join(of_step, on="step", how="left", maintain_order="left")
    at = pl.col("apart").fill_null(-1.0).arg_max()
    worst = rows.group_by("row", "column").agg(pl.col("value", "usual", "value_golden", "rank", "step").get(at))
    shape = len(source.places), len(columns)
    ranks = {rank: i for i, rank in enumerate(source.ranks)}
    is_binned = len(columns) < len(source.steps)
    worst = worst.with_columns(rank=pl.col("rank").replace_strict(ranks, return_dtype=pl.Int64))
    return msgspec.structs.replace(
        _map(worst, source, statistic, shape),
        rank=_grid(worst, worst["rank"].to_list(), shape) if len(ranks) > 1 else (),
        step=_grid(worst, worst["step"].to_list(), shape) if is_binned else (),
    )


def part_map(source: Indexed, statistic: str, rows: Sequence[int], rank: int | None, step: int | None) -> MonitorMap:
    """Return a statistic of one row, one rank or one step, exactly, over all others.

    Args:
        source: The training.
        statistic: Which.
        rows: Rows that are asked for. With ``rank`` and ``step`` ``None``, there is one: the map is of ranks and steps.
        rank: A rank: the map is of ``rows`` and steps.
        step: A step: the map is of ``rows`` and ranks.
    """
    frame = source.frame.filter(pl.col("row").is_in(list(rows)))
    if rank is not None:
        frame = frame.filter(pl.col("rank") == rank)
    if step is not None:
        recent = [each for each in source.steps if each <= step][-_WINDOW - 1 :]
        frame = frame.filter(pl.col("step").is_in([*source.steps[:_FIRST], *recent]))
    found = with_usual(frame, source, statistic)
    found = found if step is None else found.filter(pl.col("step") == step)
    of_row = {row: i for i, row in enumerate(rows)}
    of_rank = {each: i for i, each in enumerate(source.ranks)}
    of_step = {each: i for i, each in enumerate(source.steps)}
    down, across = ("row", of_row), ("step", of_step)
    if step is not None:
        across = ("rank", of_rank)
    elif rank is None:
        down = ("rank", of_rank)
    found = found.select(
        "value", "usual", "value_golden",
        row=pl.col(down[0]).replace_strict(down[1], return_dtype=pl.Int64),
        column=pl.col(across[0]).replace_strict(across[1], return_dtype=pl.Int64),
    )  # fmt: skip
    return _map(found, source, statistic, (len(down[1]), len(across[1])))


def _map(found: pl.DataFrame, source: Indexed, statistic: str, shape: tuple[int, int]) -> MonitorMap:
    return MonitorMap(
        statistic=statistic,
        value=_numbers(found, "value", shape),
        usual=_numbers(found, "usual", shape),
        golden=_numbers(found, "value_golden", shape) if source.has_golden else None,
    )


def _numbers(frame: pl.DataFrame, name: str, shape: tuple[int, int]) -> list[list[Number]]:
    return _grid(frame, list(map(number, frame[name].round_sig_figs(_DIGITS).to_list())), shape)


def _grid(frame: pl.DataFrame, values: Sequence[Any], shape: tuple[int, int]) -> list[list[Any]]:
    grid = np.full(shape, None, dtype=object)
    filled = np.empty(len(values), dtype=object)
    filled[:] = values
    grid[frame["row"].to_numpy(), frame["column"].to_numpy()] = filled
    return grid.tolist()
