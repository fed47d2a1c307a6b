"""Result of a comparison of RL runs, of whatever kind; written to files and printed on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import msgspec
import polars as pl

from msprobe_core.console import print_lines
from msprobe_core.findings import Finding as Said
from msprobe_core.findings import content_of, text_and_content
from msprobe_core.judge.verdict import Verdict
from msprobe_core.protocols.presentation import Column, Table, Width
from msprobe_core.report.files import TableForm, time_stamp, write_table
from msprobe_core.report.sheet import MAX_SHEET_ROWS
from msprobe_core.rl.detail_codes import ComparedCode
from msprobe_core.store import make_directory, refuse_foreign_json
from msprobe_core.store.atomic_file import unused_paths, write_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

VERSION = 1
VERDICT = "verdict"
"""Column of every table by which the core's spreadsheets colour rows."""

_MAX_SHOWN = 6
_STYLES = {Verdict.ERROR: "bold red", Verdict.UNMATCHED: "bold red", Verdict.WARNING: "yellow", Verdict.PASS: "green"}
_WIDE = {"module", "name", "id", "sentence", "place", "reason"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to say.

    Attributes:
        verdict: How bad it is; ``ERROR`` and ``UNMATCHED`` make the sides differ.
        said: What it is, and where.
        step: Of the trainer.
        place: What it is about: a module, a parameter, a cause; empty if it is about all.
    """

    verdict: Verdict
    said: Said
    step: int | None = None
    place: str = ""

    @property
    def sentence(self) -> str:
        """What it is, in English."""
        return self.said.text

    @property
    def is_fault(self) -> bool:
        """Whether the sides differ by it."""
        return self.verdict in {Verdict.ERROR, Verdict.UNMATCHED}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a comparison.

    Attributes:
        command: Name of the comparison.
        paths: The runs, in the order in which they were given.
        compared: Description of what was compared.
        said: The verdict.
        findings: The worst and earliest first.
        notes: Further notes.
        lines: Lines that the terminal shows before the findings.
        numbers: Figures for programs; plain values by name.
        tables: Rows with a column ``verdict``, by name of the table.
        incomplete: Which dumps ended early or are damaged; the comparison is incomplete then.
    """

    command: str
    paths: Sequence[Path]
    compared: Said
    said: Said
    findings: Sequence[Finding] = ()
    notes: Sequence[Said] = ()
    lines: Sequence[Said] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict[str, pl.DataFrame])
    incomplete: Sequence[Said] = ()

    @property
    def agrees(self) -> bool:
        """Whether the sides agree."""
        return not any(finding.is_fault for finding in self.findings)

    @property
    def headline(self) -> str:
        """The verdict as a sentence, in English."""
        return f"{'AGREE' if self.agrees else 'DIFFERENT'}: {self.said.text}."


Row = TypeVar("Row", bound="DataclassInstance")

_COLUMN_TYPES: Mapping[type, pl.DataType] = {
    bool: pl.Boolean(), int: pl.Int64(), float: pl.Float64(), str: pl.String(), Said: pl.String(),
}  # fmt: skip


def table_of(kind: type[Row], rows: Iterable[Row]) -> pl.DataFrame:
    """Return a table of results: a row for each, with a column for each field of their class, in the fields' order.

    Fields are numbers, truth values, texts, enums of texts or findings, each of which may be ``None``.
    """
    types = get_type_hints(kind)
    schema = {field.name: _column_type(types[field.name]) for field in fields(kind)}
    return pl.DataFrame([[_cell(getattr(row, name)) for name in schema] for row in rows], schema, orient="row")


def _column_type(hint: Any) -> pl.DataType:
    own = next(part for part in get_args(hint) or (hint,) if part is not NoneType)
    return next(column for plain, column in _COLUMN_TYPES.items() if issubclass(own, plain))


def _cell(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value.text if isinstance(value, Said) else value


def listed_steps(steps: Sequence[int]) -> Said:
    """Return steps: ``step 1`` or ``steps 1, 2``."""
    return Said.of(ComparedCode.STEPS if len(steps) > 1 else ComparedCode.STEP, steps=steps)


def write_outcome(
    outcome: Outcome, directory: Path, form: TableForm = TableForm.CSV, *, overwrites: bool = False, group: str = "rl"
) -> list[Path]:
    """Write the tables and ``{group}_{command}.json``; return their paths, the latter last.

    Args:
        outcome: The result.
        directory: Where they are written.
        form: What tables are.
        overwrites: Whether to replace a file that msprobe has not written.
        group: Name of the group of commands: ``rl``, or that of a trainer's plugin.

    Raises:
        StoreError: they cannot be written, or ``{group}_{command}.json`` exists and was not written by msprobe.
    """
    make_directory(directory)
    path = directory / f"{group}_{outcome.command}.json"
    if not overwrites:
        fields = ("version", "command", "headline")
        refuse_foreign_json(path, f"msprobe {group} {_command_line(outcome.command)}", fields)
    stamp = time_stamp()
    written = {
        name: _write_table(rows, directory, f"{group}_{outcome.command}_{name}_{stamp}", form)
        for name, rows in outcome.tables.items()
    }
    content = {
        "version": VERSION,
        "command": outcome.command,
        "paths": [str(given) for given in outcome.paths],
        **text_and_content("compared", outcome.compared),
        "verdict": "agree" if outcome.agrees else "differ",
        "headline": outcome.headline,
        "headline_finding": content_of(outcome.said),
        "findings": [
            {"verdict": f.verdict.value, "step": f.step, "place": f.place, **text_and_content("sentence", f.said)}
            for f in outcome.findings
        ],
        **text_and_content("lines", outcome.lines),
        **text_and_content("notes", outcome.notes),
        **text_and_content("incomplete", outcome.incomplete),
        "numbers": outcome.numbers,
        "tables": {name: table.name for name, table in written.items()},
    }
    write_json(path, msgspec.to_builtins(content, enc_hook=str))  # NaN and infinities become null
    return [*written.values(), path]


def _command_line(command: str) -> str:
    return command if command == "check" else f"compare {command}"


def _write_table(rows: pl.DataFrame, directory: Path, stem: str, form: TableForm) -> Path:
    columns = [Column(name, pl.col(name), width=Width.NAME if name in _WIDE else Width.NUMBER) for name in rows.columns]
    # A table that is longer than a sheet becomes a csv file, which has no such limit.
    wanted = TableForm.CSV if form is TableForm.XLSX and rows.height >= MAX_SHEET_ROWS else form
    (path,) = unused_paths(directory, stem, [wanted.value])
    write_table(Table(columns, rows), path, wanted)
    return path


def print_outcome(outcome: Outcome, files: Sequence[Path], console: Console) -> None:
    """Print the result; the last line is the verdict."""
    from rich.text import Text

    print_lines(console, (Text(text, style=style) for text, style in _lines_of(outcome, files)))


def _lines_of(outcome: Outcome, files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    *tables, summary = files
    yield from ((said.text, "") for said in (outcome.compared, *outcome.lines))
    for finding in outcome.findings[:_MAX_SHOWN]:
        where = "" if finding.step is None else f"step {finding.step}: "
        yield f"{where}{finding.sentence}", _STYLES[finding.verdict]
    if len(outcome.findings) > _MAX_SHOWN:
        yield f"… and {len(outcome.findings) - _MAX_SHOWN:,} more, in {summary}", ""
    yield from ((f"Note: {note}", "yellow") for note in outcome.notes[:_MAX_SHOWN])
    if len(outcome.notes) > _MAX_SHOWN:
        yield f"Note: … and {len(outcome.notes) - _MAX_SHOWN:,} more, in {summary}", "yellow"
    yield from ((f"Table:   {path}", "") for path in tables)
    yield f"Summary: {summary}", ""
    yield from ((f"Incomplete: {line}.", "bold red") for line in outcome.incomplete[:_MAX_SHOWN])
    if len(outcome.incomplete) > _MAX_SHOWN:
        yield f"Incomplete: {len(outcome.incomplete) - _MAX_SHOWN:,} more, in {summary}", "bold red"
    if outcome.agrees and outcome.incomplete:
        yield f"Of what is there, which is not all: {outcome.headline}", "bold yellow"
    else:
        yield outcome.headline, "bold green" if outcome.agrees else "bold red"
