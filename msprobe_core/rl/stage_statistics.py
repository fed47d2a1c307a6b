"""Compare two stages by statistics and checksums of whole micro-batches, if both have the same samples in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

from msprobe_core.errors import NothingInCommonError, NoValuesError
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.noise.measures import Measure, with_measures
from msprobe_core.judge.statistics_columns import STATISTICS, add_statistics, is_equal
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.rl.floors import module_floor, module_score, precision_named
from msprobe_core.rl.module_outputs import module_of
from msprobe_core.rl.recorded import RecordedRun
from msprobe_core.store.frame import RowKind

Call: TypeAlias = tuple[int, int]
"""Rank, and index of the call."""

_COUNTS = ("num_nan", "num_inf")
_KEY = ("path", "type_name", "output", "rank", "call")


@dataclass(frozen=True, kw_only=True)
class ValueDifference:
    """One output of one call of a module; a row of the table.

    Attributes:
        step: The trainer's step.
        order: Index in execution order, from 0.
        module: Name of the module in reports.
        output: Position of the value in the call.
        rank: Rank of the call.
        call: Index of the call.
        error: Largest relative difference of its statistics; this and the following are ``None`` if there are only
            checksums, and they differ.
        floor: Error that rounding explains.
        score: The error over the floor.
        limit: Limit of the score.
        verdict: ``ERROR`` if rounding does not explain the error, as far as statistics show, else ``PASS``.
        is_equal: Whether everything recorded of it is equal.
        by: ``checksum``, where equal means bitwise equal, or ``statistics``.
    """

    step: int
    order: int
    module: str
    output: str
    rank: int
    call: int
    error: float | None
    floor: float | None
    score: float | None
    limit: float | None
    verdict: Verdict
    is_equal: bool
    by: str

    @property
    def is_over(self) -> bool:
        """Whether rounding does not explain it."""
        return self.verdict is Verdict.ERROR


@dataclass(frozen=True, kw_only=True)
class StatisticsDifference:
    """The comparison of two stages by statistics.

    Attributes:
        step: The trainer's step.
        values: In execution order.
        samples: Number of samples in the compared calls.
        num_calls: Number of compared calls.
        num_others: Number of calls with different samples in the two stages.
    """

    step: int
    values: Sequence[ValueDifference]
    samples: int
    num_calls: int
    num_others: int

    @property
    def first(self) -> ValueDifference | None:
        """The first output that rounding does not explain; children end before their parents."""
        return next((value for value in self.values if value.is_over), None)

    @property
    def is_equal(self) -> bool:
        """Whether everything recorded is equal."""
        return all(value.is_equal for value in self.values)

    @property
    def by_checksum(self) -> bool:
        """Whether equal means bitwise equal."""
        return all(value.by == _CHECKSUM for value in self.values)


_CHECKSUM = "checksum"


def compare_statistics(
    run: RecordedRun, stages: tuple[str, str], step: int, *, minis: Collection[int] | None = None
) -> StatisticsDifference:
    """Compare the statistics of the outputs of modules, call by call, of calls that hold the same samples.

    Args:
        run: The recorded run.
        stages: The golden stage, and the stage under test.
        step: The trainer's step.
        minis: Mini-batches of the latter; all by default.

    Raises:
        CompareError: no call has the same samples in both, or the stages have no output of a module in common.
        DumpError: a file cannot be read.
    """
    what = f"{run.path}: {stages[0]} and {stages[1]} of step {step}"
    golden = _calls(run, stages[0], step)
    target = _calls(run, stages[1], step, minis)
    alike = {call for call, rows in target.items() if golden.get(call) == rows}
    if not alike:
        raise NoValuesError(
            f"{what} have statistics only, which are of whole micro-batches, and none holds the same samples in both; "
            'to compare sample by sample, record both stages at level L0 or mix with "task": "tensor"'
        )
    sides = [_outputs(run, stage, step, alike) for stage in stages[::-1]]
    rows = sides[0].join(sides[1], on=_KEY, suffix="_golden", maintain_order="left")
    if rows.is_empty():
        raise NothingInCommonError(f"{what} have no output of a module in common; record both at level L0 or mix")
    return StatisticsDifference(
        step=step,
        values=list(_judged(step, _measured(rows))),
        samples=len({row[0] for call in alike for row in target[call]}),
        num_calls=len(alike),
        num_others=len(target) - len(alike),
    )


def _calls(
    run: RecordedRun, stage: str, step: int, minis: Collection[int] | None = None
) -> Mapping[Call, tuple[tuple[str, int, int, int, int], ...]]:
    return {
        (rank, call.call): tuple((row.id, row.row, row.offset, row.length, row.start) for row in call.rows)
        for rank, own in sorted(run.samples(stage, step).items())
        for call in own.micro_batches
        if call.rows and (minis is None or call.mini in minis)
    }


def _outputs(run: RecordedRun, stage: str, step: int, calls: Collection[Call]) -> pl.DataFrame:
    """Return the outputs of modules in some calls, with the columns of a dump's frame and `_KEY`."""
    frames = [
        run.dump(directory)
        .frame.filter(
            (pl.col("kind") == RowKind.TENSOR.value)
            & (pl.col("phase") == Phase.FORWARD.value)
            & (pl.col("role") == Role.OUTPUT.value)
        )
        .with_columns(rank=pl.lit(rank, pl.Int64))
        for rank, directory in sorted(run.ranks(stage, step).items())
    ]
    rows = pl.concat(frames)
    sites = [(entry, *site) for entry in rows["entry"].unique() if (site := module_of(entry)) is not None]
    schema = {"entry": pl.String, "path": pl.String, "type_name": pl.String, "call": pl.Int64}
    chosen = pl.DataFrame(sorted(calls), {"rank": pl.Int64, "call": pl.Int64}, orient="row")
    begin = pl.concat_str("entry", pl.lit(f".{Role.OUTPUT.value}."))
    return (
        rows.join(pl.DataFrame(sites, schema, orient="row"), on="entry", maintain_order="left")
        .join(chosen, on=["rank", "call"], how="semi", maintain_order="left")
        .with_columns(output=pl.col("key").str.strip_prefix(begin))
    )


def _measured(rows: pl.DataFrame) -> pl.DataFrame:
    """Return pairs of rows with ``error``, ``is_equal`` and ``by_checksum``; pairs without numbers are left out.

    The error is the largest of the relative difference of the norm, and of the extremes relative to the largest
    element: +Inf if shapes differ or only one side is finite, null if there are no statistics.
    """
    known = ("shape", "checksum", *STATISTICS, *_COUNTS)
    rows = add_statistics(rows.rename({name: f"{name}_target" for name in known}))
    same = {name: pl.col(f"{name}_target").eq_missing(pl.col(f"{name}_golden")) for name in ("shape", *_COUNTS)}
    has_checksums = pl.col("checksum_target").is_not_null() & pl.col("checksum_golden").is_not_null()
    has_sizes = pl.col("norm_target").is_not_null() & pl.col("norm_golden").is_not_null()
    of_statistics = pl.all_horizontal(*same.values(), *(_is_same(name) for name in STATISTICS))
    of_checksums = same["shape"] & (pl.col("checksum_target") == pl.col("checksum_golden"))
    sizes = [pl.col(measure.column).fill_null(float("inf")) for measure in (Measure.NORM, Measure.MAX, Measure.MIN)]
    return (
        with_measures(rows)
        .with_row_index("depth", 1)
        .with_columns(
            is_equal=pl.when(has_checksums).then(of_checksums).otherwise(of_statistics),
            by_checksum=has_checksums,
            error=pl.when(has_sizes & pl.all_horizontal(*same.values()))
            .then(pl.max_horizontal(sizes))
            .when(has_sizes)
            .then(float("inf")),
        )
        .with_columns(error=pl.when("is_equal").then(0.0).otherwise("error"), num_values=pl.len())
        .filter(has_checksums | has_sizes)
    )


def _is_same(name: str) -> pl.Expr:
    both_missing = pl.col(f"{name}_target").is_null() & pl.col(f"{name}_golden").is_null()
    return is_equal(name).fill_null(value=False) | both_missing


def _judged(step: int, rows: pl.DataFrame) -> Iterator[ValueDifference]:
    precision = Precision.FLOAT64
    columns = ("path", "type_name", "output", "rank", "call", "dtype", "dtype_golden", "error", "is_equal",
               "by_checksum", "depth", "num_values")  # fmt: skip
    for order, row in enumerate(rows.select(columns).iter_rows()):
        path, type_name, output, rank, call, *dtypes, error, is_equal, by_checksum, depth, num_values = row
        precision = max(precision, *(precision_named(str(dtype)) for dtype in dtypes))
        # Depth counts modules, not their calls.
        floor = module_floor(precision, depth)
        score = None if error is None else module_score(error, floor, precision, num_values)
        yield ValueDifference(
            step=step,
            order=order,
            module=path or f"{type_name} (the whole model)",
            output=output,
            rank=rank,
            call=call,
            error=error,
            floor=None if score is None else score.floor,
            score=None if score is None else score.score,
            limit=None if score is None else score.limit,
            verdict=Verdict.ERROR if score is None else score.verdict,
            is_equal=is_equal,
            by=_CHECKSUM if by_checksum else "statistics",
        )
