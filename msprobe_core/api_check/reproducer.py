"""Write a script that shows one call to others: it needs neither msprobe nor the dump, and says what is right.

A script has the inputs of the call and its recorded results. It calls it in float64 and again in its own precision, and
judges both results by limits that are written in it as numbers.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from msgspec import structs

from msprobe_core._version import __version__
from msprobe_core.api_check import script_parts as parts
from msprobe_core.api_check.call_check import MAX_ELEMENTS
from msprobe_core.api_check.check_codes import CheckCode
from msprobe_core.api_check.random_script import EXPLAINED, RandomScript, random_script
from msprobe_core.api_check.script_text import (
    JUDGING,
    MOST_INLINE,
    comment,
    inline_rows,
    num_bytes,
    script_text,
    stored_rows,
    table,
    write_safetensors,
)
from msprobe_core.api_check.verdict import CallVerdict, Inputs
from msprobe_core.errors import PluginError, ReplayError
from msprobe_core.interception import literal, script_tensors, source_of
from msprobe_core.interception.scripting import RECORDED_PREFIX
from msprobe_core.model import CallScript, Phase, ReplayTensor
from msprobe_core.protocols.capabilities import ReplayingFramework, ScriptingFramework
from msprobe_core.replay.judge import judge_of
from msprobe_core.replay.limits import Limits
from msprobe_core.replay.recorded import RecordedCall
from msprobe_core.replay.replays import NUM_DISTURBED, Replayer, Replays, base_of
from msprobe_core.store.atomic_file import whole_file
from msprobe_core.store.layout import make_directory

MOST_LINES = 80
"""Limit of the number of lines of a script, beside tests of random numbers; a longer one has tables of one line and no
empty lines."""

_MOST_EXPLAINED = 2
"""Number of results whose limits are explained one by one."""


def write_reproducer(
    call: RecordedCall,
    verdict: CallVerdict,
    framework: ReplayingFramework,
    directory: Path,
    *,
    command: str,
    place: str = "",
    max_elements: int = MAX_ELEMENTS,
) -> Path:
    """Write a script that repeats a call and judges its results, and return its path.

    Args:
        call: The call. Without outputs, as with made inputs, only what is computed again is judged.
        verdict: What the check of it said.
        framework: What the call is replayed with.
        directory: Directory of the script, and of the file of its tensors if they are large.
        command: The command that writes it.
        place: Where the call was recorded, such as the path of the dump.
        max_elements: Calls with more elements in their results are not replayed.

    Raises:
        ReplayError: the call cannot be replayed or written.
        PluginError: the plugin of the framework does not write scripts.
        StoreError: the files cannot be written.
    """
    drawn = random_script(call) if call.missing is None else None
    found = _drawn(call, drawn, framework) if drawn else scripted(call, verdict, framework, max_elements)
    outputs = {each: value for each, value in call.outputs.items() if drawn is None or each == drawn.path}
    name = file_name(call)
    make_directory(directory)
    path = directory / f"{name}.py"
    tensors = found.inputs | {f"{RECORDED_PREFIX}{each}": value for each, value in outputs.items()}
    if len(tensors) < len(found.inputs) + len(outputs):
        raise ReplayError("one of its arguments has the name of a result in the script")
    is_inline = num_bytes(tensors) <= MOST_INLINE
    dtypes = found.script.dtypes
    if is_inline:
        inputs, recorded = inline_rows(found.inputs, dtypes), inline_rows(outputs, {})
    else:
        offsets = write_safetensors(path.with_suffix(".safetensors"), tensors)
        inputs = stored_rows(found.inputs, dtypes, offsets)
        of_results = {each: offsets[f"{RECORDED_PREFIX}{each}"] for each in outputs}
        recorded = stored_rows(outputs, {}, of_results)
    load = source_of(parts.load_inline if is_inline else parts.load_stored, "load")
    title = header(name, call, verdict, found.script, command, place)
    text = ""
    for is_packed in (False, True):
        limits = table("ALLOWED", found.rows(is_packed), is_packed=is_packed)
        tables = (table("INPUTS", inputs, is_packed=is_packed), table("RECORDED", recorded, is_packed=is_packed))
        end = "\n".join((*tables, *([] if is_packed else [""]), found.judging))
        functions = [load, *found.judges]
        text = script_text(title, [found.explained, limits], found.script, functions, end, is_packed=is_packed)
        if text.count("\n") <= MOST_LINES + (drawn.tests.count("\n") if drawn else 0):
            break
    with whole_file(path) as file:
        file.write(text.encode())
    return path


def _judges(allowed: Mapping[str, Allowed], device: str) -> tuple[list[str], str]:
    """Return sources of the functions that judge results, and what a script does with them."""
    kinds = {each.limits.is_exact for each in allowed.values()}
    sources = [source_of(parts.judge_exact if is_exact else parts.judge) for is_exact in sorted(kinds)]
    both = '(judge_exact if "different" in ALLOWED[name] else judge)'
    judge = both if len(kinds) > 1 else "judge_exact" if True in kinds else "judge"
    return sources, _judging(judge, 'run("cpu", is_wide=True)', device)


def _judging(judge: str, exact: str, device: str) -> str:
    return JUDGING.replace("JUDGE", judge).replace("EXACT", exact).replace("DEVICE", device)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Limits of one result, and how they were derived, in one line."""

    limits: Limits
    derivation: str


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """What a script of a call is made of.

    Attributes:
        script: The call as source code.
        inputs: Its tensors by name.
        explained: Comments that explain the limits.
        rows: Returns the rows of the table of limits; the argument is whether they are packed.
        judges: Sources of the functions that judge results.
        judging: What the script does.
    """

    script: CallScript
    inputs: dict[str, ReplayTensor]
    explained: str
    rows: Callable[[bool], list[str]]
    judges: list[str]
    judging: str


def _drawn(call: RecordedCall, drawn: RandomScript, framework: ReplayingFramework) -> Scripted:
    """Return what a script of a random call is made of."""
    base = base_of(call, MAX_ELEMENTS)
    script = structs.replace(scripting_of(framework).script(base), formula=drawn.tests)
    return Scripted(
        script=script,
        inputs=script_tensors(base),
        explained=EXPLAINED,
        rows=lambda _: [f"{literal(drawn.path)}: {drawn.rule},"],
        judges=[],
        judging=_judging("judge", drawn.given, script.device),
    )


def scripting_of(framework: ReplayingFramework) -> ScriptingFramework:
    """Return a framework as one that writes scripts; raise a `PluginError` if its plugin writes none."""
    if not isinstance(framework, ScriptingFramework):
        raise PluginError("the plugin of this framework does not write scripts of calls; update it")
    return framework


def scripted(call: RecordedCall, verdict: CallVerdict, framework: ReplayingFramework, max_elements: int) -> Scripted:
    """Return what a script of a call is made of; see `write_reproducer`."""
    scripting = scripting_of(framework)
    if call.missing is not None:
        raise ReplayError(call.missing.text)
    judged = call if call.outputs else replace(call, outputs=_own_results(call, framework, max_elements))
    replayer = Replayer(judged, framework, None, max_elements)
    script = scripting.script(replayer.base)
    # A kernel of this machine that is wrong itself must not widen what is allowed.
    off = {str(note.fields.get("output")) for note in verdict.notes if note.code is CheckCode.HOST_IS_OFF_TOO}
    replays = replayer.disturbed(NUM_DISTURBED)
    allowed = {
        path: _allowed(path, value, replace(replays, own=None) if path in off else replays)
        for path, value in judged.outputs.items()
    }
    judges, judging = _judges(allowed, script.device)
    return Scripted(
        script=script,
        inputs=script_tensors(replayer.base),
        explained=_EXPLAINED,
        rows=lambda is_packed: limit_rows(allowed, is_packed=is_packed),
        judges=judges,
        judging=judging,
    )


def file_name(call: RecordedCall) -> str:
    """Return the published name of a call's script, without its suffix.

    Raises:
        ReplayError: it cannot be the name of a file.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}", call.entry):
        raise ReplayError(f"its name {call.entry!r} cannot be that of a file")
    return call.entry


def _own_results(call: RecordedCall, framework: ReplayingFramework, max_elements: int) -> dict[str, ReplayTensor]:
    return framework.replay(base_of(call, max_elements)).values


# --- limits -----------------------------------------------------------------------------------------------------

_EXPLAINED = """\
# Limits, from replays of this call. Norm of the error over that of the exact result, which is in float64: 3 times
# that of a CPU in this precision or of rounding once, and what the order of sums adds (rounding), or what rounding the
# inputs changes (condition). Error of an element: absolute + relative * |exact|. Beyond largest results are Inf."""


def _allowed(path: str, value: ReplayTensor, replays: Replays) -> Allowed:
    judge = judge_of(path, value, replays)
    found = judge.judgement
    if judge.limits.is_exact:
        return Allowed(limits=judge.limits, derivation="4 times as many as rounding the inputs changes")
    own = "not computed" if found.own_error is None else f"{found.own_error:.2g}"
    derivation = (
        f"error of the CPU {own}, rounding 3 * {found.last_digit / 3:.2g} + {found.rounding - found.last_digit:.2g}, "
        f"inputs scaled by 1 +- {replays.roundoff:.2g}"
    )
    return Allowed(limits=judge.limits, derivation=derivation)


def limit_rows(allowed: Mapping[str, Allowed], *, is_packed: bool) -> list[str]:
    """Return rows of a table with limits, each below a comment with its derivation if they are few."""
    rows: list[str] = []
    for path, each in allowed.items():
        if not is_packed and len(allowed) <= _MOST_EXPLAINED:
            rows.append(f"# {each.derivation}")
        rows.append(f"{literal(path)}: {_limits_text(each.limits)},")
    return rows


def _limits_text(limits: Limits) -> str:
    if limits.is_exact:
        return f'{{"different": {limits.num_different}}}'
    numbers = {name: f"{getattr(limits, name):.6g}" for name in ("rounding", "condition", "absolute", "relative")}
    numbers |= {"largest": literal(limits.largest), "odd": str(limits.num_different)}
    return "{" + ", ".join(f'"{name}": {number}' for name, number in numbers.items()) + "}"


# --- title ------------------------------------------------------------------------------------------------------


def header(
    name: str, call: RecordedCall, verdict: CallVerdict, script: CallScript, command: str, place: str
) -> list[str]:
    """Return the comments at the top of a script."""
    results = "gradients" if call.site.phase is Phase.BACKWARD else "results"
    dtypes = ", ".join(dict.fromkeys(value.dtype for value in call.tensors.values())) or "no tensors"
    worst = verdict.worst
    said = verdict.reason if worst is None else worst.reason
    sides = ", ".join(dict.fromkeys(output.side for output in verdict.outputs)) or "none"
    is_recorded = verdict.inputs is Inputs.RECORDED
    made = "as recorded, no seed" if is_recorded else f"{verdict.inputs.value}, seed {verdict.seed}"
    where = f"number {verdict.position}{f' of {place}' if place else ''}"
    used = f"NumPy {metadata.version('numpy')}, Python {platform.python_version()}"
    lines = {
        "Run it": f"python {name}.py [--device cpu|cuda|npu]; exit status 0: right, 1: wrong, 2: could not run",
        "Verdict": f"{verdict.verdict.value}{'' if said is None else f': {said.text}'} (judged: {sides})",
        "Call": f"{where}; {dtypes}; inputs {made}",
        "Made by": f"{command}",
        "Versions": f"msprobe {__version__}, {script.version}, {used}",
    }
    question = f"# {name}: are the {results} of {script.function} right for these inputs?"
    return [question, *(f"# {label:8} {comment(text)}" for label, text in lines.items())]
