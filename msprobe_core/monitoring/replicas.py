"""Ranks that train the same model on other data: each is a second opinion on the others.

Ranks are replicas if they have the same values, by name, and equal parameters or reduced gradients to the last digit in
their first step. From then on

* what they share, which is reduced gradients, moments and parameters, is equal on all of them;
* what their data are differs;
* a reduced gradient is no larger than the mean of the norms that were reduced;
* what each computes of its own data is as large on average as on the others. A departure is found by the cumulative
  sum of its logarithm's distance from the median of the ranks, so that a small one is found in many steps, and one that
  was there from the beginning too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from msprobe_core.monitoring.certain_signs import TELLING, decades_of
from msprobe_core.monitoring.cumulative_sums import Floats, Risen, height_of, median, risen_lines
from msprobe_core.monitoring.history import ID, in_order
from msprobe_core.monitoring.monitoring_codes import AnomalyCode
from msprobe_core.monitoring.quantities import Quantity

Integers = npt.NDArray[np.int64]

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

_ROUNDED = 0.02
"""Relative excess of a reduced gradient over the mean of norms that rounding may make, in bfloat16 too."""

_TIMES_SHOWN = 1000
"""Times the least difference of a file that a reduced gradient must have: small ones are mostly rounding."""

_LEAST_SAME = 3
"""Names that must be equal if two ranks have the same data; the input of a model may be listed by two names."""

_SPARSE = 20
"""Times as many fields as values that a table of series and steps may have; what has fewer values is not judged."""

_LEAST_RANKS = 3
"""Of two ranks, either may be the one that departs."""


@dataclass
class _Alike:
    """Ranks that have the same values in the same steps.

    Attributes:
        index: A row for each value and step, as the first rank has them, by value and step.
        ranks: The ranks.
        digests: Of all statistics, by rank and row.
        logs: Of the norm, by rank and row; NaN where it is zero or not finite.
        decades: See `certain_signs.decades_of`, by row, of the first rank.
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
        self._least = 0.0
        self._has_norm = True

    def add(self, rows: pl.DataFrame, statistics: Sequence[str], resolution: float) -> None:
        """Take a rank.

        Args:
            rows: Of `with_ids`.
            statistics: Names of the columns that are compared; the first is the norm, or what there is instead.
            resolution: Least difference that the files can show.
        """
        self._least = max(self._least, _TIMES_SHOWN * resolution)
        self._has_norm = self._has_norm and statistics[0] == "norm"
        kind: int = rows.select(pl.struct(pl.col(ID).unique().sort()).hash().sum()).item()
        rank: int = rows["rank"][0]
        digest = rows.select(pl.col(name).fill_null(0.0) for name in statistics).hash_rows()
        size = pl.col(statistics[0]).abs()
        log = pl.when(size.is_finite() & (size > 0)).then(size.log()).otherwise(math.nan).cast(pl.Float32)
        own = rows.select(ID, "step", _digest=digest, _log=log)
        alike = self._found.get(kind)
        if alike is None:
            index = rows.select("quantity", "stage", "name", "micro_step", "step", "place", ID)
            alike = self._found[kind] = _Alike(index, decades_of(rows, statistics, resolution).to_numpy())
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
                *([_beyond(alike, group, self._least)] if self._has_norm else []),
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
            if any(_share(alike.digests[own][rows] == leader[rows]) >= _EQUAL for rows in rows_of):
                group.append(own)
                break
        else:
            groups.append([own])
    return [group for group in groups if len(group) > 1]


def _share(are_equal: npt.NDArray[np.bool_]) -> float:
    return np.count_nonzero(are_equal) / max(are_equal.size, 1)


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
            in_step = same.filter(pl.len().over("quantity", "step", "micro_step") >= _LEAST_SAME)
            in_step = in_order(in_step.with_columns(rank=pl.lit(alike.ranks[group[own]], pl.Int64)))
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
    at = shared.with_columns(_at=pl.int_range(pl.len())).filter(
        pl.Series(differs) & pl.col("quantity").is_in(kept.to_list())
    )
    at = at.unique(ID, keep="first", maintain_order=True)
    ranks = [alike.ranks[group[_odd_one(digests[:, place])]] for place in at["_at"].to_list()]
    return _rows(alike, at["_row"].to_list(), ranks, AnomalyCode.REPLICAS_DIFFER)


def _odd_one(digests: npt.NDArray[np.uint64]) -> int:
    values, counts = np.unique(digests, return_counts=True)
    most = values[counts.argmax()] if counts.max() > 1 else digests[0]
    return int(np.flatnonzero(digests != most)[0])


# --- what no mean can be ------------------------------------------------------------------------------------------


def _beyond(alike: _Alike, group: list[int], least: float) -> pl.DataFrame:
    """Return the first step of parameters whose reduced gradient is larger than the mean of the ranks' norms.

    The norm of a mean is no larger than the mean of the norms, whatever the gradients are. Where many parameters are
    beyond, what reduces them is no mean.
    """
    index = alike.index.with_row_index("_row")
    of_parameter = ["stage", "name", "step"]
    own = index.filter(pl.col("quantity") == Quantity.GRADIENT_UNREDUCED.value).sort("micro_step")
    own = own.unique(of_parameter, keep="last").select(*of_parameter, _own="_row")
    reduced = index.filter(pl.col("quantity") == Quantity.GRADIENT_REDUCED.value)
    both = reduced.join(own, on=of_parameter, nulls_equal=True, maintain_order="left")
    of_ranks = both["_own"].to_numpy()
    mean = np.mean([np.exp(alike.logs[each][of_ranks]) for each in group], axis=0)
    size = np.exp(alike.logs[group[0]][both["_row"].to_numpy()])
    is_beyond = (size > (1 + _ROUNDED) * mean) & (size > least)
    both = both.with_columns(_beyond=pl.Series(is_beyond), _before=pl.Series(mean), _value=pl.Series(size))
    both = both.filter(pl.col("_beyond") & (pl.col("_beyond").mean().over("step") <= 1 - _EQUAL))
    first = both.unique(["stage", "name"], keep="first", maintain_order=True)
    return first.drop("_row", "_own", "_beyond", ID).with_columns(
        rank=pl.lit(alike.ranks[group[0]], pl.Int64),
        _statistic=pl.lit("norm"),
        _code=pl.lit(AnomalyCode.BEYOND_MEAN.value),
    )


# --- what is as large on average ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Local:
    """Values of ranks' own data, as tables of series and steps.

    Attributes:
        rows: In the index, by series and step; -1 where there is none.
        kinds: By series: which quantity and micro-batch it is of, from 0.
        steps: Their numbers.
    """

    rows: Integers
    kinds: Integers
    steps: list[int]


def _local(alike: _Alike) -> _Local:
    local = alike.index.with_row_index("_row").filter(pl.col("quantity").is_in(_LOCAL))
    if local["step"].n_unique() * local[ID].n_unique() > _SPARSE * local.height:
        local = local.clear()
    series = local.unique(ID, keep="first", maintain_order=True).sort("quantity", "micro_step", "place")
    numbers = series.select(ID, _line=pl.int_range(pl.len()))
    line = local.select(ID).join(numbers, on=ID, how="left", maintain_order="left")["_line"].to_numpy()
    steps: list[int] = sorted(set(local["step"].to_list()))
    rows = np.full((series.height, len(steps)), -1, np.int64)
    rows[line, np.searchsorted(np.array(steps), local["step"].to_numpy())] = local["_row"].to_numpy()
    kinds = series.select(pl.struct("quantity", "micro_step").rank("dense")).to_series().to_numpy().astype(np.int64)
    return _Local(rows, kinds - 1, steps)


def _departing(alike: _Alike, group: list[int], false_alarms: float) -> pl.DataFrame:
    """Return where a rank's own values begin to be larger or smaller than those of the others, on average.

    All values of a quantity together are judged, and each value in excess of these.
    """
    local = _local(alike)
    num_kinds = int(local.kinds.max(initial=-1)) + 1
    most: dict[int, tuple[int, Risen]] = {}
    if len(group) >= _LEAST_RANKS and num_kinds:
        height = height_of(len(group) * (len(local.rows) + num_kinds) * len(local.steps), false_alarms)
        middle = median(np.stack([alike.logs[each] for each in group]), axis=0)
        for own in group:
            apart = np.where(local.rows >= 0, (alike.logs[own] - middle)[local.rows], np.nan)
            common = np.stack([median(apart[local.kinds == kind], axis=0) for kind in range(num_kinds)])
            for risen in risen_lines(np.concatenate([common, apart - common[local.kinds]]), height):
                # A rank that departs moves the median, so that others seem to depart the other way.
                if risen.line not in most or abs(risen.mean) > abs(most[risen.line][1].mean):
                    most[risen.line] = own, risen
    firsts = [int(np.flatnonzero(local.kinds == kind)[0]) for kind in range(num_kinds)]
    lines = [*firsts, *range(len(local.rows))]
    found = [(int(local.rows[lines[line], risen.begin]), own, risen) for line, (own, risen) in most.items()]
    found = [each for each in found if each[0] >= 0]
    return _rows(
        alike,
        [place for place, _, _ in found],
        [alike.ranks[own] for _, own, _ in found],
        AnomalyCode.RANK_DEPARTS,
        _percent=[100 * math.expm1(risen.mean) for _, _, risen in found],
        _steps=[local.steps[risen.until] for _, _, risen in found],
    )
