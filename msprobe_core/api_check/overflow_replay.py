"""Whether the NaN and Inf of a call are what its inputs give, or what a kernel makes of them.

Each call is made again in its own precision and in float64, with the inputs of the dump. NaN and Inf are normal where
the exact result has them, or exceeds what the dtype holds; the judge of recorded results decides that in the same way
(`msprobe_core.replay.judge.num_not_finite`). If the host overflows at the same elements though the exact result fits,
an intermediate result may have been too large; that is believed if the magnitudes of the inputs make it possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.api_check.call_check import MAX_ELEMENTS, RECORDED
from msprobe_core.api_check.made_inputs import SEED, corrected, random_inputs
from msprobe_core.api_check.overflow_codes import ReplayOverflowCode
from msprobe_core.api_check.verdict import Inputs
from msprobe_core.errors import DumpError, ReplayError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import ReplayTensor, Role, SiteKind
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.replay.judge import num_not_finite
from msprobe_core.replay.recorded import RecordedCall, RecordedCalls
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.replay.replays import Replayer, Run, replay_once
from msprobe_core.store.dtype_values import FORMS

Array = NDArray[Any]

HOST = "cpu"


class OverflowState(str, Enum):
    """What a result's NaN and Inf are, the worst first. The published tool's words are the values of the first two."""

    ABNORMAL = "abnormal overflow"
    NORMAL = "normal overflow"
    FINITE = "finite"
    """There are none, and none are due."""
    CANNOT_TELL = "cannot tell"


class OverflowVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one side's results of one call are.

    Attributes:
        entry: The call, as the dump names it.
        side: ``recorded``, ``cpu``, or the device that computed it again.
        state: The worst of the outputs.
        num_nan: Number of NaN among the elements of all outputs.
        num_inf: Number of Inf.
        num_unexpected: Number of elements that are NaN or Inf where they should not be, or the other way round.
        reason: Why the state is this.
        inputs: What the call was made again with.
    """

    entry: str
    side: str
    state: OverflowState
    num_nan: int = 0
    num_inf: int = 0
    num_unexpected: int = 0
    reason: Finding
    inputs: Inputs = Inputs.RECORDED


@dataclass(frozen=True, kw_only=True)
class OverflowReplayer:
    """Makes calls again.

    Attributes:
        framework: What calls are replayed with on the host.
        devices: Replays on devices, by the name of each.
        seed: Of inputs that are made where a dump has statistics only.
        max_elements: Calls with more elements are not replayed.
    """

    framework: ReplayingFramework
    devices: Mapping[str, Run] = field(default_factory=dict[str, Run])
    seed: int = SEED
    max_elements: int = MAX_ELEMENTS

    def check(self, calls: RecordedCalls, entry: str) -> list[OverflowVerdict]:
        """Return the verdicts on a call: on what is recorded, on the host's result, and on that of each device."""
        try:
            call = calls.read(entry)
            inputs = Inputs.RECORDED
            if call.missing is not None and call.missing.code is ReplayCode.STATISTICS_ONLY:
                call, inputs = corrected(calls.read(entry, random_inputs(self.seed))), Inputs.RANDOM
            if (why := self._why_not(call)) is not None:
                return [_unknown(entry, HOST, why, inputs)]
            return self._check(call, inputs)
        except (ReplayError, DumpError) as error:
            return [_unknown(entry, HOST, noted(str(error)), Inputs.RECORDED)]

    def _why_not(self, call: RecordedCall) -> Finding | None:
        if call.missing is not None:
            return call.missing
        why = self.framework.why_not_replayed(call.site)
        return None if why is None else noted(why)

    def _check(self, call: RecordedCall, inputs: Inputs) -> list[OverflowVerdict]:
        own, _ = replay_once(call, self.framework.replay, self.max_elements)
        complete = call if call.outputs else replace(call, outputs=dict(own.values))
        oracle = Replayer(complete, self.framework, None, self.max_elements).plain.oracle
        judge = _Judge(call, inputs, own.values, oracle)
        found = [judge.verdict(RECORDED, call.outputs)] if call.outputs else []
        found.append(judge.verdict(HOST, own.values))
        return found + [self._on_device(name, run, call, inputs, judge) for name, run in self.devices.items()]

    def _on_device(self, name: str, run: Run, call: RecordedCall, inputs: Inputs, judge: _Judge) -> OverflowVerdict:
        try:
            return judge.verdict(name, replay_once(call, run, self.max_elements)[0].values)
        except ReplayError as error:
            return _unknown(call.entry, name, noted(str(error)), inputs)


def overflow_entries(calls: RecordedCalls, *, only_recorded: bool = False) -> Iterator[str]:
    """Yield the calls of functions in a dump, in its order.

    Args:
        calls: The dump.
        only_recorded: Only those with NaN or Inf in their recorded results.
    """
    for entry, site in names.calls_in(calls.entries):
        if site.kind is not SiteKind.API:
            continue
        if not only_recorded or any(_is_not_finite(row) for row in calls.rows(entry)):
            yield entry


def _is_not_finite(row: Mapping[str, Any]) -> bool:
    if row["role"] != Role.OUTPUT.value:
        return False
    extremes = (row["min"], row["max"], row["mean"], row["norm"])
    is_beyond = any(value is not None and not math.isfinite(value) for value in extremes)
    return is_beyond or bool(row["num_nan"]) or bool(row["num_inf"])


def _unknown(entry: str, side: str, why: Finding, inputs: Inputs) -> OverflowVerdict:
    return OverflowVerdict(entry=entry, side=side, state=OverflowState.CANNOT_TELL, reason=why, inputs=inputs)


class _Judge:
    """Judges the results of all sides of one call."""

    def __init__(
        self, call: RecordedCall, inputs: Inputs, own: Mapping[str, ReplayTensor], oracle: Mapping[str, ReplayTensor]
    ) -> None:
        self._call, self._inputs, self._own, self._oracle = call, inputs, own, oracle
        tensors = [value.values for value in call.tensors.values() if value.values.dtype.kind in "fc"]
        self._came_in = any(not np.all(np.isfinite(values)) for values in tensors)
        self._may_overflow = _Magnitudes.of(tensors)

    def verdict(self, side: str, results: Mapping[str, ReplayTensor]) -> OverflowVerdict:
        found = [(path, value) for path, value in results.items() if value.values.dtype.kind in "fc"]
        judged = [self._judged(path, value) for path, value in found if path in self._oracle]
        state, unexpected, reason = min(
            judged, key=lambda each: (list(OverflowState).index(each[0]), -each[1]),
            default=(OverflowState.FINITE, 0, Finding(ReplayOverflowCode.FINITE)),
        )  # fmt: skip
        return OverflowVerdict(
            entry=self._call.entry, side=side, state=state, num_unexpected=unexpected, reason=reason,
            num_nan=sum(int(np.count_nonzero(np.isnan(value.values))) for _, value in found),
            num_inf=sum(int(np.count_nonzero(np.isinf(value.values))) for _, value in found), inputs=self._inputs,
        )  # fmt: skip

    def _judged(self, path: str, result: ReplayTensor) -> tuple[OverflowState, int, Finding]:
        wide = "complex128" if self._oracle[path].values.dtype.kind == "c" else "float64"
        values, exact = result.values.astype(wide), self._oracle[path].values.astype(wide)
        if values.shape != exact.shape:
            raise ReplayError(f"its output {path} has the shape {list(values.shape)}, and the exact one another")
        count = num_not_finite(values, exact, None, result.dtype)
        is_finite = bool(np.all(np.isfinite(values)))
        if not count:
            if is_finite:
                return OverflowState.FINITE, 0, Finding(ReplayOverflowCode.FINITE)
            return OverflowState.NORMAL, 0, self._why_normal(values, exact, result.dtype)
        own = self._own.get(path)
        is_alike = own is not None and num_not_finite(values, exact, own.values.astype(wide), result.dtype) == 0
        if is_alike and self._may_overflow.exceed(result.dtype):
            return OverflowState.NORMAL, 0, Finding(ReplayOverflowCode.INTERMEDIATE, fields={"dtype": result.dtype})
        code = ReplayOverflowCode.MISSING if is_finite else ReplayOverflowCode.UNEXPECTED
        return OverflowState.ABNORMAL, count, Finding(code, fields={"count": count, "output": path})

    def _why_normal(self, values: Array, exact: Array, dtype: str) -> Finding:
        if self._came_in:
            return Finding(ReplayOverflowCode.CAME_IN)
        if np.all(np.isfinite(exact[~np.isfinite(values)])):
            largest = FORMS[dtype].largest if dtype in FORMS else 0.0
            return Finding(ReplayOverflowCode.RANGE, fields={"dtype": dtype, "largest": largest})
        return Finding(ReplayOverflowCode.EXACT)


@dataclass(frozen=True)
class _Magnitudes:
    """Of the finite inputs of a call."""

    largest: float
    smallest: float
    size: int

    @classmethod
    def of(cls, tensors: list[Array]) -> _Magnitudes:
        largest, smallest, size = 0.0, math.inf, 1
        for values in tensors:
            magnitudes = np.abs(values[np.isfinite(values)]).astype(np.float64)
            largest = max(largest, float(np.max(magnitudes, initial=0.0)))
            smallest = min(smallest, float(np.min(magnitudes[magnitudes > 0], initial=math.inf)))
            size = max(size, values.size)
        return cls(largest, smallest, size)

    def exceed(self, dtype: str) -> bool:
        """Whether a sum of products, an exponential or a reciprocal of the inputs may exceed the range of a dtype."""
        if dtype not in FORMS:
            return False
        limit = FORMS[dtype].largest
        sum_of_squares = self.largest * self.largest * self.size
        return sum_of_squares > limit or self.largest > math.log(limit) or 1.0 / self.smallest > limit
