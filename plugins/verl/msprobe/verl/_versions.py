"""Versions of installed packages."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed, by name."""
    return {name: version for name in distributions if (version := _version_of(name)) is not None}


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
