"""Follow two runs while they are recorded, and judge each step as soon as both have finished it on all ranks.

Nothing is guessed: a step that one side lacks is reported, and a dump without an end mark is waited for as long as
anything grows, and judged as incomplete after that. Ranks are known by their directories, which need not appear at
once: a step counts as finished when a later one has begun, when as many ranks are there as in the step before, or
when nothing has changed for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msprobe_core.compare.pairs import Chosen, find_pairs
from msprobe_core.errors import CompareError, DumpError
from msprobe_core.locate.engine import LocateOptions
from msprobe_core.locate.result import LocateResult
from msprobe_core.locate.stepwise import StepSearch
from msprobe_core.store.following import Growth, Progress, growth_of
from msprobe_core.store.runs import recorder_of, steps_of_run, units_of_step

PAUSE_S = 0.25
_NUM_RECENT = 64
"""Number of steps that are looked at again: a job that was started again writes them a second time."""
SETTLING_S = 2.0
"""After this time without a change, no further rank is expected in a step."""


class StepReport(NamedTuple):
    """What became of one step.

    Attributes:
        step: Number of the follower's step.
        leader_step: Number of the leader's step.
        result: What was found; ``None`` if nothing could be compared.
        problem: Why nothing could be compared, or the step is missing; empty otherwise.
    """

    step: int
    leader_step: int
    result: LocateResult | None
    problem: str = ""


class _Side(NamedTuple):
    """One side of a step: how far its ranks have come, and which processes wrote them."""

    growths: Mapping[str, Growth] = {}
    writers: frozenset[object] = frozenset()


_Steps: TypeAlias = Mapping[int, tuple[_Side, _Side]]
"""The follower's and the leader's side of each step."""


@dataclass
class Watch:
    """Follows two runs.

    Attributes:
        target: Directory of the follower.
        golden: Directory of the leader.
        options: Options of the search.
        offset: The leader's step that corresponds to step 0.
        patience_s: Without any change for so long, in seconds, both runs count as ended.
        clock: In seconds.
        sleep: Waits for some seconds.
    """

    target: Path
    golden: Path
    options: LocateOptions
    offset: int = 0
    patience_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _judged: dict[int, frozenset[object]] = field(default_factory=dict[int, frozenset[object]])
    _num_ranks: tuple[int, int] = (0, 0)

    def reports(self) -> Iterator[StepReport]:
        """Yield what becomes of each step, in order, until nothing changes any more."""
        search = StepSearch(self.target, self.golden, self.options)
        seen: object = None
        changed = self.clock()
        while True:
            steps = self._look()
            if (state := tuple(steps.items())) != seen:
                seen, changed = state, self.clock()
            quiet_s = self.clock() - changed
            is_end = quiet_s >= self.patience_s
            report = self._next(search, steps, quiet_s, is_end=is_end)
            if report is not None:
                yield report
                changed = self.clock()
            elif is_end:
                return
            else:
                self.sleep(PAUSE_S)

    # --- the files --------------------------------------------------------------------------------------------

    def _look(self) -> _Steps:
        """Return both sides of the steps, by the follower's number, from the first that both have."""
        own, other = _steps_in(self.target), _steps_in(self.golden)
        shifted = {number - self.offset: path for number, path in other.items()}
        begin = max(min(own), min(shifted)) if own and shifted else 0
        wanted = [step for step in sorted({*own, *shifted}) if step >= begin and self._is_wanted(step)]
        recent = max(wanted, default=0) - _NUM_RECENT
        return {
            step: (_side_of(own.get(step)), _side_of(shifted.get(step)))
            for step in wanted
            if step >= recent or step not in self._judged
        }

    def _is_wanted(self, step: int) -> bool:
        steps = self.options.chosen.steps
        return not steps or step in steps

    # --- the decision -----------------------------------------------------------------------------------------

    def _next(self, search: StepSearch, steps: _Steps, quiet_s: float, *, is_end: bool) -> StepReport | None:
        """Return the report on the first step that is ready, in order; ``None`` if it is not ready yet."""
        for step, sides in steps.items():
            writers = sides[0].writers | sides[1].writers
            if self._judged.get(step) == writers:
                continue
            lacks = [i for i in (0, 1) if not sides[i].growths]
            if lacks:
                if not is_end and not all(_later(steps, step, i) for i in lacks):
                    return None
                self._judged[step] = writers
                return StepReport(step, step + self.offset, None, self._missing(step, lacks))
            if not is_end and not all(self._is_finished(steps, step, i, quiet_s) for i in (0, 1)):
                return None
            self._judged[step] = writers
            self._num_ranks = (len(sides[0].growths), len(sides[1].growths))
            return self._judge(search, step)
        return None

    def _is_finished(self, steps: _Steps, step: int, i: int, quiet_s: float) -> bool:
        growths, later = steps[step][i].growths, _later(steps, step, i)
        is_over = all(each.progress is Progress.OVER or name in later for name, each in growths.items())
        has_all_ranks = bool(later) or len(growths) == self._num_ranks[i] or quiet_s >= SETTLING_S
        return is_over and has_all_ranks

    def _missing(self, step: int, lacks: Sequence[int]) -> str:
        paths = (self.target / f"step{step}", self.golden / f"step{step + self.offset}")
        return " and ".join(f"{paths[i]} is missing" for i in lacks)

    def _judge(self, search: StepSearch, step: int) -> StepReport:
        number = step + self.offset
        sides = self.target / f"step{step}", self.golden / f"step{number}"
        try:
            chosen = Chosen(ranks=self.options.chosen.ranks)
            result = search.examine(find_pairs(*sides, chosen, self.options.compare.layouts), step)
        except (CompareError, DumpError) as error:
            return StepReport(step, number, None, str(error))
        return StepReport(step, number, result)


def _later(steps: _Steps, step: int, i: int) -> frozenset[str]:
    """Return the ranks that have begun a later step, on one side."""
    return frozenset(name for other, sides in steps.items() if other > step for name in sides[i].growths)


def _steps_in(run: Path) -> Mapping[int, Path]:
    try:
        return steps_of_run(run)[0]
    except (DumpError, OSError):
        return {}


def _side_of(directory: Path | None) -> _Side:
    if directory is None:
        return _Side()
    try:
        units = units_of_step(directory).units
    except (DumpError, OSError):
        return _Side()
    growths = {unit.directory.name: growth_of(unit.directory) for unit in units}
    return _Side(growths, frozenset(recorder_of(unit.directory).identity or unit.label for unit in units))
