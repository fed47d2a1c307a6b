"""Checks of compared pairs."""

from __future__ import annotations

from typing import Any

from msprobe_core.custom_checks.asking import findings_or_failure
from msprobe_core.findings import Finding
from msprobe_core.plugins import registry


def comparison_findings(unit: Any) -> list[Finding]:
    """Return what the checks of all plugins say of a compared pair; one that fails is a finding too."""
    found: list[Finding] = []
    for check in registry().comparison_checks().values():
        found += findings_or_failure(check, unit, registry().described("comparison check", check.name))
    return found
