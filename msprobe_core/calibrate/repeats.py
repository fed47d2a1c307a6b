"""Compare one golden dump with its repetitions and estimate the noise of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from msprobe_core import names
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.result import UnitResult
from msprobe_core.compare.unit import compare_unit
from msprobe_core.errors import NoValuesError
from msprobe_core.execute.units import files_of
from msprobe_core.judge.columns import Match
from msprobe_core.judge.limits import conventional
from msprobe_core.judge.noise.channel_shapes import channel_shapes
from msprobe_core.judge.noise.masks import MASKED_SIZE, with_masked_sizes
from msprobe_core.judge.noise.measures import MEASURES, Measure, with_measures
from msprobe_core.judge.noise.profile_file import NO_RANK, SCHEMA, VERSION, About, identity_of, place_of
from msprobe_core.judge.noise.repetition_floors import DISTANCE, repetition_floors
from msprobe_core.judge.noise.rounding import with_sizes
from msprobe_core.judge.parameter_arguments import golden_parameters_given, is_at_place_of_parameter
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Role
from msprobe_core.store.layout import create_file
from msprobe_core.store.stored_rows import frame_of

_ROW = (
    "name_golden",
    "entry_golden",
    "phase",
    "role",
    "dtype_golden",
    "precision",
    "numel_golden",
    "roundoff",
    "num_rows",
    "is_state",
)


@dataclass(frozen=True)
class CalibrationTask:
    """One golden dump and its repetitions.

    Attributes:
        label: Name of the dump in reports.
        golden: The golden dump's directory.
        repeats: Directories of the same dump in the repetitions.
        perturbation: How the repetitions differ from the golden run, as text.
        part: The Parquet file to write the rows to.
    """

    label: str
    golden: Path
    repeats: tuple[Path, ...]
    perturbation: str
    part: Path

    @property
    def files(self) -> Sequence[Path]:
        """The files that are compared; the golden files are counted once for each repetition."""
        return files_of(dump for repeat in self.repeats for dump in (repeat, self.golden))


class DumpCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one dump.

    Attributes:
        label: Name of the dump in reports.
        num_repeats: Number of repetitions.
        num_nodes: Number of entries in the golden dump.
        num_rows: Number of its rows with floating-point values.
        num_measured: Number of those rows that every repetition has, with comparable numbers.
        num_varying: Number of the measured rows that differ in at least one repetition.
        num_flips: Number of rows that broke a rule without a magnitude in a repetition, for example the rule that
            integers are equal.
        floors: By dtype, the median noise floor of the distance over the rows that vary, and the number of those rows.
        incomplete: Messages about dumps that ended early or are damaged.
    """

    label: str
    num_repeats: int
    num_nodes: int
    num_rows: int
    num_measured: int
    num_varying: int
    num_flips: int
    floors: dict[str, tuple[float, int]]
    incomplete: tuple[str, ...] = ()


def calibrate_dump(task: CalibrationTask) -> DumpCalibration:
    """Compare a dump with its repetitions and write the estimated noise.

    Raises:
        CompareError: a dump cannot be compared, or none of its values can be measured.
        DumpError: a dump cannot be read.
        StoreError: the result cannot be written.
    """
    units = [compare_unit(UnitPair(task.label, None, None, repeat, task.golden)) for repeat in task.repeats]
    compared = [_errors(unit) for unit in units]
    rows = compared[0].select(_ROW)
    errors = [
        _like(compared[0], frame, is_whole=not unit.incomplete) for frame, unit in zip(compared, units, strict=True)
    ]
    is_float = rows["precision"].is_not_null()
    if not any(frame[DISTANCE].count() for frame in errors):
        raise NoValuesError(
            f"{task.golden}: nothing of it can be measured, because it or its repetitions have no statistics; record "
            "them with task 'statistics' or 'tensor'"
        )
    place = place_of(task.golden)
    are_updated = _parameters_vary(rows, errors)
    named = rows.rename({"name_golden": "name", "entry_golden": "entry"})
    found = repetition_floors(named, errors, are_updated=are_updated)
    flips = pl.DataFrame([frame["flips"].alias(str(k)) for k, frame in enumerate(errors)]).select(
        flips=pl.sum_horizontal(pl.all())
    )["flips"]
    about = About(
        version=VERSION,
        repeats=len(errors),
        perturbation=task.perturbation,
        identity=identity_of(task.golden),
        nulls={measure.value: null for measure, null in found.nulls.items()},
        parameters_vary=are_updated,
        masked_sizes=True,
    )
    step, rank = place or (0, NO_RANK)
    table = found.floors.with_columns(
        name=rows["name_golden"],
        flips=flips,
        step=pl.lit(step),
        rank=pl.lit(rank),
        about=pl.lit(msgspec.json.encode(about).decode()),
    ).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    has_floor = pl.any_horizontal(pl.col(measure.value).is_not_null() for measure in MEASURES)
    with create_file(task.part) as file:
        table.filter(has_floor | (pl.col("flips") > 0)).write_parquet(file)
    incomplete = tuple(dict.fromkeys(line for unit in units for line in unit.incomplete))
    return msgspec.structs.replace(_told(task, rows, errors, flips, is_float), incomplete=incomplete)


def _parameters_vary(rows: pl.DataFrame, errors: list[pl.DataFrame]) -> bool:
    """Whether some parameters differ from the golden run's, which means that training steps were perturbed before."""
    own = (pl.col("role") == Role.PARAMETERS.value) & pl.col("precision").is_not_null()
    varies = pl.any_horizontal((pl.lit(frame[DISTANCE]) > 0).fill_null(value=False) for frame in errors)
    return bool(rows.select((own & varies).any()).item())


def _told(
    task: CalibrationTask, rows: pl.DataFrame, errors: list[pl.DataFrame], flips: pl.Series, is_float: pl.Series
) -> DumpCalibration:
    distances = pl.DataFrame([frame[DISTANCE].alias(str(k)) for k, frame in enumerate(errors)])
    every = pl.all_horizontal(pl.all().is_not_null())
    own = distances.select(
        is_measured=every & is_float,
        is_varying=every & is_float & pl.any_horizontal(pl.all() > 0),
        distance=pl.mean_horizontal(pl.all() ** 2).sqrt(),
    )
    medians = (
        own.with_columns(dtype=rows["dtype_golden"])
        .filter("is_varying")
        .group_by("dtype")
        .agg(pl.col("distance").median(), number=pl.len())
        .sort("number", descending=True)
    )
    return DumpCalibration(
        label=task.label,
        num_repeats=len(errors),
        num_nodes=rows["entry_golden"].n_unique(),
        num_rows=int(is_float.sum()),
        num_measured=int(own["is_measured"].sum()),
        num_varying=int(own["is_varying"].sum()),
        num_flips=int((flips > 0).sum()),
        floors={dtype: (floor, number) for dtype, floor, number in medians.rows()},
    )


def _errors(unit: UnitResult) -> pl.DataFrame:
    """Return the measures of one repetition, one row per row of the golden dump."""
    rows = unit.rows
    is_given = is_at_place_of_parameter(conventional(), "name_golden", "entry_golden") | pl.lit(
        golden_parameters_given(rows, unit.golden_parents)
    )
    # An optimizer step can have a full-size update even where its gradient is only round-off, so an update varies as
    # much as the parameter that it updates.
    updates = [entry for entry, parent in unit.golden_parents.items() if parent == names.OPTIMIZER]
    is_update = pl.col("entry_golden").is_in(updates)
    is_state = (pl.col("role") == Role.PARAMETERS.value) | is_given | is_update
    measured = with_measures(frame_of(with_masked_sizes(rows)))
    rows = with_sizes(measured, channel_shapes(rows)).filter(pl.col("name_golden").is_not_null())
    rows = rows.with_columns(is_state=is_state.fill_null(value=False))
    is_pair = pl.col("match") == Match.BOTH.value
    is_wrong = pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value])
    same_shape = (pl.col("shape_target") == pl.col("shape_golden")).fill_null(value=False)
    is_sized = is_pair & same_shape & pl.col("precision").is_not_null()
    distance = pl.coalesce("measure_rel_l2", "error")
    if MASKED_SIZE in rows.columns:
        of_others = pl.max_horizontal(Measure.MAX.column, Measure.MIN.column)
        distance = pl.when(pl.col(MASKED_SIZE).is_null()).then(distance).otherwise(of_others)
    measures = [pl.col(measure.column) for measure in MEASURES]
    return rows.select(
        *_ROW,
        *[pl.when(is_sized).then(measure) for measure in measures],
        pl.when(is_sized & distance.is_finite()).then(distance).alias(DISTANCE),
        flips=is_wrong & ~is_sized,
    ).unique("name_golden", keep="first", maintain_order=True)


def _like(first: pl.DataFrame, other: pl.DataFrame, *, is_whole: bool) -> pl.DataFrame:
    """Return ``other``'s rows in the order of ``first``; rows missing from an incomplete recording are not flips."""
    if first["name_golden"].equals(other["name_golden"]):
        return other
    return (
        first.select("name_golden")
        .join(other, on="name_golden", how="left", maintain_order="left")
        .with_columns(pl.col("flips").fill_null(value=is_whole))
    )
