"""Check every call of a dump, in one process or in several."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from msprobe_core import names
from msprobe_core.api_check.call_check import MAX_ELEMENTS, CallChecker, unchecked
from msprobe_core.api_check.call_sources import SOURCE_FILES, CallSource, source_at
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.exact_probes import ExactProber, exact_inputs, with_probe
from msprobe_core.api_check.made_inputs import SEED, corrected, random_inputs, synthetic_inputs
from msprobe_core.api_check.random_calls import check_random
from msprobe_core.api_check.ratio_rule import benchmark_ratio
from msprobe_core.api_check.three_way import check_devices, check_on
from msprobe_core.api_check.verdict import CallVerdict, Inputs
from msprobe_core.errors import ReplayError
from msprobe_core.execute.kept import state_of
from msprobe_core.execute.units import executor_called
from msprobe_core.findings import Finding
from msprobe_core.interrupts import raise_if_interrupted
from msprobe_core.model import ExecutorOptions, ReplayTensor, SiteKind, TaskLost
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import Replayer

WORTH_PROCESSES = 300
"""Number of calls from which further processes are worth their start, which takes some two seconds."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Which calls are checked, and how.

    Attributes:
        white_list: Only calls whose name contains one of these, or is one without its number; empty for all.
        black_list: Calls that are not checked; it outranks ``white_list``.
        once_per_kind: Whether only the first of several calls of one API with equal arguments is checked, where tensors
            are equal if their dtypes and shapes are.
        max_elements: Calls with more elements are not checked.
        measures_power: Whether mutants are tried.
        inputs: What calls are replayed with.
        missing_inputs: What is made for calls of which a dump has statistics only; ``None`` to leave them unchecked.
        devices: Compute each call, too, and are judged as sides of their own.
        probes: Whether linear calls are also probed with integers.
        seed: Of made inputs.
        quantization_apis: See `msprobe_core.api_check.published.published_columns`.
    """

    white_list: Sequence[str] = ()
    black_list: Sequence[str] = ()
    once_per_kind: bool = False
    max_elements: int = MAX_ELEMENTS
    measures_power: bool = True
    inputs: Inputs = Inputs.RECORDED
    missing_inputs: Inputs | None = None
    devices: tuple[str, ...] = ()
    probes: bool = False
    seed: int = SEED
    quantization_apis: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Task:
    dump: Path
    entry: str
    position: int
    options: CheckOptions


@dataclass(frozen=True, kw_only=True)
class DumpCheck:
    """The check of one dump.

    Attributes:
        dump: The directory of one rank of one step, its ``dump.json``, or a directory of ``--write_shards``.
        options: Which calls, and how.
        entries: The calls, in the order of the dump.
        positions: Position of each among all entries of the dump.
    """

    dump: Path
    options: CheckOptions
    entries: Sequence[str] = field(default_factory=list[str])
    positions: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, dump: Path, options: CheckOptions) -> DumpCheck:
        """Read a dump, or files of ``--write_shards``, and choose its calls.

        Raises:
            DumpError: it cannot be read.
        """
        source = _source(dump)
        positions = {entry: position for position, entry in enumerate(source.entries)}
        return cls(dump=dump, options=options, entries=list(_chosen(source, options)), positions=positions)

    def of_entries(self, entries: Sequence[str]) -> DumpCheck:
        """Return the check of some of the calls only, which may be modules beside calls of functions."""
        return replace(self, entries=entries)

    @property
    def modules(self) -> Sequence[str]:
        """The calls of modules in the dump."""
        return [entry for entry, site in names.calls_in(self.positions) if site.kind is SiteKind.MODULE]

    def with_devices(self, devices: Sequence[str]) -> DumpCheck:
        """Return the same check with devices that compute each call, too."""
        return replace(self, options=replace(self.options, devices=tuple(devices)))

    def replayed(self, entry: str) -> tuple[RecordedCall, Mapping[str, ReplayTensor]]:
        """Return a call that was judged, and its results in float64: none of one that draws random numbers."""
        call = self.read(entry)
        framework = _checker(self.dump, self.options).framework
        try:
            oracle = Replayer(call, framework, None, self.options.max_elements).plain.oracle
        except ReplayError:  # it was judged by other means
            return call, {}
        return call, {path: oracle[path] for path in call.outputs}

    def read(self, entry: str) -> RecordedCall:
        """Return a call with its recorded inputs and results."""
        return _source(self.dump).read(entry).call

    @property
    def digest(self) -> str:
        """Of the dump and the options that decide the verdicts."""
        content = hashlib.sha256(msgspec.json.encode([str(self.options), list(self.entries)]))
        for path in _source(self.dump).record_files():
            status = path.stat()
            content.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        return content.hexdigest()

    def run(
        self,
        *,
        workers: int | None = None,
        known: Mapping[str, CallVerdict] | None = None,
        progress: Callable[[int, int, str], object] | None = None,
    ) -> Iterator[CallVerdict]:
        """Yield the verdict on each call as it is known.

        Args:
            workers: Number of processes; ``None`` for as many as there are cores if there are enough calls, 0 for this
                process only. A process that dies costs the one call that it was checking.
            known: Verdicts of an earlier run, by entry; their calls are neither checked nor yielded.
            progress: Called with the number of finished calls, the number of all, and the last one's name.
        """
        left = [entry for entry in self.entries if entry not in (known or {})]
        tasks = [_Task(self.dump, entry, self.positions[entry], self.options) for entry in left]
        if workers is None:
            workers = (os.cpu_count() or 1) if len(tasks) >= WORTH_PROCESSES else 0
        executor = executor_called("processes" if workers else "inline")
        num_done = len(self.entries) - len(left)
        for number, outcome in executor.run(_check, tasks, ExecutorOptions(workers=workers or None)):
            raise_if_interrupted()
            num_done += 1
            if progress is not None:
                progress(num_done, len(self.entries), left[number])
            yield self._lost(tasks[number], outcome) if isinstance(outcome, TaskLost) else outcome

    def with_reach(self, verdicts: Iterable[CallVerdict]) -> list[CallVerdict]:
        """Return the verdicts in the order of the dump, with the reach of each call."""
        reach = _source(self.dump).reach()
        found = (msgspec.structs.replace(verdict, reach=reach.get(verdict.entry)) for verdict in verdicts)
        return sorted(found, key=lambda verdict: verdict.position)

    @property
    def framework(self) -> str:
        """Name of the framework that the dump is of."""
        return _source(self.dump).framework

    def _lost(self, task: _Task, outcome: TaskLost) -> CallVerdict:
        call = RecordedCall(entry=task.entry, site=names.parse_entry(task.entry))
        reason = Finding(CheckCode.CRASHED, fields={"why": outcome.reason})
        return msgspec.structs.replace(unchecked(call, reason), position=task.position)


def check_dump(
    dump: str | os.PathLike[str], options: CheckOptions | None = None, *, workers: int | None = None
) -> Iterator[CallVerdict]:
    """Yield the verdict on each call of a dump as it is known; see `DumpCheck`.

    Args:
        dump: The directory of one rank of one step, or its ``dump.json``.
        options: Which calls, and how; ``None`` for all.
        workers: Number of processes; see `DumpCheck.run`.

    Raises:
        DumpError: the dump cannot be read.
        PluginError: nothing here replays calls of its framework.
    """
    return DumpCheck.of(Path(dump), options or CheckOptions()).run(workers=workers)


def _source(dump: Path) -> CallSource:
    """Return the calls at a path; they are kept for as long as its files are the same."""
    return _kept_source(dump, tuple(state_of(path) for path in (dump, *(dump / name for name in SOURCE_FILES))))


@lru_cache(maxsize=2)
def _kept_source(dump: Path, _states: tuple[object, ...]) -> CallSource:
    return source_at(dump, MAX_ELEMENTS)


def _checker(dump: Path, options: CheckOptions) -> CallChecker:
    return _kept_checker(_source(dump).framework, options)


@lru_cache(maxsize=2)
def _kept_checker(framework_name: str, options: CheckOptions) -> CallChecker:
    framework = replaying_framework(framework_name)
    check_devices(framework, options.devices)
    return CallChecker(
        framework=framework, max_elements=options.max_elements, measures_power=options.measures_power,
        quantization_apis=options.quantization_apis,
    )  # fmt: skip


def _check(task: _Task) -> CallVerdict:
    """Check one call, in a process of its own or in this one."""
    source, checker, options = _source(task.dump), _checker(task.dump, task.options), task.options
    if options.inputs is Inputs.RECORDED:
        computed, made = source.read(task.entry), options.missing_inputs
        missing = computed.call.missing
        if missing is not None and missing.code is ReplayCode.STATISTICS_ONLY and made is not None:
            found = _check_made(source, checker, task, made)
        else:
            found = check_random(computed.call) or check_on(
                checker, computed.call, options.devices, computed.fresh, benchmark_ratio
            )
    else:
        found = _check_made(source, checker, task, options.inputs)
    if options.probes:
        call = source.read(task.entry, exact_inputs(options.seed)).call
        prober = ExactProber(framework=checker.framework, seed=options.seed, max_elements=options.max_elements)
        if prober.kind_of(call) is not None:
            found = with_probe(found, prober.probe(call))
    return msgspec.structs.replace(found, position=task.position)


def _check_made(source: CallSource, checker: CallChecker, task: _Task, inputs: Inputs) -> CallVerdict:
    seed = task.options.seed
    fill = random_inputs(seed) if inputs is Inputs.RANDOM else synthetic_inputs(seed)
    return checker.check_made(corrected(source.read(task.entry, fill).call), inputs, seed)


# --- which calls ------------------------------------------------------------------------------------------------


def _chosen(source: CallSource, options: CheckOptions) -> Iterable[str]:
    """Yield the calls to check: those of functions, and those of modules if the dump has no others."""
    calls = dict(names.calls_in(source.entries))
    has_functions = any(site.kind is SiteKind.API for site in calls.values())
    seen: set[tuple[object, ...]] = set()
    for entry, site in calls.items():
        if has_functions and site.kind is not SiteKind.API:
            continue
        if not names.is_listed(entry, options.white_list, options.black_list):
            continue
        if options.once_per_kind:
            kind = site.prefix, site.path, site.phase, source.form_of(entry)
            if kind in seen:
                continue
            seen.add(kind)
        yield entry
