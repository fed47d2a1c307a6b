"""Statistics that plugins offer, computed beside what a processor keeps: the setting ``extra_statistics``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from msprobe_core.guard import described, kept, shown
from msprobe_core.model import Digest
from msprobe_core.plugins import registry
from msprobe_core.plugins.chosen import choose
from msprobe_core.protocols.capabilities import ExtraReducer
from msprobe_core.protocols.framework import Reducer
from msprobe_core.protocols.statistics import Statistic
from msprobe_core.protocols.storage import Processor

if TYPE_CHECKING:
    from msprobe_core.fingerprint.arrays import Arrays

_logger = logging.getLogger(__name__)


class ExtraStatistics:
    """A processor that has statistics computed beside what another one keeps; one that fails is dropped."""

    def __init__(self, processor: Processor, statistics: Sequence[Statistic]) -> None:
        """Take statistics with different names.

        Args:
            processor: What else is kept; it has the name.
            statistics: Offers of plugins.
        """
        self.name = processor.name
        self._reduce = processor.reduce
        who = registry().described  # asked once, as each tensor is measured
        self._left = [(each, who("statistic", each.name)) for each in statistics]

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest``, with ``digest.extra``."""
        self._reduce(tensor, digest, reducer)
        if self._left:
            cast("ExtraReducer", reducer).extra_statistics(tensor, digest, self.measure)

    def measure(self, values: Any, arrays: Arrays) -> tuple[Sequence[str], Any]:
        """Return the names of the statistics that could be computed, and a vector with their numbers.

        Args:
            values: See `Statistic`.
            arrays: The library of ``values``.
        """
        if isinstance(values, np.ndarray):  # it may be the memory of the training
            values = cast("Any", values).view()
            values.flags.writeable = False
        numbers = arrays.zeros(len(self._left))
        found: list[str] = []
        with np.errstate(all="ignore"):
            for each, who in tuple(self._left):
                try:
                    numbers[len(found)] = _number(each.reduce(values, arrays))
                except BaseException as caught:  # noqa: BLE001, PERF203  # a plugin's must not reach the training
                    kept(caught)  # Ctrl-C is for the program
                    why = described(caught)
                    _logger.warning("%s failed at reduce (%s); it is recorded no more, and recording goes on", who, why)
                    self._left.remove((each, who))
                else:
                    found.append(each.name)
        return found, numbers[: len(found)]


def _number(result: Any) -> Any:
    """Return what a statistic returned, if it may be a number; NumPy would take nothing for NaN, and text for one."""
    if result is None or isinstance(result, str):
        raise TypeError(f"it returned {shown(result)}, which is no number")
    return result


def with_extra_statistics(processor: Processor, names: Sequence[str]) -> Processor:
    """Return a processor that keeps these statistics too; the processor itself if there are none.

    Raises:
        ConfigError: no plugin offers one of them.
        BrokenPluginError: it may be missing because a plugin is broken.
    """
    if not names:
        return processor
    offered = registry().statistics()
    hook = "msprobe_register_statistics"
    return ExtraStatistics(
        processor, [choose("extra_statistics", name, offered, hook) for name in dict.fromkeys(names)]
    )
