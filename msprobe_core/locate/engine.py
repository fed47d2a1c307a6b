"""Find the first divergence of two runs: step by step, and within a step over all ranks.

Each rank of a step is examined separately, on any executor (see `msprobe_core.execute`), and returns only its findings.
A later step is examined only if nothing is wrong in the steps before it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from msprobe_core import names
from msprobe_core.compare.pairs import Chosen, Pairing, UnitPair, find_pairs
from msprobe_core.compare.result import Mode, UnitResult
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.errors import CompareError
from msprobe_core.execute.units import run_units
from msprobe_core.findings import Field, Finding, each_once
from msprobe_core.judge.columns import Match
from msprobe_core.judge.evidence import Evidence
from msprobe_core.judge.nodes import INFINITE, entry_beside
from msprobe_core.judge.origins import Source, is_flagged
from msprobe_core.judge.rank_order import RankOrder, communications_before
from msprobe_core.judge.row_findings import FINDINGS, findings_of, said
from msprobe_core.judge.updates import parameters_of
from msprobe_core.locate.checks import Facts, checks_of, decisions_of, facts_of
from msprobe_core.locate.commands import with_advice, with_cause
from msprobe_core.locate.configuration import configuration_of
from msprobe_core.locate.confirmation import with_confirmations
from msprobe_core.locate.exchanges import broken_exchanges
from msprobe_core.locate.explain import located_of
from msprobe_core.locate.kinds import changing_call, kind_of, parameter_of, reason_of
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.ranks import ordered
from msprobe_core.locate.replicas import (
    OF_STATE,
    find_divergences,
    parted_states,
    reason_of_parting,
    suspect_of,
    with_divergences,
)
from msprobe_core.locate.result import Decision, EvidenceRow, FaultKind, LocateResult, LocateVerdict, Suspect
from msprobe_core.locate.rl_samples import with_same_samples
from msprobe_core.model import ExecutorOptions, Phase, Role, TaskLost
from msprobe_core.store.micro_steps import micro_steps_of

LocateProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of examined units, their total, and the label of the last one."""

MAX_SUSPECTS = 10
_MAX_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class LocateOptions:
    """Options of the search.

    Attributes:
        compare: Options of the comparison, with the noise model.
        chosen: Selected steps and ranks.
        confirms: Whether the first suspects' calls are replayed to decide which side is wrong; needs whole tensors and
            the framework.
        model: Model for the replay of modules; ``None`` confirms them by the calls inside them.
        allows_incomplete: Whether the verdict may be that the runs agree if a part could not be examined.
        executor: Name of the executor; ``None`` uses processes if there is enough work, else this process.
        workers: Options of the executor.
    """

    compare: CompareOptions = field(default_factory=CompareOptions)
    chosen: Chosen = field(default_factory=Chosen)
    confirms: bool = False
    model: object | None = None
    allows_incomplete: bool = False
    executor: str | None = None
    workers: ExecutorOptions = field(default_factory=ExecutorOptions)


@dataclass(frozen=True)
class Extraction:
    """Values that the caller needs of every unit, so that no pair is compared twice.

    Attributes:
        extract: Called with each unit where it was compared; a module-level function.
        take: Called in this process with each pair and its extracted value, or with the reason why there is none.
    """

    extract: Callable[[UnitResult], bytes]
    take: Callable[[UnitPair, bytes | TaskLost], object]


@dataclass(frozen=True)
class UnitTask:
    """One rank and step to examine.

    Attributes:
        pair: Paths of the two dumps.
        options: Options of the comparison.
        before: The rank's parameters in the previous step, to judge their updates.
        extract: See `Extraction`.
    """

    pair: UnitPair
    options: CompareOptions
    before: pl.DataFrame | None = None
    extract: Callable[[UnitResult], bytes] | None = None

    @property
    def label(self) -> str:
        """Name in reports."""
        return self.pair.label or str(self.pair.target)

    @property
    def files(self) -> Sequence[Path]:
        """The files of both dumps."""
        return self.pair.files


@dataclass(frozen=True)
class UnitFindings:
    """Result of examining one rank and step.

    Attributes:
        pair: Paths of the two dumps.
        mode: The comparison mode.
        suspects: Suspects in execution order.
        num_nodes: Number of judged calls.
        num_flagged: How many of them exceed what rounding explains.
        facts: Facts for the preconditions.
        decisions: Discrete decisions that differ.
        given_wrong: Communication calls whose inputs exceed rounding.
        lone_calls: Calls outside of modules and optimizer that one side has alone, such as communication, as suspects.
        is_foreign: Whether the two are of different frameworks.
        parameters: Parameters of the step, for the next one.
        notes: Notes on the dumps.
        incomplete: Dumps that ended early or are damaged.
        extracted: See `Extraction`; ``None`` after it was taken.
    """

    pair: UnitPair
    mode: Mode
    suspects: Sequence[Suspect]
    num_nodes: int
    num_flagged: int
    facts: Facts
    decisions: Sequence[Decision]
    given_wrong: frozenset[str]
    lone_calls: Sequence[Suspect]
    is_foreign: bool
    parameters: pl.DataFrame
    notes: Sequence[Finding]
    incomplete: Sequence[Finding]
    extracted: bytes | None = None


def locate(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    options: LocateOptions | None = None,
    progress: LocateProgress | None = None,
    extraction: Extraction | None = None,
) -> LocateResult:
    """Find the first divergence of two runs.

    Args:
        target: The target: one dump, a step with its ranks, or a run with its steps.
        golden: The golden run, of the same kind.
        options: Options of the search.
        progress: Called after each unit.
        extraction: Values needed of every unit; steps after the first fault are then compared too.

    Raises:
        CompareError: nothing could be compared.
        DumpError: a directory cannot be read, or contains no dump.
        ConfigError: there is no such executor.
        PluginError: the executor cannot run here.
    """
    target, golden = Path(target), Path(golden)
    options = options or LocateOptions()
    pairing = find_pairs(target, golden, options.chosen, options.compare.layouts)
    pairing, of_other_samples, joined = with_same_samples(pairing)
    num_steps = len({pair.step for pair in pairing.pairs})
    found: list[UnitFindings] = []
    left_out = [*pairing.missing, *of_other_samples]
    suspects: Sequence[Suspect] = []
    notes: list[Finding] = [*joined]
    num_looked_at = 0
    examined = _examine_steps(pairing, options, progress, extraction)
    for findings, failed in examined:
        found += findings
        left_out += failed
        num_looked_at += 1
        suspects, told = suspects_of(findings, options)
        notes += told
        if suspects or _tells_nothing_of_updates(findings):
            break
    if not found:
        raise CompareError(f"nothing of {target} and {golden} could be compared; {left_out[0]}")
    if extraction is not None:
        for _ in examined:
            pass
    return result_of(target, golden, options, found, suspects, left_out, notes, (num_looked_at, num_steps))


def extract_all(
    pairing: Pairing, options: LocateOptions, extraction: Extraction, progress: LocateProgress | None = None
) -> None:
    """Compare and judge all pairs without a search, to extract values of each.

    Raises:
        ConfigError: there is no such executor.
        PluginError: the executor cannot run here.
    """
    for _ in _examine_steps(pairing, options, progress, extraction):
        pass


def _tells_nothing_of_updates(findings: Sequence[UnitFindings]) -> bool:
    """Whether nothing shows how far parameters of later steps may differ: two frameworks, no recorded parameters."""
    return bool(findings) and all(unit.is_foreign and not unit.facts.weights.total for unit in findings)


def suspects_of(findings: Sequence[UnitFindings], options: LocateOptions) -> tuple[list[Suspect], list[Finding]]:
    """Return the suspects of one step over all ranks, the first divergence first, and notes."""
    step = findings[0].pair.step if findings else None
    broken = _broken_exchanges(findings)
    told = {suspect.entry for _, suspect in broken}
    found = [
        (unit.pair.rank, suspect)
        for unit in findings
        for suspect in unit.suspects
        if suspect.entry not in told or suspect.kind is not FaultKind.COMMUNICATION  # said with the ranks concerned
    ]
    found += broken
    order = RankOrder([(unit.pair.rank, unit.pair.target) for unit in findings] if found else ())
    suspects = ordered(found, {unit.pair.rank: unit.given_wrong for unit in findings}, order)
    notes = list(order.notes)
    divergences = find_divergences([unit.pair.target for unit in findings], [unit.pair.golden for unit in findings])
    suspects = with_divergences(suspects, divergences, step)
    if all(suspect.kind in OF_STATE for suspect in suspects[:1]):
        suspects = _with_parting(suspects, findings, options, step)
    if options.confirms:
        # A joined call is none that can be replayed.
        pairs = {unit.pair.rank: unit.pair for unit in findings if not unit.pair.joins_calls}
        suspects, unconfirmed = with_confirmations(suspects, pairs, options.model)
        notes += unconfirmed
    return suspects, notes


def _with_parting(
    suspects: list[Suspect], findings: Sequence[UnitFindings], options: LocateOptions, step: int | None
) -> list[Suspect]:
    """Return suspects of which the first explains why replicas part: what one side alone does to their gradients."""
    parted = parted_states(*_dumps_of(findings), options.compare.limits)
    if not parted:
        return suspects
    told: dict[str, Any] = {"reason": reason_of_parting(parted[0]), "score": math.inf, "excess": math.inf}
    lone = [(unit.pair.rank, replace(suspect, **told)) for unit in findings for suspect in unit.lone_calls]
    order = RankOrder([(unit.pair.rank, unit.pair.target) for unit in findings] if lone else ())
    return [*ordered(lone, {}, order), *suspects] or [suspect_of(parted[0], step)]


def _dumps_of(findings: Sequence[UnitFindings]) -> tuple[dict[int, Path], dict[int, Path]]:
    """Return the dumps of target and golden run by rank; none if ranks were merged."""
    pairs = {unit.pair.rank: unit.pair for unit in findings if unit.pair.rank is not None}
    if len(pairs) < len(findings):
        return {}, {}
    return {rank: pair.target for rank, pair in pairs.items()}, {rank: pair.golden for rank, pair in pairs.items()}


def _broken_exchanges(findings: Sequence[UnitFindings]) -> list[tuple[int | None, Suspect]]:
    own = broken_exchanges(*_dumps_of(findings), findings[0].pair.step if findings else None)
    return [(rank, replace(suspect, module=_module_of(suspect.entry, suspect.parents))) for rank, suspect in own]


def result_of(
    target: Path,
    golden: Path,
    options: LocateOptions,
    found: Sequence[UnitFindings],
    suspects: Sequence[Suspect],
    left_out: Sequence[Finding],
    notes: Sequence[Finding],
    num_steps: tuple[int, int],
) -> LocateResult:
    """Return the result of a search from what was found in the steps that were examined.

    Args:
        target: Path of the target run.
        golden: Path of the golden run.
        options: Options of the search.
        found: Findings, step by step; not empty.
        suspects: Suspects of the last step.
        left_out: Reasons for what was not examined.
        notes: Further notes.
        num_steps: Number of examined steps, and of all.
    """
    first_step = found[0].pair.step
    of_first = sum((unit.facts for unit in found if unit.pair.step == first_step), Facts())
    facts = sum((unit.facts for unit in found), Facts())
    modes = [unit.mode for unit in found]
    verdict = LocateVerdict.FAULT if suspects else LocateVerdict.AGREE
    told = [*left_out, *each_once(note for unit in found for note in unit.notes), *notes]
    incomplete = [*left_out, *each_once(each for unit in found for each in unit.incomplete)]
    is_unknown = bool(incomplete) and not options.allows_incomplete
    if not suspects and (is_unknown or all(mode is Mode.STRUCTURE for mode in modes)):
        verdict = LocateVerdict.INSUFFICIENT
    if not suspects and num_steps[0] < num_steps[1]:
        told.append(Finding(LocateCode.LATER_STEPS))
    if not suspects and facts.lone_calls.different:
        lone = {"count": facts.lone_calls.different, "first": facts.lone_calls.first}
        told.append(Finding(LocateCode.LONE_CALLS, fields=lone))
    done, of_all = num_steps
    pairs = [unit.pair for unit in found if unit.pair.step == first_step]
    configuration = configuration_of(pairs, located_of(suspects[0]) if suspects else None)
    advised = [
        with_advice(suspect, modes[0], target, golden, is_foreign=found[0].is_foreign, is_confirmed=options.confirms)
        for suspect in suspects[:MAX_SUSPECTS]
    ]
    advised[:1] = [with_cause(first, configuration, target, golden) for first in advised[:1]]
    return LocateResult(
        target=target,
        golden=golden,
        verdict=verdict,
        noise=_noise_of(options.compare),
        checks=checks_of(configuration.check, of_first, facts, modes),
        decisions=[decision for unit in found for decision in unit.decisions][:MAX_SUSPECTS],
        num_decisions=facts.decisions.different,
        suspects=advised,
        examined=_examined(found, done, of_all),
        num_nodes=sum(unit.num_nodes for unit in found),
        num_flagged=sum(unit.num_flagged for unit in found),
        notes=told,
        incomplete=incomplete,
        configuration=configuration,
    )


def _noise_of(options: CompareOptions) -> Finding:
    if options.noise is None:
        return Finding(LocateCode.NOISE_LIMITS)
    if options.noise.profile is None:
        return Finding(LocateCode.NOISE_CLOSED_FORM)
    return Finding(LocateCode.NOISE_MEASURED, fields={"profile": str(options.noise.profile)})


def _examined(found: Sequence[UnitFindings], done: int, of_all: int) -> Finding:
    ranks = len({unit.pair.rank for unit in found})
    if of_all == 1:
        return Finding(LocateCode.EXAMINED_STEP, fields={"ranks": ranks})
    code = LocateCode.EXAMINED_FIRST_STEPS if done < of_all else LocateCode.EXAMINED_ALL_STEPS
    return Finding(code, fields={"done": done, "steps": of_all, "ranks": ranks})


def _examine_steps(
    pairing: Pairing, options: LocateOptions, progress: LocateProgress | None, extraction: Extraction | None
) -> Iterator[tuple[list[UnitFindings], list[Finding]]]:
    """Yield the findings of each step, and the reasons for ranks without any."""
    steps = list(dict.fromkeys(pair.step for pair in pairing.pairs))
    extract = None if extraction is None else extraction.extract
    before: dict[int | None, pl.DataFrame] = {}
    done = 0
    for step in steps:
        own = [pair for pair in pairing.pairs if pair.step == step]
        tasks = [UnitTask(pair, options.compare, before.get(pair.rank), extract) for pair in own]
        on_unit = None if progress is None else partial(_pass_on, progress, done, len(pairing.pairs))
        findings, failed = examine_units(tasks, options, on_unit, extraction)
        done += len(own)
        before = {unit.pair.rank: unit.parameters for unit in findings}
        yield findings, failed


def _pass_on(progress: LocateProgress, done: int, total: int, number: int, label: str) -> None:
    progress(done + number, total, label)


def examine_units(
    tasks: Sequence[UnitTask],
    options: LocateOptions,
    progress: Callable[[int, str], None] | None,
    extraction: Extraction | None,
) -> tuple[list[UnitFindings], list[Finding]]:
    """Examine all ranks of a step; return their findings, and the reasons for ranks without any."""
    found: dict[int, UnitFindings] = {}

    def take(number: int, findings: UnitFindings) -> None:
        if extraction is not None and findings.extracted is not None:
            extraction.take(findings.pair, findings.extracted)
            findings = replace(findings, extracted=None)
        found[number] = findings

    failed = run_units(tasks, examine, take, executor=options.executor, workers=options.workers, progress=progress)
    if extraction is not None:
        for number, reason in failed.items():
            extraction.take(tasks[number].pair, TaskLost(reason))
    left_out = [
        Finding(LocateCode.RANK_FAILED, fields={"rank": tasks[number].label, "why": reason})
        for number, reason in failed.items()
    ]
    return [found[i] for i in sorted(found)], left_out


def examine(task: UnitTask) -> UnitFindings:
    """Examine one rank and step.

    Raises:
        CompareError: the two have nothing in common, or are of different kinds.
        DumpError: one of them cannot be read.
    """
    pair = task.pair
    unit = compare_unit(pair, task.options, before=task.before)
    evidence = unit.weigh()
    rows, nodes = evidence.rows, evidence.nodes
    none: dict[str, int] = {}
    micro_steps = _recorded_micro_steps(pair) if evidence.sources else (none, none)
    is_lone = pl.col("only_on").is_not_null() & (pl.col("phase") == Phase.FORWARD.value)
    lone = [node for node in nodes.filter(is_lone).to_dicts() if not evidence.nesting.of(node)][:MAX_SUSPECTS]
    return UnitFindings(
        pair=pair,
        mode=unit.mode,
        suspects=[_suspect(source, evidence, unit, pair, micro_steps) for source in evidence.sources],
        num_nodes=nodes.height,
        num_flagged=nodes.filter(is_flagged()).height,
        facts=facts_of(rows, nodes),
        decisions=decisions_of(rows, pair.step, pair.rank),
        given_wrong=frozenset(evidence.given_wrong),
        lone_calls=[_suspect(Source(node, node), evidence, unit, pair, micro_steps) for node in lone],
        is_foreign=unit.is_foreign,
        parameters=parameters_of(rows),
        notes=[*unit.note_findings, *(each.finding for each in unit.replicas), *_other_ways(evidence)],
        incomplete=unit.incomplete_findings,
        extracted=None if task.extract is None else task.extract(unit),
    )


def _other_ways(evidence: Evidence) -> list[Finding]:
    """Return a note on calls that differ, though the gradients of the step agree."""
    if not evidence.other_ways:
        return []
    first = evidence.other_ways[0].node
    fields: dict[str, Field] = {"count": len(evidence.other_ways), "first": first["entry_golden"] or first["entry"]}
    return [Finding(LocateCode.OTHER_WAYS, fields=fields)]


def _suspect(
    source: Source,
    evidence: Evidence,
    unit: UnitResult,
    pair: UnitPair,
    micro_steps: tuple[Mapping[str, int], Mapping[str, int]],
) -> Suspect:
    rows, nodes, node = evidence.rows, evidence.nodes, source.node
    is_golden: bool = node["only_on"] == "golden"
    entry: str = node["entry_golden"] if is_golden and node["entry_golden"] else node["entry"]
    parents = evidence.nesting.of(node)
    own = rows.filter(pl.col("entry") == node["entry"])
    kind = kind_of(source, own, parents, is_first_step=pair.is_first_step)
    seen_at = source.seen_at or node
    shown = own if source.seen_at is None else rows.filter(pl.col("entry").is_in([node["entry"], seen_at["entry"]]))
    limits = own.filter(pl.col("excess") > 1)["score_limit"].to_list()
    stacks = unit.golden_stacks if is_golden else unit.stacks
    return Suspect(
        step=unit.step,
        ranks=() if unit.rank is None else (unit.rank,),
        micro_step=None if pair.joins_calls else _micro_step(entry, parents, micro_steps[1 if is_golden else 0]),
        entry=entry,
        only_on=node["only_on"],
        module=_module_of(entry, parents),
        phase=Phase(node["phase"]),
        kind=kind,
        score=source.size("score"),
        limit=max(limits, default=1.0),
        excess=INFINITE if _lacks_output(source) else source.size("excess"),
        input_score=float(node["input_score"]),
        reason=reason_of(
            source,
            kind,
            own,
            is_given_known=(not pair.joins_calls or _has_inputs(rows)) and _has_call(entry, rows),
            changed_by=changing_call(source, rows, nodes),
        ),
        evidence=_evidence(shown),
        parents=parents,
        stack=list(stacks.get(entry) or stacks.get(names.forward_of(entry) or "", ())),
        position=int(node["position"]),
        seen_at=None if source.seen_at is None else seen_at["entry"],
        golden_entry=None if node["only_on"] else node["entry_golden"],
        about=parameter_of(own, rows) if kind is FaultKind.OPTIMIZER else None,
        beside=entry_beside(nodes.filter(pl.col("only_on").ne_missing("golden")), node["position"])
        if is_golden
        else None,
        num_communications=communications_before(nodes, node["position"]),
    )


def _lacks_output(source: Source) -> bool:
    """Whether one side made an output that the other did not, which no rounding explains."""
    return source.made and source.lone is None and bool(source.node["parts_missing"])


def _has_call(entry: str, rows: pl.DataFrame) -> bool:
    """Whether a call of the module was recorded whose parameters' gradients ``entry`` holds.

    A program may use the parameters of a module, such as tied ones, without calling it.
    """
    backward = names.backward_of_parameters(entry)
    calls = [name for name in (backward, names.forward_of(entry)) if name is not None]
    return backward is None or rows["entry"].is_in(calls).any()


def _has_inputs(rows: pl.DataFrame) -> bool:
    return not rows.filter(pl.col("role") == Role.INPUT.value).is_empty()


def _evidence(own: pl.DataFrame) -> list[EvidenceRow]:
    name = pl.coalesce("name_target", "name_golden")
    is_lone = pl.col("match") != Match.BOTH.value
    telling = own.filter((pl.col("excess") > 1) | (pl.col("argument_gap") > 0) | (is_lone & ~pl.col("is_equal")))
    outputs = own.filter((pl.col("role") == Role.OUTPUT.value) & (pl.col("score") > 0))
    shown = (telling if telling.height else outputs).sort("excess", descending=True, maintain_order=True)
    columns = shown.select(name, FINDINGS, "score", "score_limit")
    return [
        EvidenceRow(row, list(map(said, findings_of(cell))), score if score > 0 else None, limit if score > 0 else None)
        for row, cell, score, limit in columns.head(_MAX_SHOWN).rows()
    ]


def _module_of(entry: str, parents: Sequence[str]) -> str | None:
    for name in map(names.numbered_gradients, (entry, *parents)):
        if names.is_module(name) and (stem := names.stem_of(name)) is not None:
            return names.split_module(stem)[1]
    return None


def _micro_step(entry: str, parents: Sequence[str], recorded: Mapping[str, int]) -> int | None:
    """Return the micro-step of a call that a module encloses: the recorded one or, without, that of the outermost."""
    modules = [name for name in (entry, *parents) if names.is_module(name)]
    if not modules:
        return None
    if entry in recorded:
        return recorded[entry]
    site = names.parse_entry(names.numbered_gradients(modules[-1]))
    return site.index


def _recorded_micro_steps(pair: UnitPair) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the micro-steps of the calls of both sides; of merged ranks, those of the first."""
    sides = pair.target_parts or (pair.target,), pair.golden_parts or (pair.golden,)
    none: dict[str, int] = {}
    target, golden = (micro_steps_of(paths[0]) or none for paths in sides)
    return target, golden
