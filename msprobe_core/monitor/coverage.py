"""What of a training was expected to be seen, and what was: so that a monitor that sees nothing says so."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.monitor.readings import Reading, Step
from msprobe_core.monitoring.quantities import Quantity
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory
from msprobe_core.untrusted.paths import encode_json

_logger = logging.getLogger(__name__)

FILE = "coverage.json"


class Seen(msgspec.Struct, kw_only=True):
    """How much of one quantity was seen.

    Attributes:
        expected: Names that should have values in each collected step; ``None`` if that is not known before.
        seen: Names that had a value in any step.
        finite: Those of them whose values were finite in all steps.
        first_step: The first step with a value; ``None`` if there is none.
        missing: Some of the names that were expected and never seen.
    """

    expected: int | None
    seen: int
    finite: int
    first_step: int | None
    missing: list[str]


_MAX_MISSING = 20


class Coverage:
    """Counts what is seen of each quantity; a `msprobe_core.monitor.sinks.Sink`."""

    def __init__(self, expected: Mapping[Quantity, Collection[str] | None], directory: Path) -> None:
        """Begin with nothing seen.

        Args:
            expected: By quantity, the names that should have values.
            directory: Of the file.
        """
        self._expected = expected
        self._path = directory / FILE
        self._num_steps = 0
        self._first: dict[Quantity, int] = {}
        self._seen: dict[Quantity, set[str]] = {quantity: set() for quantity in expected}
        self._not_finite: dict[Quantity, set[str]] = {quantity: set() for quantity in expected}

    def add(self, step: Step) -> None:
        """Count a step."""
        self._num_steps += 1
        for reading in step.readings.values():
            name = f"{reading.stage}:{reading.name}"
            self._first.setdefault(reading.quantity, step.number)
            self._seen[reading.quantity].add(name)
            if not _is_finite(reading):
                self._not_finite[reading.quantity].add(name)

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
        make_directory(self._path.parent)
        with whole_file(self._path) as file:
            file.write(encode_json(self.content(), indent=2) + b"\n")

    def unseen(self) -> list[Quantity]:
        """Return the quantities of which nothing at all was seen, although something was expected."""
        return [
            quantity for quantity, names in self._expected.items() if not self._seen[quantity] and names != frozenset()
        ]

    def content(self) -> dict[str, Any]:
        """Return what ``coverage.json`` holds: a `Seen` by quantity."""
        content: dict[str, Any] = {}
        for quantity, names in self._expected.items():
            seen = self._seen[quantity]
            missing = sorted(set(names) - seen) if names is not None else []
            content[quantity.value] = Seen(
                expected=None if names is None else len(names),
                seen=len(seen),
                finite=len(seen - self._not_finite[quantity]),
                first_step=self._first.get(quantity),
                missing=missing[:_MAX_MISSING],
            )
        return content


def _is_finite(reading: Reading) -> bool:
    if reading.meta is None:
        return all(map(math.isfinite, reading.numbers.values()))
    stats = reading.digest.stats
    return stats is not None and stats.l2_norm is not None and math.isfinite(stats.l2_norm)
