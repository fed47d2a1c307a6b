"""What to view: one or two runs, or the result of a comparison or a search, which names the two runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from msprobe_core.errors import CompareError, DumpError
from msprobe_core.free_benchmark.bisect_files import BISECT_FILE
from msprobe_core.report.api_check_files import CHECK_FILE
from msprobe_core.report.locate_file import LOCATE_FILE
from msprobe_core.report.summary import SUMMARY_FILE
from msprobe_core.store.reading import check_exists, is_dump
from msprobe_core.store.results import read_json
from msprobe_core.store.runs import steps_of_run, units_of_step
from msprobe_core.untrusted.paths import path_of
from msprobe_core.view.api_checks import CheckFile
from msprobe_core.view.suspects import Location, read_location


@dataclass(frozen=True)
class Subject:
    """What to view.

    Attributes:
        target: A run, a step, a rank's directory or a dump.
        golden: The trusted run; ``None`` to view one run.
        location: Result of a search; ``None`` if the search is still to be run.
        checks: The ``acc_check.json`` that names the target; ``None`` if none does. Its dump may be missing.
    """

    target: Path
    golden: Path | None = None
    location: Location | None = None
    checks: Path | None = None


class _Sides(msgspec.Struct, frozen=True):
    target: str
    golden: str


class _Request(msgspec.Struct, frozen=True):
    npu_path: str
    bench_path: str | None = None
    stack_path: str | None = None


def subject_of(path: Path, golden: Path | None = None) -> Subject:
    """Determine what to view.

    Args:
        path: A run, a step, a rank's directory or a dump; or a result of ``msprobe compare``, ``locate`` or
            ``acc_check``: its directory, ``locate.json``, ``summary.json`` or ``acc_check.json``.
        golden: The trusted run.

    Raises:
        CompareError: ``path`` does not exist or is empty, or the runs that a result names no longer exist.
    """
    check_exists(path)
    if golden is not None:
        return Subject(path, golden)
    result = _result_in(path)
    if result is None:
        return Subject(path)
    if result.name == BISECT_FILE:
        return Subject(result)
    if result.name == CHECK_FILE:
        return Subject(CheckFile.read(result).dump or result, checks=result)
    if result.name == LOCATE_FILE:
        found = read_location(result)
        return Subject(*_sides(result, found.target, found.golden), found)
    sides = read_json(result, _Sides, "the summary of a comparison ({error})")
    return Subject(*_sides(result, sides.target, sides.golden))


def requested(path: Path) -> Subject:
    """Return the runs named in a ``compare.json``, whose ``bench_path`` may be left out.

    Raises:
        CompareError: the file is invalid, or names a path that does not exist.
    """
    request = read_json(path, _Request, "a compare.json, which names npu_path and, to compare, bench_path ({error})")
    golden = None if request.bench_path is None else Path(request.bench_path)
    return subject_of(Path(request.npu_path), golden)


def _result_in(path: Path) -> Path | None:
    """Return the result file in a directory; ``None`` if there is none. A search result is preferred to others.

    Checks that are stored in a run are shown with the run.
    """
    names = (LOCATE_FILE, SUMMARY_FILE, CHECK_FILE, BISECT_FILE)
    if path.is_file():
        return path if path.name in names else None
    found = next((path / name for name in names if (path / name).is_file()), None)
    return None if found is not None and found.name == CHECK_FILE and _holds_dumps(path) else found


def _holds_dumps(path: Path) -> bool:
    if is_dump(path) or steps_of_run(path)[0]:
        return True
    try:
        return bool(units_of_step(path).units)
    except DumpError:
        return False


def _sides(result: Path, target: str, golden: str) -> tuple[Path, Path]:
    for side in (target, golden):
        if not _is_there(side):
            raise CompareError(
                f"{result} is of {target} and {golden}, and {side} is not there; give the directories of the two runs, "
                "or the command from where these paths lead to them"
            )
    return path_of(target), path_of(golden)


def _is_there(side: str) -> bool:
    try:
        return path_of(side).exists()
    except (OSError, ValueError):  # a name that is too long, or holds a null character
        return False
