"""Whether two runs were the same run: a table on the terminal, ``result.xlsx`` and ``result.json``.

The sheets beside ``differences`` have the names and columns of `mindstudio-probe` 26.2: bench is the golden run, cmp is
the target. Rows of the sheets are what differs, except that random calls and statistics have equal rows too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from msprobe_core.config_check.differences import ConfigResult, Difference, Section, SectionResult, Severity
from msprobe_core.config_check.name_pairs import MatchKind
from msprobe_core.config_check.pack_differences import call_rows, statistics_rows
from msprobe_core.config_check.runs import Run
from msprobe_core.config_check.setting_differences import setting_rows, variable_rows
from msprobe_core.config_check.sides import TARGET
from msprobe_core.config_check.values import as_text
from msprobe_core.findings import text_and_content
from msprobe_core.report.escape import guarded
from msprobe_core.report.sheet import MAX_SHEET_ROWS, Sheet, SheetColumn, SheetPart, write_book
from msprobe_core.store.atomic_file import whole_file, write_json
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import plain_result, refusal, refuse_foreign_json
from msprobe_core.untrusted.paths import shown

if TYPE_CHECKING:
    from rich.console import Console

RESULT_FILE, BOOK_FILE = "result.json", "result.xlsx"
VERSION = 1

_COMMAND = "msprobe config_check"
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "default"}
_MOST_SHOWN = 40
_MOST_INFO = 8
_CHECKERS = {
    "env": (Section.ENVIRONMENT,),
    "pip": (Section.FRAMEWORK, Section.LIBRARIES),
    "dataset": (Section.DATA,),
    "weights": (Section.WEIGHTS,),
    "hyperparameters": (Section.SETTINGS,),
    "random": (Section.RANDOM,),
    "device": (Section.DEVICE,),
    "switches": (Section.SWITCHES,),
    "model": (Section.MODEL,),
    "parameters": (Section.PARAMETERS,),
    "optimizer": (Section.OPTIMIZER,),
    "parallel": (Section.PARALLEL,),
}
"""Sections by what a checker is called; the first six are those of `mindstudio-probe`."""


def check_config_result(directory: Path) -> None:
    """Check that writing the two files will not replace others; to be called before the work begins.

    Raises:
        StoreError: the directory holds a file of one of these names that this command has not written.
    """
    refuse_foreign_json(directory / RESULT_FILE, _COMMAND, ("version", "verdict", "sections", "differences"))
    book = directory / BOOK_FILE
    if (book.exists() or book.is_symlink()) and not (directory / RESULT_FILE).exists():
        raise refusal(book, _COMMAND)


def write_config_result(
    result: ConfigResult, directory: Path, runs: tuple[Run, Run] | None = None, *, fuzzy: bool = True
) -> list[Path]:
    """Write ``result.xlsx`` and ``result.json``; return their paths.

    Args:
        result: What was compared.
        directory: Created if it is missing.
        runs: The target and the golden run, of which sheets have what packs hold; ``None`` for one job.
        fuzzy: Whether settings whose names are alike were one.

    Raises:
        StoreError: one cannot be written.
    """
    make_directory(directory)
    path, book = directory / RESULT_FILE, directory / BOOK_FILE
    write_json(path, result_content(result))
    with whole_file(book) as file:
        write_book(file, list(_sheets(result, runs, fuzzy=fuzzy)))
    return [book, path]


def verdict_of(result: ConfigResult) -> str:
    """Return ``equal``, ``differs``, or ``unknown`` if nothing could be compared."""
    if result.matters:
        return "differs"
    return "equal" if any(each.unknown is None for each in result.sections) else "unknown"


def result_content(result: ConfigResult, explains: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """Return the content of ``result.json``, in JSON's types.

    Args:
        result: What was compared.
        explains: By the position of a difference, whether it explains what ``locate`` has found.
    """
    differences = [_difference(each) for each in result.differences]
    for place, explanation in (explains or {}).items():
        differences[place]["explains"] = plain_result(explanation, ("finding",))
    return {
        "version": VERSION,
        "verdict": verdict_of(result),
        "target": shown(str(result.target)),
        "golden": shown(str(result.golden)),
        "sections": [
            {
                "section": each.section.value,
                "state": _state(each),
                "compared": each.compared,
                "differences": len(each.differences),
                **text_and_content("unknown", each.unknown),
            }
            for each in result.sections
        ],
        "differences": differences,
        **text_and_content("notes", list(result.notes)),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return plain_result(replace(difference, ranks=list(difference.ranks)), ("finding",))


def _state(result: SectionResult) -> str:
    if result.unknown is not None:
        return "unknown"
    return result.differences[0].severity.value if result.differences else "equal"


# --- the terminal ----------------------------------------------------------------------------------------------------


def print_config_result(
    result: ConfigResult,
    paths: Sequence[Path],
    console: Console,
    explains: Mapping[int, Any] | None = None,
) -> None:
    """Print what differs, the most severe first, and one line for each section that is equal.

    Args:
        result: What was compared.
        paths: The files that have all of it.
        console: Console to print to.
        explains: By the position of a difference, whether it explains what ``locate`` has found; others are left out.
    """
    from rich.text import Text

    def line(text: str, style: str = "default") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    line(f"target: {shown(str(result.target))}")
    line(f"golden: {shown(str(result.golden))}")
    for place, each in _of_interest(result.differences, explains):
        text = Text(f"  {each.severity.value:8}", style=_STYLES[each.severity])
        text.append(f"{each.section.value:12} ", style="default").append(each.finding.text, style="default")
        if explains is not None:
            text.append(f"  [{explains[place].degree.value}: {explains[place].finding.text}]", style="default")
        console.print(text, soft_wrap=True)
    hidden = len(result.differences) - len(_of_interest(result.differences, explains))
    if hidden:
        line(f"  … and {hidden:,} more, in the files")
    for section in result.sections:
        if section.unknown is not None:
            line(f"  unknown  {section.section.value:12} {section.unknown.text}", "yellow")
        elif not section.differences:
            line(f"  equal    {section.section.value:12} {section.compared:,} compared", "green")
    for note in result.notes:
        line(f"Note: {note.text}", "yellow")
    for path in paths:
        line(f"written: {path}")
    line(_verdict_line(result))


def _of_interest(differences: Sequence[Difference], explains: Mapping[int, Any] | None) -> list[tuple[int, Difference]]:
    numbered = list(enumerate(differences)) if explains is None else [(place, differences[place]) for place in explains]
    severe = [(place, each) for place, each in numbered if each.severity is not Severity.INFO]
    info = [(place, each) for place, each in numbered if each.severity is Severity.INFO]
    return [*severe[:_MOST_SHOWN], *info[:_MOST_INFO]]


def _verdict_line(result: ConfigResult) -> str:
    counts = {severity: sum(each.severity is severity for each in result.differences) for severity in Severity}
    if verdict_of(result) == "unknown":
        return "Nothing could be compared."
    if not result.matters:
        return "No difference that matters."
    words = ", ".join(f"{number:,} {severity.value}" for severity, number in counts.items() if number)
    return f"They differ: {words}."


# --- the sheets ------------------------------------------------------------------------------------------------------

_Row = Sequence[Any]


def _sheets(result: ConfigResult, runs: tuple[Run, Run] | None, *, fuzzy: bool) -> Iterator[Sheet]:
    by_section = {each.section: each for each in result.sections}
    summary: list[_Row] = []
    for name, sections in _CHECKERS.items():
        known = [by_section[each] for each in sections if each in by_section and by_section[each].unknown is None]
        if known:
            worst = min((each.differences[0].severity for each in known if each.differences), key=_rank, default=None)
            summary.append((name, _passed(worst)))
    yield _sheet("summary", ("filename", "pass_check"), summary)
    if runs is not None:
        yield from _peer_sheets(result, runs, fuzzy=fuzzy)
    header = ("section", "path", "target", "golden", "severity", "only_on", "count", "ranks", "finding")
    rows = [
        (
            each.section.value, each.path, _cell(each.target), _cell(each.golden), each.severity.value, each.only_on,
            each.count, ",".join(map(str, each.ranks)), each.finding.text,
        )
        for each in result.differences
    ]  # fmt: skip
    yield _sheet("differences", header, rows)


def _rank(severity: Severity) -> int:
    return list(Severity).index(severity)


def _passed(worst: Severity | None) -> str:
    return "pass" if worst is None or worst is Severity.INFO else worst.value


def _cell(value: Any) -> str | None:
    return None if value is None else as_text(value)


def _sheet(title: str, header: Sequence[str], rows: Sequence[_Row]) -> Sheet:
    rows = rows[: MAX_SHEET_ROWS - 1]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    cells = pl.DataFrame({name: _column(values) for name, values in columns.items()})
    widths = {"finding": 100.0, "bench_stack": 60.0, "cmp_stack": 60.0, "path": 40.0}
    return Sheet(title, [SheetColumn(name, widths.get(name, 24.0)) for name in header], len(rows), [SheetPart(cells)])


def _column(values: Sequence[Any]) -> pl.Series:
    kinds: set[type] = {type(each) for each in values if each is not None}
    if kinds <= {bool}:
        return pl.Series(values, dtype=pl.Boolean if kinds else pl.String)
    if kinds <= {int}:
        return pl.Series(values, dtype=pl.Int64)
    if kinds <= {int, float}:
        return pl.Series(values, dtype=pl.Float64)
    return pl.Series([None if each is None else shown(str(each)) for each in values], dtype=pl.String)


def _peer_sheets(result: ConfigResult, runs: tuple[Run, Run], *, fuzzy: bool) -> Iterator[Sheet]:
    target, golden = (next(iter(run.manifests.values())) for run in runs)
    known = {each.section for each in result.sections if each.unknown is None}
    if Section.ENVIRONMENT in known:
        variables = [
            (row.names[1], row.names[0], _value(row.values[1]), _value(row.values[0]), row.severity.value)
            for row in variable_rows(*([v for v in m.environment if v.value is not None] for m in (target, golden)))
            if row.severity is not None and row.severity is not Severity.INFO
        ]
        yield _sheet("env", ("bench_env_name", "cmp_env_name", "bench_value", "cmp_value", "level"), variables)
    packages = [
        (each.path, _cell(each.golden), _cell(each.target), each.severity.value)
        for each in result.differences
        if each.section in (Section.FRAMEWORK, Section.LIBRARIES) and each.severity is not Severity.INFO
    ]
    if Section.LIBRARIES in known:
        yield _sheet("pip", ("package", "bench version", "cmp version", "level"), packages)
    packs = runs[0].pack, runs[1].pack
    for title, name, own, other in (
        ("dataset", "tag", packs[0].dataset, packs[1].dataset),
        ("weights", "weight_name", packs[0].weights, packs[1].weights),
    ):
        if own and other:
            quantities = ("max", "min", "mean", "norm")
            header = ("step", "rank", name, "equal", *[f"{each}_relative_diff" for each in quantities])
            rows = [
                (row.step, row.rank, row.name, row.is_equal, *[row.relative(each) for each in quantities])
                for row in statistics_rows(own, other)
            ]
            yield _sheet(title, header, rows)
    if Section.SETTINGS in known:
        header = ("file_name", "bench_para", "cmp_para", "bench_value", "cmp_value", "matched_with", "level")
        yield _sheet("hyperparameters", header, list(_setting_cells(target.settings, golden.settings, fuzzy=fuzzy)))
    if packs[0].random and packs[1].random:
        header = ("op", "rank", "bench_stack", "cmp_stack", "bench_count", "cmp_count", "check_result")
        rows = [
            (
                row.name, row.rank,
                None if row.golden is None else "\n".join(row.golden.stack),
                None if row.target is None else "\n".join(row.target.stack),
                0 if row.golden is None else row.golden.count,
                0 if row.target is None else row.target.count,
                row.is_equal,
            )
            for row in call_rows(packs[0].random, packs[1].random)
        ]  # fmt: skip
        yield _sheet("random", header, rows)


def _value(value: str | None) -> str:
    return "None" if value is None else value


def _setting_cells(
    target: Mapping[str, Mapping[str, Any]], golden: Mapping[str, Mapping[str, Any]], *, fuzzy: bool
) -> Iterator[_Row]:
    for row in setting_rows(target, golden, fuzzy=fuzzy)[1]:
        if row.pair is None:
            in_target = row.only_on == TARGET
            mark = "Only in comparison" if in_target else "Only in benchmark"
            names = (mark, row.name) if in_target else (row.name, mark)
            yield (row.source, *names, _cell(row.values[1]), _cell(row.values[0]), None, row.severity.value)
            continue
        matched = {MatchKind.EXACT: "pure name", MatchKind.ALIAS: "mapping"}.get(
            row.pair.kind, f"similarity:{row.pair.score:.2f}"
        )
        values = as_text(row.values[1]), as_text(row.values[0])
        yield row.source, row.pair.golden, row.pair.target, *values, matched, row.severity.value


# --- settings of logs ------------------------------------------------------------------------------------------------


def write_setting_csv(path: Path, header: Sequence[str], rows: Sequence[_Row]) -> None:
    """Write a table of settings as csv, in UTF-8 with the mark that spreadsheets need to tell it.

    Raises:
        StoreError: it cannot be written.
    """
    frame = pl.DataFrame({name: [str(row[i]) for row in rows] for i, name in enumerate(header)}, strict=False)
    make_directory(path.parent)
    with whole_file(path) as file:
        file.write(guarded(frame).write_csv(include_bom=True).encode())
