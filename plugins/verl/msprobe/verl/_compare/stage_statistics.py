"""Two stages by statistics and checksums, which are of whole micro-batches: where both have cut their samples alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl

from msprobe.verl._compare.floors import Score, module_floor, module_score, precision_named
from msprobe.verl._compare.outcome import VERDICT
from msprobe.verl._compare.recorded import RecordedRun
from msprobe.verl._compare.stage_tensors import module_of
from msprobe_core.judge.limits import Precision
from msprobe_core.judge.verdict import Verdict
from msprobe_core.plugin import CompareError, Phase, Role
from msprobe_core.store.frame import RowKind

Call: TypeAlias = tuple[int, int]
"""Rank, and index of the call."""

_SIZES = ("max", "min", "mean", "norm")
_COUNTS = ("num_nan", "num_inf")
_COLUMNS = ("entry", "key", "dtype", "shape", *_SIZES, *_COUNTS, "checksum")

_SCHEMA: dict[str, Any] = {
    "step": pl.Int64, "order": pl.Int64, "module": pl.String, "output": pl.String, "rank": pl.Int64, "call": pl.Int64,
    "error": pl.Float64, "floor": pl.Float64, "score": pl.Float64, "limit": pl.Float64, VERDICT: pl.String,
    "is_equal": pl.Boolean, "by": pl.String,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ValueDifference:
    """One output of one call of a module.

    Attributes:
        name: Of the module.
        place: Position of the output in the call.
        call: Which call.
        score: Of the largest relative difference of its statistics; ``None`` where there are checksums only, and they
            differ.
        is_equal: Whether all that was recorded of it is equal.
        by_checksum: Whether that is a checksum, so that equal means equal to the bit.
    """

    name: str
    place: str
    call: Call
    score: Score | None
    is_equal: bool
    by_checksum: bool

    @property
    def is_over(self) -> bool:
        """Whether rounding does not explain it, as far as one sees."""
        return not self.is_equal if self.score is None else self.score.is_over

    @property
    def reason(self) -> str:
        """In words how far it is off."""
        where = f"in call {self.call[1]} of rank {self.call[0]}"
        if self.score is None:
            return f"another checksum {where}; how far it is off takes statistics or tensors"
        return (
            f"statistics {self.score.value:.2g} off, relative, {where}, where rounding explains {self.score.floor:.2g}"
        )


@dataclass(frozen=True, kw_only=True)
class StatisticsDifference:
    """The comparison of two stages by statistics.

    Attributes:
        step: Of the trainer.
        values: In the order of execution.
        samples: How many samples are in the calls that were compared.
        num_calls: How many calls were compared.
        num_others: How many calls hold other samples in the two stages.
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
        """Whether all that was recorded is equal."""
        return all(value.is_equal for value in self.values)

    @property
    def by_checksum(self) -> bool:
        """Whether equal means equal to the bit."""
        return all(value.by_checksum for value in self.values)


def compare_statistics(
    run: RecordedRun, stages: tuple[str, str], step: int, *, minis: Collection[int] | None = None
) -> StatisticsDifference:
    """Compare the statistics of the outputs of modules, call by call, of calls that hold the same samples.

    Args:
        run: Whose.
        stages: The golden one, and the one under test.
        step: Of the trainer.
        minis: Mini-batches of the latter; all by default.

    Raises:
        CompareError: no call holds the same samples in both, or they have no output of a module in common.
        DumpError: a file cannot be read.
    """
    golden = _calls(run, stages[0], step)
    target = _calls(run, stages[1], step, minis)
    alike = {call for call, rows in target.items() if golden.get(call) == rows}
    if not alike:
        raise CompareError(
            f"{run.path}: {stages[0]} and {stages[1]} of step {step} have statistics only, which are of whole "
            "micro-batches, and none holds the same samples in both; to compare sample by sample, record both stages "
            'at level L0 or mix with "task": "tensor"'
        )
    sides = [_outputs(run, stage, step, alike) for stage in (stages[1], stages[0])]
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        raise CompareError(
            f"{run.path}: {stages[0]} and {stages[1]} of step {step} have no output of a module in common; record both "
            "at level L0 or mix"
        )
    return StatisticsDifference(
        step=step,
        values=list(_judged(common, *sides)),
        samples=len({row[0] for call in alike for row in target[call]}),
        num_calls=len(alike),
        num_others=len(target) - len(alike),
    )


def _calls(
    run: RecordedRun, stage: str, step: int, minis: Collection[int] | None = None
) -> dict[Call, tuple[tuple[str, int, int, int, int], ...]]:
    return {
        (rank, call.call): tuple((row.id, row.row, row.offset, row.length, row.start) for row in call.rows)
        for rank, own in sorted(run.samples(stage, step).items())
        for call in own.micro_batches
        if call.rows and (minis is None or call.mini in minis)
    }


_Key: TypeAlias = tuple[str, str, str, Call]
"""Path and class of a module, place of the output, and call."""


def _outputs(run: RecordedRun, stage: str, step: int, calls: Collection[Call]) -> dict[_Key, Mapping[str, Any]]:
    found: dict[_Key, Mapping[str, Any]] = {}
    for rank, directory in sorted(run.ranks(stage, step).items()):
        rows = run.dump(directory).frame.filter(
            (pl.col("kind") == RowKind.TENSOR.value)
            & (pl.col("phase") == Phase.FORWARD.value)
            & (pl.col("role") == Role.OUTPUT.value)
        )
        for row in rows.select(_COLUMNS).iter_rows(named=True):
            module = module_of(row["entry"])
            if module is not None and (rank, module[2]) in calls:
                place = row["key"].removeprefix(f"{row['entry']}.{Role.OUTPUT.value}.")
                found[module[0], module[1], place, (rank, module[2])] = row
    return found


def _judged(
    keys: Sequence[_Key], target: Mapping[_Key, Mapping[str, Any]], golden: Mapping[_Key, Mapping[str, Any]]
) -> Iterator[ValueDifference]:
    precision = Precision.FLOAT64
    for order, key in enumerate(keys):
        own, other = target[key], golden[key]
        precision = max(precision, *(precision_named(str(row["dtype"])) for row in (own, other)))
        has_checksums = own["checksum"] is not None and other["checksum"] is not None
        has_sizes = own["norm"] is not None and other["norm"] is not None
        if not has_checksums and not has_sizes:
            continue
        names = ("shape", "checksum") if has_checksums else ("shape", *_SIZES, *_COUNTS)
        is_equal = all(_is_same(own[name], other[name]) for name in names)
        error = 0.0 if is_equal else _error(own, other) if has_sizes else None
        # Depth counts modules, not their calls.
        score = None if error is None else module_score(error, module_floor(precision, order + 1), precision, len(keys))
        yield ValueDifference(
            name=key[0] or f"{key[1]} (the whole model)", place=key[2], call=key[3], score=score, is_equal=is_equal,
            by_checksum=has_checksums,
        )  # fmt: skip


def _is_same(target: Any, golden: Any) -> bool:
    both = isinstance(target, float) and isinstance(golden, float)
    return target == golden or (both and math.isnan(target) and math.isnan(golden))


def _error(target: Mapping[str, Any], golden: Mapping[str, Any]) -> float:
    """Return the largest of the relative differences of the norm, and of the extremes to the largest element.

    +Inf where shapes differ or one side alone is not finite.
    """
    if any(target[name] != golden[name] for name in ("shape", *_COUNTS)):
        return math.inf
    largest = max(abs(golden["max"] or 0.0), abs(golden["min"] or 0.0))
    found = 0.0
    for name, size in (("norm", golden["norm"]), ("max", largest), ("min", largest)):
        own, other = target[name], golden[name]
        if _is_same(own, other):
            continue
        error = abs(own - other) / size if size else math.inf
        found = max(found, error if math.isfinite(error) else math.inf)
    return found


def table_of(differences: Sequence[StatisticsDifference]) -> pl.DataFrame:
    """Return a row per output and call."""
    rows = [
        {
            "step": one.step, "order": order, "module": value.name, "output": value.place, "rank": value.call[0],
            "call": value.call[1], "error": None if value.score is None else value.score.value,
            "floor": None if value.score is None else value.score.floor,
            "score": None if value.score is None else value.score.score,
            "limit": None if value.score is None else value.score.limit,
            VERDICT: (Verdict.ERROR if value.is_over else Verdict.PASS).value, "is_equal": value.is_equal,
            "by": "checksum" if value.by_checksum else "statistics",
        }
        for one in differences
        for order, value in enumerate(one.values)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=_SCHEMA)
