"""Numbers about one tensor beyond its statistics: shares of elements, percentiles, losses in narrow formats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msprobe_core.model import Digest
from msprobe_core.monitor.sampled_elements import sampled
from msprobe_core.monitoring.quantities import Op
from msprobe_core.protocols.capabilities import Fp8Reducer, MeasuringFramework, MonitoringFramework
from msprobe_core.protocols.framework import Reducer

_logger = logging.getLogger(__name__)

_Measure = Callable[[Any], Mapping[str, Any] | None]
"""Returns 0-d tensors by column."""

MOST_SORTED = 1 << 12
"""Elements that percentiles are taken from. The rank of a percentile p then has a standard error of
sqrt(p (1 - p) / 4096): 0.16 percentage points for ``p01``, 0.8 for ``p50``."""

_PERCENTILES = {
    Op.P01: 0.01, Op.P05: 0.05, Op.P25: 0.25, Op.P50: 0.5, Op.P75: 0.75, Op.P95: 0.95, Op.P99: 0.99,
}  # fmt: skip

_UNDERFLOWS = {Op.FP16_UNDERFLOW: 2.0**-25, Op.BF16_UNDERFLOW: 2.0**-134}
"""Half of the smallest subnormal number: magnitudes up to it are rounded to 0, half to even (IEEE 754)."""

_OVERFLOWS = {Op.FP16_OVERFLOW: 65520.0, Op.BF16_OVERFLOW: (2 - 2.0**-8) * 2.0**127}
"""Half a unit in the last place above the largest number: magnitudes from it on are rounded to Inf."""

FP8 = {
    Op.FP8_UNDERFLOW: "e4m3_underflow",
    Op.FP8_OVERFLOW: "e4m3_overflow",
    Op.FP8_E5M2_UNDERFLOW: "e5m2_underflow",
    Op.FP8_E5M2_OVERFLOW: "e5m2_overflow",
}
"""Operations that are fields of `msprobe_core.model.Fp8Stats`."""


class Measures:
    """Enqueues the numbers that some operations need."""

    def __init__(self, tools: MonitoringFramework, ops: Sequence[Op], eps: float) -> None:
        """Choose what is to be computed.

        Args:
            tools: The framework.
            ops: Operations; those that are statistics are passed over.
            eps: Magnitude below which an element counts as zero.
        """
        self._wants_fp8 = any(op in FP8 for op in ops)
        self._measures: list[_Measure] = []
        if Op.ZEROS in ops:
            self._measures.append(lambda tensor: {Op.ZEROS.value: tools.share_below(tensor, eps)})
        of_elements = [op for op in ops if op in _PERCENTILES or op in _UNDERFLOWS or op in _OVERFLOWS]
        if of_elements and not isinstance(tools, MeasuringFramework):
            _logger.warning("the operation %s is not available for this framework: it is NaN", of_elements[0].value)
        elif isinstance(tools, MeasuringFramework):
            self._measures += _of_elements(tools, of_elements)

    def add(self, tensor: Any, digest: Digest, reducer: Reducer, numbers: dict[str, Any]) -> None:
        """Enqueue what belongs to one tensor.

        Args:
            tensor: Any.
            digest: Receives losses in 8 bits.
            reducer: Computes them.
            numbers: Receives 0-d tensors; columns that the tensor has no value for stay away.
        """
        if self._wants_fp8 and isinstance(reducer, Fp8Reducer):
            reducer.fp8(tensor, digest)
        for measure in self._measures:
            found = measure(tensor) or {}
            numbers.update((column, number) for column, number in found.items() if number is not None)


def _of_elements(tools: MeasuringFramework, ops: Sequence[Op]) -> list[_Measure]:
    percentiles = {op.value: _PERCENTILES[op] for op in ops if op in _PERCENTILES}
    underflows = {op.value: _UNDERFLOWS[op] for op in ops if op in _UNDERFLOWS}
    overflows = {op.value: _OVERFLOWS[op] for op in ops if op in _OVERFLOWS}

    def percentiles_of(tensor: Any) -> Mapping[str, Any] | None:
        found = sampled(tools, [tensor], MOST_SORTED)
        if found is None:
            return None
        ranks = [rank_of(share, len(found[0])) for share in percentiles.values()]
        return dict(zip(percentiles, tools.kth_smallest(found[0], ranks), strict=True))

    def shares_of(tensor: Any) -> Mapping[str, Any] | None:
        values = tools.elements(tensor)
        if values is None:
            return None
        size = abs(values)
        found = {column: ((size <= limit) & (size > 0)).float().mean() for column, limit in underflows.items()}
        infinite = float("inf")
        for column, limit in overflows.items():
            found[column] = ((size >= limit) & (size < infinite)).float().mean()
        return found

    return [*([percentiles_of] if percentiles else []), *([shares_of] if underflows or overflows else [])]


def rank_of(share: float, size: int) -> int:
    """Return the rank, from 1, of the element nearest to a percentile of a sorted vector."""
    return 1 + round(share * (size - 1))
