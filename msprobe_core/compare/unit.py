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
from msprobe_core.compare.extra_statistics import with_extra_columns
from msprobe_core.compare.fp8 import with_fp8_columns
from msprobe_core.compare.incomplete import Ends, ends_of, unread_tensors, without_missing_calls
from msprobe_core.compare.layouts.micro_batches import MicroBatches, micro_batches_of
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
from msprobe_core.errors import NothingInCommonError, NoValuesError
from msprobe_core.findings import Field, Finding, Level, noted
from msprobe_core.judge import overrides, statistics_columns
from msprobe_core.judge.columns import Match
from msprobe_core.judge.cross_framework import (
    with_excused_groups,
    with_excused_inner_calls,
    with_excuses,
    with_excuses_between_tools,
)
from msprobe_core.judge.evidence import evidence_of
from msprobe_core.judge.fault import Faults, find_faults
from msprobe_core.judge.joining import (
    any_of,
    filtered,
    filtered_parts,
    kept,
    of_entry,
    parts_of,
    with_added,
    with_texts_of,
)
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
from msprobe_core.store.stored_dump import StoredDump, rows_of
from msprobe_core.store.stored_rows import Rows, frame_of, roots_of, stored, stored_as

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
    *,
    in_files: bool = False,
) -> UnitResult:
    """Compare two dumps.

    Args:
        pair: The two dumps.
        options: How to compare them.
        progress: Called with the number of bytes of tensors compared so far, and the total.
        before: Parameters of the previous step, from which the expected updates are computed; ``None`` if unknown.
        in_files: Whether the rows of long dumps are kept in files, see `msprobe_core.store.stored_rows`. That takes
            less memory than the rows do, unless all of them are asked for afterwards.

    Raises:
        CompareError: the dumps have nothing in common, or are not of the same kind.
        DumpError: a dump cannot be read.
    """
    options = options or CompareOptions()
    read = _read_sides(pair, options.layouts, in_files=in_files)
    ends = ends_of(*read)
    sides, told_tokens, lone_sequences = _made_alike(read, options, joins_calls=pair.joins_calls)
    incomplete = [*ends.findings, *lone_sequences]
    target, golden = completed(*sides)
    mode, notes = mode_of(target, golden)
    for dump in (target, golden):
        check_recorded(dump)
    divided = None if mode is Mode.STRUCTURE else micro_batches_of(target, golden)
    alignment, left_out = _aligned(target, golden, mode, options.matching, ends, divided)
    if in_files:
        alignment = replace(alignment, rows=stored(alignment.rows))
    rows, notes = alignment.rows, [*incomplete, *told_tokens, *left_out, *notes, *alignment.notes]
    notes = [*notes, *_note_micro_batches(divided)]
    is_foreign = are_foreign(target.header, golden.header)
    if is_foreign:
        rows, excused = with_excuses(rows, alignment.buffers, alignment.wrappers)
        notes = [*notes, *excused]
    if are_of_two_tools(target.header, golden.header):
        rows, excused = with_excuses_between_tools(rows, have_apis=is_foreign)
        notes = [*notes, *excused]
    if _is_of_other_layout(pair, options.layouts):
        rows = with_excused_groups(rows)
    rows = with_added(rows, statistics_columns.added_statistics, statistics_columns.READ)
    rows = with_fp8_columns(add_sketch_error(rows), ("target", "golden"))
    rows, told_statistics = with_extra_columns(rows, ("target", "golden"))
    notes = [*notes, *told_statistics]
    if mode is Mode.TENSOR:
        rows, told_tensors = add_tensor_metrics(rows, target, golden, progress, options.post_processing)
        notes = [*notes, *told_tensors]
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
    unread = unread_tensors(rows) if mode is Mode.TENSOR else []
    incomplete = [*incomplete, *unread]
    told += [
        *unread,
        *_note_uncompared(rows, mode, pair),
        *_note_precisions(rows),
        *overrides.note_idle(rows, options.limits),
    ]
    nodes = stored_as(rows, judge_nodes(rows))
    if mode is not Mode.STRUCTURE and any_of(rows, _is_empty_call()):
        rows = kept(rows, ~_is_empty_call())
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
            is_divided=divided is not None,
            before=before,
        )
    )
    faults = Faults()
    if any_of(nodes, pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value])):
        faults = find_faults(weigh(), frame_of(nodes), target, golden, stacks)
    if in_files:
        weigh.cache_clear()  # it is not asked for again, and takes more memory than anything else
    if (fault := faults.fault) is not None and mode is Mode.TENSOR:
        own = of_entry(rows, fault.entry)
        fault = replace(fault, worst_tensor=worst_tensor(own, fault.entry, target, golden, options.post_processing))
    replicas: list[ReplicaFinding] = []
    if _is_in_parts(pair):
        from msprobe_core.compare.sides import find_replicas, note_parts

        replicas = find_replicas(*read)
        notes = [*notes, *note_parts(fault, frame_of(rows), *sides)]
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
        first_difference=_first_difference(rows),
        note_findings=list(map(noted, (*pair.notes, *target.notes, *golden.notes, *notes, *told))),
        incomplete_findings=incomplete,
        replicas=replicas,
        is_foreign=is_foreign,
        suggestions=suggest_names(rows, alignment.wrappers) if is_foreign or options.matching.renames else [],
        judged=rows,
        calls=nodes,
        weigh=weigh,
        stacks=stacks,
        golden_stacks=golden.stacks,
        parents=target.parents,
        golden_parents=golden.parents,
    )


def _scorer(
    noise: NoiseModel | None, golden: Path, notes: list[Finding], operations: Operations | None
) -> Callable[[Rows], Rows] | None:
    """Return a function that scores rows and appends its messages to ``notes``."""
    if noise is None:
        return None

    def score(rows: Rows) -> Rows:
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


def _is_of_other_layout(pair: UnitPair, layouts: LayoutRules | None) -> bool:
    """Whether ranks are merged that the two sides arrange in different ways."""
    declared = [] if layouts is None else list(layouts.ranks.values())
    is_other = len(pair.target_parts) != len(pair.golden_parts) or any(each != declared[0] for each in declared)
    return _is_in_parts(pair) and is_other


def _read_sides(pair: UnitPair, layouts: LayoutRules | None, *, in_files: bool) -> tuple[Dump, Dump]:
    if layouts is None and not _is_in_parts(pair):
        target = _read(pair.target, in_files=in_files)
        golden = _read(pair.golden, in_files=in_files)
        if target.header.framework != golden.header.framework:
            from msprobe_core.compare.layouts.stored_orders import in_canonical_order  # rarely needed

            ((target,), (golden,)) = in_canonical_order([target], [golden])
        own = rows_of(target)
        if isinstance(golden, StoredDump) and isinstance(golden.rows, pl.DataFrame) and isinstance(own, pl.DataFrame):
            golden.rows = with_texts_of(golden.rows, own)
        return target, golden
    # Importing the merge takes as long as a small comparison, and few comparisons need it.
    from msprobe_core.compare.sides import read_sides

    return read_sides(pair, layouts)


def _read(path: Path, *, in_files: bool) -> Dump:
    """Return a dump whose rows are in memory, or in files if there are many of them."""
    dump = read_dump(path)
    if isinstance(dump, StoredDump):
        dump.rows = stored(dump.rows) if in_files else dump.frame
    return dump


def _made_alike(
    sides: tuple[Dump, Dump], options: CompareOptions, *, joins_calls: bool
) -> tuple[tuple[Dump, Dump], Sequence[Finding], Sequence[Finding]]:
    """Align tokens and module names of both sides; return also notes, and the sequences without a partner."""
    notes: Sequence[Finding] = ()
    incomplete: Sequence[Finding] = ()
    if joins_calls:
        from msprobe_core.compare.layouts.mini_batches import join_mini_batches  # rarely needed

        sides = join_mini_batches(*sides)
    if options.aligns_tokens:
        from msprobe_core.compare.layouts.token_order import align_tokens  # rarely needed

        tokens = align_tokens(*sides)
        sides, notes, incomplete = (tokens.target, tokens.golden), tokens.notes, tokens.incomplete
    if options.modules is not None:
        from msprobe_core.compare.layouts.serving import align_with_serving  # rarely needed

        sides = align_with_serving(*sides, options.modules)
    return sides, notes, incomplete


def _aligned(
    target: Dump, golden: Dump, mode: Mode, matching: Matching, ends: Ends, divided: MicroBatches | None
) -> tuple[Alignment, list[Finding]]:
    """Align the dumps without calls that one lacks because it ended early; return also notes about these calls."""
    dumps = structure_dumps(target, golden) if mode is Mode.STRUCTURE else (target, golden)
    for dump in dumps:
        if not rows_of(dump).height and ends.findings:
            raise NoValuesError(f"{ends.text}: there is nothing to compare")
        if not rows_of(dump).height:
            raise NoValuesError(
                f"{dump.path}: holds no values to compare (task '{dump.header.task}'), because nothing was recorded; "
                "look whether 'scope', 'list' or 'rank' leave anything to record"
            )
    alignment = align(*dumps, matching, divided)
    if not any_of(alignment.rows, pl.col("match") == Match.BOTH.value):
        because = f" ({ends.text})" if ends.findings else "; they are not dumps of the same program"
        raise NothingInCommonError(f"{target.path} and {golden.path} have no row in common{because}")
    if not ends.findings:
        return alignment, []
    rows, left_out = without_missing_calls(alignment.rows, *dumps, ends)
    return replace(alignment, rows=rows), left_out


def _is_empty_call() -> pl.Expr:
    """Whether a row only states that both sides have a call without values."""
    is_saved = pl.col("phase") == Phase.DEBUG.value  # a saved single tensor has the same name as its entry
    is_whole = (pl.col("match") == Match.BOTH.value) & (pl.col("name_target") == pl.col("entry"))
    return is_whole & ~is_saved & ~has_failed()


def _note_micro_batches(divided: MicroBatches | None) -> list[Finding]:
    """Return the note that only what is added up over the step is compared, if samples are divided differently."""
    if divided is None:
        return []
    return [Finding(CompareCode.MICRO_BATCHES, fields={"target": divided.target, "golden": divided.golden})]


def _note_uncompared(rows: Rows, mode: Mode, pair: UnitPair) -> list[Finding]:
    """Return what to note of values of which nothing could be compared.

    Raises:
        CompareError: no tensor could be compared and nothing else differs, so whether the dumps agree is unknown.
    """
    columns = ("name_target", "failure_target", "failure_golden")
    failed = filtered(rows, columns, (pl.col("match") == Match.BOTH.value) & has_failed())
    code = CompareCode.UNRECORDED_OR_UNMERGED if _is_in_parts(pair) else CompareCode.UNRECORDED
    notes = [
        Finding(code, Level.WARNING, {"count": failed.height, "first": name, "why": reason})
        for name, reason in failed.head(1).select("name_target", failures()).rows()
    ]
    if number := _count_of(rows, is_uncompared()):
        differs_at_all = any_of(rows, pl.col("verdict").is_in([Verdict.ERROR.value, Verdict.UNMATCHED.value]))
        if mode is not Mode.STRUCTURE and not differs_at_all and number == _count_of(rows, _has_values()):
            raise NoValuesError(
                f"none of the {number:,} tensors that both sides have could be compared, because one side or both have "
                "no statistics of them; record both with values that can be compared (task 'statistics' or 'tensor')"
            )
        notes.append(Finding(CompareCode.WITHOUT_STATISTICS, Level.WARNING, {"count": number}))
    return notes


def _note_precisions(rows: Rows) -> list[Finding]:
    """Return what to note of tensors that are coarser on one side: they pass by wider limits, and may be the fault."""
    dtypes = ("dtype_target", "dtype_golden")
    first = {"len": pl.col("len").sum(), "row": pl.col("row").min()}
    parts = filtered_parts(rows, dtypes, _has_values(), "row")
    of_parts = [part.group_by(dtypes).agg(pl.len().cast(pl.Int64), pl.col("row").min()) for part in parts]
    found = pl.concat(of_parts).group_by(dtypes).agg(**first).sort("row").rows()
    other = [each for each in found if _are_other_precisions(each[0], each[1])]
    if not other:
        return []
    target, golden, _, row = other[0]
    number, name = sum(each[2] for each in other), rows.slice(row, 1)["name_target"][0]
    fields: dict[str, Field] = {"count": number, "first": name, "target": target, "golden": golden}
    return [Finding(CompareCode.OTHER_PRECISION, Level.WARNING, fields)]


def _are_other_precisions(target: str | None, golden: str | None) -> bool:
    precisions = precision_of(target), precision_of(golden)
    return None not in precisions and precisions[0] != precisions[1]


def _has_values() -> pl.Expr:
    """Whether a row is a tensor with elements that both sides have."""
    are_tensors = [pl.col(f"kind_{side}") == RowKind.TENSOR.value for side in ("target", "golden")]
    is_pair = pl.all_horizontal(pl.col("match") == Match.BOTH.value, *are_tensors)
    return is_pair & (pl.col("numel_golden") > 0)


def _count(rows: Rows) -> dict[str, int]:
    counts = {verdict.value: 0 for verdict in Verdict} | {Match.TARGET.value: 0, Match.GOLDEN.value: 0}
    for column in ("verdict", "match"):
        for part in parts_of(rows, [column]):
            for key, number in part.group_by(column).len().rows():
                if key in counts:
                    counts[key] += number
    return counts | {UNRECORDED: _count_of(rows, has_failed())}


def _count_of(rows: Rows, condition: pl.Expr) -> int:
    """Count the rows that satisfy ``condition``, without the copy of them that `polars.DataFrame.filter` would make."""
    return sum(part.select(condition.sum()).item() for part in parts_of(rows, roots_of(condition)))


def _first_difference(rows: Rows) -> str | None:
    for part in parts_of(rows, ["name_target", *roots_of(differs())]):
        name = part.select(pl.col("name_target").filter(differs()).first()).item()
        if name is not None:
            return cast("str", name)
    return None


def _count_nodes(nodes: Rows) -> Mapping[str, int]:
    return dict(frame_of(nodes, ["verdict"]).group_by("verdict").len().sort("verdict").rows())
