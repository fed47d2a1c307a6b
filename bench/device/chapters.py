"""Chapters of the proof: their cases, and the rows that are kept, so that a run that was cut off goes on after them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.device.machine import Machine


@dataclass(frozen=True)
class Proof:
    """What is proved.

    Attributes:
        machine: The device.
        work: A directory for recordings.
        is_small: Whether sizes are those of a dry run.
    """

    machine: Machine
    work: Path
    is_small: bool


@dataclass(frozen=True)
class Outcome:
    """What a case has shown.

    Attributes:
        cells: Texts below the columns of the chapter.
        holds: Whether it is as promised; ``None`` if nothing is promised.
    """

    cells: tuple[str, ...]
    holds: bool | None = None


@dataclass(frozen=True)
class Case:
    """A row to come."""

    name: str
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Row(Outcome):
    """A row of a table."""

    case: str = ""


@dataclass(frozen=True)
class Chapter:
    """A table.

    Attributes:
        name: Of its file.
        title: Its title.
        columns: After that of the cases.
        cases: Returns its cases; none if the device has nothing of the kind.
        absent: What is said if there are none.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    cases: Callable[[Proof], Iterable[Case]]
    absent: str = "nothing of it is there"


class Book:
    """The rows of all chapters in a directory.

    Args:
        directory: Where they are.
        seconds: Time after which no further case begins.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        self._directory = directory
        self._end = time.monotonic() + seconds
        self.left_out: list[str] = []

    def rows(self, chapter: Chapter) -> list[Row]:
        """Return the rows of a chapter; a last one that was cut off is not among them."""
        path = self._path(chapter)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [Row(tuple(one["cells"]), one["holds"], one["case"]) for one in found]

    def write(self, chapter: Chapter, proof: Proof) -> None:
        """Run the cases of a chapter that have no row yet."""
        done, cases = {row.case for row in self.rows(chapter)}, list(chapter.cases(proof))
        if not cases:
            self._path(chapter).touch()
        for case in cases:
            if case.name in done:
                continue
            if time.monotonic() > self._end:
                self.left_out.append(f"{chapter.name}: {case.name}")
                continue
            self._keep(chapter, _row_of(case))

    def _keep(self, chapter: Chapter, row: Row) -> None:
        path = self._path(chapter)
        kept = path.read_text() if path.exists() else ""
        with path.open("w") as file:  # without a line that was cut off
            file.write(kept[: kept.rfind("\n") + 1] + json.dumps(asdict(row)) + "\n")
        print(f"{_MARKS[row.holds]:<3}{chapter.name}: {row.case}: {'; '.join(row.cells)}", flush=True)

    def _path(self, chapter: Chapter) -> Path:
        return self._directory / f"{chapter.name}.jsonl"

    def page(self, chapters: Sequence[Chapter], heading: str) -> str:
        """Return all tables in Markdown."""
        parts = [heading]
        for number, chapter in enumerate(chapters, 1):
            rows = self.rows(chapter)
            parts.append(f"## {number}. {chapter.title}\n")
            why = chapter.absent if self._path(chapter).exists() else _NOT_RUN
            parts.append(_table(chapter, rows) if rows else f"{why}\n")
        if self.left_out:
            parts.append("## Left out, because the time was over\n\n" + "\n".join(f"* {one}" for one in self.left_out))
        return "\n".join(parts) + "\n"

    def num_missed(self, chapters: Sequence[Chapter]) -> int:
        """Return how many rows are not as promised."""
        return sum(row.holds is False for chapter in chapters for row in self.rows(chapter))


_NOT_RUN = "It has not been run yet."
_MARKS = {True: "ok", False: "NO", None: ""}


def _row_of(case: Case) -> Row:
    try:
        outcome = case.run()
    except Exception as error:  # noqa: BLE001  # the other cases are worth their time
        message = str(error).strip().splitlines()[0] if str(error).strip() else ""
        outcome = Outcome((f"failed: {type(error).__name__}: {message[:200]}",), holds=False)
    return Row(outcome.cells, outcome.holds, case.name)


def _table(chapter: Chapter, rows: Sequence[Row]) -> str:
    columns = ("case", *chapter.columns, "as promised")
    lines = [columns, tuple("---" for _ in columns)]
    for row in rows:
        cells = (row.case, *row.cells, *("" for _ in range(len(chapter.columns) - len(row.cells))))
        lines.append((*cells, {True: "yes", False: "**no**", None: ""}[row.holds]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
