"""Samples calls of a training, and checks them when their step ends: the task ``acc_check``, and others like it.

Inside of a step the tensors of the sampled calls are copied on their device, like those of the task ``tensor``, and
nothing is computed or fetched. At `step()` the copies are fetched, and each call is checked by a `Checker`, for
``acc_check`` as calls of a dump are, as long as the budget allows. Copies of calls that are right are dropped; those of
others are written to the dump of the step, which holds nothing else.
"""

from __future__ import annotations

import bisect
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from msprobe_core import names
from msprobe_core.api_check.call_check import CallChecker, unchecked
from msprobe_core.api_check.error_data import save_error_data
from msprobe_core.api_check.online.files import VERDICTS_FILE, verdict_line, write_verdicts
from msprobe_core.api_check.online.held_copies import HeldCopies
from msprobe_core.api_check.online.held_dump import HeldDump
from msprobe_core.api_check.online.kinds import CallSample, Kind
from msprobe_core.api_check.online.step_budget import StepBudget
from msprobe_core.api_check.online.tally import Tally
from msprobe_core.api_check.online.unchecked_codes import UncheckedCode
from msprobe_core.api_check.verdict import CallVerdict
from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.processors import StatisticsProcessor
from msprobe_core.config import Config
from msprobe_core.errors import MsprobeError, PluginError
from msprobe_core.findings import Finding
from msprobe_core.guard import kept, reason_of
from msprobe_core.model import Batch, Entry, RunHeader, Stats, TensorValue
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.replay.recorded import RecordedCall, RecordedCalls
from msprobe_core.replay.replays import Replayer

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 1 << 30
"""Maximum memory, in bytes, of copies of one step; further calls wait for another step."""

MAX_ELEMENTS = 1 << 26
"""Maximum number of elements of a call that is checked beside a training, which needs the memory itself."""

_NOTHING = Batch([], {})


class Checker(Protocol):
    """Checks calls one by one."""

    @property
    def framework(self) -> ReplayingFramework:
        """Replays calls."""
        ...

    def check(self, call: RecordedCall) -> CallVerdict:
        """Return the verdict on a recorded call; whatever prevents one is its reason."""
        ...


def replaying(host: Host) -> ReplayingFramework:
    """Return the framework of a session, which replays calls.

    Raises:
        PluginError: its plugin does not.
    """
    if isinstance(host.framework, ReplayingFramework):
        return host.framework
    task = host.config.task.value
    raise PluginError(f"the task '{task}' is not available for {host.framework.name}: it replays no calls")


class OnlineCheck(Feature):
    """Checks sampled calls between steps; see the module.

    Args:
        host: Services of the session.
        checker: Checks calls.
        budget: Decides which steps are recorded, and how long calls are checked.
        sample: Chooses calls.
    """

    def __init__(self, host: Host, checker: Checker, budget: StepBudget, sample: CallSample) -> None:
        self._host = host
        self._config: Config = host.config
        self._budget = budget
        self._task = host.config.task.value
        self._checker = checker
        self._sample = sample
        self._entries: dict[str, Entry] = {}
        self.copies = HeldCopies(MAX_HELD_BYTES)
        self._is_ending = False
        self._decided: tuple[int, bool] = (-1, False)
        self._has_begun = False
        self._is_recorded = False
        self._tally = Tally(self._task, budget, sample)
        self._unit: Path | None = None
        self._stamp = time.strftime("%Y%m%d%H%M%S")

    @classmethod
    def make(cls, host: Host) -> Self:
        """Return the check for a session.

        Raises:
            PluginError: the framework's plugin does not replay calls.
        """
        framework, options = replaying(host), host.config.options
        checker = CallChecker(framework=framework, max_elements=MAX_ELEMENTS, measures_power=False, trusts_own=False)
        sample = CallSample(
            options.white_list, options.black_list, options.sample, options.seed, framework.why_not_replayed
        )
        return cls(host, checker, StepBudget(options.budget), sample)

    # --- which calls ------------------------------------------------------------------------------------------

    @property
    def sample(self) -> CallSample:
        """See `Feature`."""
        return self._sample

    @property
    def call_check(self) -> OnlineCheck:
        """See `Feature`."""
        return self

    def records_step(self, step: int) -> bool:
        """Whether calls are sampled in a step; the same for all windows of it."""
        if self._decided[0] != step:
            steps = self._config.step
            number = bisect.bisect_left(steps, step) if steps else step
            self._decided = step, self._tally.problem is None and self._budget.wants(number)
        return self._decided[1]

    def begin_window(self, step: int, rank: int | None) -> bool:  # noqa: ARG002
        """See `Feature`; nothing is attached."""
        self._has_begun = True
        return False

    def begin_unit(self, step: int, rank: int | None) -> None:  # noqa: ARG002
        """See `Feature`."""
        self._is_recorded, self._unit = True, self._host.directory()

    # --- inside of a step -------------------------------------------------------------------------------------

    def hold(self, tensor: Any, entry: str, category: str, path: str, value: TensorValue) -> None:
        """Copy a tensor of a sampled call."""
        if value.digest.stats == Stats() or not self._sample.takes(entry, value.meta):  # uninitialized, or not sampled
            return
        if self.copies.is_full or math.prod(value.meta.shape) > MAX_ELEMENTS:
            self._sample.give_up(entry)  # it waits for another step, in which it comes earlier
            self.copies.refuse(entry)
            return
        snapshot = self._host.framework.snapshot(tensor)
        if snapshot is not None:
            self.copies.add(entry, snapshot, names.tensor_file_stem(entry, category, path), value)

    def judge(self, entry: str) -> None:
        """Do nothing: calls are checked when the step ends."""

    def forget(self, entry: str) -> None:
        """Drop the copies of a call."""
        self.copies.drop(entry)

    # --- the end of a step ------------------------------------------------------------------------------------

    def finish_step(self) -> None:
        """See `Feature`: the next batch is the last one of the step."""
        self._is_ending = True

    def sift(self, batch: Batch, step: int) -> Batch:
        """Hold entries; at the end of the step, check calls and return those to write."""
        self._entries.update((entry.name, entry) for entry in batch.entries)
        if not self._is_ending:
            return _NOTHING
        try:
            with self._budget.checking():
                return self._check_step(step)
        except BaseException:
            self._clear()  # recording ends, and the training needs the memory
            raise

    def _clear(self) -> None:
        self._entries.clear()
        self.copies.clear()

    def end_window(self, *, was_running: bool) -> None:  # noqa: ARG002
        """See `Feature`."""
        if not self._is_ending:
            return
        was_recorded, self._is_recorded, self._is_ending = self._is_recorded, False, False
        self._clear()
        if not self._has_begun:  # the end of the program
            return
        self._has_begun = False
        self._budget.end_step(was_recorded=was_recorded)
        self._sample.next_step(self._budget.next_allowance, self.copies.max_bytes, was_recorded=was_recorded)
        if was_recorded and self._unit is not None:
            self._tally.write_now_and_then(self._unit)

    def _check_step(self, step: int) -> Batch:
        kinds = self._sample.look_at(self._entries.values())
        for name in self.copies.refused & kinds.keys():
            reason = Finding(UncheckedCode.TOO_LARGE, fields={"most": self.copies.max_bytes >> 20})
            kinds[name].note_unsampled(reason, was_chosen=not self._sample.is_survey)
        sampled = {name: kind for name, kind in kinds.items() if name in self.copies and not kind.is_closed}
        calls = self._opened(sampled)
        positions = {name: position for position, name in enumerate(self._entries)}
        lines: list[Mapping[str, Any]] = []
        to_keep: dict[str, Entry] = {}
        for name, kind in self._sample.in_order(sampled):
            if not self._sample.wants(kind):
                continue
            # One call is checked in any case: otherwise one that takes longer than is ever left would never be.
            if lines and self._budget.left < self._sample.expected_seconds(kind):
                continue
            call, verdict = self._checked(calls, name)
            is_to_keep = self._tally.add(kind, verdict, step)
            lines.append(verdict_line(verdict, kind, step, positions[name]))
            self.note(verdict, step)
            if is_to_keep:
                entries = (self._entries.get(each) for each in (names.forward_of(name), name) if each is not None)
                to_keep |= {entry.name: entry for entry in entries if entry is not None}
                self._save_error_data(call, step)
            if self._tally.problem is not None:
                break
        if lines and self._unit is not None:
            write_verdicts(self._unit / VERDICTS_FILE.format(task=self._task), lines)
        return self._kept(to_keep)

    def note(self, verdict: CallVerdict, step: int) -> None:
        """React to the verdict on a call; tasks override this."""

    def _opened(self, sampled: Mapping[str, Kind]) -> RecordedCalls:
        """Return the sampled calls as a dump; a backward needs the entry of its forward, too."""
        wanted = {each for name in sampled for each in (name, names.forward_of(name)) if each is not None}
        entries = [entry for name, entry in self._entries.items() if name in wanted]
        header = RunHeader(
            task=self._config.task.value, level=self._config.level.value, framework=self._host.framework.name
        )
        path = self._unit or self._config.directory
        content = self._host.framework.content
        dump = HeldDump.of(entries, self.copies.by_stem(), content, header=header, path=path)
        return RecordedCalls(dump, MAX_ELEMENTS)

    def _checked(self, calls: RecordedCalls, name: str) -> tuple[RecordedCall, CallVerdict]:
        """Check one call; an error of ours makes it one that cannot be judged."""
        begin = time.perf_counter()
        call = RecordedCall(entry=name, site=names.parse_entry(name))
        try:
            call = calls.read(name)
            return call, self._checker.check(call)
        except BaseException as caught:  # raised by a framework in a replay, or by a fault of ours
            error = kept(caught)
            _logger.debug("%s: %s", self._task, name, exc_info=caught)
        self._tally.count_failure(error)
        found = unchecked(call, Finding(UncheckedCode.FAILED, fields={"why": reason_of(error)}))
        return call, msgspec.structs.replace(found, seconds=time.perf_counter() - begin)

    # --- what is kept -----------------------------------------------------------------------------------------

    def _kept(self, entries: Mapping[str, Entry]) -> Batch:
        """Return entries to write, with statistics and files of their tensors."""
        reducer = self._host.framework.reducer()
        statistics = StatisticsProcessor()
        for name, copy in self.copies:
            copy.value.file_name = None
            if name in entries:
                statistics.reduce(copy.snapshot, copy.value.digest, reducer)
        reducer.collect()
        for name, copy in self.copies:
            if name in entries:
                self._host.save(copy.snapshot, copy.stem, copy.value)
        chosen = sorted(entries.values(), key=lambda entry: entry.sequence)
        return Batch(chosen, {entry.name: entry.parent for entry in chosen if entry.parent is not None})

    def _save_error_data(self, call: RecordedCall, step: int) -> None:
        path = self._config.options.error_data_path
        if path is None or self._unit is None:
            return
        directory = Path(path).expanduser() / f"ut_error_data{self._stamp}" / f"step{step}" / self._unit.name
        try:
            replays = Replayer(call, self._checker.framework, None, MAX_ELEMENTS).plain
            save_error_data(directory, call, {path: replays.oracle[path] for path in call.outputs})
        except (MsprobeError, OSError) as error:
            _logger.warning("%s: data of %s are not written to %s (%s)", self._task, call.entry, directory, error)

    def close(self) -> None:
        """Write the coverage, and log a summary."""
        if self._unit is not None:
            self._tally.conclude(self._unit)
