"""Confirm a suspected call: replay what each side recorded of it, and decide which side is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msprobe_core import names
from msprobe_core.confirm.advice import command_for, config_for, script_command
from msprobe_core.confirm.confirm_codes import ConfirmCode
from msprobe_core.confirm.verdict import (
    Cause,
    Confirmation,
    Pair,
    Side,
    Verdict,
    decide,
    differing_arguments,
    largest_difference,
    together,
)
from msprobe_core.errors import CompareError, EntryNameError, ReplayError
from msprobe_core.findings import Finding, noted
from msprobe_core.judge.origins import ancestors
from msprobe_core.model import Phase, Site, SiteKind
from msprobe_core.protocols.capabilities import ReplayingFramework
from msprobe_core.protocols.storage import Dump
from msprobe_core.replay.frameworks import replaying_framework
from msprobe_core.replay.judge import Held, judge_outputs
from msprobe_core.replay.recorded import RecordedCall, has_entry, read_call
from msprobe_core.replay.replays import NUM_DISTURBED, Replayer, Replays

MAX_ELEMENTS = 1 << 28
"""Limit of the number of elements in all tensors of one call: in float64 with its replays, some ten times 2 GiB."""

MAX_CALLS = 500
"""Limit of the number of calls inside a module that are confirmed one by one."""


@dataclass(frozen=True, kw_only=True)
class _Dumps:
    target: Dump
    golden: Dump
    framework: ReplayingFramework
    model: object | None
    max_elements: int


def confirm(
    target: Dump,
    golden: Dump,
    entry: str,
    *,
    golden_entry: str | None = None,
    model: object | None = None,
    max_elements: int = MAX_ELEMENTS,
) -> Confirmation:
    """Decide what is wrong at a call: the target, the golden run, neither, or round-off that the call amplifies.

    Each side's call is replayed on this machine with the inputs that the side recorded, in the call's own precision and
    in float64, and the recorded results are compared with the float64 replay. Errors that occurred before the call
    therefore do not count for either side.

    Args:
        target: The target's dump, with whole tensors (task tensor).
        golden: The golden run's dump, with whole tensors.
        entry: A forward or backward call, as the target's dump names it.
        golden_entry: Name of the call in the golden dump; ``None`` if it is the same.
        model: The model that contains the calls, to replay modules; its code is run. Without it, a module is confirmed
            by the calls recorded inside it.
        max_elements: Calls with more elements are not replayed.

    Raises:
        CompareError: neither dump has such a call, or the dumps are of two frameworks.
        EntryNameError: ``entry`` is not the name of a call.
        DumpError: a file of a dump is damaged.
        PluginError: the framework of the dumps cannot replay calls here.
    """
    site = names.parse_entry(entry)
    if site.phase is Phase.PARAMETERS_GRAD:
        return confirm(
            target, golden, names.backward_of_parameters(entry) or entry, model=model, max_elements=max_elements
        )
    if not has_entry(target, entry) and not has_entry(golden, golden_entry or entry):
        raise CompareError(
            f"neither dump has the call {entry!r}; give it as dump.json has it, for example "
            "'Functional.linear.0.forward' or 'Module.layers.3.mlp.MLP.forward.0'"
        )
    dumps = _Dumps(
        target=target, golden=golden, framework=_framework_of(target, golden), model=model, max_elements=max_elements
    )
    found = _confirm(dumps, entry, golden_entry or entry, site)
    return _with_advice(dumps, found) if found.verdict is Verdict.CANNOT_TELL else _with_script(found)


def _framework_of(target: Dump, golden: Dump) -> ReplayingFramework:
    name = target.header.framework
    if name != golden.header.framework:
        raise CompareError(
            f"the dumps are of two frameworks, {name} and {golden.header.framework}; a call is confirmed within one"
        )
    return replaying_framework(name)


def _confirm(dumps: _Dumps, entry: str, golden_entry: str, site: Site) -> Confirmation:
    if site.kind is SiteKind.API:
        found = _confirm_call(dumps, entry, golden_entry, site, None)
        return _in_its_module(dumps, found) if found.cause is Cause.ARGUMENTS and dumps.model is not None else found
    if dumps.model is not None:
        found = _confirm_call(dumps, entry, golden_entry, site, dumps.model)
        if found.verdict in (Verdict.NEITHER, Verdict.ILL_CONDITIONED):
            return found
        inside = _confirm_inside(dumps, entry)
        if found.verdict is Verdict.CANNOT_TELL:
            return inside or found
        # The calls inside the module may show where in it the fault is.
        if inside is not None and inside.verdict is found.verdict:
            return replace(inside, notes=(*inside.notes, _of(ConfirmCode.WITH_MODEL, found)))
        return found
    inside = _confirm_inside(dumps, entry)
    if inside is not None:
        return inside
    return Confirmation(
        verdict=Verdict.CANNOT_TELL, cause=Cause.UNKNOWN, entry=entry, asked=entry,
        reason=Finding(ConfirmCode.NOTHING_INSIDE), is_incomplete=True,
    )  # fmt: skip


def _confirm_call(dumps: _Dumps, entry: str, golden_entry: str, site: Site, model: object | None) -> Confirmation:
    why = dumps.framework.why_not_replayed(site) if site.kind is SiteKind.API else None
    if why is not None:
        reason = Finding(ConfirmCode.NOT_REPLAYABLE, fields={"api": f"{site.prefix}.{site.path}", "why": why})
        return Confirmation(verdict=Verdict.CANNOT_TELL, cause=Cause.UNKNOWN, entry=entry, asked=entry, reason=reason)
    sides = [
        _held(dump, name, dumps.framework, model, dumps.max_elements)
        for dump, name in ((dumps.target, entry), (dumps.golden, golden_entry))
    ]
    (target, side, replays), (golden, other, others) = sides
    is_paired = target is not None and golden is not None
    pair = Pair(
        target=side,
        golden=other,
        arguments=differing_arguments(target, golden) if target and golden else (),
        outputs=largest_difference(target.outputs, golden.outputs) if target and golden else None,
        inputs=largest_difference(target.tensors, golden.tensors) if target and golden else None,
        roundoff=max((each.roundoff for each in (replays, others) if each is not None), default=0.0),
    )
    verdict, cause, reason = decide(pair)
    notes = [note for note in (side.note, other.note if other.note != side.note else None) if note is not None]
    if is_paired and pair.arguments and cause is not Cause.ARGUMENTS:
        notes.append(Finding(ConfirmCode.ALSO_ASKED_OTHERWISE, fields={"argument": pair.arguments[0]}))
    return Confirmation(
        verdict=verdict, cause=cause, entry=entry, asked=entry, reason=reason, target=side, golden=other,
        output_difference=pair.outputs, input_difference=pair.inputs, notes=notes,
        is_incomplete=side.is_incomplete or other.is_incomplete,
    )  # fmt: skip


def _held(
    dump: Dump, entry: str, framework: ReplayingFramework, model: object | None, max_elements: int
) -> tuple[RecordedCall | None, Side, Replays | None]:
    call = read_call(dump, entry, max_elements)
    if call.missing is not None:
        return None, Side(problem=call.missing, is_incomplete=True), None
    try:
        replayer = Replayer(call, framework, model, max_elements)
        replays = replayer.disturbed(NUM_DISTURBED)
    except ReplayError as error:
        return call, Side(problem=noted(str(error))), None
    side = Side(outputs=judge_outputs(call.outputs, replays), note=replays.note)
    if side.held is Held.WRONG and replayer.can_be_scripted:
        side = replace(side, script_command=script_command(dump, entry))
    return call, side, replays


# --- modules, judged by the calls inside them ---------------------------------------------------------------------


def _confirm_inside(dumps: _Dumps, entry: str) -> Confirmation | None:
    """Confirm the calls inside a module in the order in which they ran; the first wrong one is the answer.

    Returns ``None`` if no call inside the module was recorded.
    """
    mine, others = _calls_inside(dumps.target, entry), _calls_inside(dumps.golden, entry)
    calls = list(dict.fromkeys((*others, *mine)))
    if not calls:
        return None
    found: list[Confirmation] = []
    for call in calls[:MAX_CALLS]:
        each = _confirm_call(dumps, call, call, names.parse_entry(call), None)
        found.append(each)
        if each.verdict in _SOMEBODY:
            break
    looked_at = [(each.entry, each.verdict) for each in found]
    only = _unpaired(mine, others)
    decisive = _decisive(found)
    if decisive is None:
        return _nothing_wrong(entry, found, only, looked_at, num_left=len(calls) - len(found))
    return replace(decisive, asked=entry, looked_at=looked_at, notes=(*decisive.notes, *only[:3]))


_SOMEBODY = frozenset({Verdict.TARGET, Verdict.GOLDEN, Verdict.BOTH})


def _decisive(found: Sequence[Confirmation]) -> Confirmation | None:
    """Return the call that decides for the module: the first wrong, else asked otherwise, else ill-conditioned."""
    wrong = (each for each in found if each.verdict in _SOMEBODY)
    asked_otherwise = (each for each in found if each.cause is Cause.ARGUMENTS)
    ill_conditioned = (each for each in found if each.verdict is Verdict.ILL_CONDITIONED)
    return next(itertools.chain(wrong, asked_otherwise, ill_conditioned), None)


def _nothing_wrong(
    entry: str,
    found: Sequence[Confirmation],
    only: Sequence[Finding],
    looked_at: Sequence[tuple[str, Verdict]],
    num_left: int,
) -> Confirmation:
    right = [each for each in found if each.verdict is Verdict.NEITHER]
    unknown = [each for each in found if each.verdict is Verdict.CANNOT_TELL]
    counts = {"right": len(right), "calls": len(found) + num_left}
    clauses = [Finding(ConfirmCode.RIGHT_INSIDE, fields=counts)]
    if only:
        verdict, cause = Verdict.CANNOT_TELL, Cause.ARGUMENTS
        clauses.append(Finding(ConfirmCode.OTHER_CALLS_INSIDE, fields={"call": only[0]}))
    elif unknown:
        verdict, cause = Verdict.CANNOT_TELL, Cause.UNKNOWN
        clauses.append(_of(ConfirmCode.OF_CALL, unknown[0]))
    elif num_left:
        verdict, cause = Verdict.CANNOT_TELL, Cause.UNKNOWN
        clauses.append(Finding(ConfirmCode.LEFT_INSIDE, fields={"count": num_left}))
    elif any(each.cause is Cause.INPUTS for each in found):
        verdict, cause = Verdict.NEITHER, Cause.INPUTS
        clauses.append(Finding(ConfirmCode.CAME_IN_INSIDE))
    else:
        verdict, cause = Verdict.NEITHER, Cause.NONE
    return Confirmation(
        verdict=verdict, cause=cause, entry=entry, asked=entry, reason=together(clauses), looked_at=looked_at,
        notes=only[1:4], is_incomplete=any(each.is_incomplete for each in unknown),
    )  # fmt: skip


def _calls_inside(dump: Dump, entry: str) -> list[str]:
    """Return the API calls inside a module's call, in the order in which they completed."""
    parents = dump.parents
    found: list[str] = []
    for name in dump.frame["entry"].unique(maintain_order=True).to_list():
        if names.is_module(name) or names.is_backward(name) != names.is_backward(entry):
            continue
        if entry in ancestors(name, parents) and _is_call(name):
            found.append(name)
    return found


def _is_call(name: str) -> bool:
    try:
        return names.parse_entry(name).phase in (Phase.FORWARD, Phase.BACKWARD)
    except EntryNameError:
        return False


def _unpaired(mine: Sequence[str], others: Sequence[str]) -> list[Finding]:
    of_target = [Finding(ConfirmCode.ONLY_TARGET, fields={"entry": call}) for call in mine if call not in set(others)]
    of_golden = [Finding(ConfirmCode.ONLY_GOLDEN, fields={"entry": call}) for call in others if call not in set(mine)]
    return of_target + of_golden


def _of(code: ConfirmCode, found: Confirmation) -> Finding:
    return Finding(code, fields={"entry": found.entry, "why": found.reason})


def _in_its_module(dumps: _Dumps, found: Confirmation) -> Confirmation:
    """Return the verdict on the module around a call with differing arguments: the model shows which are intended."""
    parent = dumps.target.parents.get(found.entry) or dumps.golden.parents.get(found.entry)
    if parent is None or not names.is_module(parent):
        return found
    around = _confirm_call(dumps, parent, parent, names.parse_entry(parent), dumps.model)
    if around.verdict not in _SOMEBODY:
        return replace(found, notes=(*found.notes, _of(ConfirmCode.AROUND_WITH_MODEL, around)))
    return replace(
        around, asked=found.asked, cause=Cause.ARGUMENTS, notes=(*around.notes, _of(ConfirmCode.OF_CALL, found))
    )


# --- what to do next --------------------------------------------------------------------------------------------


def _with_script(found: Confirmation) -> Confirmation:
    """Add the command that writes a script of the wrong call, if there can be one."""
    commands = (side.script_command for side in (found.target, found.golden) if side is not None)
    command = next(filter(None, commands), None)
    if command is None:
        return found
    return replace(found, next_command=Finding(ConfirmCode.NEXT_SCRIPT, fields={"command": command}))


def _with_advice(dumps: _Dumps, found: Confirmation) -> Confirmation:
    """Add what to record or run next, if that may decide."""
    site = names.parse_entry(found.asked)
    if found.is_incomplete:
        return replace(
            found,
            next_config=config_for(dumps.target, site),
            next_command=Finding(
                ConfirmCode.NEXT_RECORD_AND_RUN,
                fields={"command": command_for(dumps.target, dumps.golden, found.asked)},
            ),
        )
    if found.cause is Cause.ARGUMENTS and dumps.model is None:
        asked = dumps.target.parents.get(found.entry) or found.asked
        command = command_for(dumps.target, dumps.golden, asked, "--model", "FILE.py:FUNCTION")
        return replace(found, next_command=Finding(ConfirmCode.NEXT_RUN, fields={"command": command}))
    return found
