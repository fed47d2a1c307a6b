"""The follower in its own training: judges its finished steps against the leader's, between two steps.

Nothing happens inside of a step. A step whose dump the leader has not finished is judged later; what judging takes in
all stays within its share of the training's time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msprobe_core.capture.features.feature import Feature, Host
from msprobe_core.capture.features.reference_check import checked_reference, reference_of
from msprobe_core.capture.features.reference_run import ReferenceRun
from msprobe_core.compare.pairs import Pairing, UnitPair
from msprobe_core.compare.unit import CompareOptions
from msprobe_core.config.schema import OnDifference, TwinOptions
from msprobe_core.errors import MsprobeError, StoreError
from msprobe_core.guard import kept, reason_of
from msprobe_core.judge.noise import load_noise
from msprobe_core.locate.engine import LocateOptions
from msprobe_core.locate.result import LocateResult, LocateVerdict
from msprobe_core.locate.stepwise import StepSearch
from msprobe_core.store.following import Progress
from msprobe_core.twin.verdict_file import FILE_NAME, StepLine, append_line, line_of

_logger = logging.getLogger(__name__)

_MOST_PENDING = 64
"""Number of finished steps that can wait for the leader or for time; older ones are left to ``msprobe twin watch``."""

_MAX_FAILURES = 5

_CLOSING_S = 10.0
"""How long the steps that are left are judged when recording ends, in seconds, whatever the share is."""


class _Finished(NamedTuple):
    """A finished step of the follower."""

    step: int
    rank: int | None
    directory: Path


class Follower(Feature):
    """Judges this process's steps; see `StepSearch` for the rule.

    A step that begins looks for the leader's dump of the step before, and waits for it no longer than it was told.
    """

    def __init__(
        self,
        leader: ReferenceRun,
        options: TwinOptions,
        host: Host,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without a step.

        Args:
            leader: The other run.
            options: The configuration.
            host: Services of the session.
            clock: In seconds.
        """
        self._leader = leader
        self._options = options
        self._host = host
        self._clock = clock
        self._began = clock()
        self._spent_s = 0.0
        self._pending: deque[_Finished] = deque()
        self._open: _Finished | None = None
        self._search: StepSearch | None = None
        self._num_judged = self._num_missing = self._num_dropped = self._num_failed = 0
        self._first_difference: str | None = None
        self._has_said_missing = self._has_said_unwritable = False
        self._is_over = False
        self._closing_until: float | None = None

    @classmethod
    def make(cls, host: Host) -> Follower | None:
        """Return the follower, unless calls are checked by checksums while they are recorded; see `BenchCheck`."""
        options = host.config.twin
        if options is None or checked_reference(host.config) is not None:
            return None
        return cls(reference_of(options), options, host)

    # --- called by the session --------------------------------------------------------------------------------

    def begin_unit(self, step: int, rank: int | None) -> None:
        """See `Feature`."""
        directory = self._host.directory()
        self._open = None if directory is None else _Finished(step, rank, directory)

    def end_unit(self, step: int) -> None:  # noqa: ARG002
        """Note a finished step: its files are closed after this."""
        if self._open is not None:
            self._pending.append(self._open)
            self._open = None
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
            self._num_dropped += 1

    def begin_window(self, step: int, rank: int | None) -> bool:  # noqa: ARG002
        """Judge what can be judged before the next step begins."""
        if self._pending and self._open is None:
            self._judge_pending()
        return False

    def close(self) -> None:
        """Judge the last steps, and log a summary."""
        self._closing_until = self._clock() + _CLOSING_S
        self._judge_pending()
        self._num_dropped += 0 if self._first_difference else len(self._pending)
        left = self._num_missing + self._num_dropped
        _logger.warning(
            "twin: %d steps judged, %d not%s; %s; it took %.2f s",
            self._num_judged, left,
            f" (see `msprobe twin watch {self._host.config.directory} {self._leader.root}`)" if left else "",
            self._first_difference or "no disagreement", self._spent_s,
        )  # fmt: skip

    # --- the judgement ----------------------------------------------------------------------------------------

    @property
    def _has_time(self) -> bool:
        """Whether the share of the training's time is not used up; the first step is judged in any case."""
        if self._closing_until is not None:
            return self._clock() < self._closing_until
        return not self._num_judged or self._spent_s <= self._options.budget * (self._clock() - self._began)

    def _judge_pending(self) -> None:
        if self._pending and not self._is_over:
            self._leader.await_unit(self._pending[-1].step, self._pending[-1].rank)
        while self._pending and not self._is_over and self._has_time:
            finished = self._pending[0]
            growth = self._leader.growth(finished.step, finished.rank)
            if growth.progress is not Progress.OVER or not self._leader.is_own(finished.step):
                if not self._leader.is_past(finished.step):
                    self._say_missing(finished.step)
                    return
                self._num_missing += 1
                self._pending.popleft()
                continue
            self._pending.popleft()
            self._judge(finished)

    def _judge(self, finished: _Finished) -> None:
        begin = self._clock()
        try:
            result = self._examined(finished)
        except BaseException as caught:  # noqa: BLE001  # a dump that cannot be read, or a fault of ours
            self._note_failure(finished.step, kept(caught))
            return
        finally:
            self._spent_s += self._clock() - begin
        self._num_judged += 1
        file = finished.directory.parent.parent / FILE_NAME.format(unit=finished.directory.name)
        self._write(file, line_of(result, finished.step, finished.step + self._options.offset, self._clock() - begin))
        if result.verdict is LocateVerdict.FAULT:
            self._report(finished.step, result, file)

    def _examined(self, finished: _Finished) -> LocateResult:
        search = self._search
        if search is None:
            noise = load_noise(self._leader.root)
            options = LocateOptions(compare=CompareOptions(noise=noise), executor="inline")
            search = self._search = StepSearch(self._host.config.directory, self._leader.root, options)
        unit, notes = self._leader.unit(finished.step, finished.rank)
        pair = UnitPair(
            f"step{finished.step}/{finished.directory.name}", finished.step, finished.rank, finished.directory,
            unit.directory, notes=tuple(notes),
        )  # fmt: skip
        return search.examine(Pairing([pair], []), finished.step)

    def _report(self, step: int, result: LocateResult, file: Path) -> None:
        first = result.suspects[0]
        self._is_over = True  # what follows may follow from it
        self._first_difference = f"the first disagreement is {first.entry} in step {step}"
        _logger.warning(
            "step %d: twin: %s disagrees with %s: %s; later steps are not judged; see %s",
            step, first.entry, self._leader.root, first.reason.text.rstrip("."), file,
        )  # fmt: skip
        if self._options.on_difference is OnDifference.STOP:
            self._host.end_recording("it disagrees with the leader of its 'twin'")

    def _write(self, file: Path, line: StepLine) -> None:
        if self._has_said_unwritable:
            return
        try:
            append_line(file, line)
        except StoreError as error:
            self._has_said_unwritable = True
            _logger.warning("twin: no further verdicts are written: %s", error)

    def _say_missing(self, step: int) -> None:
        if self._has_said_missing:
            return
        self._has_said_missing = True
        _logger.warning(
            "step %d: twin: %s is not there yet; the training goes on, and the step is judged when it is (said once)",
            step, self._leader.directory(step),
        )  # fmt: skip

    def _note_failure(self, step: int, error: Exception) -> None:
        self._num_missing += 1
        self._num_failed += 1
        why = str(error) if isinstance(error, MsprobeError) else reason_of(error)
        if self._num_failed == 1:
            _logger.warning("step %d: twin: it could not be judged: %s", step, why)
        if self._num_failed == _MAX_FAILURES:
            self._is_over = True
            _logger.warning("twin: judging ends after %d failures, the last: %s", _MAX_FAILURES, why)
