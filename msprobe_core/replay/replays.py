"""Replay one call several times: in its own precision, in float64, and in float64 with disturbed inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import ReplayError
from msprobe_core.findings import Finding, Level
from msprobe_core.model import Phase, ReplayCall, Replayed, ReplayTensor, ReplayValue, SiteKind
from msprobe_core.protocols.capabilities import (
    DeviceReplayingFramework,
    ReferringFramework,
    ReplayingFramework,
    ScriptingFramework,
)
from msprobe_core.replay.accumulation import accumulated
from msprobe_core.replay.choices import chosen_from
from msprobe_core.replay.norms import norm_of, slices_of
from msprobe_core.replay.recorded import RecordedCall, map_tensors
from msprobe_core.replay.replay_codes import ReplayCode
from msprobe_core.store.dtype_values import FORMS

NUM_DISTURBED = 4
"""Number of replays with disturbed inputs that measure the condition; the signs of each are independent."""

_SEED = 20260101

Run: TypeAlias = Callable[[ReplayCall], Replayed]
"""Replays a call: `ReplayingFramework.replay` with a model or a device."""
_Found = TypeVar("_Found")

UNIT_ROUNDOFF = {dtype: 2.0**-form.precision for dtype, form in FORMS.items()} | {
    "complex128": 2.0**-53, "complex64": 2.0**-24, "complex32": 2.0**-11,
}  # fmt: skip
"""Half the distance from 1 to the next number, by dtype; of a complex dtype that of its parts."""


@dataclass(frozen=True, kw_only=True)
class Replays:
    """Results of the replays of one side's call, by path of the output.

    Attributes:
        oracle: Results in float64 from the recorded inputs: what the call should have returned.
        own: Results in the call's own precision from the same inputs, which show the effect of round-off; ``None`` if
            this machine cannot compute in that precision.
        disturbed: Results in float64, with each input element scaled by 1 + u or 1 - u at random.
        roundoff: The unit round-off u of the disturbance: that of the inputs' dtype, or of the results' dtype if it is
            larger, as under autocast. 0 without floating inputs.
        num_summed: Largest possible number of terms of a sum in the call, estimated from its sizes.
        result_roundoff: Unit round-off of the dtype that results had before they were cast to their own, as gradients
            under autocast; 0 if they were not cast.
        note: A finding about the replays; ``None`` if there is none.
        is_unique: Whether there is one right result; see `msprobe_core.model.Replayed`.
        chosen_from: The tensor whose elements an integer result names, by path of the output, where it does.
        accumulated: The number of terms times the sum of their magnitudes, of each element, by path of the output,
            where terms with equal indices are added up; see `msprobe_core.replay.accumulation`.
    """

    oracle: dict[str, ReplayTensor]
    own: dict[str, ReplayTensor] | None
    disturbed: list[dict[str, ReplayTensor]]
    roundoff: float
    num_summed: int
    result_roundoff: float = 0.0
    note: Finding | None = None
    is_unique: bool = True
    chosen_from: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    accumulated: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])


_DIFFERENT = 2.0**-30
"""Norm of the difference of two results in float64, relative to that of one, from which they may be two functions."""

_EXPLAINED = 2.0**-40
"""Change of the inputs that explains a difference of two results in float64: each rounds thousands of times at most."""

_ROUNDED = 2.0**-21
"""By how much two functions may be apart in float64, in units of either's error in float32: 2^-29, times 2^8.

Terms that cancel inside a call leave their round-off in a result near zero, where no change of the inputs shows it. It
is 2^29 times as large in float32; a fault of an algorithm is not.
"""

_NO_DIGITS = 0.125
"""Error of a formula in float32 from which it says nothing: all digits cancelled, perhaps those of float64 as well."""

_CANCELS = 2.0**-46
"""Relative difference of two right functions in float64 from which terms cancel inside: 2^7 of its units."""

_SAMPLED = 4.0
"""By how much round-off may be larger than in the one difference that it was estimated from."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What an independent formula says of a call, see `msprobe_core.protocols.capabilities.ReferringFramework`.

    Attributes:
        base: The call, to be replayed by the formula.
        values: Its results in float64, by path of the output.
        cancelled: Round-off of terms that cancel inside, by path: the norm of the difference of function and formula
            where both are right, divided by the unit round-off of float64; not there where it is small.
        note: Which result of the function differs, and how far off it is; ``None`` if all agree.
    """

    base: ReplayCall
    values: dict[str, ReplayTensor]
    cancelled: dict[str, float]
    note: Finding | None

    @classmethod
    def of(
        cls, base: ReplayCall, oracle: Mapping[str, ReplayTensor], call: RecordedCall, framework: ReplayingFramework
    ) -> Reference | None:
        """Replay a call by an independent formula, and compare; ``None`` if there is none for it.

        Args:
            base: The form of the call that was replayed.
            oracle: Results of the function in float64.
            call: The call.
            framework: What it is replayed with.
        """
        if not isinstance(framework, ReferringFramework) or not framework.has_reference(base.site):
            return None
        own = base
        base = msgspec.structs.replace(base, by_reference=True)
        generator = np.random.default_rng(_SEED)

        def change(value: ReplayTensor) -> ReplayTensor:
            return _disturbed(value, 0.0, generator, _EXPLAINED)

        try:
            values = framework.replay(_widened(base, _wide)).values
            if _misfit(Replayed(values=values), call) is not None:
                return None
            off = {path: error for path in call.outputs if (error := _other(oracle[path], values[path])) > _DIFFERENT}
            if off:
                changed = framework.replay(_widened(base, change)).values
                off = {path: error for path, error in off.items() if error > 4 * _other(changed[path], values[path])}
            if off:
                rough, of_own = (framework.replay(_in_single(each)).values for each in (base, own))
                for path, error in list(off.items()):
                    in_single = _other(rough[path], values[path])
                    if in_single > _NO_DIGITS or error <= _ROUNDED * max(in_single, _other(of_own[path], values[path])):
                        del off[path]
        except ReplayError:  # it does not take these arguments
            return None
        found = min(off.items(), default=None)
        fields = {} if found is None else {"output": found[0], "error": found[1]}
        note = Finding(ReplayCode.FUNCTION_IS_OFF, Level.WARNING, fields) if found is not None else None
        apart = {path: _distance(oracle[path], values[path]) for path in call.outputs}
        cancelled = {
            path: norm / UNIT_ROUNDOFF["float64"] for path, (norm, scale) in apart.items() if norm > _CANCELS * scale
        }
        return cls(base=base, values=dict(values), cancelled={} if off else cancelled, note=note)

    @property
    def is_other(self) -> bool:
        """Whether the function computes something else than the formula."""
        return self.note is not None


def _other(result: ReplayTensor, reference: ReplayTensor) -> float:
    """Return the norm of the difference relative to that of the reference; 0 where either is not finite."""
    norm, scale = _distance(result, reference)
    return norm / scale if scale else 0.0


def _distance(result: ReplayTensor, reference: ReplayTensor) -> tuple[float, float]:
    """Return the norms of the difference and of the reference, where both are finite; 0 of other than numbers."""
    values, expected = np.ravel(result.values), np.ravel(reference.values)
    if values.dtype.kind not in "fc" or expected.dtype.kind not in "fc":
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        error = np.abs(values - expected)
    is_finite = np.isfinite(error)
    return norm_of(error[is_finite]), norm_of(expected[is_finite])


class Replayer:
    """Replays one call in stages, because for most calls the first one decides.

    Args:
        call: The call.
        framework: What it is replayed with.
        model: The model that contains it, if it is a module.
        max_elements: Calls with more elements in their results are not replayed.

    Raises:
        ReplayError: it cannot be replayed, returns other shapes than recorded, or draws random numbers.
    """

    def __init__(
        self, call: RecordedCall, framework: ReplayingFramework, model: object | None, max_elements: int
    ) -> None:
        self._call, self._framework, self._model = call, framework, model
        oracle, self.base = _widest(base_of(call, max_elements), call, framework, model)
        self._own_base = self.base
        own, note = _own(self.base, call, framework, model)
        self._least = 0.0
        if own is not None and (autocast := _autocast_dtype(call, own)) is not None:
            # Under autocast the inputs are rounded to the precision of the results before the computation.
            self._least = _roundoff(autocast)
            own, _ = _own(_cast(self.base, autocast), call, framework, model)
            note = Finding(ReplayCode.AUTOCAST)
        inputs = [value for value in call.tensors.values() if _is_floating(value)]
        self.plain = Replays(
            oracle=oracle.values,
            own=own,
            disturbed=[],
            roundoff=max([self._least, *(_roundoff(value.dtype) for value in inputs)]) if inputs else 0.0,
            num_summed=1,
            result_roundoff=self._least if call.site.phase is Phase.BACKWARD else 0.0,
            note=note,
            is_unique=oracle.is_unique,
            chosen_from=chosen_from(call),
        )
        self._reference = Reference.of(self.base, oracle.values, call, framework)
        if self._reference is not None and self._reference.is_other:
            # The function is wrong in every precision: what it computes shows nothing but its fault.
            self.base = self._reference.base
            self.plain = replace(self.plain, oracle=self._reference.values, own=None, note=self._reference.note)
        """Replays of the undisturbed inputs only. What is right by them is right: others only allow for more."""

    def disturbed(self, number: int) -> Replays:
        """Return the replays with ``number`` of them from disturbed inputs, whose signs are the same each time."""
        generator = np.random.default_rng(_SEED)

        position = _position_of(self.base)

        def disturb(value: ReplayTensor) -> ReplayTensor:
            return _disturbed(value, self._least, generator, shift=1.0 if value is position else 0.0)

        call, framework = self._call, self._framework
        is_elementwise = _is_elementwise(call, self.base, self.plain.oracle, framework, self._model)
        try:
            disturbed = [framework.replay(_widened(self.base, disturb), self._model).values for _ in range(number)]
        except ReplayError:
            # A function may refuse what is beyond the values that it had, as a probability or a label above 1.
            def disturb_within(value: ReplayTensor) -> ReplayTensor:
                return _clipped(disturb(value), value)

            disturbed = [
                framework.replay(_widened(self.base, disturb_within), self._model).values for _ in range(number)
            ]
        return replace(
            self.plain,
            disturbed=disturbed,
            num_summed=1 if is_elementwise else num_summed(call),
            accumulated=accumulated(
                call, self.base, lambda terms: framework.replay(_widened(terms, _wide), self._model).values
            ),
        )

    def cancelled(self, path: str) -> float:
        """Return the norm of the round-off of terms that cancel inside the call, as far as a formula shows it."""
        found = {} if self._reference is None else self._reference.cancelled
        return _SAMPLED * found.get(path, 0.0) * self.plain.roundoff

    @property
    def can_be_scripted(self) -> bool:
        """Whether the framework's plugin writes the call as a script that needs no msprobe."""
        try:
            return isinstance(self._framework, ScriptingFramework) and bool(self._framework.script(self.base))
        except ReplayError:
            return False

    def on_device(self, device: str) -> dict[str, ReplayTensor]:
        """Return the results of the call from another device than the host; see `replay_on_device`."""
        return _first_on_device([self._own_base], self._call, self._framework, self._model, device)


def replay_on_device(
    call: RecordedCall, framework: ReplayingFramework, model: object | None, device: str, max_elements: int
) -> dict[str, ReplayTensor]:
    """Return the results of a call, in its own precision, from another device than the host; nothing else is replayed.

    A call that was recorded under autocast is computed from inputs of the dtype that autocast computed in.

    Args:
        call: The call.
        framework: What it is replayed with.
        model: The model that contains it, if it is a module.
        device: As the framework names it.
        max_elements: Calls with more elements in their results are not replayed.

    Raises:
        ConfigError: there is no such device here.
        ReplayError: the call cannot be replayed there, returns other shapes than recorded, or draws random numbers.
    """
    return _first_on_device(_attempts(base_of(call, max_elements)), call, framework, model, device)


def _first_on_device(
    attempts: Iterable[ReplayCall],
    call: RecordedCall,
    framework: ReplayingFramework,
    model: object | None,
    device: str,
) -> dict[str, ReplayTensor]:
    if not isinstance(framework, DeviceReplayingFramework):
        raise ReplayError("calls of this framework are replayed on the host only")
    found, _ = _first_as_recorded(attempts, call, lambda attempt: framework.replay(attempt, model, device))
    return {path: found.values[path] for path in call.outputs}


def replay_as_recorded(call: RecordedCall, run: Run, max_elements: int) -> tuple[Replayed, ReplayCall]:
    """Replay a call in the precision that it was recorded in, that of autocast if there was any.

    Args:
        call: The call, with its results.
        run: Replays, on the host or a device.
        max_elements: Calls with more elements in their results are not replayed.

    Returns: the results, and the form of the call that succeeded, to be replayed again.

    Raises:
        ReplayError: it cannot be replayed, returns other shapes than recorded, or draws random numbers.
    """
    return _first_as_recorded(_attempts(base_of(call, max_elements)), call, run)


def _first_as_recorded(attempts: Iterable[ReplayCall], call: RecordedCall, run: Run) -> tuple[Replayed, ReplayCall]:
    def as_recorded(attempt: ReplayCall) -> tuple[Replayed, ReplayCall]:
        found = run(attempt)
        _refuse_other(found, call)
        if (dtype := _autocast_dtype(call, found.values)) is None:
            return found, attempt
        cast = _cast(attempt, dtype)
        return run(cast), cast

    return _first_that_succeeds(attempts, as_recorded)


def _first_that_succeeds(attempts: Iterable[ReplayCall], replay: Callable[[ReplayCall], _Found]) -> _Found:
    """Return the first replay that does not fail; if all do, raise what the first raised."""
    failure: ReplayError | None = None
    for attempt in attempts:
        try:
            return replay(attempt)
        except ReplayError as error:  # noqa: PERF203  # there are at most three forms
            failure = failure or error
    assert failure is not None
    raise failure


def _refuse_other(found: Replayed, call: RecordedCall) -> None:
    """Raise if this cannot be what was recorded."""
    if found.is_random:
        raise ReplayError("it draws random numbers, which no replay draws again")
    if problem := _misfit(found, call):
        raise ReplayError(problem.text)


def _autocast_dtype(call: RecordedCall, own: Mapping[str, ReplayTensor]) -> str | None:
    """Return the dtype that autocast computed in, as far as a dump shows it; ``None`` without autocast.

    The results have another dtype than those of a call with these inputs. In a backward, only what comes in has it.
    """
    if any(value.dtype != own[path].dtype for path, value in call.outputs.items()):
        return max((value.dtype for value in call.outputs.values()), key=_roundoff)
    coarsest = max((value.dtype for value in call.gradients.values()), key=_roundoff, default="")
    forward = [value for path, value in call.tensors.items() if not path.startswith("gradient.")]
    coarsest_input = max((_roundoff(value.dtype) for value in forward if _is_floating(value)), default=0.0)
    return coarsest if coarsest_input and _roundoff(coarsest) > coarsest_input else None


def _cast(call: ReplayCall, dtype: str) -> ReplayCall:
    """Return the call with inputs as autocast makes them: those with fewer than 64 bits in one dtype."""

    def cast(value: ReplayTensor) -> ReplayTensor:
        is_cast = value.values.dtype.kind == "f" and _roundoff(value.dtype) > UNIT_ROUNDOFF["float64"]
        return msgspec.structs.replace(value, dtype=dtype) if is_cast else value

    return mapped_call(call, cast)


def replay_once(call: RecordedCall, run: Run, max_elements: int) -> tuple[Replayed, ReplayCall]:
    """Replay a call in its own precision, whatever the dump has of its results.

    Args:
        call: The call; its inputs may be made.
        run: Replays, on the host or a device.
        max_elements: Calls with more elements in their results are not replayed.

    Returns: the results, and the form of the call that succeeded.

    Raises:
        ReplayError: none did.
    """
    return _first_that_succeeds(_attempts(base_of(call, max_elements)), lambda attempt: (run(attempt), attempt))


def base_of(call: RecordedCall, max_elements: int) -> ReplayCall:
    """Return a call as it is replayed, in its own precision."""
    dtype = next((value.dtype for value in call.tensors.values() if _is_floating(value)), "")
    return ReplayCall(
        site=call.site, args=call.args, kwargs=call.kwargs, parameters=call.parameters, modules=call.modules,
        gradients=call.gradients, dtype=dtype, max_elements=max_elements,
    )  # fmt: skip


def _widest(
    base: ReplayCall, call: RecordedCall, framework: ReplayingFramework, model: object | None
) -> tuple[Replayed, ReplayCall]:
    """Return the replay in float64, and the variant of the call that succeeded; see `_attempts`."""
    failure: ReplayError | None = None
    for attempt in _attempts(base):
        try:
            found = framework.replay(_widened(attempt, _wide), model)
        except ReplayError as error:
            failure = failure or error
            continue
        if found.is_random:
            raise ReplayError("it draws random numbers, which no replay draws again")
        if problem := _misfit(found, call):
            failure = failure or ReplayError(problem.text)
            continue
        return found, attempt
    assert failure is not None
    raise failure


def _attempts(base: ReplayCall) -> list[ReplayCall]:
    """Return the possible forms of a call: dumps do not distinguish tuples from lists."""
    attempts = [base, msgspec.structs.replace(base, has_lists=True)]
    if base.site.kind is SiteKind.API:
        # A trailing empty list leaves no trace in a dump: ``torch.zeros(())``.
        attempts.append(msgspec.structs.replace(base, args=[*base.args, []]))
    return attempts


def _is_elementwise(
    call: RecordedCall,
    base: ReplayCall,
    oracle: Mapping[str, ReplayTensor],
    framework: ReplayingFramework,
    model: object | None,
) -> bool:
    """Whether each element of the result depends on only one element of each large argument, so nothing is summed.

    This is tested by changing one element of each such argument.
    """
    sizes = {value.values.size for value in call.outputs.values()}
    largest = max((value.values.size for value in call.tensors.values()), default=0)
    if len(sizes) != 1 or largest < 2 or largest > min(sizes):
        return False

    def change(value: ReplayTensor) -> ReplayTensor:
        wide = _wide(value)
        if not _is_floating(value) or value.values.size != largest:
            return wide
        values: Any = np.array(wide.values)
        values.flat[largest // 2] *= 1.0 - 2.0**-20  # smaller: a function may refuse a probability above 1
        return msgspec.structs.replace(wide, values=values)

    changed = framework.replay(_widened(base, change), model).values
    return all(np.count_nonzero(value.values != oracle[path].values) <= 1 for path, value in changed.items())


def _misfit(found: Replayed, call: RecordedCall) -> Finding | None:
    for path, value in call.outputs.items():
        given = found.values.get(path)
        if given is None:
            return Finding(ReplayCode.NO_SUCH_OUTPUT, fields={"output": path})
        if given.values.shape != value.values.shape:
            shapes = {"replayed": str(list(given.values.shape)), "recorded": str(list(value.values.shape))}
            return Finding(ReplayCode.OTHER_SHAPE, fields={"output": path, **shapes})
    return None if call.outputs else Finding(ReplayCode.NO_OUTPUT)


def _own(
    base: ReplayCall, call: RecordedCall, framework: ReplayingFramework, model: object | None
) -> tuple[dict[str, ReplayTensor] | None, Finding | None]:
    try:
        found = framework.replay(base, model)
    except ReplayError as error:
        return None, Finding(ReplayCode.NO_OWN_PRECISION, fields={"why": str(error)})
    problem = _misfit(found, call)
    return (found.values, None) if problem is None else (None, problem)


def mapped_call(
    call: ReplayCall, function: Callable[[ReplayTensor], ReplayTensor], *, with_gradients: bool = True
) -> ReplayCall:
    """Return a call with each tensor of its arguments and parameters replaced, and of its incoming gradients."""
    args: list[ReplayValue] = [map_tensors(value, function) for value in call.args]
    return msgspec.structs.replace(
        call,
        args=args,
        kwargs={name: map_tensors(value, function) for name, value in call.kwargs.items()},
        parameters={name: function(value) for name, value in call.parameters.items()},
        gradients={path: function(value) if with_gradients else value for path, value in call.gradients.items()},
    )


def _widened(call: ReplayCall, function: Callable[[ReplayTensor], ReplayTensor]) -> ReplayCall:
    """Return the call in float64, with its tensors replaced by a function that widens them."""
    return msgspec.structs.replace(mapped_call(call, function), is_widened=True)


def _in_single(call: ReplayCall) -> ReplayCall:
    """Return the call with float32 in place of any floating dtype."""

    def cast(value: ReplayTensor) -> ReplayTensor:
        if not _is_floating(value):
            return value
        dtype = "complex64" if value.values.dtype.kind == "c" else "float32"
        with np.errstate(over="ignore"):
            return msgspec.structs.replace(value, values=value.values.astype(dtype), dtype=dtype)

    return mapped_call(call, cast)


def _is_floating(value: ReplayTensor) -> bool:
    return value.values.dtype.kind in "fc"


def _wide(value: ReplayTensor) -> ReplayTensor:
    if not _is_floating(value):
        return value
    dtype = "complex128" if value.values.dtype.kind == "c" else "float64"
    return msgspec.structs.replace(value, values=value.values.astype(dtype), dtype=dtype)


def _position_of(call: ReplayCall) -> ReplayTensor | None:
    """Return an argument with places from -1 to 1; ``None`` if there is none.

    Kernels add 1 to them and round that, before they round down to an element: near its border they take another one
    than the exact place says, and a gradient, which has a step there, is that of the other.
    """
    if call.site.path not in ("grid_sample", "grid_sampler"):
        return None
    found = call.kwargs.get("grid", call.args[1] if len(call.args) > 1 else None)
    return found if isinstance(found, ReplayTensor) else None


def _disturbed(
    value: ReplayTensor,
    least: float,
    generator: np.random.Generator,
    roundoff: float | None = None,
    shift: float = 0.0,
) -> ReplayTensor:
    """Return values widened, with x + shift scaled by 1 + u or 1 - u; u is the unit round-off of their own dtype."""
    wide = _wide(value)
    if not _is_floating(value):
        return wide
    roundoff = max(_roundoff(value.dtype), least) if roundoff is None else roundoff
    source: Any = generator  # its type hints are incomplete
    values: Any = wide.values.reshape(-1)  # a copy of the recorded values, which may be written to
    with np.errstate(all="ignore"):
        for part in slices_of(values.size):
            signs = np.where(source.random(part.stop - part.start) < 0.5, -1.0, 1.0)
            values[part] *= 1.0 + roundoff * signs
            if shift:
                values[part] += shift * roundoff * signs
    return msgspec.structs.replace(wide, values=values.reshape(value.values.shape))


def _clipped(disturbed: ReplayTensor, recorded: ReplayTensor) -> ReplayTensor:
    """Return disturbed values between the least and the largest of the recorded real ones."""
    numbers: Any = recorded.values[~np.isnan(recorded.values)] if recorded.values.dtype.kind == "f" else np.empty(0)
    if not numbers.size:
        return disturbed
    values = np.minimum(np.maximum(disturbed.values, numbers.min()), numbers.max())
    return msgspec.structs.replace(disturbed, values=values)


def _roundoff(dtype: str) -> float:
    return UNIT_ROUNDOFF.get(dtype, 0.0)


def num_summed(call: RecordedCall) -> int:
    """Return the largest possible number of terms of a sum: along a dimension, or of all elements reduced to one."""
    smallest = min((value.values.size for value in call.outputs.values()), default=1) or 1
    longest = 1
    for value in call.tensors.values():
        longest = max(longest, *value.values.shape, value.values.size // smallest, 1)
    return longest
