"""The search for the first divergence of two runs that are still being recorded: one step after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from msprobe_core.compare.pairs import Pairing
from msprobe_core.errors import CompareError
from msprobe_core.locate.engine import LocateOptions, UnitFindings, UnitTask, examine_units, result_of, suspects_of
from msprobe_core.locate.result import LocateResult


@dataclass
class StepSearch:
    """Judges the steps that it is given as `locate` judges those of two whole runs.

    Attributes:
        target: Path of the target run.
        golden: Path of the golden run.
        options: Options of the search.
    """

    target: Path
    golden: Path
    options: LocateOptions
    _first: Sequence[UnitFindings] = ()
    _last: int = -1
    _before: dict[int | None, pl.DataFrame] = field(default_factory=dict[int | None, pl.DataFrame])

    def examine(self, pairing: Pairing, step: int) -> LocateResult:
        """Return the result for one step.

        Args:
            pairing: The pairs of its dumps.
            step: Its number in the target.

        Raises:
            CompareError: nothing of it could be compared.
        """
        if step <= self._last:  # a run has begun again
            self._first, self._before = (), {}
        self._last = step
        is_first = not self._first
        pairs = [replace(pair, step=step, is_first_step=is_first) for pair in pairing.pairs]
        tasks = [UnitTask(pair, self.options.compare, self._before.get(pair.rank)) for pair in pairs]
        found, failed = examine_units(tasks, self.options, None, None)
        if not found:
            why = failed[0] if failed else next(iter(pairing.missing), "no rank is in both")
            raise CompareError(f"step{step}: nothing could be compared; {why}")
        self._before = {unit.pair.rank: unit.parameters for unit in found}
        suspects, notes = suspects_of(found, self.options)
        left_out = [*pairing.missing, *failed]
        of_first = () if is_first else self._first
        if is_first:
            self._first = found
        result = result_of(
            self.target, self.golden, self.options, [*of_first, *found], suspects, left_out, notes, (1, 1)
        )
        counts = [sum(unit.num_nodes for unit in found), sum(unit.num_flagged for unit in found)]
        return replace(result, num_nodes=counts[0], num_flagged=counts[1])
