"""Compare the recorded result of a call with those that devices compute again from the same inputs.

Each result is judged by itself, against the float64 replay. Which of them are wrong says where the fault is:

========  ======  ==============================================================================================
recorded  device  meaning
========  ======  ==============================================================================================
wrong     right   not reproduced: a race, memory that was read too early or too late, or another kernel
wrong     alike   the device's kernel is wrong for these inputs
wrong     other   the kernel is wrong too, and not deterministic, or not the one that ran then
right     wrong   the kernel is wrong, and the result was recorded elsewhere or before it became so
========  ======  ==============================================================================================

If the host is wrong too in the call's own precision, the dtype is too coarse for the call, or kernels share a fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec

from msprobe_core.api_check.call_check import CallChecker, settled
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.three_way_codes import ThreeWayCode
from msprobe_core.api_check.verdict import CallVerdict, OutputVerdict, Verdict, worst_of
from msprobe_core.errors import ConfigError, ReplayError
from msprobe_core.findings import Finding, Level, each_once, noted
from msprobe_core.model import ReplayTensor
from msprobe_core.protocols.capabilities import DeviceReplayingFramework, ReplayingFramework
from msprobe_core.replay.judge import relative_difference
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import Replayer, replay_on_device

ALIKE = 0.5
"""Two wrong results are alike if their difference is at most this share of the error: one fault, and not two."""

_WRONG = (Verdict.WRONG, Verdict.SUSPECT)

RatioRule = Callable[[OutputVerdict, OutputVerdict], Finding | None]
"""Compares the errors of one device with those of another one, which is the golden side, by published rules."""


class Judge(Protocol):
    """Judges results of a call; `msprobe_core.api_check.call_check.CallChecker` is one."""

    def judge(
        self, call: RecordedCall, replayer: Replayer, results: Mapping[str, ReplayTensor], side: str
    ) -> CallVerdict:
        """Return the verdict on results of one side."""
        ...


@dataclass(frozen=True, kw_only=True)
class FreshResults:
    """What one device computes from the inputs of a call.

    Attributes:
        device: As the framework names it.
        results: By path of the output; empty if there are none.
        problem: Why there are none.
    """

    device: str
    results: Mapping[str, ReplayTensor] = field(default_factory=dict[str, ReplayTensor])
    problem: Finding | None = None


def devices_called(framework: ReplayingFramework, names: Sequence[str]) -> list[str]:
    """Return the devices with these names or numbers.

    Raises:
        ConfigError: see `check_devices`.
    """
    present = framework.replay_devices() if isinstance(framework, DeviceReplayingFramework) else ()
    by_number = {device.rpartition(":")[2]: device for device in reversed(present)}
    devices = [by_number.get(name, name) for name in names]
    check_devices(framework, devices)
    return devices


def check_devices(framework: ReplayingFramework, devices: Sequence[str]) -> None:
    """Raise if calls cannot be replayed on each of these devices.

    Raises:
        ConfigError: a device is not there, or is named twice; or the plugin replays on the host only.
    """
    if not devices:
        return
    if not isinstance(framework, DeviceReplayingFramework):
        raise ConfigError(f"--device {devices[0]}: the plugin of this framework replays calls on the host only")
    present = framework.replay_devices()
    for device in devices:
        if device not in present and f"{device}:0" not in present:
            there = f"it sees {', '.join(present)}" if present else "it sees none besides the host"
            raise ConfigError(f"--device {device}: the framework sees no such device on this machine; {there}")
    if len({_whole(device) for device in devices}) < len(devices):
        raise ConfigError(f"--device {', '.join(devices)}: the same device twice; give each once")


def _whole(device: str) -> str:
    return device if ":" in device else f"{device}:0"


def results_on(
    call: RecordedCall, framework: ReplayingFramework, model: object | None, device: str, max_elements: int
) -> FreshResults:
    """Compute a call on a device; what fails is the result's problem.

    Raises:
        ConfigError: there is no such device here.
    """
    return _tried(device, lambda: replay_on_device(call, framework, model, device, max_elements))


def _tried(device: str, compute: Callable[[], Mapping[str, ReplayTensor]]) -> FreshResults:
    try:
        return FreshResults(device=device, results=compute())
    except ReplayError as error:
        return not_computed(device, str(error))


def not_computed(device: str, why: str) -> FreshResults:
    """Return what there is of a device that did not compute a call."""
    fields = {"device": device, "why": noted(why)}
    return FreshResults(device=device, problem=Finding(ThreeWayCode.NOT_COMPUTED, Level.WARNING, fields))


def check_on(
    checker: CallChecker,
    call: RecordedCall,
    devices: Sequence[str] = (),
    stored: Sequence[FreshResults] = (),
    ratio: RatioRule | None = None,
) -> CallVerdict:
    """Check the recorded result of a call, and those of devices; like `CallChecker.check` without devices.

    Args:
        checker: Checks calls.
        call: The call.
        devices: Compute it here.
        stored: Have computed it elsewhere.
        ratio: As for `three_way`.

    Raises:
        ConfigError: there is no such device here.
    """

    def judged() -> CallVerdict:
        judged_call, replayer, found = checker.judge_recorded(call)
        fresh = [*stored, *(_tried(device, partial(replayer.on_device, device)) for device in devices)]
        return three_way(checker, judged_call, replayer, found, fresh, ratio)

    return settled(call, checker.why_not_checked, judged)


def three_way(
    judge: Judge,
    call: RecordedCall,
    replayer: Replayer,
    recorded: CallVerdict,
    fresh: Sequence[FreshResults],
    ratio: RatioRule | None = None,
) -> CallVerdict:
    """Return the verdict on a call with those on the devices' results, and what they mean together.

    Args:
        judge: Judges each device's results like the recorded ones.
        call: The call.
        replayer: Its replays.
        recorded: The verdict on the recorded result; without outputs if none was recorded.
        fresh: Results of devices.
        ratio: Compares the first device with each of the others, if there are several.

    Raises:
        ReplayError: the call cannot be replayed with disturbed inputs.
    """
    judged = {each.device: judge.judge(call, replayer, each.results, each.device) for each in fresh if each.results}
    outputs = (*recorded.outputs, *(output for found in judged.values() for output in found.outputs))
    notes = [*recorded.notes]
    for each in fresh:
        if each.problem is not None:
            notes.append(each.problem)
        elif (found := judged.get(each.device)) is not None:
            notes += [*found.notes, *(() if found.reason is None else (found.reason,))]
            notes += _meaning(call, replayer, recorded, each, found)
    verdict = worst_of(output.verdict for output in outputs)
    notes += _host_too(notes, verdict)
    notes += _between(judged)
    if ratio is not None:
        notes += _ratios(ratio, list(judged.values()))
    # Devices that are right say nothing of a recorded result that could not be judged.
    is_open = not outputs or (bool(call.outputs) and not recorded.outputs and verdict not in _WRONG)
    return msgspec.structs.replace(
        recorded, verdict=recorded.verdict if is_open else verdict, outputs=outputs,
        reason=recorded.reason if is_open else None, notes=tuple(each_once(notes)),
        stage=max((recorded.stage, *(found.stage for found in judged.values()))),
    )  # fmt: skip


def _meaning(
    call: RecordedCall, replayer: Replayer, recorded: CallVerdict, fresh: FreshResults, found: CallVerdict
) -> Iterator[Finding]:
    """Yield what the results of one device say of the recorded ones."""
    device = {"device": fresh.device}
    if not found.outputs:
        return
    if not recorded.outputs:
        if found.verdict in _WRONG:
            yield Finding(ThreeWayCode.FRESH_WRONG, Level.ERROR, device)
        return
    then, now = _wrong_paths(recorded.outputs), _wrong_paths(found.outputs)
    if then & now:
        is_alike = all(_are_alike(call, replayer, fresh, path) for path in then & now)
        yield Finding(ThreeWayCode.WRONG_AGAIN if is_alike else ThreeWayCode.WRONG_OTHERWISE, Level.ERROR, device)
    if then - now:
        yield Finding(ThreeWayCode.NOT_REPRODUCED, Level.WARNING, {**device, "outputs": sorted(then - now)})
    if now - then:
        yield Finding(ThreeWayCode.ONLY_FRESH, Level.ERROR, {**device, "outputs": sorted(now - then)})


def _wrong_paths(outputs: Iterable[OutputVerdict]) -> set[str]:
    return {output.path for output in outputs if output.verdict in _WRONG}


def _are_alike(call: RecordedCall, replayer: Replayer, fresh: FreshResults, path: str) -> bool:
    recorded = call.outputs[path]
    difference = relative_difference(fresh.results[path], recorded)
    error = relative_difference(replayer.plain.oracle[path], recorded)
    if difference is None or error is None or difference == float("inf"):
        return False
    return difference <= ALIKE * error


def _host_too(notes: Iterable[Finding], verdict: Verdict) -> Iterator[Finding]:
    if verdict in _WRONG and any(note.code is CheckCode.HOST_IS_OFF_TOO for note in notes):
        yield Finding(ThreeWayCode.HOST_TOO)


def _between(judged: Mapping[str, CallVerdict]) -> Iterator[Finding]:
    """Yield that some devices are wrong where others are right."""
    wrong = [device for device, found in judged.items() if found.verdict in _WRONG]
    right = [device for device, found in judged.items() if found.verdict is Verdict.RIGHT]
    if wrong and right:
        yield Finding(ThreeWayCode.DEVICES_DIFFER, Level.ERROR, {"wrong": wrong, "right": right})


def _ratios(ratio: RatioRule, judged: Sequence[CallVerdict]) -> Iterator[Finding]:
    for first, other in zip(itertools.repeat(judged[0]), judged[1:], strict=False) if judged else ():
        others = {output.path: output for output in other.outputs}
        for output in first.outputs:
            benchmark = others.get(output.path)
            if benchmark is not None and (found := ratio(output, benchmark)) is not None:
                yield found
