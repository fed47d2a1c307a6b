"""Compare one dump with another: read, align, measure and judge them, and find the first fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl

from msprobe_core.compare.align import Alignment, align
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.fp8 import with_fp8_columns
from msprobe_core.compare.incomplete import Ends, ends_of, without_missing_calls
from msprobe_core.compare.mapping import Matching
from msprobe_core.compare.mixed import completed
from msprobe_core.compare.modes import mode_of
from msprobe_core.compare.pairs import UnitPair
from msprobe_core.compare.post_processing import PostProcessing
from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compare.sketches import add_sketch_error
from msprobe_core.compare.structure import structure_dumps
from msprobe_core.compare.suggest import suggest_names
from msprobe_core.compare.tensor_pass import Progress, add_tensor_metrics
from msprobe_core.compare.tools import are_foreign, are_of_two_tools
from msprobe_core.compare.worst_tensor import worst_tensor
from msprobe_core.errors import CompareError
from msprobe_core.findings import Field, Finding, Level, noted
from msprobe_core.judge import overrides, statistics_columns
from msprobe_core.judge.columns import Match
from msprobe_core.judge.cross_framework import with_excused_inner_calls, with_excuses, with_excuses_between_tools
from msprobe_core.judge.evidence import evidence_of
from msprobe_core.judge.fault import Faults, find_faults
from msprobe_core.judge.joining import with_texts_of
from msprobe_core.judge.limits import LimitTable, conventional, precision_of
from msprobe_core.judge.nodes import judge_nodes
from msprobe_core.judge.noise.model import NoiseModel
from msprobe_core.judge.origins import Nesting
from msprobe_core.judge.row_conditions import failures, has_failed, is_uncompared
from msprobe_core.judge.verdict import (
    UNRECORDED,
    Verdict,
    check_recorded,
    differs,
    judge,
)
from msprobe_core.model import Phase
from msprobe_core.protocols.storage import Dump
from msprobe_core.protocols.trainers import ModuleMap
from msprobe_core.store.frame import RowKind
from msprobe_core.store.json_reader import read_stacks
from msprobe_core.store.reading import read_dump
from msprobe_core.store.stored_dump import StoredDump

if TYPE_CHECKING:
    from collections.abc import Callable

    from msprobe_core.compare.layouts.rules import LayoutRules
    from msprobe_core.compare.shards.findings import ReplicaFinding
    from msprobe_core.judge.noise.operations import Operations


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of a comparison; they are the same for all units, and are sent to the worker processes.

    Attributes:
        stack_path: The target's ``stack.json`` if it is not next to the dump.
        limits: Limits of the differences.
        matching: How rows with different names are paired.
        post_processing: Factors by which tensors are multiplied before they are compared.
        layouts: How the layouts of the two sides' tensors differ; see `msprobe_core.compare.layouts.load_layouts`.
        noise: How far two healthy runs may differ; if given, it replaces ``limits`` where it has a measure.
        modules: Names of a serving engine's modules in the training backend, if the two are compared.
        aligns_tokens: Whether rows of tensors are paired by token ids instead of positions.
    """

    stack_path: Path | None = None
    limits: LimitTable = field(default_factory=conventional)
    matching: Matching = field(default_factory=Matching)
    post_processing: PostProcessing | None = None
    layouts: LayoutRules | None = None
    noise: NoiseModel | None = None
    modules: ModuleMap | None = None
    aligns_tokens: bool = False


def compare_unit(
    pair: UnitPair,
    options: CompareOptions | None = None,
    progress: Progress | None = None,
    before: pl.DataFrame | None = None,
) -> UnitResult:
    """Compare two dumps.

    Args:
        pair: The two dumps.
        options: How to compare them.
        progress: Called with the number of bytes of tensors compared so far, and the total.
        before: Parameters of the previous step, from which the expected updates are computed; ``None`` if unknown.

    Raises:
        CompareError: the dumps have nothing in common, or are not of the same kind.
        DumpError: a dump cannot be read.
    """
    options = options or CompareOptions()
    stored = _read_sides(pair, options.layouts)
    ends = ends_of(*stored)
    sides, told_tokens, lone_sequences = _made_alike(stored, options)
    incomplete = [*ends.findings, *map(noted, lone_sequences)]
    target, golden = completed(*sides)
    mode, notes = mode_of(target, golden)
    for dump in (target, golden):
        check_recorded(dump)
    alignment, left_out = _aligned(target, golden, mode, options.matching, ends)
    rows, notes = alignment.rows, [*incomplete, *told_tokens, *left_out, *notes, *alignment.notes]
    is_foreign = are_foreign(target.header, golden.header)
    if is_foreign:
        rows, excused = with_excuses(rows, alignment.buffers, alignment.wrappers)
        notes = [*notes, *excused]
    if are_of_two_tools(target.header, golden.header):
        rows, excused = with_excuses_between_tools(rows, have_apis=is_foreign)
        notes = [*notes, *excused]
    rows = with_fp8_columns(add_sketch_error(statistics_columns.add_statistics(rows)), ("target", "golden"))
    if mode is Mode.TENSOR:
        rows, tensor_notes = add_tensor_metrics(rows, target, golden, progress, options.post_processing)
        notes = [*notes, *tensor_notes]
    scorer = _scorer(options.noise, pair.golden, told := [], alignment.operations)
    excuser = _excuser(target, golden, notes := [*notes]) if is_foreign else None
    rows = judge(
        rows,
        by_checksum=mode is Mode.CHECKSUM,
        limits=options.limits,
        is_foreign=is_foreign,
        has_nesting=mode is Mode.STRUCTURE,
        scorer=scorer,
        excuser=excuser,
        parents=target.parents,
    )
    told += [*_note_uncompared(rows, mode, pair), *_note_precisions(rows), *overrides.note_idle(rows, options.limits)]
    nodes = judge_nodes(rows)
    if mode is not Mode.STRUCTURE and rows.select(_is_empty_call().any()).item():
        rows = rows.filter(~_is_empty_call())
    stacks = target.stacks if options.stack_path is None else read_stacks(options.stack_path)
    nesting = Nesting(target.parents, golden.parents)
    weigh = cache(
        partial(
            evidence_of,
            rows,
            options.limits,
            nesting,
            is_first_step=pair.is_first_step,
            is_foreign=is_foreign,
            before=before,
        )
    )
    faults = Faults()
    if nodes["verdict"].is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]).any():
        faults = find_faults(weigh(), nodes, target, golden, stacks)
    if (fault := faults.fault) is not None:
        fault = replace(fault, worst_tensor=worst_tensor(rows, fault.entry, target, golden, options.post_processing))
    replicas: list[ReplicaFinding] = []
    if _is_in_parts(pair):
        from msprobe_core.compare.sides import find_replicas, note_parts

        replicas = find_replicas(*stored)
        notes = [*notes, *note_parts(fault, rows, *sides)]
    return UnitResult(
        label=pair.label,
        step=pair.step,
        rank=pair.rank,
        target=target.path,
        golden=golden.path,
        mode=mode,
        num_rows=rows.height,
        nodes=_count_nodes(nodes),
        counts=_count(rows),
        fault=fault,
        lone_call=faults.lone_call,
        culprit=faults.culprit,
        given_wrong=faults.given_wrong,
        first_difference=cast("str | None", rows.select(pl.col("name_target").filter(differs()).first()).item()),
        note_findings=list(map(noted, (*pair.notes, *target.notes, *golden.notes, *notes, *told))),
        incomplete_findings=incomplete,
        replicas=replicas,
        is_foreign=is_foreign,
        suggestions=suggest_names(rows, alignment.wrappers) if is_foreign or options.matching.renames else [],
        rows=rows,
        entries=nodes,
        weigh=weigh,
        stacks=stacks,
        golden_stacks=golden.stacks,
        parents=target.parents,
        golden_parents=golden.parents,
    )


def _scorer(
    noise: NoiseModel | None, golden: Path, notes: list[Finding], operations: Operations | None
) -> Callable[[pl.DataFrame], pl.DataFrame] | None:
    """Return a function that scores rows and appends its messages to ``notes``."""
    if noise is None:
        return None

    def score(rows: pl.DataFrame) -> pl.DataFrame:
        scored, own = noise.score(rows, golden, operations)
        notes.extend(own)
        return scored

    return score


def _excuser(
    target: Dump, golden: Dump, notes: list[Finding | str]
) -> Callable[[pl.DataFrame, pl.DataFrame], pl.DataFrame]:
    """Return a function that excuses calls that only one framework makes and appends its messages to ``notes``."""

    def excuse(lone: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
        excused, own = with_excused_inner_calls(lone, pairs, target, golden)
        notes.extend(own)
        return excused

    return excuse


def _is_in_parts(pair: UnitPair) -> bool:
    return bool(pair.target_parts or pair.golden_parts)


def _read_sides(pair: UnitPair, layouts: LayoutRules | None) -> tuple[Dump, Dump]:
    if layouts is None and not _is_in_parts(pair):
        target, golden = read_dump(pair.target), read_dump(pair.golden)
        if isinstance(golden, StoredDump):
            golden.frame = with_texts_of(golden.frame, target.frame)
        return target, golden
    # Importing the merge takes as long as a small comparison, and few comparisons need it.
    from msprobe_core.compare.sides import read_sides

    return read_sides(pair, layouts)


def _made_alike(
    sides: tuple[Dump, Dump], options: CompareOptions
) -> tuple[tuple[Dump, Dump], Sequence[str], Sequence[str]]:
    """Align tokens and module names of both sides; return also notes, and messages about unpaired sequences."""
    notes: Sequence[str] = ()
    incomplete: Sequence[str] = ()
    if options.aligns_tokens:
        from msprobe_core.compare.layouts.token_order import align_tokens  # rarely needed

        tokens = align_tokens(*sides)
        sides, notes, incomplete = (tokens.target, tokens.golden), tokens.notes, tokens.incomplete
    if options.modules is not None:
        from msprobe_core.compare.layouts.serving import align_with_serving  # rarely needed

        sides = align_with_serving(*sides, options.modules)
    return sides, notes, incomplete


def _aligned(target: Dump, golden: Dump, mode: Mode, matching: Matching, ends: Ends) -> tuple[Alignment, list[Finding]]:
    """Align the dumps without calls that one lacks because it ended early; return also notes about these calls."""
    dumps = structure_dumps(target, golden) if mode is Mode.STRUCTURE else (target, golden)
    for dump in dumps:
        if not dump.frame.height and ends.findings:
            raise CompareError(f"{ends.text}: there is nothing to compare")
        if not dump.frame.height:
            raise CompareError(
                f"{dump.path}: holds no values to compare (task '{dump.header.task}'), because nothing was recorded; "
                "look whether 'scope', 'list' or 'rank' leave anything to record"
            )
    alignment = align(*dumps, matching)
    if not (alignment.rows["match"] == Match.BOTH.value).any():
        because = f" ({ends.text})" if ends.findings else "; they are not dumps of the same program"
        raise CompareError(f"{target.path} and {golden.path} have no row in common{because}")
    rows, left_out = without_missing_calls(alignment.rows, *dumps, ends)
    return replace(alignment, rows=rows), left_out


def _is_empty_call() -> pl.Expr:
    """Whether a row only states that both sides have a call without values."""
    is_saved = pl.col("phase") == Phase.DEBUG.value  # a saved single tensor has the same name as its entry
    is_whole = (pl.col("match") == Match.BOTH.value) & (pl.col("name_target") == pl.col("entry"))
    return is_whole & ~is_saved & ~has_failed()


def _note_uncompared(rows: pl.DataFrame, mode: Mode, pair: UnitPair) -> list[Finding]:
    """Return what to note of values of which nothing could be compared.

    Raises:
        CompareError: no tensor could be compared and nothing else differs, so whether the dumps agree is unknown.
    """
    failed = rows.filter((pl.col("match") == Match.BOTH.value) & has_failed())
    code = CompareCode.UNRECORDED_OR_UNMERGED if _is_in_parts(pair) else CompareCode.UNRECORDED
    notes = [
        Finding(code, Level.WARNING, {"count": failed.height, "first": name, "why": reason})
        for name, reason in failed.head(1).select("name_target", failures()).rows()
    ]
    if number := _count_of(rows, is_uncompared()):
        differs_at_all = rows["verdict"].is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]).any()
        if mode is not Mode.STRUCTURE and not differs_at_all and number == _count_of(rows, _has_values()):
            raise CompareError(
                f"none of the {number:,} tensors that both sides have could be compared, because one side or both have "
                "no statistics of them; record both with values that can be compared (task 'statistics' or 'tensor')"
            )
        notes.append(Finding(CompareCode.WITHOUT_STATISTICS, Level.WARNING, {"count": number}))
    return notes


def _note_precisions(rows: pl.DataFrame) -> list[Finding]:
    """Return what to note of tensors that are coarser on one side: they pass by wider limits, and may be the fault."""
    dtypes = ("dtype_target", "dtype_golden")
    own = rows.select(*dtypes, row=pl.int_range(pl.len()), has_values=_has_values())
    found = own.filter("has_values").group_by(dtypes).agg(pl.len(), pl.col("row").min()).sort("row").rows()
    other = [each for each in found if _are_other_precisions(each[0], each[1])]
    if not other:
        return []
    target, golden, _, row = other[0]
    number, first = sum(each[2] for each in other), rows["name_target"][row]
    fields: dict[str, Field] = {"count": number, "first": first, "target": target, "golden": golden}
    return [Finding(CompareCode.OTHER_PRECISION, Level.WARNING, fields)]


def _are_other_precisions(target: str | None, golden: str | None) -> bool:
    precisions = precision_of(target), precision_of(golden)
    return None not in precisions and precisions[0] != precisions[1]


def _has_values() -> pl.Expr:
    """Whether a row is a tensor with elements that both sides have."""
    are_tensors = [pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in ("target", "golden")]
    is_pair = pl.all_horizontal(pl.col("match") == Match.BOTH.value, *are_tensors)
    return is_pair & (pl.col("numel_golden") > 0)


def _count(rows: pl.DataFrame) -> dict[str, int]:
    counts = {verdict.value: 0 for verdict in Verdict} | {Match.TARGET.value: 0, Match.GOLDEN.value: 0}
    for column in ("verdict", "match"):
        counts |= {key: n for key, n in rows.group_by(column).len().rows() if key in counts}
    return counts | {UNRECORDED: _count_of(rows, has_failed())}


def _count_of(rows: pl.DataFrame, condition: pl.Expr) -> int:
    """Count the rows that satisfy ``condition``, without the copy of them that `polars.DataFrame.filter` would make."""
    return rows.select(condition.sum()).item()


def _count_nodes(nodes: pl.DataFrame) -> Mapping[str, int]:
    return dict(nodes.group_by("verdict").len().sort("verdict").rows())
