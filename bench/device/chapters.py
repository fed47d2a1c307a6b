"""Chapters of the proof: their cases, and the rows that are kept, so that a run that was cut off goes on after them."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, as_completed
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
        theirs: Directory with an unpacked ``mindstudio-probe``.
    """

    machine: Machine
    work: Path
    is_small: bool
    theirs: Path | None = None


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


RunCase = Callable[[str, str], Row]
"""Runs a case in another process, by the names of its chapter and of itself."""


@dataclass(frozen=True)
class Chapter:
    """A table.

    Attributes:
        name: Of its file.
        title: Its title.
        columns: After that of the cases.
        cases: Returns its cases; none if the device has nothing of the kind.
        absent: What is said if there are none.
        is_timed: Whether its cases need the device, and the host, for themselves.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    cases: Callable[[Proof], Iterable[Case]]
    absent: str = "nothing of it is there"
    is_timed: bool = False


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
        """Run the cases of a chapter that have no row yet, one by one."""
        for case in self._to_do(chapter, proof):
            if time.monotonic() > self._end:
                self.left_out.append(f"{chapter.name}: {case.name}")
                continue
            self._keep(chapter, row_of(case))

    def write_at_once(self, chapters: Sequence[Chapter], proof: Proof, jobs: Executor, run: RunCase) -> None:
        """Run the cases of chapters that have no row yet in other processes, by ``run(chapter name, case name)``."""
        to_do = [(chapter, case.name) for chapter in chapters for case in self._to_do(chapter, proof)]
        # The last ones take longest.
        futures = {jobs.submit(run, chapter.name, name): (chapter, name) for chapter, name in reversed(to_do)}
        try:
            for future in as_completed(futures, max(0.0, self._end - time.monotonic())):
                chapter, name = futures.pop(future)
                error = future.exception()
                self._keep(chapter, future.result() if error is None else _failed(name, error))
        except TimeoutError:
            jobs.shutdown(wait=False, cancel_futures=True)
            self.left_out += [f"{chapter.name}: {name}" for chapter, name in futures.values()]

    def _to_do(self, chapter: Chapter, proof: Proof) -> list[Case]:
        done, cases = {row.case for row in self.rows(chapter)}, list(chapter.cases(proof))
        if not cases:
            self._path(chapter).touch()
        return [case for case in cases if case.name not in done]

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


def row_of(case: Case) -> Row:
    """Run a case; an error is a row that is not as promised."""
    try:
        outcome = case.run()
    except Exception as error:  # noqa: BLE001  # the other cases are worth their time
        traceback.print_exc()
        return _failed(case.name, error)
    return Row(outcome.cells, outcome.holds, case.name)


def _failed(name: str, error: BaseException) -> Row:
    message = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return Row((f"failed: {type(error).__name__}: {message[:200]}",), False, name)


def _table(chapter: Chapter, rows: Sequence[Row]) -> str:
    columns = ("case", *chapter.columns, "as promised")
    lines = [columns, tuple("---" for _ in columns)]
    for row in rows:
        cells = (row.case, *row.cells, *("" for _ in range(len(chapter.columns) - len(row.cells))))
        lines.append((*cells, {True: "yes", False: "**no**", None: ""}[row.holds]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
