"""Write ``locate.json``: the result of a search, for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msprobe_core.config_check.differences import Severity
from msprobe_core.confirm import Confirmation
from msprobe_core.findings import content_of, noted, text_and_content
from msprobe_core.locate.configuration import cause_in_words
from msprobe_core.locate.result import Configuration, EvidenceRow, Explained, LocateResult, Suspect
from msprobe_core.manifest.facts import Scalar
from msprobe_core.report.summary import json_number
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import OwnFiles

LOCATE_FILE = "locate.json"
LOCATE_RESULT = OwnFiles("msprobe locate", {LOCATE_FILE: ("version", "verdict", "examined", "suspects")})
VERSION = 1
MAX_DIFFERENCES = 200
"""Maximum number of differences of the configurations in the file; all are counted."""


def write_location(result: LocateResult, directory: Path) -> Path:
    """Write ``locate.json``; return its path.

    Args:
        result: Result of the search.
        directory: Directory of the file; created if it is missing.

    Raises:
        StoreError: it cannot be written.
    """
    path = directory / LOCATE_FILE
    write_json(path, location_content(result))
    return path


def location_content(result: LocateResult) -> dict[str, Any]:
    """Return the content of the file, in JSON's types."""
    return {
        "version": VERSION,
        "verdict": result.verdict.value,
        "target": str(result.target),
        "golden": str(result.golden),
        **text_and_content("noise", result.noise),
        **text_and_content("examined", result.examined),
        **text_and_content("incomplete", result.incomplete),
        "calls": {"judged": result.num_nodes, "beyond_rounding": result.num_flagged},
        "checks": [
            {"name": check.name.value, "state": check.state.value, **text_and_content("detail", check.detail)}
            for check in result.checks
        ],
        "configuration": None if result.configuration is None else _configuration(result.configuration),
        "decisions": {
            "different": result.num_decisions,
            "first": [
                {"step": each.step, "rank": each.rank, "row": each.row, "rate": each.rate} for each in result.decisions
            ],
        },
        "suspects": [_suspect(number, suspect) for number, suspect in enumerate(result.suspects, 1)],
        **text_and_content("notes", result.notes),
    }


def _configuration(found: Configuration) -> dict[str, Any]:
    shown = found.explained[:MAX_DIFFERENCES]
    return {
        "ranks": found.num_ranks,
        "sections": [
            {
                "name": each.section.value,
                "compared": each.compared,
                "different": len(each.differences),
                "matter": sum(one.severity is not Severity.INFO for one in each.differences),
                **text_and_content("unknown", each.unknown),
            }
            for each in found.sections
        ],
        "different": len(found.explained),
        **text_and_content("cause", cause_in_words(found)),
        "differences": [_difference(each) for each in shown],
    }


def _difference(found: Explained) -> dict[str, Any]:
    own, explanation = found.difference, found.explanation
    return {
        "section": own.section.value,
        "path": own.path,
        "golden_path": own.golden_path,
        "target": _scalar(own.target),
        "golden": _scalar(own.golden),
        "only_on": own.only_on,
        "severity": own.severity.value,
        "count": own.count,
        "ranks": list(own.ranks),
        **text_and_content("message", own.finding),
        "explains": None if explanation is None else explanation.degree.value,
        **text_and_content("because", None if explanation is None else explanation.finding),
    }


def _scalar(value: Scalar) -> Scalar:
    return json_number(value) if isinstance(value, float) else value


def _suspect(number: int, suspect: Suspect) -> dict[str, Any]:
    return {
        "place": number,
        "step": suspect.step,
        "micro_step": suspect.micro_step,
        "rank": min(suspect.ranks, default=None),
        "ranks": list(suspect.ranks),
        "entry": suspect.entry,
        "only_on": suspect.only_on,
        "module": suspect.module,
        "phase": None if suspect.phase is None else suspect.phase.value,
        "kind": suspect.kind.value,
        "strength": suspect.strength.value,
        "score": json_number(suspect.score),
        "limit": json_number(suspect.limit),
        "excess": json_number(suspect.excess),
        "input_score": json_number(suspect.input_score),
        **text_and_content("reason", suspect.reason),
        "seen_at": suspect.seen_at,
        "evidence": [_evidence_row(each) for each in suspect.evidence],
        "parents": list(suspect.parents),
        "stack": list(suspect.stack),
        **text_and_content("command", suspect.advice or noted("")),
        "num_alike": suspect.num_alike,
        "about": suspect.about,
        "confirmation": None if suspect.confirmation is None else _confirmation(suspect.confirmation),
    }


def _evidence_row(row: EvidenceRow) -> dict[str, Any]:
    return {
        "row": row.row,
        "message": " ".join(each.text for each in row.findings),
        "message_finding": [content_of(each) for each in row.findings],
        "score": json_number(row.score),
        "limit": json_number(row.limit),
    }


def _confirmation(found: Confirmation) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "entry": found.entry,
        **text_and_content("reason", found.reason),
        **text_and_content("notes", found.notes),
    }
