"""Run units of work, such as the ranks of a step, on the chosen executor.

A unit that fails yields a reason instead of an outcome and does not affect the others. An interruption ends all of
them, even if native code swallowed it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, cast

from msprobe_core.errors import BrokenPluginError, ConfigError, MsprobeError
from msprobe_core.execute.kept import KeptOutcomes, R, Unit, UnitT, state_of
from msprobe_core.guard import shown
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import ExecutorOptions, TaskLost
from msprobe_core.plugins import registry
from msprobe_core.protocols.comparison import Executor

_logger = logging.getLogger(__name__)

_WORTH_BYTES = 16 << 20
"""Below this total size of the units' ``dump.json`` files, starting processes takes longer than it saves.

Measured: a process needs 0.5 s of CPU time to start and compares 20 MB per second.
"""

_ARROW_DENSITY = 10
"""How many times as many values a byte of ``dump.arrow`` holds as a byte of ``dump.json``."""


@dataclass(frozen=True)
class _Task(Generic[UnitT, R]):
    unit: UnitT
    work: Callable[[UnitT], R]
    kept: KeptOutcomes[UnitT, R] | None


def run_units(
    units: Sequence[UnitT],
    work: Callable[[UnitT], R],
    take: Callable[[int, R], object],
    *,
    executor: str | None = None,
    workers: ExecutorOptions | None = None,
    kept: KeptOutcomes[UnitT, R] | None = None,
    progress: Callable[[int, str], object] | None = None,
) -> Mapping[int, str]:
    """Do the same work for each unit; return the reasons of those that failed, by number in ascending order.

    Args:
        units: What to work on. Memory is bounded by the largest unit times the number of workers.
        work: Returns the outcome of one unit. The function and its result must be picklable unless the executor is
            ``inline``.
        take: Called in this process with the number and the outcome of each finished unit.
        executor: Name of the executor; ``None`` chooses processes if there is enough work, and this process otherwise.
        workers: Options of the executor.
        kept: Where outcomes are stored and reused when a run is resumed; ``None`` to store nothing.
        progress: Called with the number of finished units and the label of the last one.

    Raises:
        ConfigError: the executor is unknown.
        PluginError: the executor cannot run here.
        KeyboardInterrupt: the run was interrupted, even if native code swallowed the signal.
    """
    workers = workers or ExecutorOptions()
    finished: Mapping[int, R] = {} if kept is None else kept.begin(units)
    for number, outcome in finished.items():
        take(number, outcome)
    left = [number for number in range(len(units)) if number not in finished]
    num_finished = len(finished)
    if progress is not None and finished:
        progress(num_finished, "")
    if not left:
        return {}
    chosen = _chosen_executor(executor, [units[number] for number in left])
    chosen.check(workers)
    failed: dict[int, str] = {}
    tasks = [_Task(units[number], work, kept) for number in left]
    raise_if_interrupted()  # takes Ctrl-C back from polars; otherwise waiting for workers would ignore it
    unanswered = set(range(len(left)))
    for place, outcome in map(_checked_answer, chosen.run(_outcome_of, tasks, workers)):
        raise_if_interrupted()
        if place not in unanswered:
            raise BrokenPluginError(f"the executor '{chosen.name}' answered task {place}, of {len(left)}, again")
        unanswered.discard(place)
        number = left[place]
        if isinstance(outcome, TaskLost):
            failed[number] = outcome.reason
        else:
            take(number, outcome)
        num_finished += 1
        if progress is not None:
            progress(num_finished, units[number].label)
    failed |= {left[place]: f"the executor '{chosen.name}' has not answered" for place in unanswered}
    return dict(sorted(failed.items()))


def _outcome_of(task: _Task[UnitT, R]) -> R | TaskLost:
    """Work on one unit; errors become a `TaskLost`, because the failure of one rank must not affect the others.

    Raises:
        KeyboardInterrupt: also if native code swallowed it meanwhile, because the outcome or failure would then be
            wrong.
    """
    kept = task.kept
    try:
        key = None if kept is None else kept.key_of(task.unit)
        outcome = task.work(task.unit)
        raise_if_interrupted()
        if kept is not None and key is not None:
            kept.keep(task.unit.label, key, outcome)
    except MsprobeError as error:
        failed = TaskLost(str(error))
    except MemoryError:
        failed = TaskLost("there was not enough memory; give fewer --workers")
    except Exception as error:
        _logger.debug("internal error at %s", task.unit.label, exc_info=True)
        failed = TaskLost(f"internal error ({type(error).__name__}: {error})")
    else:
        return outcome
    raise_if_interrupted()
    return failed


def _checked_answer(answer: object) -> tuple[int, Any]:
    found = cast("tuple[Any, ...]", answer) if isinstance(answer, tuple) else ()
    if len(found) != 2 or not isinstance(found[0], int):
        text = shown(cast("object", answer))
        raise BrokenPluginError(f"the executor yielded {text}, but must yield number and result of a task")
    return found[0], found[1]


def executor_called(name: str) -> Executor:
    """Return the executor called ``name``.

    Raises:
        ConfigError: the executor is unknown.
    """
    executors = registry().executors()
    if name not in executors:
        registry().refuse_missing("msprobe_register_executors", name)
        raise ConfigError(f"there is no executor {name!r}; known are {', '.join(sorted(executors))}")
    return executors[name]


def _chosen_executor(name: str | None, units: Sequence[Unit]) -> Executor:
    return executor_called(name or ("processes" if len(units) > 1 and _are_worth_processes(units) else "inline"))


def _are_worth_processes(units: Iterable[Unit]) -> bool:
    total = 0
    for unit in units:
        for path in unit.files:
            total += max(state_of(path)[1], 0) * (_ARROW_DENSITY if path.suffix == ".arrow" else 1)
        if total > _WORTH_BYTES:
            return True
    return False


def files_of(dumps: Iterable[Path]) -> list[Path]:
    """Return the files directly in the dumps' directories; a dump that is itself a file is returned as it is."""
    found: list[Path] = []
    for dump in dumps:
        with suppress(OSError):  # whoever reads the dump reports the error
            found += sorted(path for path in dump.iterdir() if path.is_file()) if dump.is_dir() else [dump]
    return found
