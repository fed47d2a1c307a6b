"""Inputs that were not recorded: made from the statistics of a dump, for calls whose tensors it does not have.

`random_inputs` follows the published rule: uniform between the recorded minimum and maximum. `synthetic_inputs` also
keeps mean, norm and, if the dump has it, the sketch, so that sums, variances and 64 projections of the tensor are those
of the run. Neither are the values that the call had: what is judged with them is a call that is made again, and
`verdict_of_made` says how far that reaches.

The values of a tensor depend on seed, row and path only, not on the order in which calls are read, so every worker and
every later run makes the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.api_check.verdict import Inputs, Verdict
from msprobe_core.fingerprint import NumpyArrays, Sketcher
from msprobe_core.model import Argument, ReplayTensor, ReplayValue
from msprobe_core.replay.recorded import Fill, RecordedCall, dtype_of
from msprobe_core.store.dtype_values import FORMS, rounded

SEED: Final = 1234
"""The seed of the published tool."""

Array = NDArray[Any]
Make = Callable[[Mapping[str, Any], str, tuple[int, ...], np.random.Generator], "Array | None"]


def random_inputs(seed: int = SEED) -> Fill:
    """Return a `Fill` by the published rule: uniform between the recorded extremes.

    The first element is the minimum and the last one the maximum. Integers are uniform from minimum to maximum, complex
    numbers have uniform magnitudes and phases. If the dump counted NaN or Inf, as many are put in; where they hide the
    extremes, the others are uniform from -1 to 1. A tensor without statistics is not made.

    Args:
        seed: Of all tensors.
    """
    return _Fill(seed, _random_values)


def synthetic_inputs(seed: int = SEED) -> Fill:
    """Return a `Fill` whose tensors have the recorded minimum, maximum, mean, norm and sketch.

    Values are drawn from the beta distribution on [minimum, maximum] with the recorded mean and variance, and projected
    in turn onto the values with the recorded mean and sketch, which are linear in them, the sphere of the recorded norm
    and the box between the extremes. A mask, whose variance is the largest possible, has its two values only; a tensor
    of up to 64 elements is determined by its sketch. Integers stay within their extremes, so indices remain valid.

    Args:
        seed: Of all tensors.
    """
    return _Fill(seed, _synthetic_values)


def verdict_of_made(verdict: Verdict, inputs: Inputs) -> Verdict:
    """Return what a verdict on a call with made inputs says about the recorded call.

    A call that is wrong for made inputs is suspect: it may never have had such inputs. Exact probes are different:
    their integers are inputs for which any kernel must be right, so wrong stays wrong. What is right is right for the
    made inputs only.
    """
    is_guess = inputs in (Inputs.RANDOM, Inputs.SYNTHETIC)
    return Verdict.SUSPECT if is_guess and verdict is Verdict.WRONG else verdict


def stream_of(seed: int, key: str, path: str) -> np.random.Generator:
    """Return the random numbers of one tensor, which depend on nothing else."""
    digest = hashlib.blake2b(f"{key}\0{path}".encode(errors="surrogateescape"), digest_size=16).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, np.uint32).tolist()])


class _Fill:
    """A `Fill`: an object rather than a closure, so that it can be sent to other processes."""

    def __init__(self, seed: int, make: Make) -> None:
        self._seed = seed
        self._make = make

    def __call__(self, row: Mapping[str, Any], path: str) -> Array | None:
        dtype = dtype_of(row)
        shape = _shape_of(row)
        if shape is None or dtype not in _HELD_IN:
            return None
        if math.prod(shape) == 0:
            return np.zeros(shape, _HELD_IN[dtype])
        values = self._make(row, dtype, shape, stream_of(self._seed, str(row["key"]), path))
        return None if values is None else np.reshape(values, shape)


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_COMPLEX = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}
_HELD_IN = {
    **{name: form.held_in for name, form in FORMS.items()}, **{name: name for name in _INTEGERS}, "bool": "bool",
    "complex64": "complex64", "complex128": "complex128", "complex32": "complex64",
}  # fmt: skip


def _shape_of(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    found: Any = json.loads(str(row["shape"]))
    shape = tuple(int(size) for size in found)
    return shape if all(size >= 0 for size in shape) else None


def _extremes_of(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return minimum and maximum, where NaN and Inf do not hide them; ``None`` without statistics."""
    low, high = row["min"], row["max"]
    if low is None or high is None:
        return None
    low, high = float(low), float(high)
    if math.isnan(low) or math.isnan(high) or low > high:
        return -1.0, 1.0
    if math.isinf(low) and math.isinf(high):
        return -1.0, 1.0
    if math.isinf(low):
        return min(-abs(high), -1.0), high
    return (low, max(abs(low), 1.0)) if math.isinf(high) else (low, high)


def _exact_extremes(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return minimum and maximum of integers, which may be beyond what float64 holds."""
    low, high = row["min"], row["max"]
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    if row["exact"] is not None:
        first, _, second = str(row["exact"]).partition(" and ")
        try:
            pair = int(first), int(second)
        except ValueError:
            return None
        return min(pair), max(pair)
    return int(low), int(high)


# --- by the published rule --------------------------------------------------------------------------------------


def _random_values(
    row: Mapping[str, Any], dtype: str, shape: tuple[int, ...], random: np.random.Generator
) -> Array | None:
    size = math.prod(shape)
    if dtype == "bool":
        return _booleans(row, size, random, None)
    if dtype in _INTEGERS:
        extremes = _exact_extremes(row)
        return None if extremes is None else _integers(extremes, dtype, size, random)
    extremes = _extremes_of(row)
    if extremes is None:
        return None
    low, high = extremes
    if dtype in _COMPLEX:
        return _complex_values(low, high, dtype, size, random)
    values = _between(random.random(size), low, high)
    values[0], values[-1] = low, high
    return _with_others(rounded(values, dtype), row, random)


def _between(shares: Array, low: float, high: float) -> Array:
    """Return ``low + share * (high - low)``, where the difference may exceed the range of float64."""
    values: Any = low * (1.0 - shares) + high * shares
    return _within(values, low, high)


def _within(values: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(values, low), high)


def _booleans(row: Mapping[str, Any], size: int, random: np.random.Generator, mean: float | None) -> Array | None:
    if row["min"] is None or row["max"] is None:
        return None
    low, high = bool(row["min"]), bool(row["max"])
    if low == high:
        return np.full(size, high)
    if mean is None:
        values = random.random(size) < 0.5
        values[0], values[-1] = low, high
        return values
    values = np.zeros(size, np.bool_)
    values[random.permutation(size)[: round(mean * size)]] = True
    return values


def _integers(extremes: tuple[int, int], dtype: str, size: int, random: np.random.Generator) -> Array:
    bounds = np.iinfo(dtype)
    low, high = max(extremes[0], int(bounds.min)), min(extremes[1], int(bounds.max))
    values: Any = random.integers(low, max(low, high), size, dtype=dtype, endpoint=True)
    values[0], values[-1] = low, max(low, high)
    return values


def _complex_values(low: float, high: float, dtype: str, size: int, random: np.random.Generator) -> Array:
    """Return complex numbers whose magnitudes are uniform: the dump has the extremes of magnitudes."""
    magnitudes = _between(random.random(size), max(low, 0.0), max(high, 0.0))
    phases = random.random(size) * 2 * math.pi
    parts = _COMPLEX[dtype]
    real, imag = rounded(magnitudes * np.cos(phases), parts), rounded(magnitudes * np.sin(phases), parts)
    return np.asarray(real + 1j * imag).astype(_HELD_IN[dtype])


def _with_others(values: Array, row: Mapping[str, Any], random: np.random.Generator) -> Array:
    """Put as many NaN and Inf into the values as were counted."""
    num_nan, num_inf = int(row["num_nan"] or 0), int(row["num_inf"] or 0)
    low, high = row["min"], row["max"]
    if not (num_nan or num_inf):
        # Counts are not in every dump, but an infinite extreme shows one.
        num_nan, num_inf = int(math.isnan(low)), int(math.isinf(low)) + int(math.isinf(high))
    if not (num_nan or num_inf):
        return values
    values = np.array(values)
    places = random.permutation(values.size)[: num_nan + num_inf]
    values[places[:num_nan]] = np.nan
    infinities = places[num_nan:]
    signs = [sign for sign, extreme in ((1.0, high), (-1.0, low)) if math.isinf(extreme)] or [1.0, -1.0]
    values[infinities] = np.resize(signs, infinities.size) * np.inf
    return values


# --- by all statistics ------------------------------------------------------------------------------------------

_ROUNDS = 60
"""Largest number of projections; most tensors need fewer than ten."""

_SETTLED = 1e-7
"""Relative error of mean, norm and sketch at which the projections end: about a rounding of float32."""

_TWO_VALUES = 1e-5
"""How near the variance is to the largest possible one, relative to it, for a tensor of two values."""


def _synthetic_values(
    row: Mapping[str, Any], dtype: str, shape: tuple[int, ...], random: np.random.Generator
) -> Array | None:
    size = math.prod(shape)
    mean, norm = (None if row[name] is None or not math.isfinite(row[name]) else row[name] for name in ("mean", "norm"))
    if dtype == "bool":
        return _booleans(row, size, random, mean)
    if dtype in _INTEGERS:
        return _synthetic_integers(row, dtype, size, mean, norm, random)
    extremes = _extremes_of(row)
    is_whole = extremes is not None and all(math.isfinite(row[name]) for name in ("min", "max"))
    if extremes is None or not is_whole or dtype in _COMPLEX or mean is None or norm is None:
        return _random_values(row, dtype, shape, random)
    low, high = extremes
    scale = max(abs(low), abs(high))
    if low == high or scale == 0.0:
        return rounded(np.full(size, low), dtype)
    # All in units of the largest magnitude, so that squares neither overflow nor vanish.
    target = _Target(low / scale, high / scale, mean / scale, norm / scale, _sketch_of(row, scale), size)
    unit, is_two = _start(target, random)
    values: Any = (unit if is_two else _projected(unit, target)) * scale
    return rounded(_within(values, low, high), dtype)


class _Target:
    """The statistics to be met, in units of the largest magnitude."""

    def __init__(self, low: float, high: float, mean: float, norm: float, sketch: Array | None, size: int) -> None:
        self.low, self.high, self.mean, self.norm, self.size = low, high, mean, norm, size
        self.sketch = sketch
        self.variance = max(norm * norm / size - mean * mean, 0.0)
        numbers, signs = (np.zeros(size, np.int64), np.zeros(size)) if sketch is None else _places(size)
        self.numbers, self.signs = numbers, signs

    def errors(self, values: Array) -> float:
        """Return the largest relative error of the mean, the norm and the sketch."""
        norm = self.norm or 1.0
        found = [
            abs(values.mean() - self.mean) * math.sqrt(self.size) / norm,
            abs(float(np.linalg.norm(values)) - self.norm) / norm,
        ]
        if self.sketch is not None:
            found.append(float(np.linalg.norm(self.sums(values) - self.sketch)) / norm)
        return max(found)

    def sums(self, values: Array) -> Array:
        return np.bincount(self.numbers, weights=self.signs * values, minlength=64)


@cache
def _sketcher() -> Sketcher:
    return Sketcher(NumpyArrays())


def _places(size: int) -> tuple[Array, Array]:
    return _sketcher().places(size)


def _sketch_of(row: Mapping[str, Any], scale: float) -> Array | None:
    if row["sketch"] is None:
        return None
    sketch = np.frombuffer(row["sketch"], "<f4").astype(np.float64) / scale
    return sketch if np.all(np.isfinite(sketch)) else None


def _start(target: _Target, random: np.random.Generator) -> tuple[Array, bool]:
    """Return values with about the mean and the variance, and whether there are two values only."""
    span = target.high - target.low
    share = min(max((target.mean - target.low) / span, 0.0), 1.0)
    spread = target.variance / (span * span)
    most = share * (1.0 - share)
    count = share * target.size
    is_two = most > 0 and spread >= most * (1.0 - _TWO_VALUES) and abs(count - round(count)) < 0.01 * max(count, 1.0)
    if is_two:
        return _two_values(target, round(count), random), True
    if most == 0.0 or spread <= 0.0:
        shares = np.full(target.size, share)
    else:
        # The beta distribution with this mean and variance; its parameters add up to mean (1 - mean) / variance - 1.
        total = max(most / spread - 1.0, 1e-3)
        shares = random.beta(max(share * total, 1e-6), max((1.0 - share) * total, 1e-6), target.size)
    values = target.low + span * shares
    # The elements nearest to the extremes become these, so that the others keep the distribution.
    if target.size > 1:
        values[np.argmin(values)] = target.low
        place = int(np.argmax(values))
        values[place if values[place] > target.low else -1] = target.high
    return values, False


def _two_values(target: _Target, num_high: int, random: np.random.Generator) -> Array:
    """Return a tensor of two values with the recorded sketch.

    A number of the sketch shows by how many the high elements with the sign + exceed those with the sign -. How many
    there are of both is free otherwise, and shared out so that the total is right.
    """
    num_high = min(max(num_high, 1), target.size - 1) if target.size > 1 else num_high
    order = random.permutation(target.size)
    values = np.full(target.size, target.low)
    if target.sketch is None:
        values[order[:num_high]] = target.high
        return values
    balance = np.bincount(target.numbers, weights=target.signs, minlength=64)
    beyond: Any = np.rint((target.sketch - target.low * balance) / (target.high - target.low)).astype(np.int64)
    groups = [[order[(target.numbers[order] == number) & (target.signs[order] == sign)] for sign in (1.0, -1.0)]
              for number in range(64)]  # fmt: skip
    # p from max(0, d) to min(|plus|, |minus| + d), where m = p - d.
    rooms = [(max(0, int(d)), min(len(plus), len(minus) + int(d)))
             for d, (plus, minus) in zip(beyond, groups, strict=True)]  # fmt: skip
    counts = [least for least, _ in rooms]
    missing = (num_high - sum(2 * count - int(d) for count, d in zip(counts, beyond, strict=True))) // 2
    while missing > 0 and any(count < most for count, (_, most) in zip(counts, rooms, strict=True)):
        step = max(1, missing // 64)
        for number, (_, most) in enumerate(rooms):
            added = max(min(step, most - counts[number], missing), 0)
            counts[number] += added
            missing -= added
    for count, d, (plus, minus) in zip(counts, beyond, groups, strict=True):
        values[plus[: max(count, 0)]] = target.high
        values[minus[: max(count - int(d), 0)]] = target.high
    return values


def _projected(values: Array, target: _Target) -> Array:
    """Return values near the given ones that meet the target, by projections in turn onto each of its parts."""
    best: Any = values
    least = target.errors(values)
    is_determined = target.sketch is not None and target.size <= _NUM_DETERMINED
    for _ in range(_ROUNDS):
        if least <= _SETTLED:
            break
        moved: Any = _onto_sphere(_onto_sums(values, target), target)
        values = _within(moved, target.low, target.high)
        if not is_determined:
            # Where the extremes are follows from the sketch too, if it has few elements for each of its numbers.
            values[np.argmin(moved)], values[np.argmax(moved)] = target.low, target.high
        if (error := target.errors(values)) < least:
            best, least = np.array(values), error
    return best


_NUM_DETERMINED = 64
"""Up to here each number of the sketch is one element, so that the places of the extremes follow from it."""


class _Metric:
    """Least changes that meet the sums, where an element near an extreme changes less, so that it stays inside.

    The rows of the sketch have no element in common, so their products with themselves are sums of weights, and with
    the mean's row of weights and signs; that leaves one equation for the mean.
    """

    def __init__(self, values: Array, target: _Target) -> None:
        span = target.high - target.low
        inside: Any = np.minimum(values - target.low, target.high - values)
        self.weights: Any = np.maximum(inside, _LEAST_WEIGHT * span)
        self._target = target
        self._counts: Any = np.bincount(target.numbers, weights=self.weights, minlength=64)
        self._counts[self._counts == 0.0] = 1.0
        self._balance = np.bincount(target.numbers, weights=self.weights * target.signs, minlength=64)
        self._total = float(self.weights.sum())
        self._remaining = self._total - float(np.sum(self._balance * self._balance / self._counts))

    def change(self, total: float, sums: Array | None) -> Array:
        """Return the least change that adds ``total`` to the sum and ``sums`` to the sketch."""
        if sums is None:
            return self.weights * (total / self._total)
        shift = 0.0
        if self._remaining > 1e-9 * self._total:
            shift = (total - float(np.sum(self._balance * sums / self._counts))) / self._remaining
        each = (sums - shift * self._balance) / self._counts
        return self.weights * (shift + self._target.signs * each[self._target.numbers])


_LEAST_WEIGHT = 1e-5


def _onto_sums(values: Array, target: _Target) -> Array:
    """Return values nearby with the recorded mean and sketch."""
    lacking = target.mean * target.size - float(values.sum())
    off = None if target.sketch is None else target.sketch - target.sums(values)
    return values + _Metric(values, target).change(lacking, off)


def _onto_sphere(values: Array, target: _Target) -> Array:
    """Return values nearby with the recorded norm, moved along what changes neither the sum nor the sketch."""
    metric = _Metric(values, target)
    along = metric.weights * values
    along = along - metric.change(float(along.sum()), None if target.sketch is None else target.sums(along))
    square, product = float(np.dot(along, along)), float(np.dot(values, along))
    left = target.norm**2 - float(np.dot(values, values))
    if square <= 0.0:
        return values
    root = product * product + square * left
    # The nearer of the two points on the sphere, or where there is none, that which comes closest to it.
    far = 0.0 if root <= 0.0 else math.sqrt(root)
    step = (-product + math.copysign(far, product)) / square
    return values + step * along


def _synthetic_integers(
    row: Mapping[str, Any], dtype: str, size: int, mean: float | None, norm: float | None, random: np.random.Generator
) -> Array | None:
    extremes = _exact_extremes(row)
    if extremes is None:
        return None
    low, high = extremes
    if mean is None or norm is None or low >= high or max(abs(low), abs(high)) > 2**52:
        return _integers(extremes, dtype, size, random)
    scale = float(max(abs(low), abs(high)))
    target = _Target(low / scale, high / scale, mean / scale, norm / scale, None, size)
    unit, is_two = _start(target, random)
    values: Any = np.rint((unit if is_two else _projected(unit, target)) * scale)
    return _within(values, low, high).astype(dtype)


# --- corrections where the function is known --------------------------------------------------------------------

_MASK_SIZE = 2048
"""Side of the compressed causal mask that fused attention expects with the modes below."""

_COMPRESSED_MODES = (2, 3, 4)


def corrected(call: RecordedCall) -> RecordedCall:
    """Return a call with made inputs that its function accepts, by the published corrections.

    Labels of ``cross_entropy`` are int64 and not negative, ``histc`` takes float32, and the mask of fused attention
    with ``sparse_mode`` 2, 3 or 4 is the causal one, of 2048 x 2048.
    """
    change = _CORRECTIONS.get(call.site.path)
    return call if change is None else change(call)


def _labels(call: RecordedCall) -> RecordedCall:
    def correct(value: ReplayValue) -> ReplayValue:
        if not isinstance(value, ReplayTensor) or value.values.dtype.kind not in "iu":
            return value
        labels = np.maximum(value.values.astype(np.int64), 0)
        return msgspec.structs.replace(value, values=labels, dtype="int64" if value.dtype == "int32" else value.dtype)

    return _changed(call, 1, "target", correct)


def _counted(call: RecordedCall) -> RecordedCall:
    def correct(value: ReplayValue) -> ReplayValue:
        if not isinstance(value, ReplayTensor) or value.values.dtype.kind not in "iu":
            return value
        return msgspec.structs.replace(value, values=value.values.astype(np.float32), dtype="float32")

    return _changed(call, 0, "input", correct)


def _causal(call: RecordedCall) -> RecordedCall:
    mode = call.kwargs.get("sparse_mode")
    if not isinstance(mode, Argument) or str(mode.value) not in map(str, _COMPRESSED_MODES):
        return call

    def correct(value: ReplayValue) -> ReplayValue:
        if not isinstance(value, ReplayTensor):
            return value
        mask = np.triu(np.ones((_MASK_SIZE, _MASK_SIZE), np.bool_), 1)
        return msgspec.structs.replace(value, values=mask.astype(value.values.dtype))

    return _changed(call, -1, "atten_mask", correct)


def _changed(call: RecordedCall, place: int, name: str, correct: Callable[[ReplayValue], ReplayValue]) -> RecordedCall:
    """Return the call with one argument changed, which is positional or has a name."""
    if name in call.kwargs:
        return replace(call, kwargs={**call.kwargs, name: correct(call.kwargs[name])})
    if not 0 <= place < len(call.args):
        return call
    return replace(call, args=[correct(value) if i == place else value for i, value in enumerate(call.args)])


_CORRECTIONS: Final[Mapping[str, Callable[[RecordedCall], RecordedCall]]] = {
    "cross_entropy": _labels, "nll_loss": _labels, "histc": _counted, "npu_fusion_attention": _causal,
    "npu_fusion_attention_v2": _causal,
}  # fmt: skip
