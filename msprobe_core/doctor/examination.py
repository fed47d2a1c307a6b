"""Put the conditions of all parts together."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from msprobe_core.doctor.installation import of_installation
from msprobe_core.doctor.machine import of_machine
from msprobe_core.errors import BrokenPluginError, MsprobeError
from msprobe_core.guard import shown
from msprobe_core.plugins import registry
from msprobe_core.protocols.checkups import Condition, Health

FAILED = "checkup.failed"
"""Code of a checkup that could not be made."""


@dataclass(frozen=True)
class Section:
    """The conditions of one part; ``name`` is ``installation``, ``machine``, or that of a framework or trainer."""

    name: str
    conditions: Sequence[Condition]


def examine(dump_path: Path) -> Sequence[Section]:
    """Examine the installation, every framework and trainer of a plugin, and the machine.

    Args:
        dump_path: Where runs would be recorded to; nothing of it stays.
    """
    found = registry()
    sections = [Section("installation", list(of_installation(found)))]
    checkups = found.checkups()
    offers = found.frameworks()
    for name in dict.fromkeys([*offers, *checkups]):
        package = offers[name].package if name in offers else None
        if package is not None and importlib.util.find_spec(package) is None:
            conditions = [_not_installed(name, package)]
        elif name in checkups:
            conditions = list(_checked(name))
        else:
            conditions = list(_loaded(name))
        sections.append(Section(name, conditions))
    if not offers:
        sections.append(Section("frameworks", [_NO_FRAMEWORK]))
    return [*sections, Section("machine", list(of_machine(dump_path)))]


_NO_FRAMEWORK = Condition(
    code="framework.none",
    health=Health.NOTE,
    state="no plugin of a framework is installed",
    why="runs are compared here, and none is recorded",
    advice="to record: pip install msprobe-pytorch, or msprobe-mindspore",
)


def _not_installed(name: str, package: str) -> Condition:
    return Condition(
        code="framework.absent",
        health=Health.NOTE,
        state=f"the package {package} is not installed",
        why=f"dumps of {name} are compared here, and none are recorded",
        advice=f"to record {name}, install {package} in this environment",
    )


def _checked(name: str) -> Iterator[Condition]:
    try:
        for condition in registry().checkups()[name].examine():
            if not isinstance(cast("object", condition), Condition):
                raise BrokenPluginError(f"the checkup of {name!r} returned {shown(condition)}, which is no Condition")
            yield condition
    except MsprobeError as error:
        yield _failed(name, error)


def _loaded(name: str) -> Iterator[Condition]:
    """Yield the condition of a framework whose plugin has no checkup."""
    try:
        registry().frameworks()[name].load()
    except MsprobeError as error:
        yield _failed(name, error)
    else:
        state = f"{name} can be imported; its plugin brings no checkup"
        yield Condition(code="framework.loaded", health=Health.OK, state=state)


def _failed(name: str, error: MsprobeError) -> Condition:
    cause = error.__cause__ if isinstance(error, BrokenPluginError) else error
    if isinstance(cause, ImportError | OSError):
        return Condition(
            code="framework.broken",
            health=Health.ERROR,
            state=f"{name} is installed and cannot be imported ({cause})",
            why="nothing of it can be recorded",
            advice="import it in Python by itself, and repair its installation",
        )
    return Condition(
        code=FAILED,
        health=Health.ERROR,
        state=f"the checkup failed: {error}",
        why="whether it would be recorded is not known",
        advice="report this to the plugin's authors, with the output of `msprobe --debug doctor`",
    )
