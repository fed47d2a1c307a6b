"""The calls of one rank in one step and their values, from one dump or from two side by side, in the same columns.

``calls`` has a row per call in execution order, ``values`` a row per value in the order of its calls. Everything that
the page shows of a run is derived from these two frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from msprobe_core.compare import custom_metrics
from msprobe_core.compare.extra_statistics import names_of, with_extra_columns
from msprobe_core.compare.fp8 import FP8_NAMES, with_fp8_columns
from msprobe_core.compare.result import UnitResult
from msprobe_core.compare.structure import structure_dumps
from msprobe_core.findings import Finding, Level
from msprobe_core.judge.columns import EXTRA_PREFIX, SKETCH_ERROR, Match
from msprobe_core.judge.data_flow import identity_of
from msprobe_core.judge.origins import is_flagged
from msprobe_core.judge.row_findings import FINDINGS, SCHEMA, findings_of, said
from msprobe_core.judge.statistics_columns import STATISTICS
from msprobe_core.judge.verdict import Verdict
from msprobe_core.model import Phase, Role
from msprobe_core.protocols.storage import Dump
from msprobe_core.report.default_table import PERCENTILE_HEADERS, TENSOR_HEADERS
from msprobe_core.store.frame import RowKind
from msprobe_core.store.stored_rows import frame_of
from msprobe_core.view.view_codes import ViewCode

SIDES = ("target", "golden")
_SHOWN = (*STATISTICS, "num_nan", "num_inf", "requires_grad", "value", "checksum")
"""Statistics of a value that pages show."""

_NUM_DIGITS = 7
GOLDEN_MARK = " (golden)"
"""Suffix of the name of a call that only the golden run has, if the target has another call of the same name."""

_TENSOR_METRICS = (
    "cosine", "largest_abs", "largest_rel", "euclidean", "within_1e3", "within_5e3", "ulp_max", "num_different",
    *PERCENTILE_HEADERS,
)  # fmt: skip
"""Metrics of tensors, in the order of the page."""


@dataclass(frozen=True)
class Calls:
    """The calls of one rank in one step.

    Attributes:
        calls: ``name`` (unique), ``entry`` (entry name in the dump that has the call), ``phase``, ``side``,
            ``partner``, ``excess`` (null: nothing to compare with), ``score``, ``is_flagged``.
        reasons: Findings of calls, by name.
        values: ``call`` (row in ``calls``), ``slot``, ``role``, ``kind``, ``verdict``, ``findings``, ``identity``
            (equal for equal tensors, null for values that are too common to follow); ``dtype``, ``shape``, ``file``
            and the statistics, each with ``_target`` and ``_golden``; ``numel``; the metrics.
        metrics: Names of the columns that are metrics.
        statistics: Names of the statistics that at least one value has.
        parents: Name of the enclosing call, by name of the call.
        stacks: Frames by name of the call, innermost first.
        is_pair: Whether there are two sides.
    """

    calls: pl.DataFrame
    reasons: Mapping[str, Finding]
    values: pl.DataFrame
    metrics: Sequence[str]
    statistics: Sequence[str]
    parents: Mapping[str, str | None]
    stacks: Mapping[str, Sequence[str]]
    is_pair: bool


def calls_of_dump(dump: Dump) -> Calls:
    """Return the calls of one dump; calls that turn finite inputs into NaN or Inf are flagged."""
    kept = ("entry", "role", "phase", "key")
    if not dump.frame.height and dump.parents:  # task structure: calls without values
        dump, _ = structure_dumps(dump, dump)
    rows = dump.frame.with_columns(pl.lit([], SCHEMA[FINDINGS]).alias(FINDINGS), verdict=pl.lit("none"))
    rows = rows.rename({name: f"{name}_target" for name in dump.frame.columns if name not in kept})
    is_bad = _is_bad("target")
    is_made = pl.col("role").is_in([Role.OUTPUT.value, Role.PARAMETERS_GRAD.value])
    calls = (
        rows.group_by("entry", maintain_order=True)
        .agg(
            phase=pl.col("phase").first(),
            makes=(is_bad & is_made).any(),
            gets=(is_bad & ~is_made).any(),
            what=_slot("target").filter(is_bad & is_made).first(),
        )
        .with_columns(is_flagged=pl.col("makes") & ~pl.col("gets"))
        .select(
            "entry", "phase", "is_flagged",
            name=pl.col("entry"),
            side=pl.lit("target"),
            partner=pl.lit(None, pl.String),
            excess=pl.when("makes").then(pl.lit(float("inf"))),
            score=pl.lit(None, pl.Float64),
            slot=pl.when("makes").then("what"),
        )
    )  # fmt: skip
    rows, _ = with_extra_columns(with_fp8_columns(rows, ("target",)), ("target",))
    values, statistics = _values(frame_of(rows), calls, ("target",))
    reasons = {
        name: Finding(ViewCode.HOLDS_NOT_FINITE, Level.ERROR, {"slot": slot})
        for name, slot in calls.select("name", "slot").drop_nulls("slot").rows()
    }
    return Calls(calls.drop("slot"), reasons, values, (), statistics, dump.parents, dump.stacks, is_pair=False)


def calls_of_pair(unit: UnitResult) -> Calls:
    """Return the calls of two dumps that have been compared."""
    evidence = unit.weigh()
    rows, nodes = evidence.rows, evidence.nodes.with_columns(is_flagged=is_flagged())
    calls = _named(nodes).with_columns(
        excess=pl.when(pl.col("side") != "both").then(None)
        .when(pl.col("is_lost") | pl.col("parts_missing")).then(pl.lit(float("inf")))
        .otherwise(pl.max_horizontal("output_excess", "parameter_excess")),
        score=pl.when(pl.col("side") == "both").then(pl.max_horizontal("output_score", "parameter_score")),
    )  # fmt: skip
    calls = calls.join(_reasons(rows), on="entry", how="left", maintain_order="left")
    is_wrong = (pl.col("side") != "both") | (pl.col("excess") > 1) | pl.col("is_flagged")
    wrong = calls.filter(is_wrong.fill_null(value=False)).select("name", "side", "slot", FINDINGS).rows()
    reasons = {name: found for name, *told in wrong if (found := _reason(*told)) is not None}
    metrics = _with_metrics(rows)
    values, statistics = _values(metrics, calls, SIDES)
    names = [name for name in metrics.columns if name.startswith(_METRIC) and metrics[name].null_count() < rows.height]
    renamed = {name: name.removeprefix(_METRIC) for name in names}
    parents, stacks = _of_both_sides(unit, calls)
    own = calls.with_columns(entry=pl.when(pl.col("side") == "golden").then("entry_golden").otherwise("entry"))
    columns = ("entry", "phase", "is_flagged", "name", "side", "partner", "excess", "score")
    return Calls(
        own.select(columns),
        reasons,
        values.rename(renamed),
        list(renamed.values()),
        statistics,
        parents,
        stacks,
        is_pair=True,
    )


_METRIC = "metric."


def _named(nodes: pl.DataFrame) -> pl.DataFrame:
    """Add ``side``, ``name`` and ``partner``; let ``entry_golden`` be the entry name in the golden dump."""
    side = pl.coalesce(pl.col("only_on"), pl.lit("both"))
    nodes = nodes.with_columns(side=side, entry_golden=pl.coalesce("entry_golden", "entry"))
    taken = nodes.filter(pl.col("side") != "golden")["entry"].to_list()
    is_taken = (pl.col("side") == "golden") & pl.col("entry_golden").is_in(taken)
    name = pl.when(pl.col("side") != "golden").then("entry").otherwise("entry_golden")
    return nodes.with_columns(
        name=pl.when(is_taken).then(pl.concat_str(name, pl.lit(GOLDEN_MARK))).otherwise(name),
        partner=pl.when(pl.col("side") == "both").then("entry_golden"),
    )


def _reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``entry``, ``slot`` and `FINDINGS` of each call's first wrong result, or else of its first wrong input."""
    is_wrong = pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]) | (pl.col("excess") > 1)
    own = rows.filter(is_wrong & (pl.col(FINDINGS).list.len() > 0)).select(
        "entry",
        made=(pl.col("role") != Role.INPUT.value) | pl.col("is_parameter") | pl.col("is_argument"),
        slot=_slot("target"),
        findings=FINDINGS,
    )
    own = own.sort(~pl.col("made"), maintain_order=True)
    return own.group_by("entry", maintain_order=True).agg(pl.col("slot", FINDINGS).first())


def _reason(side: str, slot: str | None, cell: Sequence[Mapping[str, Any]] | None) -> Finding | None:
    if side != "both":
        return Finding(ViewCode.ONLY_HERE, Level.UNMATCHED, {"side": side})
    found = findings_of(cell)
    if not found:
        return None
    # The first finding needs no level if it is an error; the level of the others must be shown.
    shown = [each if i == 0 and each.level is Level.ERROR else said(each) for i, each in enumerate(found)]
    return Finding(ViewCode.VALUE, found[0].level, {"slot": slot, "findings": shown}) if slot else shown[0]


def _with_metrics(rows: pl.DataFrame) -> pl.DataFrame:
    are_tensors = pl.all_horizontal(*[pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in SIDES])
    is_judged = pl.col("judged_error").is_not_null()
    found: dict[str, pl.Expr] = {
        "error": pl.col("judged_error"),
        "limit": pl.when(is_judged).then("limit"),
        "score": pl.when(is_judged | (pl.col("score") > 0)).then("score"),
        "score_limit": pl.when(is_judged).then("score_limit"),
    }
    found |= {TENSOR_HEADERS.get(name, name): pl.col(name) for name in _TENSOR_METRICS if name in rows.columns}
    of_plugins = {
        name.removeprefix(custom_metrics.PREFIX): pl.col(name)  # numbers, or text
        for name in rows.columns
        if name.startswith(custom_metrics.PREFIX)
    }
    if SKETCH_ERROR in rows.columns:
        found["estimated_rel_error"] = pl.col(SKETCH_ERROR)
    found |= {f"{name}_rel": pl.when(are_tensors).then(f"{name}_rel") for name in STATISTICS}
    is_pair = pl.col("match") == Match.BOTH.value
    shown = [Verdict.PASS.value, Verdict.WARNING.value, Verdict.ERROR.value]
    return rows.with_columns(
        *[metric.cast(pl.Float64).alias(_METRIC + name) for name, metric in found.items()],
        *[metric.alias(_METRIC + name) for name, metric in of_plugins.items()],
        verdict=pl.when(is_pair & pl.col("verdict").is_in(shown)).then("verdict").otherwise(pl.lit("none")),
    )


def _values(rows: pl.DataFrame, calls: pl.DataFrame, sides: Sequence[str]) -> tuple[pl.DataFrame, list[str]]:
    """Return the values in the order of their calls, and the names of the statistics that exist."""
    places = calls.select("entry").with_row_index("call")
    rows = rows.join(places, on="entry", how="left", maintain_order="left").sort("call", maintain_order=True)
    columns = {name: name for name in (*_SHOWN, *(name for name in FP8_NAMES if f"{name}_target" in rows.columns))}
    columns |= {name: EXTRA_PREFIX + name for name in names_of(rows.columns)}
    shown = {f"{name}_{side}": _statistic(column, side) for side in sides for name, column in columns.items()}
    described = {
        f"{title}_{side}": pl.col(f"{name}_{side}")
        for side in sides
        for title, name in (("dtype", "dtype"), ("shape", "shape"), ("file", "file_name"))
    }
    kind = pl.coalesce(*[pl.col(f"kind_{side}") for side in sides])
    slot = pl.coalesce(*[_slot(side) for side in sides])
    metrics = [pl.col(name) for name in rows.columns if name.startswith(_METRIC)]
    numel = pl.coalesce(*[pl.col(f"numel_{side}") for side in sides])
    identity = pl.coalesce(*[identity_of(f"_{side}") for side in sides])
    own = {"slot": slot, "kind": kind, "identity": identity, "numel": numel}
    values = rows.select("call", "role", "verdict", FINDINGS, *metrics, **own, **described, **shown)
    floats = [name for name, kind in values.schema.items() if kind == pl.Float64]
    values = values.with_columns(pl.col(floats).round_sig_figs(_NUM_DIGITS)) if floats else values
    has_any = {name: any(values[f"{name}_{side}"].null_count() < values.height for side in sides) for name in columns}
    return values, [name for name in columns if has_any[name]]


def _statistic(name: str, side: str) -> pl.Expr:
    is_tensor = pl.col(f"kind_{side}") == RowKind.TENSOR.value
    if name == "value":
        return pl.when(~is_tensor).then(f"text_{side}")
    if name == "checksum":
        return pl.col(f"checksum_{side}")
    if name == "requires_grad":
        return pl.when(is_tensor).then(pl.col(f"requires_grad_{side}").cast(pl.String))
    return pl.when(is_tensor).then(f"{name}_{side}")


def _slot(side: str, key_column: str = "key") -> pl.Expr:
    """Return the slot of a value in its call: its name without the call's name."""
    entry = pl.col("entry") if side == "target" else pl.coalesce("entry_golden", "entry")
    # A tensor whose file could not have the value's name is called like its file; the key has the slot then.
    name, key = (pl.col(column).str.strip_prefix(entry) for column in (f"name_{side}", key_column))
    is_changed = name == pl.col(f"name_{side}")
    own = pl.when(is_changed).then(key.str.strip_prefix(".0")).otherwise(name).str.strip_prefix(".")
    return pl.when(own == "").then(pl.lit("value")).otherwise(own)


def _is_bad(side: str) -> pl.Expr:
    counted = pl.col(f"num_nan_{side}").fill_null(0) + pl.col(f"num_inf_{side}").fill_null(0) > 0
    extremes = [pl.col(f"{name}_{side}") for name in ("max", "min", "norm")]
    is_tensor = pl.col(f"kind_{side}") == RowKind.TENSOR.value
    return is_tensor & (counted | pl.any_horizontal(*[(~each.is_finite()).fill_null(False) for each in extremes]))


def _of_both_sides(
    unit: UnitResult, calls: pl.DataFrame
) -> tuple[Mapping[str, str | None], Mapping[str, Sequence[str]]]:
    """Return parents and stacks by the names of calls in this module."""
    parents = dict(unit.parents)
    stacks = dict(unit.stacks)
    lone = calls.filter(pl.col("side") == "golden")
    if not lone.height:
        return parents, stacks
    shared = calls.filter(pl.col("side") != "target").select("name", "entry_golden").rows()
    name_of: dict[str, str] = {golden: name for name, golden in shared}
    for name, golden in lone.select("name", "entry_golden").rows():
        parent = unit.golden_parents.get(golden)
        parents[name] = None if parent is None else name_of.get(parent, parent)
        if (frames := unit.golden_stacks.get(golden)) is not None:
            stacks[name] = frames
    return parents, stacks


def is_late(phase: str) -> bool:
    """Whether a call of this phase runs after the forward pass."""
    return phase in (Phase.BACKWARD.value, Phase.PARAMETERS_GRAD.value)
