"""What the checks in a training process have found and taken: counted, logged, and written to the coverage file."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from msprobe_core.api_check.online.files import COVERAGE_FILE, Totals, write_coverage
from msprobe_core.api_check.online.kinds import CallSample, Kind, KindName
from msprobe_core.api_check.online.step_budget import StepBudget
from msprobe_core.api_check.verdict import CallVerdict, Verdict
from msprobe_core.guard import reason_of

_logger = logging.getLogger(__name__)

_NUM_LOGGED = 10
_NUM_KEPT_PER_KIND = 2
"""How many calls of one kind are kept that are not right; later ones are only listed."""

_MAX_FAILURES = 20
"""Number of checks that may fail by an error before checking ends."""

_COVERAGE_PAUSE_S = 30.0

_IS_KEPT = (Verdict.WRONG, Verdict.SUSPECT, Verdict.ILL_CONDITIONED)


class Tally:
    """Counts the verdicts of one process.

    Args:
        task: Name of the task, for messages and files.
        budget: Of the checks.
        sample: Of the calls.
    """

    def __init__(self, task: str, budget: StepBudget, sample: CallSample) -> None:
        self.problem: str | None = None
        """Why checking has ended early; ``None`` if it has not."""
        self._task = task
        self._budget = budget
        self._sample = sample
        self._verdicts: Counter[Verdict] = Counter()
        self._num_kept: Counter[tuple[KindName, Verdict]] = Counter()
        self._num_failures = 0
        self._written = float("-inf")

    def add(self, kind: Kind, found: CallVerdict, step: int) -> bool:
        """Count a verdict, log it if the call is not right, and return whether the call's tensors are to be kept."""
        kind.note(found, step)
        self._verdicts[found.verdict] += 1
        if found.verdict not in _IS_KEPT:
            return False
        self._num_kept[kind.name, found.verdict] += 1
        worst = found.worst
        if found.verdict is not Verdict.ILL_CONDITIONED and self._verdicts[found.verdict] <= _NUM_LOGGED:
            _logger.warning(
                "step %d: %s: %s is %s%s",
                step, self._task, found.entry, found.verdict.value, "" if worst is None else f": {worst.reason.text}",
            )  # fmt: skip
        return self._num_kept[kind.name, found.verdict] <= _NUM_KEPT_PER_KIND

    def count_failure(self, error: Exception) -> None:
        """Count a check that an error has ended; after too many, checking ends."""
        self._num_failures += 1
        if self._num_failures == _MAX_FAILURES:
            self.problem = reason_of(error)
            _logger.warning(
                "%s: checking ends after %d failures, the last: %s", self._task, _MAX_FAILURES, self.problem
            )

    @property
    def totals(self) -> Totals:
        """What has been found until now, and what it took."""
        budget, kinds = self._budget, self._sample.kinds.values()
        training_s = budget.training_s
        return Totals(
            budget=budget.share, share=(budget.check_s + budget.recording_s) / training_s if training_s else 0.0,
            training_s=training_s, check_s=budget.check_s, recording_s=budget.recording_s, num_steps=budget.num_steps,
            num_recorded=budget.num_recorded, period=budget.period, num_calls=self._verdicts.total(),
            verdicts={verdict.value: self._verdicts[verdict] for verdict in Verdict if self._verdicts[verdict]},
            num_kinds=len(kinds), num_kinds_checked=sum(kind.num_checked > 0 for kind in kinds),
            num_left_out=self._sample.num_left_out, problem=self.problem,
        )  # fmt: skip

    def write_now_and_then(self, unit: Path) -> None:
        """Write the coverage of the rank with the directory ``unit``, if it was not written lately."""
        if self._budget.clock() - self._written > _COVERAGE_PAUSE_S:
            self.write(unit)

    def write(self, unit: Path) -> Path:
        """Write the coverage, and return the path of its file.

        Raises:
            StoreError: the file cannot be written.
        """
        self._written = self._budget.clock()
        path = unit.parent.parent / COVERAGE_FILE.format(task=self._task, unit=unit.name)
        write_coverage(path, self.totals, self._sample.kinds.values())
        return path

    def conclude(self, unit: Path) -> None:
        """Write the coverage, and log a summary.

        Raises:
            StoreError: the file cannot be written.
        """
        path, totals = self.write(unit), self.totals
        _logger.warning(
            "%s: %d call%s checked in %d of %d steps, %d wrong; of %d kinds of calls %d were judged; it took "
            "%.1f %% of the time; see %s",
            self._task, totals.num_calls, "" if totals.num_calls == 1 else "s", totals.num_recorded, totals.num_steps,
            totals.verdicts.get(Verdict.WRONG.value, 0), totals.num_kinds, totals.num_kinds_checked, 100 * totals.share,
            path,
        )  # fmt: skip
