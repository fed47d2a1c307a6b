"""Compare all pairs of two runs, wherever there is room for it, or in memory.

What is in memory is one pair for each worker: what comes back of a pair is its summary, and its tables are written
where its rows are. `compare_dumps` keeps all rows instead.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from msprobe_core._version import __version__
from msprobe_core.compare.divergence import first_of_steps
from msprobe_core.compare.pairs import Chosen, Pairing, UnitPair, find_pairs_of_modes
from msprobe_core.compare.reading import read_dump
from msprobe_core.compare.result import ComparisonResult, UnitFiles, UnitResult, UnitSummary
from msprobe_core.compare.tensor_pass import Progress
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.execute.kept import KeptOutcomes, state_of
from msprobe_core.execute.units import executor_called, run_units
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import ExecutorOptions

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rules import LayoutRules

_logger = logging.getLogger(__name__)

RunProgress: TypeAlias = Callable[[int, int, str], None]
"""Told how many pairs or, of a single pair, tensors are done, of how many, and which are counted."""

_FEW_RANKS = 16
"""All ranks of a step are in memory at once to compare them with each other, which takes about 20 us a row."""

R = TypeVar("R")
U = TypeVar("U", bound=UnitSummary)
Files_co = TypeVar("Files_co", covariant=True)


class ResultWriter(Protocol[Files_co]):
    """Writes what a comparison finds; workers get a copy of it. All of it may raise StoreError."""

    @property
    def directory(self) -> Path:
        """Directory of the results."""
        ...

    @property
    def settings(self) -> object:
        """What files depend on beside the results; its ``repr`` has all of it."""
        ...

    def check(self) -> None:
        """Raise if a file would replace one that must stay."""

    def for_pairs(self, number: int) -> ResultWriter[Files_co]:
        """Create the directory, and return what writes the results of so many pairs."""
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
        """Write what there is about all pairs; return where everything is.

        Args:
            result: What was found.
            files: What `write_unit` returned for the result's units.
            first: For each step where units part, those that do so first; computed as it is iterated.
            resumes: Whether files of an interrupted comparison may be there.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the pairs of a run are worked off.

    Attributes:
        executor: Name of the executor; ``None`` for processes where there is enough to do, else this one.
        workers: Of the executor.
        resume: Take over pairs that an earlier, interrupted comparison has finished.
        checks_replicas: Whether ranks of the target are compared with each other, where they should have the same;
            ``None`` for up to `_FEW_RANKS` ranks.
    """

    executor: str | None = None
    workers: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: bool = False
    checks_replicas: bool | None = None


@dataclass(frozen=True)
class UnitDone:
    """A pair that has been compared: the result, and where its tables are."""

    summary: UnitSummary
    files: UnitFiles


def compare_run(
    target: Path,
    golden: Path,
    writer: ResultWriter[Files_co],
    *,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    run: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> tuple[ComparisonResult[UnitSummary], Files_co]:
    """Compare two dumps, steps or runs and have the results written; return what they came to, and where they are.

    Args:
        target: The run under test.
        golden: The trusted run, of the same kind.
        writer: Writes the results.
        options: How to compare.
        chosen: Which steps and ranks.
        run: How the pairs are worked off.
        progress: Told what is done.

    Raises:
        CompareError: nothing could be compared.
        DumpError: a single pair was given, and one of its dumps cannot be read.
        StoreError: a table cannot be written.
        ConfigError: there is no such executor.
        PluginError: the executor cannot run here.
    """
    options, run = options or CompareOptions(), run or RunOptions()
    if run.executor is not None:
        executor_called(run.executor)  # a name that is wrong is, however many pairs there are
    writer.check()
    pairing = find_pairs_of_modes(target, golden, chosen, options.layouts)
    writer = writer.for_pairs(len(pairing.pairs))
    of_tensors = _of_tensors(progress) if len(pairing.pairs) == 1 else None
    work = partial(_compare_and_write, options=options, writer=writer, progress=of_tensors)
    kept = KeptOutcomes(writer.directory, UnitDone, partial(_key_of, options, writer), _paths_of, run.resume)
    done, failed = _worked_off(pairing.pairs, work, run, kept, progress)
    result, first = _result(target, golden, [unit.summary for unit in done], (pairing.missing, failed), options)
    result = replace(result, replicas=_replicas_that_differ(pairing, options.layouts, run))
    raise_if_interrupted()
    return result, writer.write_run(result, [unit.files for unit in done], first, resumes=run.resume)


def compare_dumps(
    target: Path | str,
    golden: Path | str,
    *,
    stack_path: Path | str | None = None,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    progress: Progress | None = None,
) -> ComparisonResult[UnitResult]:
    """Compare two dumps, steps or runs, all in this process and with all rows in memory; `compare_run` does without.

    Args:
        target: The run under test: a ``dump.json`` or ``dump.arrow``, a rank's, a step's or a run's directory.
        golden: The trusted run, of the same kind.
        stack_path: The target's ``stack.json`` if it is not beside the dump.
        options: How to compare; ``stack_path`` may be given there instead.
        chosen: Which steps and ranks.
        progress: Told how many tensors have been compared, and of how many.

    Returns: the result; a numeric difference is not an error.

    Raises:
        CompareError: the two have nothing in common, or are not of the same kind.
        DumpError: one of them cannot be read.
    """
    target, golden = Path(target), Path(golden)
    if options is None:
        options = CompareOptions(stack_path=None if stack_path is None else Path(stack_path))
    pairing = find_pairs_of_modes(target, golden, chosen)
    work = partial(compare_unit, options=options, progress=progress)
    units, failed = _worked_off(pairing.pairs, work, RunOptions(executor="inline"))
    return _result(target, golden, units, (pairing.missing, failed), options)[0]


def _worked_off(
    pairs: Sequence[UnitPair],
    work: Callable[[UnitPair], R],
    run: RunOptions,
    kept: KeptOutcomes[UnitPair, R] | None = None,
    progress: RunProgress | None = None,
) -> tuple[list[R], list[str]]:
    """Return the outcomes in the order of the pairs, and in words which pairs have none; one alone raises its error."""
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
    told = [f"{pairs[number].label} could not be compared: {reason}" for number, reason in failed.items()]
    return [outcome for _, outcome in sorted(done.items(), key=itemgetter(0))], told


def _result(
    target: Path,
    golden: Path,
    units: Sequence[U],
    missing: tuple[Sequence[str], Sequence[str]],
    options: CompareOptions,
) -> tuple[ComparisonResult[U], Iterable[Sequence[U]]]:
    """Return the result, and for each step where units part those that do so first.

    Args:
        target: As given.
        golden: As given.
        units: The pairs that could be compared.
        missing: In words what has no pair, and which pairs could not be compared.
        options: How they were compared.
    """
    if not units:
        raise CompareError(f"nothing of {target} and {golden} could be compared; {missing[1][0]}")
    steps = first_of_steps(units)
    first = next(steps, ())
    labels = [unit.label for unit in first]
    result = ComparisonResult(target, golden, units, [*missing[0], *missing[1]], options.limits, parted_first=labels)
    return result, chain([first] if first else [], steps)


def _compare_and_write(
    pair: UnitPair, options: CompareOptions, writer: ResultWriter[object], progress: Progress | None
) -> UnitDone:
    result = compare_unit(pair, options, progress)
    raise_if_interrupted()  # before anything wrong is written
    return UnitDone(result.summary(), writer.write_unit(result))


def _replicas_that_differ(pairing: Pairing, layouts: LayoutRules | None, run: RunOptions) -> Sequence[str]:
    """Return in words what ranks of the target should have alike and have not."""
    has_several = len(pairing.pairs) + sum(map(len, pairing.spare.values())) > 1
    if not has_several or not pairing.can_have_replicas or run.checks_replicas is False:
        return []
    # Takes time to import, which a single pair does without.
    from msprobe_core.compare.layouts.rank_groups import DeclaredRanks
    from msprobe_core.compare.layouts.rules import Side
    from msprobe_core.compare.shards.merged import check_replicas

    lines: list[str] = []
    for step in dict.fromkeys(pair.step for pair in pairing.pairs):
        own = [pair for pair in pairing.pairs if pair.step == step]
        paths = [path for pair in own for path in pair.target_parts or (pair.target,)]
        spare = pairing.spare.get(step, ())
        num_ranks = len(paths) + len(spare)
        if len(own) + len(spare) < 2 or not (
            num_ranks <= _FEW_RANKS if run.checks_replicas is None else run.checks_replicas
        ):
            continue  # of a single pair the comparison itself says it
        try:
            dumps = [read_dump(path) for path in (*paths, *spare)]
            declared = None if layouts is None else DeclaredRanks(layouts, Side.TARGET)
            found = check_replicas(dumps, declared)
        except (CompareError, DumpError) as error:
            _logger.info("replicas were not checked: %s", error)
            continue
        lines += [f"{'' if step is None else f'step{step}: '}{finding.text}" for finding in found]
    return lines


def _of_tensors(progress: RunProgress | None) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total: progress(done, total, "tensors")


# --- resuming -----------------------------------------------------------------------------------------------------


def _key_of(options: CompareOptions, writer: ResultWriter[object], pair: UnitPair) -> str:
    """Return a hash of all that the result depends on: the files as they are now, the options, the release."""
    files = [state_of(path) for path in (*pair.files, *_files_of(options))]
    content = repr((__version__, files, options, writer.settings))
    return hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=16).hexdigest()


def _files_of(options: CompareOptions) -> list[Path]:
    """Return the files that the options only name."""
    processing = options.post_processing
    factors = () if processing is None else (*processing.target.values(), *processing.golden.values())
    named = {path for factor in factors for path in (factor.left, factor.right) if path is not None}
    if options.noise is not None and options.noise.profile is not None:
        named.add(options.noise.profile)
    return sorted(named | ({options.stack_path} if options.stack_path is not None else set()))


def _paths_of(done: UnitDone) -> Sequence[Path]:
    calls = done.files.calls
    return [*done.files.tables, *([calls] if calls is not None else [])]
