"""What a pack holds of this process, as far as it needs no framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from msprobe_core.config_check.pack import STATIC, Pack
from msprobe_core.config_check.static_settings import read_settings
from msprobe_core.manifest.environment import kept_variables


def static_pack(files: Sequence[Path]) -> Pack:
    """Return environment and libraries of this process, and the settings in scripts and YAML files.

    Only variables that can change results are kept, and no secrets.

    Raises:
        ConfigError: a file cannot be read, or is of another kind.
    """
    settings = {STATIC: read_settings(files)} if files else {}
    return Pack(environment=environment(), libraries=distributions(), settings=settings)


def environment() -> dict[str, str]:
    """Return the environment variables that can change results, without those that may be secrets."""
    return {each.name: each.value for each in kept_variables(os.environ) if each.value is not None}


def distributions() -> dict[str, str]:
    """Return the versions of all installed distributions by name."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name: str | None = each.metadata["Name"]
        if name and name not in found:
            found[name] = each.version or ""
    return dict(sorted(found.items()))
