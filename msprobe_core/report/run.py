"""Compare all pairs of two runs, wherever there is room for it, and write each one's tables as it is done.

What is in memory is one pair for each worker; what comes back of a pair is its summary. A pair that is finished leaves
its summary beside its tables, so that a comparison that was interrupted can be resumed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from msprobe_core._version import __version__
from msprobe_core.compare.divergence import first_of_steps
from msprobe_core.compare.pairs import Chosen, Pairing, UnitPair, find_pairs_of_modes
from msprobe_core.compare.reading import read_dump
from msprobe_core.compare.result import ComparisonResult, UnitSummary
from msprobe_core.compare.unit import CompareOptions, compare_unit
from msprobe_core.errors import CompareError, ConfigError, DumpError, MsprobeError
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import ExecutorOptions, TaskLost
from msprobe_core.plugins import registry
from msprobe_core.protocols.comparison import Executor
from msprobe_core.report.difference import FIRST_DIFFERENCES, write_first_differences
from msprobe_core.report.files import ReportFiles, TableForm, TableOptions, UnitFiles, write_summary, write_tables
from msprobe_core.report.summary import check_summary_file
from msprobe_core.store.layout import create_file, make_directory
from msprobe_core.untrusted.files import read_plain

if TYPE_CHECKING:
    from msprobe_core.compare.layouts.rules import LayoutRules

_logger = logging.getLogger(__name__)

RunProgress: TypeAlias = Callable[[int, int, str], None]
"""Told how many pairs or, of a single pair, tensors are done, of how many, and which are counted."""

UNITS_DIRECTORY = ".units"
"""Where in the result's directory the summaries of finished pairs are."""

_RECORD = ".msgpack"
"""Unlike JSON it has NaN and Inf, which an error may be."""

_DIFFERENCES = "differences"
"""Names the files about where ranks part."""

_WORTH_BYTES = 16 << 20
"""Below this many bytes of ``dump.json``, both sides together, starting processes takes longer than they save.

Measured: a process takes 0.5 s of CPU time to start, 20 MB a second to compare.
"""

_FEW_RANKS = 16
"""All ranks of a step are in memory at once to compare them with each other, which takes about 20 us a row."""

_MANY_PAIRS = 64
"""More pairs than these have tables in Parquet if nobody asks for another form: a thousand csv files of 10,000 rows are
several gigabytes that nobody opens."""

_ARROW_DENSITY = 10
"""How many times as many values a byte of ``dump.arrow`` holds."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the pairs of a run are worked off.

    Attributes:
        executor: Name of the executor; ``None`` for processes where there is enough to do, else this one.
        workers: Of the executor.
        resume: Take over pairs that an earlier, interrupted comparison has finished.
        checks_replicas: Whether ranks of the target are compared with each other, where they should have the same;
            ``None`` for up to `_FEW_RANKS` ranks.
        overwrites: Whether a result file may replace one of the same name that msprobe has not written.
    """

    executor: str | None = None
    workers: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: bool = False
    checks_replicas: bool | None = None
    overwrites: bool = False


@dataclass(frozen=True)
class UnitTask:
    """One pair to compare and to write about."""

    pair: UnitPair
    options: CompareOptions
    directory: Path
    tables: TableOptions


@dataclass(frozen=True)
class UnitDone:
    """A pair that has been compared, as it is kept for a later resumption.

    Attributes:
        key: Hash of all that the result depends on.
        summary: The result.
        files: Where its tables are.
    """

    key: str
    summary: UnitSummary
    files: UnitFiles


@dataclass(frozen=True)
class UnitFailed:
    """A pair that could not be compared."""

    reason: str


def compare_run(
    target: Path,
    golden: Path,
    directory: Path,
    *,
    tables: TableOptions,
    options: CompareOptions | None = None,
    chosen: Chosen | None = None,
    run: RunOptions | None = None,
    progress: RunProgress | None = None,
) -> tuple[ComparisonResult[UnitSummary], ReportFiles]:
    """Compare two dumps, steps or runs and write tables and summary; return what they came to, and where they are.

    Args:
        target: The run under test.
        golden: The trusted run, of the same kind.
        directory: For the results; created if it is missing.
        tables: How tables are written.
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
        _executor_called(run.executor)  # a name that is wrong is, however many pairs there are
    if not run.overwrites:
        check_summary_file(directory)
    pairing = find_pairs_of_modes(target, golden, chosen, options.layouts)
    if tables.form is None and len(pairing.pairs) > _MANY_PAIRS:
        tables = replace(tables, form=TableForm.PARQUET)
    tasks = [UnitTask(pair, options, directory, tables) for pair in pairing.pairs]
    make_directory(directory)
    if len(tasks) == 1:
        finished = {0: _compare(tasks[0], _of_tensors(progress))}
    else:
        if not run.resume:
            shutil.rmtree(directory / UNITS_DIRECTORY, ignore_errors=True)
        finished = _work_off(tasks, executor_for(run, pairing.pairs), run, progress)
    done = [outcome for _, outcome in sorted(finished.items()) if isinstance(outcome, UnitDone)]
    failed = [
        f"{tasks[number].pair.label} could not be compared: {outcome.reason}"
        for number, outcome in sorted(finished.items())
        if isinstance(outcome, UnitFailed)
    ]
    if not done:
        raise CompareError(f"nothing of {target} and {golden} could be compared; {failed[0]}")
    units = [unit.summary for unit in done]
    missing = [*pairing.missing, *failed]
    replicas = _replicas_that_differ(pairing, options.layouts, run)
    calls = {unit.summary.label: unit.files.calls for unit in done if unit.files.calls is not None}
    first = list(islice(first_of_steps(units), None if calls else 1))
    labels = [unit.label for own in first[:1] for unit in own]
    result = ComparisonResult(target, golden, units, missing, options.limits, replicas, labels)
    raise_if_interrupted()
    if run.resume:
        _forget_differences(directory)
    if calls:
        _keep_differences(directory, write_first_differences(first, calls, directory))
    return result, write_summary(result, [unit.files.tables for unit in done], directory)


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


def _of_tensors(progress: RunProgress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(done, total, "tensors")


def _work_off(
    tasks: Sequence[UnitTask], executor: Executor, run: RunOptions, progress: RunProgress | None
) -> Mapping[int, UnitDone | UnitFailed]:
    finished: dict[int, UnitDone | UnitFailed] = {}
    if run.resume:
        finished |= {number: done for number, task in enumerate(tasks) if (done := _taken_over(task)) is not None}
    left = [number for number in range(len(tasks)) if number not in finished]
    outcomes = _outcomes(executor, [tasks[number] for number in left], run.workers)
    if progress is not None and finished:
        progress(len(finished), len(tasks), "pairs")
    raise_if_interrupted()  # takes Ctrl-C back from polars, or waiting for others would go on after it
    for number, outcome in outcomes:
        raise_if_interrupted()
        finished[left[number]] = outcome
        if progress is not None:
            progress(len(finished), len(tasks), "pairs")
    return finished


def _outcomes(
    executor: Executor, tasks: Sequence[UnitTask], options: ExecutorOptions
) -> Iterator[tuple[int, UnitDone | UnitFailed]]:
    if not tasks:
        return
    executor.check(options)
    for number, outcome in executor.run(compare_and_write, tasks, options):
        yield number, UnitFailed(outcome.reason) if isinstance(outcome, TaskLost) else outcome


def compare_and_write(task: UnitTask) -> UnitDone | UnitFailed:
    """Compare one pair and write its tables; raises no error, because one rank's trouble is not that of the others.

    Raises:
        KeyboardInterrupt: also if it was lost in between: the pair would be wrong, or one that could not be compared.
    """
    try:
        done = _compare(task, None)
        _keep(task, done)
    except MsprobeError as error:
        outcome = UnitFailed(str(error))
    except MemoryError:
        outcome = UnitFailed("there was not enough memory; give fewer --workers")
    except Exception as error:
        _logger.debug("internal error at %s", task.pair.label, exc_info=True)
        outcome = UnitFailed(f"internal error ({type(error).__name__}: {error})")
    else:
        return done
    raise_if_interrupted()
    return outcome


def _compare(task: UnitTask, progress: Callable[[int, int], None] | None) -> UnitDone:
    key = _key_of(task)
    result = compare_unit(task.pair, task.options, progress)
    raise_if_interrupted()
    done = UnitDone(key, result.summary(), write_tables(result, task.directory, task.tables))
    raise_if_interrupted()
    return done


def executor_for(run: RunOptions, pairs: Sequence[UnitPair]) -> Executor:
    """Return the executor that was asked for; else processes, if comparing these pairs is worth starting them.

    Raises:
        ConfigError: there is no such executor.
    """
    return _executor_called(run.executor or ("processes" if _is_worth_processes(pairs) else "inline"))


def _executor_called(name: str) -> Executor:
    executors = registry().executors()
    if name not in executors:
        raise ConfigError(f"there is no executor {name!r}; known are {', '.join(sorted(executors))}")
    return executors[name]


def _is_worth_processes(pairs: Sequence[UnitPair]) -> bool:
    total = 0
    for pair in pairs:
        for path in _dump_files(pair):
            size = _state_of(path)[1]
            total += max(size, 0) * (_ARROW_DENSITY if path.suffix == ".arrow" else 1)
        if total > _WORTH_BYTES:
            return True
    return False


def _dump_files(pair: UnitPair) -> list[Path]:
    """Return the files directly in the pair's directories, or the files that it was given as."""
    found: list[Path] = []
    for side in (*(pair.target_parts or (pair.target,)), *(pair.golden_parts or (pair.golden,))):
        with suppress(OSError):  # what cannot be read is said when it is compared
            found += sorted(path for path in side.iterdir() if path.is_file()) if side.is_dir() else [side]
    return found


# --- resuming -----------------------------------------------------------------------------------------------------


def _key_of(task: UnitTask) -> str:
    """Return a hash of all that the result depends on: the files as they are now, the options, the release."""
    files = [_state_of(path) for path in (*_dump_files(task.pair), *_files_of(task.options))]
    tables = replace(task.tables, stamp="")
    content = repr((__version__, files, task.options, tables))
    return hashlib.blake2b(content.encode(errors="backslashreplace"), digest_size=16).hexdigest()


def _state_of(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:  # who reads it says so
        return str(path), -1, 0
    return str(path), status.st_size, status.st_mtime_ns


def _files_of(options: CompareOptions) -> list[Path]:
    """Return the files that the options only name."""
    processing = options.post_processing
    factors = () if processing is None else (*processing.target.values(), *processing.golden.values())
    named = {path for factor in factors for path in (factor.left, factor.right) if path is not None}
    if options.noise is not None and options.noise.profile is not None:
        named.add(options.noise.profile)
    return sorted(named | ({options.stack_path} if options.stack_path is not None else set()))


def _forget_differences(directory: Path) -> None:
    """Remove what an earlier comparison, which is resumed, has written about where ranks part."""
    record = directory / UNITS_DIRECTORY / _DIFFERENCES
    try:
        names = [os.fsdecode(name) for name in msgspec.msgpack.decode(read_plain(record), type=list[bytes])]
    except (OSError, msgspec.MsgspecError, ValueError):
        return
    for name in names:
        path = directory / name
        if path.name.startswith(FIRST_DIFFERENCES) and path.resolve().is_relative_to(directory.resolve()):
            path.unlink(missing_ok=True)
    record.unlink(missing_ok=True)


def _keep_differences(directory: Path, paths: Sequence[Path]) -> None:
    record = directory / UNITS_DIRECTORY / _DIFFERENCES
    make_directory(record.parent, below=directory)
    with create_file(record) as file:
        file.write(msgspec.msgpack.encode([os.fsencode(path.relative_to(directory)) for path in paths]))


def _paths_of(files: UnitFiles) -> list[Path]:
    return [*files.tables, *([files.calls] if files.calls is not None else [])]


def _record_of(task: UnitTask) -> Path:
    return task.directory / UNITS_DIRECTORY / f"{task.pair.label.replace('/', '_')}{_RECORD}"


def _keep(task: UnitTask, done: UnitDone) -> None:
    path = _record_of(task)
    make_directory(path.parent, below=task.directory)
    part = path.with_suffix(f".{os.getpid()}")
    with create_file(part) as file:
        file.write(msgspec.msgpack.encode(done, enc_hook=_encoded))
    part.replace(path)  # so that there is a whole record or none


def _taken_over(task: UnitTask) -> UnitDone | None:
    """Return what an earlier comparison found of the same pair in the same way; ``None`` if there is nothing."""
    try:
        content = read_plain(_record_of(task))
        done = msgspec.msgpack.decode(content, type=UnitDone, dec_hook=_decoded)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    is_whole = done.key == _key_of(task) and all(path.is_file() for path in _paths_of(done.files))
    return done if is_whole else None


def num_finished(directory: Path) -> int:
    """Return how many pairs have been finished whose results are in ``directory``."""
    return len(list((directory / UNITS_DIRECTORY).glob(f"*{_RECORD}")))


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fsencode(value)
    raise NotImplementedError(f"{value!r} cannot be kept")


def _decoded(kind: type[Any], value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"{kind!r} is not kept")
