"""Write ``summary.json``: the whole result except its rows, for programs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from msprobe_core.compare.compare_codes import CompareCode
from msprobe_core.compare.result import ComparisonResult, UnitSummary
from msprobe_core.compare.suggest import Suggestion
from msprobe_core.findings import Finding, content_of, text_and_content
from msprobe_core.judge.error_distribution import WorstTensor, WorstTokens
from msprobe_core.judge.fault import Fault
from msprobe_core.judge.row_findings import said
from msprobe_core.store.atomic_file import write_json
from msprobe_core.store.results import OwnFiles
from msprobe_core.untrusted.files import read_plain

SUMMARY_FILE = "summary.json"
SUMMARY_RESULT = OwnFiles("msprobe compare", {SUMMARY_FILE: ("agrees", "target", "golden", "units")})


def write_summary_file(
    result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]], directory: Path
) -> Path:
    """Write ``summary.json``; return its path.

    Args:
        result: The result to summarise.
        tables: The tables of each unit.
        directory: An existing directory.

    Raises:
        StoreError: it cannot be written.
    """
    path = directory / SUMMARY_FILE
    write_json(path, summary_content(result, tables))
    return path


def table_notes(unit: UnitSummary, tables: Sequence[Path]) -> list[Finding]:
    """Return notes about the tables of a unit: whether one of them does not have all rows.

    Args:
        unit: The unit.
        tables: Its tables, as `msprobe_core.report.files.write_tables` returned them.
    """
    if len(tables) < 2:
        return []
    fields = {"count": unit.num_rows, "worst": tables[0].name, "all": tables[1].name}
    return [Finding(CompareCode.MORE_THAN_SHEET, fields=fields)]


def summary_content(result: ComparisonResult[UnitSummary], tables: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """Return the content of the file, in JSON's types."""
    return {
        "agrees": result.agrees,
        "target": str(result.target),
        "golden": str(result.golden),
        "differs": result.differs,
        **text_and_content("missing", result.missing_findings),
        **text_and_content("incomplete", result.incomplete_findings),
        **text_and_content("replicas", result.replica_findings),
        "limits": result.limits.summary(),
        "units": [_unit_summary(unit, paths) for unit, paths in zip(result.units, tables, strict=True)],
    }


def _unit_summary(unit: UnitSummary, tables: Sequence[Path]) -> dict[str, Any]:
    return {
        "label": unit.label,
        "target": str(unit.target),
        "golden": str(unit.golden),
        "mode": unit.mode.value,
        "agrees": unit.agrees,
        "differs": unit.differs,
        **text_and_content("incomplete", unit.incomplete_findings),
        "rows": {"total": unit.num_rows, **unit.counts},
        "nodes": dict(unit.nodes),
        "first_difference": unit.first_difference,
        "first_fault": None if unit.first_fault is None else _fault_summary(unit.first_fault),
        "first_disagreement": None if unit.fault is None else _fault_summary(unit.fault),
        "first_lone_call": None if unit.lone_call is None else _fault_summary(unit.lone_call),
        "suggestions": [_suggestion_summary(each) for each in unit.suggestions],
        **text_and_content("notes", [*unit.note_findings, *table_notes(unit, tables)]),
        "tables": [str(path) for path in tables],
    }


def _suggestion_summary(suggestion: Suggestion) -> dict[str, Any]:
    golden = [{"name": each.golden, **text_and_content("reason", each.reason)} for each in suggestion.candidates]
    return {"kind": suggestion.kind.value, "target": suggestion.target, "golden": golden}


def _fault_summary(fault: Fault) -> dict[str, Any]:
    return {
        "entry": fault.entry,
        "parent": fault.parent,
        "is_culprit": fault.is_culprit,
        "only_on": fault.only_on,
        "parts": list(fault.parts),
        "input_error": json_number(fault.input_error),
        "output_error": json_number(fault.output_error),
        "findings": [
            {"row": row, "message": said(finding).text, **content_of(finding)} for row, finding in fault.findings
        ],
        "worst_tensor": None if fault.worst_tensor is None else _worst_tensor_summary(fault.worst_tensor),
        "stack": list(fault.stack),
    }


def _worst_tensor_summary(worst: WorstTensor) -> dict[str, Any]:
    return {
        "row": worst.row,
        "abs_error": {name: json_number(value) for name, value in worst.absolute.items()},
        "rel_error": {name: json_number(value) for name, value in worst.relative.items()},
        "tokens": None if worst.tokens is None else _tokens_summary(worst.tokens),
    }


def _tokens_summary(tokens: WorstTokens) -> dict[str, Any]:
    return {
        "dimension": tokens.dimension,
        "worst": list(tokens.positions),
        "of": tokens.num_positions,
        "sequences": list(tokens.sequences),
        "of_sequences": tokens.num_sequences,
        "share": tokens.share,
        "largest_error": json_number(tokens.largest),
    }


def json_number(number: float | None) -> float | str | None:
    """Return a number as JSON has it: one that is not finite as its text."""
    return number if number is None or math.isfinite(number) else str(number)


class _UnitTables(msgspec.Struct):
    tables: list[str] = []


class _Summary(msgspec.Struct):
    incomplete: list[str]
    units: list[_UnitTables]


def incomplete_of(directory: Path, tables: Collection[Path]) -> Sequence[str]:
    """Return, as texts, what the comparison that wrote some tables could not judge; empty if unknown.

    Args:
        directory: Directory of the tables; its ``summary.json`` is read if it belongs to them.
        tables: Paths of the tables.
    """
    try:
        summary = msgspec.json.decode(read_plain(directory / SUMMARY_FILE), type=_Summary)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return []
    named = {Path(table).name for unit in summary.units for table in unit.tables}
    return summary.incomplete if named >= {table.name for table in tables} else []
