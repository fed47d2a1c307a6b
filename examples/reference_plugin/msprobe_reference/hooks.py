"""A report for build servers, and a check of calls that grow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from msprobe_core.plugin import Entry, LiveCheck, ReportFormat, hookimpl, tensors_of

GROWTH = 10.0
"""By what factor an output may be larger than in the recorded step before."""


class JUnit:
    """Results as tests, in the format that build servers read."""

    name = "junit"
    summary = "Each compared dump as a test of JUnit."
    suffix = "xml"

    def comparison(self, summary: Mapping[str, Any]) -> str:
        """Return a test for each dump; one that differs, or is incomplete, fails."""
        return _suite("compare", [_case(unit["label"] or unit["target"], _reason(unit)) for unit in summary["units"]])

    def location(self, found: Mapping[str, Any]) -> str:
        """Return a test that fails for each suspect, or one for the verdict."""
        suspects = [_case(suspect["entry"], suspect["reason"]) for suspect in found["suspects"]]
        is_fine = found["verdict"] == "agree"
        return _suite("locate", suspects or [_case("runs", None if is_fine else found["verdict"])])


def _reason(unit: Mapping[str, Any]) -> str | None:
    if unit["agrees"]:
        return None
    fault = unit["first_fault"]
    return "; ".join(unit["incomplete"]) or "differs" if fault is None else f"diverges first at {fault['entry']}"


def _case(name: str, reason: str | None) -> ET.Element:
    case = ET.Element("testcase", name=name, classname="msprobe")
    if reason is not None:
        ET.SubElement(case, "failure", message=reason)
    return case


def _suite(name: str, cases: Sequence[ET.Element]) -> str:
    failures = sum(case.find("failure") is not None for case in cases)
    suite = ET.Element("testsuite", name=name, tests=str(len(cases)), failures=str(failures))
    suite.extend(cases)
    return ET.tostring(suite, encoding="unicode")


class Growth:
    """Outputs that are much larger than in the recorded step before."""

    name = "growth"

    def __init__(self) -> None:
        self._norms: dict[str, float] = {}

    def check(self, entry: Entry) -> Iterator[str]:
        """Yield a warning for each output that has grown."""
        for row, tensor in tensors_of(entry):
            stats = tensor.digest.stats
            if ".output." not in row or stats is None or stats.l2_norm is None or not math.isfinite(stats.l2_norm):
                continue
            before = self._norms.get(row)
            self._norms[row] = stats.l2_norm
            if before and stats.l2_norm > GROWTH * before:
                yield f"{row} has the norm {stats.l2_norm:.3g}, and had {before:.3g} in the step before"


@hookimpl
def msprobe_register_reports() -> Sequence[ReportFormat]:
    """Offer the report."""
    return [JUnit()]


@hookimpl
def msprobe_register_live_checks() -> Sequence[LiveCheck]:
    """Offer the check."""
    return [Growth()]
