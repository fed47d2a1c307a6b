"""What of a training was expected to be seen, and what was: so that a monitor that sees nothing says so."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitor.sinks import Sink
from msprobe_core.monitoring.parameter_classes import ParameterClass, class_of
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.struct_files import load_struct

_logger = logging.getLogger(__name__)

FILE = "coverage.json"


class SeenOfClass(msgspec.Struct, kw_only=True):
    """How much of one quantity was seen of one class of parameters.

    Attributes:
        expected: Names that should have values in each collected step.
        seen: Names that had a value in any step.
        always: Names that had a value in every collected step.
        finite: Those of the seen whose values were finite in all steps.
    """

    expected: int
    seen: int
    always: int
    finite: int


class Seen(msgspec.Struct, kw_only=True):
    """How much of one quantity was seen.

    Attributes:
        expected: Names that should have values in each collected step; ``None`` if that is not known before.
        seen: Names that had a value in any step.
        finite: Those of them whose values were finite in all steps.
        first_step: The first step with a value; ``None`` if there is none.
        missing: Some of the names that were expected and never seen.
        always: Names that had a value in every collected step: those of experts that got no token are missing here.
        by_class: By class of parameter; empty for quantities of modules.
    """

    expected: int | None
    seen: int
    finite: int
    first_step: int | None
    missing: list[str]
    always: int
    by_class: dict[ParameterClass, SeenOfClass]


def read_coverage(directory: Path) -> dict[Quantity, Seen]:
    """Return what the monitor of a rank has seen.

    Args:
        directory: Of the rank.

    Raises:
        DumpError: the file cannot be read, or is none of a monitor.
    """
    return load_struct(directory / FILE, dict[Quantity, Seen], otherwise="does not say what a monitor has seen")


_MAX_MISSING = 20

Expected = Mapping[Quantity, Collection[str] | None]
"""By quantity, the names that should have values; ``None`` if they are not known."""


class Coverage(Sink):
    """Counts what is seen of each quantity."""

    def __init__(self, expected: Callable[[], Expected], directory: Path) -> None:
        """Begin with nothing seen.

        Args:
            expected: Returns what should have values; asked at the end, because models change while they train.
            directory: Of the file.
        """
        self._expected = expected
        self._path = directory / FILE
        self._num_steps = 0
        self._first: dict[Quantity, int] = {}
        self._num_seen: dict[Quantity, Counter[tuple[int, str]]] = {}
        self._not_finite: dict[Quantity, set[tuple[int, str]]] = {}

    def add(self, step: Step) -> None:
        """Count a step."""
        self._num_steps += 1
        in_step: dict[Quantity, set[tuple[int, str]]] = {}
        for reading in step.readings.values():
            place = reading.stage, reading.name
            in_step.setdefault(reading.quantity, set()).add(place)
            if not _is_finite(reading):
                self._not_finite.setdefault(reading.quantity, set()).add(place)
        for quantity, places in in_step.items():
            self._first.setdefault(quantity, step.number)
            self._num_seen.setdefault(quantity, Counter()).update(places)

    def close(self) -> None:
        """Write the file, and warn of what was not seen at all.

        Raises:
            StoreError: it cannot be written.
        """
        if not self._num_steps:
            return
        if unseen := self.unseen():
            listed = ", ".join(quantity.value for quantity in unseen)
            _logger.warning(
                "the monitor saw nothing of %s in %d steps; %s says what was expected",
                listed, self._num_steps, self._path,
            )  # fmt: skip
        write_json(self._path, self.content())

    def unseen(self) -> list[Quantity]:
        """Return the quantities of which nothing at all was seen, although something was expected."""
        found = [
            quantity
            for quantity, names in self._expected().items()
            if not self._num_seen.get(quantity) and (names is None or len(names))
        ]
        # An optimizer with a momentum alone has no second moments.
        return [each for each in found if each is not Quantity.EXP_AVG_SQ or Quantity.EXP_AVG not in self._num_seen]

    def content(self) -> dict[str, Seen]:
        """Return what ``coverage.json`` holds, by quantity."""
        return {quantity.value: self._seen_of(quantity, names) for quantity, names in self._expected().items()}

    def _seen_of(self, quantity: Quantity, names: Collection[str] | None) -> Seen:
        num_seen = self._num_seen.get(quantity, Counter())
        seen = _shown(num_seen)
        always = _shown(place for place, number in num_seen.items() if number == self._num_steps)
        finite = seen - _shown(self._not_finite.get(quantity, ()))
        expected = None if names is None else set(names)
        by_class: dict[ParameterClass, SeenOfClass] = {}
        for kind in ParameterClass if expected is not None else ():
            of_kind = {name for name in expected or () if class_of(name) is kind}
            if of_kind:
                counts = [len(of_kind & each) for each in (seen, always, finite)]
                by_class[kind] = SeenOfClass(expected=len(of_kind), seen=counts[0], always=counts[1], finite=counts[2])
        return Seen(
            expected=None if expected is None else len(expected),
            seen=len(seen),
            finite=len(finite),
            first_step=self._first.get(quantity),
            missing=sorted((expected or set()) - seen)[:_MAX_MISSING],
            always=len(always),
            by_class=by_class,
        )


def _shown(places: Iterable[tuple[int, str]]) -> set[str]:
    """Return names as the expected ones are: with the position of the model before them."""
    return {f"{stage}:{name}" for stage, name in places}


def _is_finite(reading: Reading) -> bool:
    if reading.meta is None:
        return math.isfinite(next(iter(reading.numbers.values()), math.nan))  # others say what cannot be told by NaN
    stats = reading.digest.stats
    return stats is not None and stats.l2_norm is not None and math.isfinite(stats.l2_norm)
