"""What `msprobe doctor` says of verl; `msprobe verl doctor` lists every hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points

from packaging.version import InvalidVersion, Version

from msprobe.verl._config import SWITCH
from msprobe.verl._doctor import Checkup, check
from msprobe_core.plugin import Condition, Health

TESTED = "0.9.1"


def examine() -> list[Condition]:
    """Return the conditions of verl, its engines and the switch."""
    checkup = check()
    if not checkup.records and "verl" not in checkup.versions:
        absent = Condition(
            code="verl.absent",
            health=Health.NOTE,
            state="verl is not installed",
            why="recorded runs of verl are compared here, and none are recorded",
            advice="to record, run this where the training runs",
        )
        return [absent]
    return [_version(checkup.versions), *_hooks(checkup), *_loading(), _switch(checkup)]


def _version(versions: Mapping[str, str]) -> Condition:
    text = versions.get("verl", "of unknown version")
    engines = ", ".join(f"{name} {number}" for name, number in versions.items() if name != "verl")
    state = f"verl {text}, {engines or 'no serving engine'}"
    try:
        is_tested = Version(text).release[:2] == Version(TESTED).release[:2]
    except InvalidVersion:
        is_tested = False
    if is_tested:
        return Condition(code="verl.version", health=Health.OK, state=f"{state}; tested is verl {TESTED}")
    return Condition(
        code="verl.version",
        health=Health.NOTE,
        state=f"{state}; tested is verl {TESTED}",
        why="functions may be elsewhere in other releases; the next line says which are found",
        advice="`msprobe verl doctor` lists every hook",
    )


def _hooks(checkup: Checkup) -> Iterator[Condition]:
    if checkup.records and not checkup.lacks:
        state = "every hook attaches that this verl has a module for"
        yield Condition(code="verl.hooks", health=Health.OK, state=state)
        return
    names = ", ".join(finding.point.target for finding in checkup.lacks) or "the stages of workers"
    yield Condition(
        code="verl.hooks",
        health=Health.WARNING if checkup.records else Health.ERROR,
        state=f"this verl lacks {names}",
        why="what these are for is not recorded, everything else is" if checkup.records else "no stage is recorded",
        advice=f"`msprobe verl doctor` lists every hook; verl {TESTED} has all",
    )


def _loading() -> Iterator[Condition]:
    if not entry_points(group="verl.plugins", name="msprobe"):
        yield Condition(
            code="verl.entry-point",
            health=Health.WARNING,
            state="msprobe-verl is not installed, only on the import path",
            why="verl loads plugins by their entry points, so workers are not recorded",
            advice="pip install msprobe-verl in the environment of every worker",
        )


def _switch(checkup: Checkup) -> Condition:
    if not checkup.has_switch_error:
        return Condition(code="verl.switch", health=Health.OK, state=checkup.switch)
    return Condition(
        code="verl.switch",
        health=Health.ERROR,
        state=checkup.switch,
        why="workers record nothing",
        advice=f"correct the file, or unset {SWITCH}",
    )
