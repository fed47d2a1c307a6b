"""Ranks that train the same model on other data: each is a second opinion on the others.

Ranks are replicas if they have the same values, by name, and equal parameters or reduced gradients to the last digit in
their first step. From then on

* what they share, which is reduced gradients, moments and parameters, is equal on all of them;
* what their data are differs;
* what each computes of its own data is as large on average as on the others. A departure is found by a cumulative sum
  of the logarithms' distances from the median of the ranks (CUSUM, Page 1954), so that a small one is found in many
  steps, and one that was there from the beginning too. How high the sum may get follows from the rate of false alarms
  by Siegmund's approximation of the average run length, ``(exp(2 k b) - 2 k b - 1) / (2 k^2)`` for the height
  ``b - 1.166`` in standard deviations (Siegmund, Sequential Analysis, 1985).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from msprobe_core.monitoring.certain_signs import TELLING
from msprobe_core.monitoring.history import ID
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.quantities import Quantity

Floats = npt.NDArray[np.float32]

_SHARED = [
    each.value
    for each in (
        Quantity.PARAM_ORIGIN, Quantity.GRADIENT_REDUCED, Quantity.EXP_AVG, Quantity.EXP_AVG_SQ, Quantity.PARAM_UPDATED,
    )
]  # fmt: skip
_LOCAL = [each.value for each in (Quantity.ACTIVATION, Quantity.ACTIVATION_GRADIENT, Quantity.GRADIENT_UNREDUCED)]
_OF_DATA = [Quantity.ACTIVATION.value, Quantity.GRADIENT_UNREDUCED.value]

_EQUAL = 0.9
"""Share of the names of a quantity that are equal on replicas. Ranks of a tensor parallelism share about half."""

_LEAST_SAME = 3
"""Names that must be equal if two ranks have the same data; the input of a model may be listed by two names."""

_SLACK = 0.25
"""Of the cumulative sum, in standard deviations: half of the departure that is found soonest."""

_CLIPPED = 3.0
"""Standard deviations that one step can add to the sum."""

_LEAST_SPREAD = 0.01
"""Least standard deviation of a logarithm: departures of less than half of this are not found."""

_TO_DEVIATION = 1.4826
_OVERSHOOT = 1.166
_LEAST_STEPS = 20


@dataclass
class _Alike:
    """Ranks that have the same values in the same steps.

    Attributes:
        index: A row for each value and step, in the order of steps, as the first rank has them.
        ranks: The ranks.
        digests: Of all statistics, by rank and row.
        logs: Of the norm, by rank and row; NaN where it is zero or not finite.
        decades: See `certain_signs.with_decades`, by row, of the first rank.
    """

    index: pl.DataFrame
    decades: Floats
    ranks: list[int] = field(default_factory=list[int])
    digests: list[npt.NDArray[np.uint64]] = field(default_factory=list[npt.NDArray[np.uint64]])
    logs: list[Floats] = field(default_factory=list[Floats])


class Replicas:
    """Takes one rank after the other, keeps 12 bytes of each value, and compares the ranks at the end."""

    def __init__(self) -> None:
        """Begin without ranks."""
        self._found: dict[int, _Alike] = {}

    def add(self, rows: pl.DataFrame, statistics: Sequence[str]) -> None:
        """Take a rank.

        Args:
            rows: Of `with_decades`, in the order of steps.
            statistics: Names of the columns that are compared; the first is the norm, or what there is instead.
        """
        kind: int = rows.select(pl.struct(pl.col(ID).unique().sort()).hash().sum()).item()
        rank: int = rows["rank"][0]
        digest = pl.struct(pl.col(name).fill_null(0.0) for name in statistics).hash()
        size = pl.col(statistics[0]).abs()
        log = pl.when(size.is_finite() & (size > 0)).then(size.log()).otherwise(math.nan).cast(pl.Float32)
        own = rows.select(ID, "step", _digest=digest, _log=log)
        alike = self._found.get(kind)
        if alike is None:
            index = rows.select("quantity", "stage", "name", "micro_step", "step", "place", ID)
            alike = self._found[kind] = _Alike(index, rows["_decades"].cast(pl.Float32).to_numpy())
        elif not own.select(ID, "step").equals(alike.index.select(ID, "step")):
            own = alike.index.select(ID, "step").join(own, on=[ID, "step"], how="left", maintain_order="left")
        alike.ranks.append(rank)
        alike.digests.append(own["_digest"].fill_null(0).to_numpy())
        alike.logs.append(own["_log"].fill_null(math.nan).to_numpy())

    def num_judged(self) -> int:
        """Return the number of values that are compared with those of other ranks."""
        return sum(len(group) * alike.index.height for alike in self._found.values() for group in _groups_of(alike))

    def found(self, false_alarms: float) -> list[pl.DataFrame]:
        """Return what departs from the replicas, as rows of a history with a code and what belongs to it."""
        return [
            rows
            for alike in self._found.values()
            for group in _groups_of(alike)
            for rows in (
                _same_data(alike, group), _differing(alike, group), _departing(alike, group, false_alarms),
            )
            if rows.height
        ]  # fmt: skip


def _groups_of(alike: _Alike) -> list[list[int]]:
    """Return the positions of ranks that are replicas, two at least in each group."""
    shared = alike.index.with_row_index("_row").filter(pl.col("quantity").is_in(_SHARED))
    first = shared.filter(pl.col("step") == pl.col("step").min().over("quantity"))
    rows_of = [part["_row"].to_numpy() for part in first.partition_by("quantity")]
    groups: list[list[int]] = []
    for own in range(len(alike.ranks)):
        for group in groups:
            leader = alike.digests[group[0]]
            if any(np.mean(alike.digests[own][rows] == leader[rows]) >= _EQUAL for rows in rows_of):
                group.append(own)
                break
        else:
            groups.append([own])
    return [group for group in groups if len(group) > 1]


def _rows(alike: _Alike, places: Any, ranks: Any, code: AnomalyCode, **more: Any) -> pl.DataFrame:
    found = alike.index.select(pl.all().gather(list(places))).with_columns(
        rank=pl.Series(ranks, dtype=pl.Int64), _code=pl.lit(code.value), **{k: pl.Series(v) for k, v in more.items()}
    )
    return found.drop(ID)


# --- equal data ---------------------------------------------------------------------------------------------------


def _same_data(alike: _Alike, group: list[int]) -> pl.DataFrame:
    """Return the first step of each pair of ranks in which both have the same data."""
    of_data = alike.index.with_row_index("_row").filter(pl.col("quantity").is_in(_OF_DATA))
    of_data = of_data.filter(pl.Series(alike.decades[of_data["_row"].to_numpy()] >= TELLING))
    rows = of_data["_row"].to_numpy()
    digests = [alike.digests[each][rows] for each in group]
    places: list[int] = []
    ranks: list[int] = []
    others: list[int] = []
    for own in range(1, len(group)):
        for other in range(own):
            is_same = digests[own] == digests[other]
            if np.count_nonzero(is_same) < _LEAST_SAME:
                continue
            same = of_data.filter(pl.Series(is_same))
            in_step = same.filter(pl.len().over("quantity", "step", "micro_step") >= _LEAST_SAME).sort("step", "_row")
            if in_step.height:
                places.append(in_step["_row"][0])
                ranks.append(alike.ranks[group[own]])
                others.append(alike.ranks[group[other]])
                break
    return _rows(alike, places, ranks, AnomalyCode.SAME_DATA, _other=others)


# --- what replicas share ------------------------------------------------------------------------------------------


def _differing(alike: _Alike, group: list[int]) -> pl.DataFrame:
    """Return the first row of each value that should be equal on all replicas, and is not on a rank.

    The rank is the one that differs from most; if all differ, from the first.
    """
    shared = alike.index.with_row_index("_row").filter(pl.col("quantity").is_in(_SHARED))
    rows = shared["_row"].to_numpy()
    digests = np.stack([alike.digests[each][rows] for each in group])
    differs = (digests != digests[0]).any(axis=0)
    # A quantity of which each rank has its own part, as optimizers that are sharded, is not shared.
    in_first = shared.with_columns(_differs=pl.Series(differs)).filter(
        pl.col("step") == pl.col("step").min().over("quantity")
    )
    share = in_first.group_by("quantity").agg(pl.col("_differs").mean())
    kept = share.filter(pl.col("_differs") <= 1 - _EQUAL)["quantity"]
    at = shared.with_columns(_at=pl.int_range(pl.len())).filter(pl.Series(differs) & pl.col("quantity").is_in(kept))
    at = at.unique(ID, keep="first", maintain_order=True)
    places, ranks = [], []
    for row, column in zip(at["_row"], digests[:, at["_at"].to_numpy()].T, strict=True):
        values, counts = np.unique(column, return_counts=True)
        most = values[counts.argmax()] if counts.max() > 1 else column[0]
        places.append(row)
        ranks.append(alike.ranks[group[int(np.flatnonzero(column != most)[0])]])
    return _rows(alike, places, ranks, AnomalyCode.REPLICAS_DIFFER)


# --- what is as large on average ------------------------------------------------------------------------------------


def _departing(alike: _Alike, group: list[int], false_alarms: float) -> pl.DataFrame:
    """Return where a rank's own values begin to be larger or smaller than those of the others, on average."""
    empty = _rows(alike, [], [], AnomalyCode.RANK_DEPARTS)
    if len(group) < 3:  # of two, either may be the one at fault
        return empty
    local = alike.index.with_row_index("_row").filter(pl.col("quantity").is_in(_LOCAL))
    steps = local["step"].unique().sort()
    if steps.len() < _LEAST_STEPS + 1:
        return empty
    series = local.unique(ID, keep="first", maintain_order=True).sort("quantity", "micro_step", "place")
    numbers = pl.DataFrame({ID: series[ID], "_line": range(series.height)})
    line = local.select(ID).join(numbers, on=ID, how="left", maintain_order="left")["_line"].to_numpy()
    column = steps.search_sorted(local["step"]).to_numpy()
    rows = local["_row"].to_numpy()
    whole = np.full((series.height, steps.len()), -1, np.int64)
    whole[line, column] = rows
    kinds = series.select(pl.struct("quantity", "micro_step").rank("dense")).to_series().to_numpy() - 1
    logs = np.stack([alike.logs[each] for each in group])
    with np.errstate(invalid="ignore"):
        logs -= _median(logs, axis=0)
    num_tests = 2 * len(group) * (series.height + int(kinds.max()) + 1) * steps.len()
    height = math.log(2 * _SLACK**2 * num_tests / false_alarms) / (2 * _SLACK) - _OVERSHOOT
    found: list[tuple[int, int, float, int]] = []
    for position, own in enumerate(group):
        apart = np.where(whole >= 0, logs[position][whole], np.nan)
        common = np.stack([_median(apart[kinds == kind], axis=0) for kind in range(int(kinds.max()) + 1)])
        for values, lines in ((common, _first_of(kinds)), (apart - common[kinds], np.arange(series.height))):
            for at, begin, mean, until in _risen(values, height):
                place = int(whole[lines[at], begin])
                found.append((place, alike.ranks[own], mean, int(steps[until])))
    found = [each for each in found if each[0] >= 0]
    if not found:
        return empty
    places, ranks, means, until = zip(*found, strict=True)
    percent = [100 * math.expm1(mean) for mean in means]
    return _rows(alike, places, ranks, AnomalyCode.RANK_DEPARTS, _percent=percent, _steps=until)


def _first_of(kinds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array([int(np.flatnonzero(kinds == kind)[0]) for kind in range(int(kinds.max()) + 1)])


def _median(values: Floats, axis: int) -> Floats:
    """Return the median of what is not NaN; NaN if nothing is."""
    ordered = np.sort(values, axis=axis)  # NaN come last
    count = np.sum(~np.isnan(values), axis=axis, keepdims=True)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[axis] - 1)
    middle = np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)
    return np.squeeze(middle / 2, axis)


def _risen(values: Floats, height: float) -> list[tuple[int, int, float, int]]:
    """Return series whose cumulative sum exceeds a height: which, from which column on, its mean, and up to which."""
    is_there = ~np.isnan(values)
    changes = np.abs(np.diff(values, axis=1))
    count = np.sum(~np.isnan(changes), axis=1)
    spread = _TO_DEVIATION * _median(changes, axis=1) / math.sqrt(2) * (1 + 2 / np.sqrt(np.maximum(count, 1)))
    spread = np.maximum(np.where(np.isnan(spread), np.inf, spread), _LEAST_SPREAD)
    scores = np.clip(np.where(is_there, values, 0) / spread[:, None], -_CLIPPED, _CLIPPED)
    found: list[tuple[int, int, float, int]] = []
    for sign in (1, -1):
        total, is_open = np.zeros(len(values)), count >= _LEAST_STEPS
        for step in range(values.shape[1]):
            total = np.maximum(total + np.where(is_there[:, step], sign * scores[:, step] - _SLACK, 0), 0)
            for at in np.flatnonzero(is_open & (total > height)):
                begin = _onset(sign * scores[at, : step + 1])
                found.append((int(at), begin, float(np.nanmean(values[at, begin : step + 1])), step))
                is_open[at] = False
    return found


def _onset(scores: Floats) -> int:
    """Return the most likely step of a change of the mean, by maximum likelihood: all before have mean 0."""
    sums = np.cumsum(scores[::-1])[::-1]
    return int(np.argmax(np.maximum(sums, 0) ** 2 / np.arange(len(scores), 0, -1)))
