"""Probes without a tolerance: integers for which a linear function has one right result, to the bit.

A sum of integers is exact in floating point while no partial sum exceeds ``2**p``, with p significant bits, whatever
the order of its terms and however wide the accumulator is (Higham, *Accuracy and Stability of Numerical Algorithms*,
2nd ed., sec. 2.1). The replay of the same call with the magnitudes of its inputs is the sum of the magnitudes of the
terms, and so a bound of every partial sum. That yields two fills of a recorded call's shapes and dtypes:

* sparse: so few terms, of either sign, that every partial sum is exact even in bfloat16 or float16. A kernel that
  accumulates in these passes; one that drops a term, takes another or adds one does not. What fails is wrong.
* dense: sums that need more bits than these have, and no more than float32 has (float64 for calls in float64). A kernel
  that accumulates in float32 gives the exact sum, rounded once. What fails, if the sparse fill passes, accumulates or
  multiplies in less than that.

The results to which a call is held are those of its replay in float64, where every partial sum is an integer below
``2**53``. A dump's results cannot be probed, as its inputs were what they were: probed is the kernel that replays the
call here, on the host or a device of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.made_inputs import SEED, random_inputs, stream_of
from msprobe_core.api_check.probe_codes import ProbeCode
from msprobe_core.api_check.verdict import CallVerdict
from msprobe_core.errors import ReplayError
from msprobe_core.findings import Field, Finding, Level
from msprobe_core.model import Argument, LinearKind, Phase, ReplayCall, ReplayTensor, ReplayValue, SiteKind
from msprobe_core.protocols.capabilities import LinearFramework, ReplayingFramework
from msprobe_core.replay.recorded import Fill, RecordedCall, dtype_of
from msprobe_core.replay.replays import Run, mapped_call, replay_once
from msprobe_core.store.dtype_values import FORMS, rounded

Array = NDArray[Any]
Arrays = Mapping[int, Array]
"""Integers in float64, by the number of the tensor in the call."""


@dataclass(frozen=True)
class _Widths:
    """Significant bits: below which every accumulator is exact, and up to which that of float32 or wider is."""

    narrow: int
    wide: int


_WIDTHS = {
    "bfloat16": _Widths(8, 24), "float16": _Widths(11, 15), "float32": _Widths(8, 24), "float64": _Widths(24, 53),
}  # fmt: skip
"""float16 ends at 65504, which is reached before 24 bits. Calls in float32 may multiply in bfloat16 or TF32, and calls
in float64 in float32."""

_INFORMATIVE = 4
"""By how much dense sums must exceed what is exact in the narrow dtype. Rounding then shows in most of them; for calls
in float32, it is above what is exact in TF32."""

_FIRST_FILLS = 2
_MOST_FILLS = 64
"""Number of sparse fills, each of other terms: at first, and if the dense fill fails, to tell wrong from narrow."""

_MOST_DENSE = 3
"""Number of arguments that get the large integers in turn: a kernel may round one of them only."""


def exact_inputs(seed: int = SEED) -> Fill:
    """Return a `Fill` for calls to be probed: recorded integers or else random ones, and nothing read for others."""
    fill = random_inputs(seed)

    def fill_in(row: Mapping[str, Any], path: str) -> Array | None:
        if dtype_of(row) not in _WIDTHS:
            return None if row["file_name"] is not None else fill(row, path)
        return fill({**row, "min": 0.0, "max": 0.0, "num_nan": 0, "num_inf": 0}, path)

    return fill_in


def with_probe(verdict: CallVerdict, probe: Finding) -> CallVerdict:
    """Return a verdict with the finding of a probe as a note, which leaves the verdict on the dump as it is."""
    return msgspec.structs.replace(verdict, notes=(*verdict.notes, probe), stage=3)


@dataclass(frozen=True, kw_only=True)
class ExactProber:
    """Probes calls one by one.

    Attributes:
        framework: What calls are replayed with; in float64 always on the host.
        run: Replays in a call's own precision, for example on a device; ``None`` for the host.
        side: What ``run`` replays on, for findings.
        seed: Of the integers.
        max_elements: Calls with more elements in their results are not probed.
    """

    framework: ReplayingFramework
    run: Run | None = None
    side: str = "cpu"
    seed: int = SEED
    max_elements: int = 1 << 28

    def probe(self, call: RecordedCall) -> Finding:
        """Probe the kernel that replays a call, with integers in place of all floating-point inputs.

        Args:
            call: Read with `exact_inputs`, or with its recorded inputs.

        Returns: a finding with a `ProbeCode`; its level is error if the kernel is wrong, and warning if it is narrow.
        """
        if (why := self._why_not(call)) is not None:
            return why
        try:
            return _Probe(self, call).found()
        except _NotProbedError as error:
            return error.finding
        except ReplayError as error:
            return Finding(ProbeCode.NOT_REPLAYED, fields={"why": str(error)})
        except MemoryError:
            return Finding(ProbeCode.NOT_REPLAYED, fields={"why": "this machine lacks the memory"})

    def _why_not(self, call: RecordedCall) -> Finding | None:
        if call.site.kind is not SiteKind.API:
            return Finding(ProbeCode.MODULE)
        if self.kind_of(call) is None:
            return Finding(ProbeCode.NOT_LINEAR, fields={"api": f"{call.site.prefix}.{call.site.path}"})
        why = self.framework.why_not_replayed(call.site)
        if why is None and call.missing is not None:
            why = call.missing.text
        return None if why is None else Finding(ProbeCode.NOT_REPLAYED, fields={"why": why})

    def kind_of(self, call: RecordedCall) -> LinearKind | None:
        """Return how the call's function is linear; ``None`` if it is not."""
        framework: object = self.framework
        return framework.linear_in(call.site) if isinstance(framework, LinearFramework) else None

    def replay(self, call: ReplayCall) -> Mapping[str, ReplayTensor]:
        """Replay in the call's own precision."""
        return (self.run or self.framework.replay)(call).values


class _NotProbedError(Exception):
    def __init__(self, code: ProbeCode, **fields: Field) -> None:
        self.finding = Finding(code, fields=fields)
        super().__init__(code)


@dataclass(frozen=True)
class _Difference:
    output: str
    count: int
    total: int
    place: tuple[int, ...]
    found: float
    expected: float


class _Probe:
    """The probe of one call."""

    def __init__(self, prober: ExactProber, call: RecordedCall) -> None:
        self._prober, self._call = prober, call
        first, self._base = replay_once(call, prober.run or prober.framework.replay, prober.max_elements)
        self._tensors = list(_tensors_of(self._base))
        self._floats = [i for i, value in enumerate(self._tensors) if value.values.dtype.kind in "fc"]
        self._dtypes = {self._tensors[i].dtype for i in self._floats} | {
            value.dtype for value in first.values.values() if value.values.dtype.kind in "fc"
        }
        if other := sorted(self._dtypes - set(_WIDTHS)):
            raise _NotProbedError(ProbeCode.DTYPE, dtype=other[0])
        if not self._floats or not first.values:
            raise _NotProbedError(ProbeCode.EMPTY)
        self._widths = min((_WIDTHS[dtype] for dtype in self._dtypes), key=lambda widths: (widths.wide, widths.narrow))
        self._random = stream_of(prober.seed, call.entry, "exact")
        self._ones = {i: np.ones(self._tensors[i].values.shape) for i in self._floats}
        self._units = self._units_of(first.values)
        self._bound = self._bound_of(self._ones)
        if self._bound == 0.0:
            raise _NotProbedError(ProbeCode.EMPTY)
        self._num_fills = 0
        self._most = 0.0

    def found(self) -> Finding:
        """Run the fills until one fails."""
        sparse = self._sparse()
        for _, arrays in zip(range(_FIRST_FILLS), sparse, strict=False):
            if (difference := self._differs(arrays)) is not None:
                return self._wrong(difference)
        has_dense = False
        for arrays in self._dense():
            has_dense = True
            if (difference := self._differs(arrays)) is None:
                continue
            for _, others in zip(range(_MOST_FILLS), sparse, strict=False):
                if (wrong := self._differs(others)) is not None:
                    return self._wrong(wrong)
            return self._narrow(difference, arrays)
        fields: dict[str, Field] = {"side": self._prober.side, "fills": self._num_fills, "most": round(self._most)}
        return Finding(ProbeCode.EXACT if has_dense else ProbeCode.EXACT_SHORT, fields=fields)

    def _wrong(self, difference: _Difference) -> Finding:
        return Finding(ProbeCode.WRONG, Level.ERROR, self._fields(difference))

    def _narrow(self, difference: _Difference, arrays: Arrays) -> Finding:
        precision = "float64" if self._widths.wide > 24 else "float32"
        fields = self._fields(difference) | {"most": round(self._bound_of(arrays)), "precision": precision}
        return Finding(ProbeCode.NARROW, Level.WARNING, fields)

    def _fields(self, found: _Difference) -> dict[str, Field]:
        return {
            "side": self._prober.side, "output": found.output, "count": found.count, "total": found.total,
            "place": str(list(found.place)), "found": found.found, "expected": found.expected,
        }  # fmt: skip

    # --- fills --------------------------------------------------------------------------------------------------

    def _sparse(self) -> Iterator[Arrays]:
        """Yield fills whose partial sums are exact in every accumulator; together they have every term, if few do."""
        limit = 2.0**self._widths.narrow
        if self._bound <= limit:
            for large in self._floats:
                signs = {i: self._signs(ones) for i, ones in self._ones.items()}
                most = self._largest(large, limit)
                yield {**signs, large: signs[large] * self._random.integers(1, most, signs[large].shape, endpoint=True)}
            return
        grouped, num_groups = self._grouping(limit)
        last = self._ones[grouped].size - 1
        for group in range(num_groups):
            mask = _group(self._ones[grouped].shape, (last - group) % num_groups, num_groups)
            arrays = {i: self._signs(ones) for i, ones in self._ones.items()}
            arrays[grouped] = arrays[grouped] * mask
            if self._bound_of(arrays) <= limit:
                yield arrays

    def _dense(self) -> Iterator[Arrays]:
        """Yield fills whose sums need a wide accumulator, and are exact in it."""
        limit, least = 2.0**self._widths.wide, _INFORMATIVE * 2.0**self._widths.narrow
        if "float32" in self._dtypes and self._widths.narrow < 11:
            least = max(least, 2.0**13)
        for large in self._floats[: -_MOST_DENSE - 1 : -1]:  # incoming gradients, which are in all products, first
            arrays = dict(self._ones)
            if (most := self._largest(large, limit)) >= 1:
                arrays[large] = self._random.integers(1, most, arrays[large].shape, endpoint=True).astype(np.float64)
            else:
                num_groups = _prime_from(math.ceil(1.25 * self._bound / limit), arrays[large].shape)
                arrays[large] = _group(arrays[large].shape, 0, num_groups)
            if least < self._bound_of(arrays) <= limit:
                yield arrays

    def _grouping(self, limit: float) -> tuple[int, int]:
        """Return the argument whose elements are divided into groups, and the number of groups that is enough."""
        number = math.ceil(1.1 * self._bound / limit)
        for _ in range(_GROUPINGS):
            bounds: dict[float, tuple[int, int]] = {}
            for i in self._floats:
                num_groups = _prime_from(number, self._ones[i].shape)
                mask = _group(self._ones[i].shape, (self._ones[i].size - 1) % num_groups, num_groups)
                bounds.setdefault(self._bound_of({**self._ones, i: mask}), (i, num_groups))
            least = min(bounds)
            if least <= limit:
                return bounds[least]
            number = math.ceil(number * min(max(1.3 * least / limit, 1.3), 64.0))
        raise _NotProbedError(ProbeCode.TOO_LONG, most=round(self._bound))

    def _largest(self, large: int, limit: float) -> int:
        """Return the largest integer for one argument, if all others are 1."""
        return int(min(limit // self._bound, 2.0 ** FORMS[self._tensors[large].dtype].precision))

    def _signs(self, ones: Array) -> Array:
        return np.where(self._random.random(ones.shape) < 0.5, -1.0, 1.0)

    # --- replays ------------------------------------------------------------------------------------------------

    def _differs(self, arrays: Arrays) -> _Difference | None:
        """Return the first difference between the replay in the call's own precision and the exact result."""
        self._num_fills += 1
        self._most = max(self._most, self._bound_of(arrays))
        exact = self._exact(arrays)
        own = self._prober.replay(_filled(self._base, arrays, is_widened=False))
        for path, expected in exact.items():
            given = own.get(path)
            if given is None or given.values.shape != expected.shape:
                raise ReplayError(f"its output {path} has another shape in its own precision")
            right: Any = rounded(expected, given.dtype).astype(np.float64)
            values: Any = given.values.astype(np.float64)
            if count := int(np.count_nonzero(values != right)):
                place = tuple(map(int, np.unravel_index(int(np.argmax(values != right)), right.shape)))
                return _Difference(path, count, right.size, place, float(values[place]), float(right[place]))
        return None

    def _exact(self, arrays: Arrays, *, is_absolute: bool = False) -> dict[str, Array]:
        call = _filled(self._base, arrays, is_widened=True, is_absolute=is_absolute)
        found = self._prober.framework.replay(call).values
        return {path: value.values for path, value in found.items() if value.values.dtype.kind == "f"}

    def _bound_of(self, arrays: Arrays) -> float:
        """Return the largest sum of the magnitudes of terms, in units of what all terms are multiples of."""
        found = self._exact(arrays, is_absolute=True)
        return self._units * max((float(np.max(np.abs(values), initial=0.0)) for values in found.values()), default=0.0)

    def _units_of(self, results: Mapping[str, ReplayTensor]) -> float:
        """Return the power of two by which results are multiplied to be sums of integers.

        Raises:
            _NotProbedError: it is none.
        """
        units = 1.0
        for name in _FACTORS:
            factor = self._base.kwargs.get(name)
            if isinstance(factor, Argument) and (value := abs(float(factor.value))) not in (0.0, 1.0):
                if value < 1.0 and math.frexp(value)[0] != 0.5:
                    raise _NotProbedError(ProbeCode.SCALED, factor=float(factor.value))
                units = max(units, 1.0 / value)
        if self._prober.kind_of(self._call) is LinearKind.MEAN and self._call.site.phase is not Phase.BACKWARD:
            num_results = max(value.values.size for value in results.values())
            num_terms = max(self._ones[i].size for i in self._floats) / max(num_results, 1)
            if num_terms < 1 or math.frexp(num_terms)[0] != 0.5:
                raise _NotProbedError(ProbeCode.DIVIDED, number=round(num_terms))
            return units * num_terms
        for values in self._exact(self._ones, is_absolute=True).values():
            for _ in range(_MOST_HALVINGS):
                if not np.any(np.mod(values * units, 1.0)):
                    break
                units *= 2.0
            else:
                raise _NotProbedError(ProbeCode.SCALED, factor=float(np.max(values, initial=0.0)))
        return units


_GROUPINGS = 4
_FACTORS = ("alpha", "beta")
_MOST_HALVINGS = 40


def _prime_from(least: int, shape: tuple[int, ...]) -> int:
    """Return a prime that divides no size, so that each line of the tensor, in any direction, meets all groups."""
    number = max(least, 2)
    while not _is_prime(number) or any(size % number == 0 for size in shape if size > 1):
        number += 1
    return number


def _is_prime(number: int) -> bool:
    return all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _group(shape: tuple[int, ...], group: int, num_groups: int) -> Array:
    """Return 1 for every ``num_groups``-th element from ``group`` on, and 0 for the others."""
    size = math.prod(shape)
    return np.reshape((np.arange(size) % num_groups == group).astype(np.float64), shape)


# --- calls ------------------------------------------------------------------------------------------------------


def _tensors_of(call: ReplayCall) -> Iterator[ReplayTensor]:
    """Yield the tensors of a call, in the order in which `_filled` replaces them."""
    found: list[ReplayTensor] = []
    mapped_call(call, lambda value: found.append(value) or value)
    yield from found


def _filled(call: ReplayCall, arrays: Arrays, *, is_widened: bool, is_absolute: bool = False) -> ReplayCall:
    """Return the call with other values in some of its tensors.

    Args:
        call: The call.
        arrays: By the number of the tensor.
        is_widened: Whether all are float64, and the call computes in float64.
        is_absolute: Whether magnitudes are taken, also those of factors.
    """
    numbers = iter(range(1 << 30))

    def fill(value: ReplayTensor) -> ReplayTensor:
        array = arrays.get(next(numbers))
        if array is None:
            return value
        values = np.abs(array) if is_absolute else array
        dtype = "float64" if is_widened else value.dtype
        return msgspec.structs.replace(value, values=rounded(values, dtype), dtype=dtype)

    filled = msgspec.structs.replace(mapped_call(call, fill), is_widened=is_widened)
    if not is_absolute:
        return filled
    kwargs = {name: _absolute(value) if name in _FACTORS else value for name, value in filled.kwargs.items()}
    return msgspec.structs.replace(filled, kwargs=kwargs)


def _absolute(value: ReplayValue) -> ReplayValue:
    if not isinstance(value, Argument) or value.type not in ("int", "float"):
        return value
    return Argument(value.type, abs(float(value.value)) if value.type == "float" else abs(int(value.value)))
