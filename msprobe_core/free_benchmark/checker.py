"""Repeats one recorded call with perturbed inputs, and judges its reaction.

The repetitions run in the call's own precision, where the training runs, so that this is cheap. A reaction beyond what
arithmetic explains is a suspicion; the float64 replay of `msprobe_core.api_check.call_check` then decides, where there
is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from msprobe_core.api_check.call_check import CallChecker, unchecked
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, Verdict, worst_of
from msprobe_core.config.schema import PertMode, ReactionJudge
from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.findings import Finding, noted
from msprobe_core.free_benchmark.perturbations import Perturbed, line_through, perturbed
from msprobe_core.free_benchmark.reaction import (
    OTHER_RATIO_LIMIT,
    RATIO_LIMITS,
    Reaction,
    distance_of,
    is_same,
    is_unmoved,
    noise_of,
    published_ratio,
)
from msprobe_core.free_benchmark.reaction_codes import ReactionCode
from msprobe_core.free_benchmark.row_gains import GAIN_FACTOR, NORMALISATIONS, gain_of_rows
from msprobe_core.model import Phase, ReplayCall, Replayed, ReplayTensor
from msprobe_core.protocols.capabilities import DeviceReplayingFramework, ReplayingFramework
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import Replayer, num_summed, replay_as_recorded

NUM_REPETITIONS = 3
"""How often ``no_change`` repeats a call."""

_OTHER_FACTOR = 4.0
"""By how much a repetition may be off the recorded result, in units of rounding two results once."""

_OWN_FACTOR = 4.0
"""By how much a replay with the training's own kernel may exceed what float64 explains before it is left out.

Half of what is allowed for calls that nothing else has shown to be noisy.
"""


@dataclass(frozen=True, kw_only=True)
class ReactionChecker:
    """Checks calls one by one.

    Attributes:
        framework: What calls are repeated with.
        mode: The perturbation.
        judge: What decides.
        device: Where calls are repeated, as the framework names it; ``None`` for the host.
        max_elements: Calls with more elements are not repeated.
        on_host: Receives the results of a call on the device and on the host, in the mode ``to_cpu``.
    """

    framework: ReplayingFramework
    mode: PertMode
    judge: ReactionJudge = ReactionJudge.NOISE
    device: str | None = None
    max_elements: int = 1 << 26
    on_host: Callable[[RecordedCall, Mapping[str, ReplayTensor], Mapping[str, ReplayTensor]], None] | None = None

    def check(self, call: RecordedCall) -> CallVerdict:
        """Return the verdict on the reaction of a call; whatever prevents one is its reason."""
        begin = time.perf_counter()
        found = self._check(call)
        return msgspec.structs.replace(found, seconds=time.perf_counter() - begin)

    def _check(self, call: RecordedCall) -> CallVerdict:
        confirmer = CallChecker(
            framework=self.framework, max_elements=self.max_elements, measures_power=False, trusts_own=False,
            own_factor=_OWN_FACTOR, allows_cancellation=call.site.phase is Phase.BACKWARD,
        )  # fmt: skip
        if (why := confirmer.why_not_checked(call)) is not None:
            return unchecked(call, why)
        try:
            found = self._reactions(call)
        except ReplayError as error:
            return unchecked(call, Finding(ReactionCode.NOT_REPEATED, fields={"why": noted(str(error))}))
        except MemoryError as error:
            return unchecked(call, Finding(ReactionCode.NOT_REPEATED, fields={"why": noted(str(error) or "memory")}))
        if isinstance(found, Finding):
            return unchecked(call, found)
        if self.judge is ReactionJudge.RATIO or self.mode is PertMode.NO_CHANGE:
            return _verdict(call, found)
        found = self._confirmed(call, found, confirmer)
        return self._with_rows(call, found) if self.mode is PertMode.IMPROVE_PRECISION else found

    def _run(self, call: ReplayCall) -> Replayed:
        if self.device is not None and isinstance(self.framework, DeviceReplayingFramework):
            return self.framework.replay(call, None, self.device)
        return self.framework.replay(call)

    def _reactions(self, call: RecordedCall) -> list[OutputVerdict] | Finding:
        """Return the verdict on each output, or why there is none.

        Raises:
            ReplayError: the call cannot be repeated.
        """
        before, base = replay_as_recorded(call, self._run, self.max_elements)
        if self.mode is PertMode.NO_CHANGE:
            return self._repeated(call, before.values, base)
        if self.mode is PertMode.TO_CPU:
            if self.device is None:
                return Finding(ReactionCode.NO_OTHER_DEVICE)
            reference = self.framework.replay(base).values
            if self.on_host is not None:
                self.on_host(call, before.values, reference)
            return self._compared(call, before.values, reference, ReactionCode.OFF_HOST, num_rounded=2)
        changed = perturbed(base, self.mode)
        if isinstance(changed, Finding):
            return changed
        after = self._run(changed.call).values
        if self.mode is PertMode.IMPROVE_PRECISION:
            return self._compared(call, call.outputs, after, ReactionCode.OFF_FLOAT32, num_rounded=1)
        line = line_through(base) if changed.is_small else None
        if line is None:
            return self._at_changed(call, changed, before.values, after)
        along = [self._run(each).values for each in line.calls]
        terms = num_summed(call)
        found = [
            self._judged(call, path, before.values[path], after[path], noise_of(
                before.values[path], [each[path] for each in along], after[path], line.relative, terms
            ), ReactionCode.BEYOND)
            for path in call.outputs
        ]  # fmt: skip
        return [
            msgspec.structs.replace(output, reason=_UNMOVED)
            if output.verdict is Verdict.RIGHT
            and is_unmoved(before.values[output.path], [each[output.path] for each in along])
            else output
            for output in found
        ]

    def _repeated(self, call: RecordedCall, first: Mapping[str, ReplayTensor], base: ReplayCall) -> list[OutputVerdict]:
        """Judge whether the call gives the same result each time, and the recorded one."""
        others = [self._run(base).values for _ in range(NUM_REPETITIONS - 1)]
        found: list[OutputVerdict] = []
        for path, recorded in call.outputs.items():
            several = [first[path], *(each[path] for each in others)]
            differing = [each for each in several[1:] if not is_same(first[path], each)]
            other = differing[0] if differing else recorded
            reaction = distance_of(other, first[path], num_rounded=2)
            code = ReactionCode.REPEATS
            verdict = Verdict.RIGHT
            if differing:
                code, verdict = ReactionCode.SEVERAL_RESULTS, Verdict.SUSPECT
            elif recorded.dtype == first[path].dtype and reaction.times > _OTHER_FACTOR:
                # Below that, another layout in memory, and so another order of sums, explains it.
                code, verdict = ReactionCode.OTHER_THAN_RECORDED, Verdict.SUSPECT
            fields = {"times": reaction.times, "count": len(differing) + 1}
            ratio, _ = published_ratio(first[path], other, call.site.phase)
            found.append(_output(path, recorded, reaction, ratio, verdict, Finding(code, fields=fields)))
        return found

    def _at_changed(
        self, call: RecordedCall, changed: Perturbed, before: Mapping[str, ReplayTensor],
        after: Mapping[str, ReplayTensor],
    ) -> list[OutputVerdict]:  # fmt: skip
        """Judge results at inputs whose change has no size: those of swapped elements, by the float64 replay."""
        other = RecordedCall(
            entry=call.entry, site=call.site, args=changed.call.args, kwargs=changed.call.kwargs,
            parameters=changed.call.parameters, gradients=changed.call.gradients,
            outputs={path: after[path] for path in call.outputs}, scalars=call.scalars,
        )  # fmt: skip
        checker = CallChecker(
            framework=self.framework, max_elements=self.max_elements, measures_power=False, trusts_own=False
        )
        judged = {output.path: output for output in checker.check(other).outputs}
        found: list[OutputVerdict] = []
        for path in call.outputs:
            ratio, is_flipped = published_ratio(before[path], after[path], call.site.phase)
            output = judged.get(path)
            if output is None or self.judge is ReactionJudge.RATIO:
                reaction = distance_of(after[path], before[path], num_rounded=2)
                found.append(self._by_ratio(path, after[path], reaction, ratio, is_flipped=is_flipped))
            else:
                found.append(msgspec.structs.replace(output, ratio=ratio))
        return found

    def _compared(
        self, call: RecordedCall, results: Mapping[str, ReplayTensor], reference: Mapping[str, ReplayTensor],
        code: ReactionCode, *, num_rounded: int,
    ) -> list[OutputVerdict]:  # fmt: skip
        return [
            self._judged(call, path, results[path], reference[path], distance_of(
                results[path], reference[path], num_rounded=num_rounded
            ), code)
            for path in call.outputs
        ]  # fmt: skip

    def _judged(
        self, call: RecordedCall, path: str, before: ReplayTensor, after: ReplayTensor, reaction: Reaction,
        code: ReactionCode,
    ) -> OutputVerdict:  # fmt: skip
        ratio, is_flipped = published_ratio(before, after, call.site.phase)
        if self.judge is ReactionJudge.RATIO:
            return self._by_ratio(path, before, reaction, ratio, is_flipped=is_flipped)
        verdict, reason = Verdict.RIGHT, Finding(ReactionCode.AS_EXPECTED)
        if reaction.num_not_finite:
            verdict = Verdict.SUSPECT
            reason = Finding(ReactionCode.NON_FINITE, fields={"count": reaction.num_not_finite})
        elif reaction.times > 1:
            verdict = Verdict.SUSPECT
            code = ReactionCode.BEYOND_ELEMENT if reaction.is_of_element else code
            reason = Finding(code, fields={"times": reaction.times})
        return _output(path, before, reaction, ratio, verdict, reason)

    def _by_ratio(
        self, path: str, result: ReplayTensor, reaction: Reaction, ratio: float, *, is_flipped: bool
    ) -> OutputVerdict:
        limit = RATIO_LIMITS.get(result.dtype, OTHER_RATIO_LIMIT)
        if self.mode is PertMode.NO_CHANGE:
            limit = 1.0
        is_beyond = ratio > limit or is_flipped
        reason = Finding(ReactionCode.RATIO, fields={"ratio": ratio, "limit": limit})
        verdict = Verdict.SUSPECT if is_beyond else Verdict.RIGHT
        return _output(path, result, reaction, ratio, verdict, reason)

    def _confirmed(self, call: RecordedCall, found: list[OutputVerdict], confirmer: CallChecker) -> CallVerdict:
        """Return the verdict after the float64 replay has been asked about suspicious reactions."""
        if all(output.verdict is not Verdict.SUSPECT and output.reason != _UNMOVED for output in found):
            return _verdict(call, found)
        exact = confirmer.check(call)
        judged = {output.path: output for output in exact.outputs}
        outputs: list[OutputVerdict] = []
        for output in found:
            other = judged.get(output.path)
            if output.reason == _UNMOVED:
                outputs.append(_of_unmoved(output, other))
            elif output.verdict is not Verdict.SUSPECT:
                outputs.append(output)
            elif other is None:
                why = exact.reason or Finding(ReactionCode.NO_OTHER_DEVICE)
                reason = Finding(ReactionCode.UNDECIDED, fields={"reaction": output.reason, "why": why})
                outputs.append(msgspec.structs.replace(output, reason=reason))
            else:
                is_wrong = other.verdict is Verdict.WRONG
                code = ReactionCode.EXPLAINED
                reason = output.reason if is_wrong else Finding(code, fields={"reaction": output.reason})
                outputs.append(msgspec.structs.replace(output, verdict=other.verdict, reason=reason, bias=other.bias))
        return _verdict(call, outputs, notes=exact.notes, stage=2)

    def _with_rows(self, call: RecordedCall, found: CallVerdict) -> CallVerdict:
        """Return the verdict with that on whole rows of a normalisation, which float64 alone shows.

        A kernel that computes their factors in half precision does so for inputs in float32, too.
        """
        if call.site.phase is not Phase.FORWARD or call.site.path.rpartition(".")[2] not in NORMALISATIONS:
            return found
        try:
            exact = Replayer(call, self.framework, None, self.max_elements).plain.oracle
        except (ReplayError, MemoryError):
            return found  # there is no float64 replay
        outputs: list[OutputVerdict] = []
        for output in found.outputs:
            gain = gain_of_rows(call.outputs[output.path], exact[output.path].values) or 0.0
            times = gain / GAIN_FACTOR
            if output.verdict is Verdict.RIGHT and times > 1:
                reason = Finding(ReactionCode.OFF_ROWS, fields={"times": times})
                output = msgspec.structs.replace(output, verdict=Verdict.WRONG, reason=reason, times=times)  # noqa: PLW2901
            outputs.append(output)
        return _verdict(call, outputs, notes=found.notes, stage=found.stage)


_UNMOVED = Finding(ReactionCode.UNMOVED, fields={"times": 0.0})
"""Of an output whose noise says nothing, until the float64 replay has been asked."""


def _of_unmoved(output: OutputVerdict, exact: OutputVerdict | None) -> OutputVerdict:
    """Return the verdict on a result that does not move: right unless float64 shows the contrary, as most decide."""
    if exact is None or exact.verdict is not Verdict.WRONG:
        return msgspec.structs.replace(output, reason=Finding(ReactionCode.AS_EXPECTED))
    reason = Finding(ReactionCode.UNMOVED, fields={"times": exact.times})
    return msgspec.structs.replace(output, verdict=Verdict.WRONG, reason=reason, times=exact.times, bias=exact.bias)


def device_of(framework: ReplayingFramework) -> str | None:
    """Return the device that calls of this process are repeated on; ``None`` for the host."""
    if not isinstance(framework, DeviceReplayingFramework):
        return None
    try:
        devices = framework.replay_devices()
    except ConfigError:
        return None
    return devices[0] if devices else None


def _output(
    path: str, result: ReplayTensor, reaction: Reaction, ratio: float, verdict: Verdict, reason: Finding
) -> OutputVerdict:
    shape = tuple(map(int, result.values.shape))
    return OutputVerdict(
        path=path, side="perturbed", dtype=result.dtype, shape=shape, verdict=verdict, reason=reason,
        error=reaction.change, rounding=reaction.allowed, condition=reaction.expected, own_error=None,
        times=reaction.times, amplification=reaction.amplification, worst_index=None, bias=None, ratio=ratio,
    )  # fmt: skip


def _verdict(
    call: RecordedCall, outputs: list[OutputVerdict], *, notes: tuple[Finding, ...] = (), stage: int = 1
) -> CallVerdict:
    return CallVerdict(
        entry=call.entry, api=call.entry.removesuffix(f".{call.site.phase.value}"), phase=call.site.phase,
        verdict=worst_of(output.verdict for output in outputs), outputs=tuple(outputs), stage=stage, notes=notes,
    )  # fmt: skip
