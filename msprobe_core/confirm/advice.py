"""Advice on what to record or run when a confirmation cannot decide."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec

from msprobe_core.model import Level, Site, SiteKind, Task
from msprobe_core.protocols.storage import Dump

_PLACE = re.compile(r"step(\d+)/(?:rank(\d+)|proc\d+)/[^/]*$")


def config_for(dump: Dump, site: Site) -> str:
    """Return the configuration that records one call with its tensors: its step and rank, and nothing else.

    Args:
        dump: The dump whose directory name gives the step and the rank.
        site: The call.
    """
    stem = ".".join(part for part in (site.prefix, site.path, site.type_name) if part)
    config: dict[str, Any] = {"task": Task.TENSOR.value, "dump_path": "./confirm_dump"}
    if place := _PLACE.search(dump.path.as_posix()):
        config["step"] = [int(place[1])]
        if place[2] is not None:
            config["rank"] = [int(place[2])]
    # At level mix, selecting a module also records the calls inside it, which show where in the module the fault is.
    config["level"] = (Level.MIX if site.kind is SiteKind.MODULE else Level.L1).value
    config[Task.TENSOR.value] = {"list": [f"{stem}."]}
    if site.kind is SiteKind.API:
        config["risk_level"] = "ALL"
        config[Task.TENSOR.value] = {"list": [f"{stem}.{site.index}."]}
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def command_for(target: Dump, golden: Dump, entry: str, *options: str) -> str:
    """Return the command that confirms another call of the same two dumps."""
    return shlex.join(["msprobe", "confirm", str(target.path), str(golden.path), entry, *options])


def script_command(dump: Dump, entry: str) -> str:
    """Return the command that writes a script of one call, which needs no msprobe."""
    return shlex.join(["msprobe", "acc_check", "-api_info", str(dump.path), "--script", entry])
