"""Advice on what to run next: the narrowest recording, or the command, that gives more information on a suspect."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import msgspec

from msprobe_core import names
from msprobe_core.compare.result import Mode
from msprobe_core.config_check.differences import Difference, Section, Severity
from msprobe_core.confirm.confirm_codes import ConfirmCode
from msprobe_core.findings import Finding
from msprobe_core.locate.configuration import values_in_words
from msprobe_core.locate.locate_codes import LocateCode
from msprobe_core.locate.result import CheckState, Configuration, FaultKind, Suspect
from msprobe_core.monitoring.history import Place

_BY_LOOKING = {
    FaultKind.PARAMETER: LocateCode.NEXT_CHECKPOINTS,
    FaultKind.INPUT_DATA: LocateCode.NEXT_DATA_LOADERS,
    FaultKind.RANDOMNESS: LocateCode.NEXT_SEED,
}


def with_cause(suspect: Suspect, configuration: Configuration, target: Path, golden: Path) -> Suspect:
    """Return a suspect whose advice follows from the configurations, if they tell more than the dumps.

    Args:
        suspect: The suspect, with advice that follows from the dumps.
        configuration: The configurations, compared.
        target: Path of the target run as given.
        golden: Path of the golden run as given.
    """
    if configuration.check.state is CheckState.UNKNOWN:
        return suspect
    command = shlex.join(["msprobe", "config_check", "-c", str(golden), str(target)])
    of_data = _first_in(configuration, Section.DATA)
    of_random = _first_in(configuration, Section.RANDOM)
    advice = None
    if suspect.kind is FaultKind.INPUT_DATA and of_data is not None:
        fields = {"found": of_data.finding, "command": command}
        advice = Finding(LocateCode.NEXT_DATA_DIFFERS, fields=fields)
    elif suspect.kind is FaultKind.RANDOMNESS and of_random is not None:
        advice = Finding(LocateCode.NEXT_SEED_DIFFERS, fields={"found": of_random.finding})
    elif configuration.cause is not None:
        advice = Finding(LocateCode.NEXT_CONFIGURE, fields={"what": values_in_words(configuration.cause.difference)})
    elif suspect.kind is FaultKind.RANDOMNESS and _is_equal(configuration, Section.RANDOM):
        advice = Finding(LocateCode.NEXT_SEED_EQUAL, fields={"command": command})
    elif suspect.kind is FaultKind.PARAMETER:
        advice = Finding(LocateCode.NEXT_COMPARE_CHECKPOINTS, fields={"command": command})
    return suspect if advice is None else replace(suspect, advice=advice)


def _first_in(configuration: Configuration, section: Section) -> Difference | None:
    found = (each.difference for each in configuration.explained)
    return next((each for each in found if each.section is section and each.severity is not Severity.INFO), None)


def _is_equal(configuration: Configuration, section: Section) -> bool:
    own = [each for each in configuration.sections if each.section is section and each.compared]
    return bool(own) and _first_in(configuration, section) is None


def with_advice(
    suspect: Suspect, mode: Mode, target: Path, golden: Path, *, is_foreign: bool = False, is_confirmed: bool = False
) -> Suspect:
    """Return a suspect with advice, or the command to run, to learn more about it.

    Args:
        suspect: The suspect.
        mode: The comparison mode.
        target: Path of the target run as given.
        golden: Path of the golden run as given.
        is_foreign: Whether the two are of different frameworks; only calls within one framework are replayed.
        is_confirmed: Whether calls have been replayed already.
    """
    if names.is_saved(suspect.entry):
        return replace(suspect, advice=Finding(LocateCode.NEXT_SAVE_MORE))
    if suspect.kind in _BY_LOOKING:
        return replace(suspect, advice=Finding(_BY_LOOKING[suspect.kind]))
    if (script := _script_of(suspect)) is not None:
        return replace(suspect, advice=script)
    if mode is Mode.TENSOR:
        # A table of all values shows which elements differ, and by how much.
        can_confirm = not (is_foreign or is_confirmed)
        arguments = (
            ["locate", str(target), str(golden), "--confirm"]
            if can_confirm
            else ["compare", "-tp", str(target), "-gp", str(golden)]
        )
        command = shlex.join(["msprobe", *arguments])
        return replace(suspect, advice=Finding(LocateCode.NEXT_RUN, fields={"command": command}))
    config = _json(_narrowest(suspect))
    code = LocateCode.NEXT_RECORD_AND_COMPARE if is_foreign else LocateCode.NEXT_RECORD_AND_CONFIRM
    return replace(suspect, advice=Finding(code, fields={"config": config}))


def _script_of(suspect: Suspect) -> Finding | None:
    """Return the command that writes a script of a call that a replay has shown to be wrong, if there can be one."""
    found = None if suspect.confirmation is None else suspect.confirmation.next_command
    return found if found is not None and found.code is ConfirmCode.NEXT_SCRIPT else None


def zoom_in(place: Place, step: int, rank: int) -> Finding:
    """Return what to record to look closer at a value of a training monitor.

    Args:
        place: The value.
        step: In which it is unusual.
        rank: On which.
    """
    module = place.name.rpartition(".")[0]  # the name ends with the parameter's, or with input or output
    listed = [f".{module}."] if module else []
    config = _recording([step], [rank], listed)
    settings = [
        "dump_enable=true",
        "task=tensor",
        "level=mix",
        "step=[]",
        f"rank=[{rank}]",
        f"tensor.list={_json(listed)}",
    ]
    command = shlex.join(["msprobe", "control", "config.json", "set", *settings])
    return Finding(LocateCode.NEXT_ZOOM, fields={"config": _json(config), "command": command})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _recording(steps: list[int], ranks: list[int], listed: list[str]) -> dict[str, object]:
    """Return the configuration that records whole tensors of what is listed."""
    return {"task": "tensor", "level": "mix", "step": steps, "rank": ranks, "tensor": {"list": listed}}


def _narrowest(suspect: Suspect) -> dict[str, object]:
    """Return the configuration that records whole tensors of the suspect's module only."""
    is_call_in_module = not names.is_module(suspect.entry) and suspect.module is not None and suspect.parents
    stem = names.stem_of(suspect.parents[0] if is_call_in_module else suspect.entry)
    steps = [] if suspect.step is None else [suspect.step]
    return _recording(steps, list(suspect.ranks)[:1], [] if stem is None else [stem])
