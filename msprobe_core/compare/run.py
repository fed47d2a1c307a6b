"""Compare all pairs of two runs with the chosen executor, or in this process.

`compare_run` holds only one pair per worker in memory: a worker writes the tables of a pair and returns a summary.
`compare_dumps` keeps all rows instead.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from msprobe_core._version import __version__
from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.divergence import first_of_steps, until_decisive
from msprobe_core.compare.pairs import Chosen, Pairing, UnitPair, find_pairs_of_modes
from msprobe_core.compare.result import ComparisonResult, UnitFiles, UnitResult, UnitSummary
from msprobe_core.compare.tensor_pass import Progress
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.custom_checks.asking import comparison_findings
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.execute.kept import KeptOutcomes, state_of
from msprobe_core.execute.units import executor_called, run_units
from msprobe_core.findings import Finding, Level
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import ExecutorOptions
from msprobe_core.store.reading import read_dump

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rules import LayoutRules

_logger = logging.getLogger(__name__)

RunProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the number of pairs done, or of tensors for a single pair, the total, and what is counted."""

_FEW_RANKS = 16
"""Up to this many ranks are compared with each other by default. All of a step is read once more for that, and it
takes about 20 us per row."""

R = TypeVar("R")
U = TypeVar("U", bound=UnitSummary)
Files_co = TypeVar("Files_co", covariant=True)


class ResultWriter(Protocol[Files_co]):
    """Writes the results of a comparison; workers get a copy of it. All methods may raise StoreError."""

    @property
    def directory(self) -> Path:
        """Directory of the results."""
        ...

    @property
    def settings(self) -> object:
        """What the files depend on besides the results; its ``repr`` must be complete."""
        ...

    def check(self) -> None:
        """Raise if a file would replace one that must not be overwritten."""

    def for_pairs(self, number: int) -> ResultWriter[Files_co]:
        """Create the directory, and return a writer for the results of ``number`` pairs."""
        ...

    def write_unit(self, unit: UnitResult) -> UnitFiles:
        """Write the tables of one pair, in the process that compared it."""
        ...

    def write_run(
        self,
        result: ComparisonResult[UnitSummary],
        files: Sequence[UnitFiles],
        first: Iterable[Sequence[UnitSummary]],
        *,
        resumes: bool,
    ) -> Files_co:
        """Write the results about all pairs; return the paths of all files.

        Args:
            result: The result of the comparison.
            files: What `write_unit` returned for the result's units.
            first: For each step in which units diverge, those that diverge first; computed lazily.
            resumes: Whether files of an interrupted comparison may exist.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the pairs of a run are processed.

    Attributes:
        executor: Name of the executor; ``None`` chooses processes if there is enough work, and this process otherwise.
        workers: Options of the executor.
        resume: Whether to reuse pairs that an earlier, interrupted comparison has finished.
        checks_replicas: Whether ranks of the target that should have values in common are compared with each other;
            ``None`` for up to `_FEW_RANKS` ranks.
    """

    executor: str | None = None
    workers: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: bool = False
    checks_replicas: bool | None = None


@dataclass(frozen=True)
class UnitDone:
    """A pair that has been compared: its result, and the paths of its tables."""

    summary: UnitSummary
    files: UnitFiles


def compare_run(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    writer: ResultWriter[Files_co],
    *,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    run: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> tuple[ComparisonResult[UnitSummary], Files_co]:
    """Compare two dumps, steps or runs, and write the results; return the result and the paths of its files.

    Args:
        target: Path of the target.
        golden: Path of the golden run, of the same kind.
        writer: Writes the results.
        options: How to compare.
        chosen: Which steps and ranks to compare.
        run: How the pairs are processed.
        progress: Called while pairs or tensors are finished, see `RunProgress`.

    Raises:
        CompareError: nothing could be compared.
        DumpError: a single pair was given, and one of its dumps cannot be read.
        StoreError: a table cannot be written.
        ConfigError: the executor is unknown.
        PluginError: the executor cannot run here.
    """
    target, golden = Path(target), Path(golden)
    options, run = options or CompareOptions(), run or RunOptions()
    if run.executor is not None:
        executor_called(run.executor)  # a wrong name is an error even if there is only one pair
    writer.check()
    pairing = find_pairs_of_modes(target, golden, chosen, options.layouts)
    writer = writer.for_pairs(len(pairing.pairs))
    of_tensors = _of_tensors(progress) if len(pairing.pairs) == 1 else None
    work = partial(_compare_and_write, options=options, writer=writer, progress=of_tensors)
    kept = KeptOutcomes(writer.directory, UnitDone, partial(_key_of, options, writer), _paths_of, run.resume)
    done, failed = _worked_off(pairing.pairs, work, run, kept, progress)
    result, first = _result(target, golden, [unit.summary for unit in done], (pairing.missing, failed), options)
    result = replace(result, replica_findings=_replicas_that_differ(pairing, options.layouts, run))
    raise_if_interrupted()
    return result, writer.write_run(result, [unit.files for unit in done], first, resumes=run.resume)


def compare_dumps(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    *,
    stack_path: str | os.PathLike[str] | None = None,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    progress: Progress | None = None,
) -> ComparisonResult[UnitResult]:
    """Compare two dumps, steps or runs in this process and keep all rows in memory, unlike `compare_run`.

    Args:
        target: Path of the target: a ``dump.json`` or ``dump.arrow``, or the directory of a rank, a step or a run.
        golden: Path of the golden run, of the same kind.
        stack_path: The target's ``stack.json`` if it is not next to the dump.
        options: How to compare; ``stack_path`` may be given there instead.
        chosen: Which steps and ranks to compare.
        progress: Called with the number of tensors compared so far, and the total.

    Returns: the result; a numeric difference does not raise an error.

    Raises:
        CompareError: the dumps have nothing in common, or are not of the same kind.
        DumpError: a dump cannot be read.
    """
    target, golden = Path(target), Path(golden)
    if options is None:
        options = CompareOptions(stack_path=None if stack_path is None else Path(stack_path))
    pairing = find_pairs_of_modes(target, golden, chosen)
    work = partial(_compared, options=options, progress=progress)
    units, failed = _worked_off(pairing.pairs, work, RunOptions(executor="inline"))
    return _result(target, golden, units, (pairing.missing, failed), options)[0]


def _worked_off(
    pairs: Sequence[UnitPair],
    work: Callable[[UnitPair], R],
    run: RunOptions,
    kept: KeptOutcomes[UnitPair, R] | None = None,
    progress: RunProgress | None = None,
) -> tuple[list[R], list[Finding]]:
    """Return the outcomes in the order of the pairs, and which pairs have none; one alone raises its error."""
    if len(pairs) == 1:
        outcome = work(pairs[0])
        raise_if_interrupted()
        return [outcome], []
    done: dict[int, R] = {}
    failed = run_units(
        pairs,
        work,
        done.__setitem__,
        executor=run.executor,
        workers=run.workers,
        kept=kept,
        progress=None if progress is None else lambda number, _: progress(number, len(pairs), "pairs"),
    )
    lost = [
        Finding(CompareCode.FAILED, Level.ERROR, {"unit": pairs[number].label, "why": reason})
        for number, reason in failed.items()
    ]
    return [outcome for _, outcome in sorted(done.items(), key=itemgetter(0))], lost


def _result(
    target: Path,
    golden: Path,
    units: Sequence[U],
    missing: tuple[Sequence[Finding], Sequence[Finding]],
    options: CompareOptions,
) -> tuple[ComparisonResult[U], Iterable[Sequence[U]]]:
    """Return the result, and for each step in which units diverge those that diverge first.

    Args:
        target: Path of the target, as given.
        golden: Path of the golden run, as given.
        units: Results of the pairs that could be compared.
        missing: Messages about steps and ranks without a partner, and about pairs that could not be compared.
        options: How the pairs were compared.
    """
    if not units:
        raise CompareError(f"nothing of {target} and {golden} could be compared; {missing[1][0]}")
    steps = first_of_steps(units)
    first = until_decisive(steps, units)
    labels = [unit.label for unit in first[-1]] if first else []
    result = ComparisonResult(target, golden, units, [*missing[0], *missing[1]], options.limits, parted_first=labels)
    return result, chain(first, steps)


def _compared(
    pair: UnitPair, options: CompareOptions, progress: Progress | None, *, in_files: bool = False
) -> UnitResult:
    """Return the comparison of a pair, with what checks of plugins say of it among its notes."""
    unit = compare_unit(pair, options, progress, in_files=in_files)
    found = comparison_findings(unit)
    return replace(unit, note_findings=[*unit.note_findings, *found]) if found else unit


def _compare_and_write(
    pair: UnitPair, options: CompareOptions, writer: ResultWriter[object], progress: Progress | None
) -> UnitDone:
    result = _compared(pair, options, progress, in_files=True)
    raise_if_interrupted()  # an interruption may have made the result wrong, so nothing is written after one
    return UnitDone(result.summary(), writer.write_unit(result))


def _replicas_that_differ(pairing: Pairing, layouts: LayoutRules | None, run: RunOptions) -> Sequence[Finding]:
    """Return what ranks of the target should have alike and have not."""
    has_several = len(pairing.pairs) + sum(map(len, pairing.spare.values())) > 1
    if not has_several or not pairing.can_have_replicas or run.checks_replicas is False:
        return []
    # Slow to import, and not needed for a single pair.
    from msprobe_core.compare.layouts.rank_groups import DeclaredRanks
    from msprobe_core.compare.layouts.rules import Side
    from msprobe_core.compare.shards.merged import check_replicas

    differing: list[Finding] = []
    for step in dict.fromkeys(pair.step for pair in pairing.pairs):
        own = [pair for pair in pairing.pairs if pair.step == step]
        paths = [path for pair in own for path in pair.target_parts or (pair.target,)]
        spare = pairing.spare.get(step, ())
        num_ranks = len(paths) + len(spare)
        if len(own) + len(spare) < 2 or not (
            num_ranks <= _FEW_RANKS if run.checks_replicas is None else run.checks_replicas
        ):
            continue  # the comparison of a single pair reports its own replicas
        try:
            dumps = [read_dump(path) for path in (*paths, *spare)]
            declared = None if layouts is None else DeclaredRanks(layouts, Side.TARGET)
            found = check_replicas(dumps, declared)
        except (CompareError, DumpError) as error:
            _logger.info("replicas were not checked: %s", error)
            continue
        differing += [each.finding if step is None else _of_step(step, each.finding) for each in found]
    return differing


def _of_step(step: int, finding: Finding) -> Finding:
    return Finding(CompareCode.OF_STEP, finding.level, {"step": step, "finding": finding})


def _of_tensors(progress: RunProgress | None) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(done, total, "tensors")


# --- resuming -----------------------------------------------------------------------------------------------------


def _key_of(options: CompareOptions, writer: ResultWriter[object], pair: UnitPair) -> str:
    """Return a hash of everything that the result depends on: the current files, the options, the release."""
    files = [state_of(path) for path in (*pair.files, *_files_of(options))]
    content = repr((__version__, files, options, writer.settings))
    return hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=16).hexdigest()


def _files_of(options: CompareOptions) -> list[Path]:
    """Return the files that the options refer to by path."""
    processing = options.post_processing
    factors = () if processing is None else (*processing.target.values(), *processing.golden.values())
    named = {path for factor in factors for path in (factor.left, factor.right) if path is not None}
    if options.noise is not None and options.noise.profile is not None:
        named.add(options.noise.profile)
    return sorted(named | ({options.stack_path} if options.stack_path is not None else set()))


def _paths_of(done: UnitDone) -> Sequence[Path]:
    calls = done.files.calls
    return [*done.files.tables, *([calls] if calls is not None else [])]
