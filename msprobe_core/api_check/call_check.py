"""Check one call: is its result right for the inputs that it had.

Stage 1 replays the call in float64 and in its own precision. A result within what these two explain is right. For the
rest, stage 2 replays it with disturbed inputs, which measures how far round-off in the inputs reaches; see
`msprobe_core.replay.judge` for what is allowed.

The replay in the call's own precision may be wrong itself: by a kernel of this machine, or because this is the process
that made the wrong result. If its error is far beyond what the disturbed replays explain, it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core import names
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.made_inputs import verdict_of_made
from msprobe_core.api_check.power import inputs_of, power_of
from msprobe_core.api_check.published import published_columns
from msprobe_core.api_check.verdict import CallVerdict, Inputs, OutputVerdict, Verdict, worst_of
from msprobe_core.errors import ReplayError
from msprobe_core.findings import Finding, noted
from msprobe_core.model import ReplayTensor, SiteKind
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.replay.judge import ELEMENT_FACTOR, Held, OutputJudge, OutputJudgement, judge_of
from msprobe_core.replay.norms import slices_of
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import NUM_DISTURBED, UNIT_ROUNDOFF, Replayer, Replays, replay_once

MAX_ELEMENTS = 1 << 28
"""Limit of the number of elements in all tensors of one call: in float64 with its replays, some ten times 2 GiB."""

RECORDED = "recorded"
"""The side of the result that the dump has."""

HOST = "cpu"
"""The side of a result that this machine computes in the call's own precision."""

_OF_HELD = {Held.RIGHT: Verdict.RIGHT, Held.CONDITION: Verdict.ILL_CONDITIONED, Held.WRONG: Verdict.WRONG}

OWN_FACTOR = 8.0
"""By how much a replay in the call's own precision may exceed what disturbed replays explain.

Functions that are composed of others round several times; this is generous for them.
"""


@dataclass(frozen=True, kw_only=True)
class CallChecker:
    """Checks calls one by one.

    Attributes:
        framework: What calls are replayed with.
        model: The model that contains them, to check modules; ``None`` to check APIs only.
        max_elements: Calls with more elements are not checked.
        measures_power: Whether mutants are tried.
        trusts_own: Whether the replay in the call's own precision runs other kernels than the call did. In the process
            of the training it runs the same, and explains no errors that have a direction.
        quantization_apis: See `msprobe_core.api_check.published.published_columns`.
        own_factor: By how much the replay in the call's own precision may exceed what disturbed replays explain.
        allows_cancellation: Whether it may also be off by the round-off of the inputs, whose terms may cancel.
    """

    framework: ReplayingFramework
    model: object | None = None
    max_elements: int = MAX_ELEMENTS
    measures_power: bool = True
    trusts_own: bool = True
    quantization_apis: tuple[str, ...] | None = None
    own_factor: float = OWN_FACTOR
    allows_cancellation: bool = True

    def check(self, call: RecordedCall) -> CallVerdict:
        """Check the recorded result of a call; whatever prevents it is the reason of a `Verdict.CANNOT_TELL`."""
        return settled(call, self.why_not_checked, lambda: self.judge_recorded(call)[2])

    def judge_recorded(self, call: RecordedCall) -> tuple[RecordedCall, Replayer, CallVerdict]:
        """Judge the recorded results of a call; return the call as it was judged, its replays, and the verdict.

        If the results are wrong for arguments that are regarded as one tensor, they may be right for several.

        Raises:
            ReplayError: the call cannot be replayed.
        """
        replayer = self.replayer(call)
        found = self.judge(call, replayer, call.outputs)
        apart = call.with_arguments_apart() if found.verdict is Verdict.WRONG else None
        if apart is not None:
            with suppress(ReplayError, MemoryError):  # which leave it at what was found
                others = self.replayer(apart)
                again = self.judge(apart, others, apart.outputs)
                if again.verdict in (Verdict.RIGHT, Verdict.ILL_CONDITIONED):
                    return apart, others, again
        return call, replayer, found

    def check_made(self, call: RecordedCall, inputs: Inputs, seed: int) -> CallVerdict:
        """Check what this machine computes in the call's own precision from inputs that were made.

        Args:
            call: Without results, as nothing was recorded for such inputs.
            inputs: How they were made.
            seed: Of the inputs.
        """

        def judged() -> CallVerdict:
            own, _ = replay_once(call, self.framework.replay, self.max_elements)
            complete = replace(call, outputs=dict(own.values))
            found = self.judge(complete, self.replayer(complete), own.values, HOST)
            outputs = tuple(
                msgspec.structs.replace(each, verdict=verdict_of_made(each.verdict, inputs)) for each in found.outputs
            )
            return msgspec.structs.replace(found, outputs=outputs, verdict=verdict_of_made(found.verdict, inputs))

        found = settled(call, self.why_not_replayed, judged)
        return msgspec.structs.replace(found, inputs=inputs, seed=seed)

    def replayer(self, call: RecordedCall) -> Replayer:
        """Return the replays of a call.

        Raises:
            ReplayError: it cannot be replayed.
        """
        return Replayer(call, self.framework, self.model, self.max_elements)

    def why_not_checked(self, call: RecordedCall) -> Finding | None:
        """Return why the recorded result of a call is not checked, as far as is known without replaying it."""
        why = self.why_not_replayed(call)
        return why if why is not None or call.outputs else Finding(CheckCode.NO_OUTPUT)

    def why_not_replayed(self, call: RecordedCall) -> Finding | None:
        """Return why a call is not replayed, as far as is known without trying."""
        if call.site.kind is SiteKind.API and (why := self.framework.why_not_replayed(call.site)) is not None:
            api = f"{call.site.prefix}.{call.site.path}"
            return Finding(CheckCode.NOT_IN_TABLE, fields={"api": api, "why": why})
        return call.missing

    def judge(
        self, call: RecordedCall, replayer: Replayer, results: Mapping[str, ReplayTensor], side: str = RECORDED
    ) -> CallVerdict:
        """Judge results of a call, which may be recorded ones or those of a device.

        Args:
            call: The call.
            replayer: Its replays.
            results: By path.
            side: Whose results they are.

        Raises:
            ReplayError: the call cannot be replayed with disturbed inputs.
        """
        plain = replayer.plain
        first = plain if self.trusts_own else replace(plain, own=None)
        judges = {path: judge_of(path, value, first) for path, value in results.items()}
        notes = [] if plain.note is None else [plain.note]
        stage = 1
        if any(_is_undecided(judge.judgement, plain) for judge in judges.values()):
            stage, replays = 2, replayer.disturbed(NUM_DISTURBED)
            floor = _rounding_of_inputs(call) if self.allows_cancellation else 0.0
            judges = {path: judge_of(path, value, replays) for path, value in results.items()}
            for path, value in results.items():
                of_others = judge_of(path, value, replace(replays, own=None))
                cancelled = max(floor * float(value.values.size) ** 0.5, replayer.cancelled(path))
                off = _times_off(judges[path].judgement, of_others.judgement, cancelled)
                is_same = not self.trusts_own and abs(_bias(value, plain.oracle[path].values) or 0.0) > _DIRECTED
                if off > self.own_factor or (is_same and off > 1.0):
                    judges[path] = of_others
                    notes.append(Finding(CheckCode.HOST_IS_OFF_TOO, fields={"output": path, "times": off}))
        elif self.measures_power:
            # The limits that a wrong result would have met are those of stage 2; one replay shows their size.
            replays = replayer.disturbed(1)
            judges = {path: judge_of(path, value, replays) for path, value in results.items()}
        verdict = worst_of(_OF_HELD[judge.judgement.held] for judge in judges.values())
        if verdict is Verdict.WRONG and not plain.is_unique:
            return unchecked(call, Finding(CheckCode.NOT_UNIQUE))
        outputs = tuple(self._output(call, side, judge, results[path], plain) for path, judge in judges.items())
        return CallVerdict(
            entry=call.entry, api=api_of(call), phase=call.site.phase, verdict=verdict, outputs=outputs, stage=stage,
            notes=tuple(notes),
        )  # fmt: skip

    def _output(
        self, call: RecordedCall, side: str, judge: OutputJudge, result: ReplayTensor, replays: Replays
    ) -> OutputVerdict:
        found = judge.judgement
        verdict = _OF_HELD[found.held]
        applied, accepted = (), ()
        if self.measures_power and verdict is not Verdict.WRONG:
            applied, accepted = power_of(judge, result, inputs_of(call.tensors))
        oracle = replays.oracle[found.path].values
        own = None if replays.own is None or found.path not in replays.own else replays.own[found.path].values
        dtypes = frozenset(value.dtype for value in call.tensors.values())
        return OutputVerdict(
            path=found.path, side=side, dtype=result.dtype, shape=tuple(map(int, result.values.shape)), verdict=verdict,
            reason=found.reason, error=found.error, rounding=found.rounding, condition=found.condition,
            own_error=found.own_error, times=_times(found), amplification=found.amplification,
            worst_index=_index(found.worst, result.values.shape), bias=_bias(result, oracle),
            applied=applied, accepted=accepted,
            published=published_columns(
                result, oracle, own=own, api=api_of(call), inputs=dtypes, quantization_apis=self.quantization_apis
            ),
        )  # fmt: skip


def settled(
    call: RecordedCall, why_not: Callable[[RecordedCall], Finding | None], judge: Callable[[], CallVerdict]
) -> CallVerdict:
    """Return a verdict on a call with its duration; whatever prevents one is the reason of a `Verdict.CANNOT_TELL`.

    Args:
        call: The call.
        why_not: Returns why it is not judged, as far as is known without trying.
        judge: Judges it.
    """
    begin = time.perf_counter()
    if (why := why_not(call)) is not None:
        found = unchecked(call, why)
    else:
        try:
            found = judge()
        except ReplayError as error:
            found = unchecked(call, noted(str(error)))
        except MemoryError:
            found = unchecked(call, Finding(CheckCode.OUT_OF_MEMORY))
    return msgspec.structs.replace(found, seconds=time.perf_counter() - begin)


def unchecked(call: RecordedCall, reason: Finding) -> CallVerdict:
    """Return the verdict on a call that was not judged."""
    return CallVerdict(
        entry=call.entry, api=api_of(call), phase=call.site.phase, verdict=Verdict.CANNOT_TELL, reason=reason
    )


def api_of(call: RecordedCall) -> str:
    """Return the name of a call without its phase, such as ``Functional.linear.0``."""
    return names.call_of(call.entry)


def _is_undecided(found: OutputJudgement, replays: Replays) -> bool:
    """Whether stage 1 leaves open if an output is right, or if the replay in its own precision is."""
    roundoff = max(UNIT_ROUNDOFF.get(found.dtype, 0.0), replays.result_roundoff)
    return found.held is not Held.RIGHT or (found.own_error or 0.0) > OWN_FACTOR * roundoff


def _times_off(found: OutputJudgement, of_others: OutputJudgement, cancelled: float) -> float:
    """Return the error of the replay in the call's own precision, in units of what the other replays explain.

    Args:
        found: The judgement with this replay.
        of_others: The judgement without it.
        cancelled: Norm of the round-off of terms that may cancel inside the call, as in the gradient of a layer norm of
            two elements, and leave their round-off in a result near zero.
    """
    explained = max(of_others.rounding, of_others.condition, cancelled / (found.scale or 1.0))
    return (found.own_error or 0.0) / explained if explained else 0.0


def _rounding_of_inputs(call: RecordedCall) -> float:
    """Return the largest root mean square of an input times its unit round-off; of gradients only for a backward."""
    inputs = [value for value in (call.gradients or call.tensors).values() if value.values.dtype.kind == "f"]
    return max((UNIT_ROUNDOFF.get(value.dtype, 0.0) * _root_mean_square(value.values) for value in inputs), default=0.0)


def _root_mean_square(values: Any) -> float:
    """Return that of the finite values; 0 of none."""
    flat, num, total = np.ravel(values), 0, 0.0
    for part in slices_of(flat.size):
        finite: Any = flat[part][np.isfinite(flat[part])].astype(np.float64)
        num, total = num + finite.size, total + float((finite * finite).sum())
    return (total / num) ** 0.5 if num else 0.0


def _times(found: OutputJudgement) -> float:
    """Return the error in units of the allowance."""
    allowed = max(found.rounding, found.condition)
    of_norm = found.error / allowed if allowed else float("inf") if found.error else 0.0
    return max(of_norm, found.element / ELEMENT_FACTOR)


def _index(place: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if place is None:
        return None
    index: list[int] = []
    for length in reversed(shape):
        place, at = divmod(place, length)
        index.insert(0, at)
    return tuple(index)


_LEAST_FOR_BIAS = 32

_DIRECTED = 8.0
"""Bias from which errors have a direction beyond doubt; those of rounding to nearest are far below."""


def _bias(result: ReplayTensor, oracle: NDArray[Any]) -> float | None:
    """Return the mean of the signed relative errors in units of its standard error.

    Errors of rounding to nearest have no direction; those of truncation all point to zero, and are then negative here.
    """
    if result.values.dtype.kind != "f" or oracle.dtype.kind != "f" or result.dtype not in UNIT_ROUNDOFF:
        return None
    values, exact = np.ravel(result.values), np.ravel(oracle)
    num, mean, squares = 0, 0.0, 0.0
    for part in slices_of(exact.size):
        counts = np.isfinite(values[part]) & np.isfinite(exact[part]) & (exact[part] != 0)
        golden = exact[part][counts]
        with np.errstate(over="ignore"):
            errors: Any = (values[part][counts].astype(np.float64) - golden) / golden
        if not np.isfinite(errors).all():  # of elements whose exact value is tiny; no mean says anything then
            return None
        if errors.size:  # merged as Chan, Golub and LeVeque do (Algorithms for Computing the Sample Variance, 1983)
            with np.errstate(over="ignore"):
                own, variance, share = float(errors.mean()), float(errors.var()), errors.size / (num + errors.size)
            shift = own - mean
            squares += variance * errors.size + shift * shift * num * share
            num, mean = num + errors.size, mean + shift * share
    deviation = (squares / num) ** 0.5 if num >= _LEAST_FOR_BIAS else 0.0
    if not deviation or not np.isfinite(deviation):
        return None
    return mean / deviation * float(num) ** 0.5
