"""Reports on results in formats that plugins offer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msprobe_core.errors import ConfigError, PluginError
from msprobe_core.plugins import registry
from msprobe_core.protocols.presentation import ReportFormat
from msprobe_core.store.atomic_file import unused_paths, whole_file

_PART_OF_NAME = re.compile(r"[\w.+-]+")


def report_formats(names: Sequence[str]) -> list[ReportFormat]:
    """Return the formats of these names.

    Raises:
        ConfigError: no plugin offers one.
        BrokenPluginError: it may be missing because a plugin is broken.
        PluginError: its name or suffix cannot be part of a file's name.
    """
    if not names:
        return []
    offered = registry().reports()
    for name in names:
        if name not in offered:
            registry().refuse_missing("msprobe_register_reports", name)
            known = ", ".join(sorted(offered)) or "none, as no plugin offers any"
            raise ConfigError(f"there is no report {name!r}; known: {known}")
        for member, part in (("name", name), ("suffix", offered[name].suffix)):
            if not _PART_OF_NAME.fullmatch(part):
                who = registry().described("report", name)
                raise PluginError(
                    f"{who} cannot name its file: {member} is {part!r}; letters and digits only, like 'md'"
                )
    return [offered[name] for name in dict.fromkeys(names)]


def write_comparison_reports(
    formats: Sequence[ReportFormat], summary: Mapping[str, Any], directory: Path
) -> list[Path]:
    """Write reports on a comparison next to its summary, without replacing earlier ones; return their paths.

    Raises:
        BrokenPluginError: a format fails.
        StoreError: a file cannot be written.
    """
    return [_written(each, "compare", each.comparison(summary), directory) for each in formats]


def write_location_reports(formats: Sequence[ReportFormat], found: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write reports on a search next to its result; see `write_comparison_reports`."""
    return [_written(each, "locate", each.location(found), directory) for each in formats]


def _written(form: ReportFormat, command: str, text: str, directory: Path) -> Path:
    (path,) = unused_paths(directory, f"{command}_{form.name}", [form.suffix])
    with whole_file(path) as file:
        file.write(text.encode(errors="backslashreplace"))
    return path
