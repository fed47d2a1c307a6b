"""Score rows by how far two healthy runs may differ, and rate the evidence of scores."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from msprobe_core.errors import NoNoiseError
from msprobe_core.findings import Finding
from msprobe_core.judge.joining import filtered, filtered_parts, joined, with_added
from msprobe_core.judge.judge_codes import JudgeCode
from msprobe_core.judge.noise import student, turned
from msprobe_core.judge.noise.carried import carried_distance, is_parameter
from msprobe_core.judge.noise.channel_shapes import channel_shapes
from msprobe_core.judge.noise.closed_form import CLOSED_NULLS, closed, with_closed_form
from msprobe_core.judge.noise.masks import with_masked_sizes
from msprobe_core.judge.noise.measures import MEASURES, WORDS, Measure, with_stored_measures
from msprobe_core.judge.noise.null_distribution import EXTREME_LIMIT
from msprobe_core.judge.noise.operations import Operations
from msprobe_core.judge.noise.profile_file import NoiseProfile, UnitNoise, find_profile
from msprobe_core.judge.noise.rounding import least, with_sizes
from msprobe_core.store.stored_rows import Rows, narrowed, roots_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from msprobe_core.judge.noise.null_distribution import ScoreDistribution

ALPHA = 0.01
"""Probability that a comparison of healthy runs has a row over its limit, if scores follow the distribution of the
repetitions: the share of each measure of each row is this over their number (Bonferroni)."""

EVIDENCE = (("very strong", 1e-6), ("strong", 1e-3))
"""Factor by which a score must be less likely than the limit for evidence of this strength; otherwise it is weak."""

SCORES = {
    "noise_floor": pl.Float64,
    "score": pl.Float64,
    "score_limit": pl.Float64,
    "score_measure": pl.String,
}
"""Columns that remain in the result."""

HELPERS = ("evidence", "noise_source", "num_flips", "num_repeats", "score_error", "score_word")


class NoiseSource(str, Enum):
    """Origin of a floor: repetitions, the formula, or one healthy run given as a baseline."""

    MEASURED = "measured"
    CLOSED_FORM = "closed form"
    BASELINE = "baseline"


@dataclass(frozen=True)
class NoiseModel:
    """How far two healthy runs may differ.

    Attributes:
        profile: The measured profile; ``None`` for the closed form alone. Rows without a profile, and measures that it
            lacks for a row, have floors by the closed form.
        alpha: See `ALPHA`.
    """

    profile: Path | None = None
    alpha: float = ALPHA

    def score(self, rows: Rows, golden: Path, operations: Operations | None = None) -> tuple[Rows, list[Finding]]:
        """Return aligned rows with `SCORES` and `HELPERS`, and notes.

        ``score`` is ``error / floor`` of the measure that exceeds its limit most, or is closest to it; 0 if the two
        sides are equal, null if there are no floats to compare, or if the floor is unbounded.

        Args:
            rows: Rows in execution order, with ``judged_error``, ``precision`` and the metrics.
            golden: The golden dump.
            operations: Operations of the golden dump's calls, if the dumps are of different frameworks.

        Raises:
            CompareError: the profile cannot be read.
        """
        found = NoiseProfile(self.profile).unit(golden) if self.profile is not None else None
        measured = found if isinstance(found, UnitNoise) else None
        sized = with_masked_sizes(rows) if measured is None or measured.masked_sizes else rows
        prepared = with_sizes(with_stored_measures(sized), channel_shapes(rows))
        prepared = with_closed_form(prepared, operations)
        prepared = _with_profile(prepared, measured)
        if operations is not None:
            # Repetitions in one framework say nothing about the other framework's kernels.
            prepared = prepared.with_columns(
                pl.when(pl.col(_floor(measure)).is_not_null()).then(pl.max_horizontal(_floor(measure), closed(measure)))
                for measure in MEASURES
            )
        carried = (
            0.0
            if measured is not None and measured.parameters_vary
            else carried_distance(prepared, is_foreign=operations is not None, is_measured=measured is not None)
        )
        if carried:
            prepared = _with_carried(prepared, carried)
        scored, told = _scored_behind_turned(prepared, measured, self.alpha)
        return narrowed(scored, [*rows.columns, *SCORES, *HELPERS]), [*_notes(scored, found, carried), *told]


def load_noise(golden: Path) -> NoiseModel:
    """Return the noise profile stored next to a golden run, or the closed form without one.

    Args:
        golden: Directory of the run, a step or a rank, or the file of a dump.
    """
    return NoiseModel(find_profile(golden))


def measured_noise(golden: Path) -> NoiseModel:
    """Return the noise profile stored next to a golden run.

    Raises:
        CompareError: there is none.
    """
    model = load_noise(golden)
    if model.profile is None:
        raise NoNoiseError(
            f"{golden}: there is no noise profile beside it; measure one with `msprobe calibrate`, or give --noise "
            "closed"
        )
    return model


def _with_profile(rows: Rows, measured: UnitNoise | None) -> Rows:
    """Add ``floor_{measure}`` from the profile, null if it has none, and the profile's other columns."""
    if measured is None:
        return rows.with_columns(
            *[pl.lit(None, pl.Float64).alias(_floor(measure)) for measure in MEASURES],
            num_flips=pl.lit(0, pl.UInt16),
            num_repeats=pl.lit(0, pl.Int64),
        )
    known = measured.rows.select(
        pl.col("name").alias("name_golden"),
        pl.col("flips").alias("num_flips"),
        *[pl.col(measure.value).cast(pl.Float64).alias(_floor(measure)) for measure in MEASURES],
    )
    return joined(rows, known, on="name_golden").with_columns(
        pl.col("num_flips").fill_null(0), num_repeats=pl.lit(measured.repeats, pl.Int64)
    )


_MOST_ROWS, _USUAL = 0.9, 2.0
"""Share of rows, and the score that it usually does not exceed in a run that differs as much as the repetitions.

Measured in second steps of tiny models in float32: 1.1 to 2.2 in repetitions; in other healthy runs up to 7.9.
"""

_MOST_RECTIFIERS = 8
"""Maximum number of rectifiers per step that are searched for turned elements: more have another cause."""

_AVERAGED = 2.0
"""Factor by which averaged measures may exceed the estimate for independent rows, for error carried into the step."""


def _with_carried(rows: Rows, distance: float) -> Rows:
    """Raise all floors to the effect of different parameters; parameters themselves are judged by limits."""
    rows = rows.with_columns(roundoff=pl.when(~is_parameter()).then("roundoff"))
    lowest = {m: least(m, pl.lit(distance)) * _AVERAGED if m.averages else pl.lit(distance) for m in MEASURES}
    return rows.with_columns(
        pl.when(pl.col(name).is_not_null()).then(pl.max_horizontal(name, lowest[measure])).alias(name)
        for measure in MEASURES
        for name in (_floor(measure), closed(measure))
    )


def _floor(measure: Measure) -> str:
    return f"floor_{measure.value}"


def _scored_behind_turned(rows: Rows, measured: UnitNoise | None, alpha: float) -> tuple[Rows, list[Finding]]:
    """Score rows; if rectifiers have turned single elements, score later rows by that effect."""
    scored = _scored_as_a_run(rows, measured, alpha)
    notes: dict[str, Finding] = {}
    while len(notes) < _MOST_RECTIFIERS and (found := turned.turned_at(scored)) is not None:
        entry, distance = found
        if entry in notes:
            break
        rows = turned.with_downstream(rows, entry).with_columns(
            turned.raised(measure, pl.col(name), distance).alias(name)
            for measure in MEASURES
            for name in (_floor(measure), closed(measure))
        )
        scored = _scored_as_a_run(rows, measured, alpha)
        fields = {"entry": entry, "most": turned.MOST_TURNED, "distance": float(distance)}
        notes[entry] = Finding(JudgeCode.TURNED, fields=fields)
    return scored, list(notes.values())


def _scored_as_a_run(rows: Rows, measured: UnitNoise | None, alpha: float) -> Rows:
    """Score rows, and allow for a run that differs more than the repetitions as a whole.

    The effect of rounding on an update depends on the few elements whose gradient is rounding noise, and propagates to
    all values computed with them. So errors of a later step have a size specific to the run. It is estimated by the
    score that nine of ten rows do not exceed; it is bounded by the limit of Student's t for the number of repetitions,
    which are a small sample. Parameters, its origin, are judged without this allowance.
    """
    scored = _scored(rows, measured, alpha)
    if measured is None or not measured.parameters_vary:
        return scored
    most_rows = filtered(scored, ["score"], ~is_parameter())["score"].quantile(_MOST_ROWS) or 0.0
    of_run = min(most_rows / _USUAL, student.limit_of(alpha, measured.repeats))
    return _scored(rows, measured, alpha, of_run) if of_run > 1 else scored


def _scored(rows: Rows, measured: UnitNoise | None, alpha: float, of_run: float = 1.0) -> Rows:
    nulls = None if measured is None else measured.nulls
    is_judged = pl.col("judged_error").is_not_null() & pl.col("roundoff").is_not_null()
    of_measures = [measure.column for measure in MEASURES]
    judged = filtered_parts(rows, of_measures, is_judged)
    share = alpha / max(sum(sum(part.select(pl.col(of_measures).count()).row(0)) for part in judged), 1)
    is_measured = {measure: pl.col(_floor(measure)).is_not_null() for measure in MEASURES}

    def by_null(measure: Measure, value: Callable[[ScoreDistribution], float]) -> pl.Expr:
        by_formula = pl.lit(value(CLOSED_NULLS[measure]))
        if nulls is None:
            return by_formula
        return pl.when(is_measured[measure]).then(value(nulls[measure])).otherwise(by_formula)

    as_a_run = pl.when(is_parameter()).then(1.0).otherwise(of_run)
    is_single = pl.col("num_rows") == 1  # nothing averages out
    limits = {
        measure: as_a_run
        * pl.max_horizontal(by_null(measure, lambda null: null.limit(share)), pl.when(is_single).then(EXTREME_LIMIT))
        for measure in MEASURES
    }

    floors = {measure: pl.coalesce(_floor(measure), closed(measure)) for measure in MEASURES}
    scores = {measure: _score(pl.col(measure.column), floors[measure]) for measure in MEASURES}
    of_excess = [
        pl.when(is_judged).then(scores[measure] / limits[measure]).alias(f"excess_{measure.value}")
        for measure in MEASURES
    ]
    excesses = [pl.col(f"excess_{measure.value}") for measure in MEASURES]
    of_measure = _first(MEASURES, lambda m: pl.col(f"excess_{m.value}") == pl.col("worst"), lambda m: pl.lit(m.value))

    def of_worst(value: Callable[[Measure], pl.Expr]) -> pl.Expr:
        return _first(MEASURES, lambda m: pl.col("score_measure") == m.value, value)

    told = {
        "noise_floor": of_worst(floors.__getitem__),
        "score": of_worst(scores.__getitem__),
        "score_limit": of_worst(limits.__getitem__),
        "score_error": of_worst(lambda m: pl.col(m.column)),
        "score_word": of_worst(lambda m: pl.lit(WORDS[m])),
        "noise_source": of_worst(
            lambda m: (
                pl.when(is_measured[m])
                .then(pl.lit(NoiseSource.MEASURED.value))
                .otherwise(pl.lit(NoiseSource.CLOSED_FORM.value))
            )
        ),
    }
    evidence = pl.lit("weak")
    for word, rarer in reversed(EVIDENCE):
        beyond = as_a_run * of_worst(lambda m, rarer=rarer: by_null(m, lambda null: null.rarer(share, rarer)))
        evidence = pl.when(pl.col("score") > beyond).then(pl.lit(word)).otherwise(evidence)

    def scored(part: pl.DataFrame) -> pl.DataFrame:
        part = part.with_columns(of_excess).with_columns(worst=pl.max_horizontal(excesses))
        part = part.with_columns(score_measure=of_measure).with_columns(**told)
        return part.select("worst", "score_measure", *told, evidence=evidence)

    own = ("worst", "score_measure", *told, *[excess.meta.output_name() for excess in excesses])
    reads = [name for name in roots_of(*of_excess, as_a_run, *told.values(), evidence) if name not in own]
    return with_added(rows, scored, reads)


def _score(error: pl.Expr, floor: pl.Expr) -> pl.Expr:
    """Return ``error / floor``: 0 for equal values, null if the floor is unbounded."""
    return pl.when(error == 0).then(0.0).when(floor.is_finite()).then(error / floor)


def _first(
    measures: tuple[Measure, ...], condition: Callable[[Measure], pl.Expr], value: Callable[[Measure], pl.Expr]
) -> pl.Expr:
    return pl.coalesce([pl.when(condition(measure)).then(value(measure)) for measure in measures])


def _notes(rows: Rows, found: UnitNoise | str | None, carried: float) -> list[Finding]:
    judged = filtered(rows, ["noise_source"], pl.col("score").is_not_null())
    by_formula = judged.filter(pl.col("noise_source") == NoiseSource.CLOSED_FORM.value).height
    if isinstance(found, UnitNoise):
        code = JudgeCode.MEASURED_IN_PART if by_formula else JudgeCode.MEASURED
        fields = {"repeats": found.repeats, "count": judged.height - by_formula, "others": by_formula}
        notes = [Finding(code, fields=fields)]
    elif found is not None:
        notes = [Finding(JudgeCode.CLOSED_FORM_BECAUSE, fields={"why": found, "count": by_formula})]
    else:
        notes = [Finding(JudgeCode.CLOSED_FORM, fields={"count": by_formula})]
    return [*notes, *([Finding(JudgeCode.CARRIED, fields={"distance": float(carried)})] if carried else [])]
