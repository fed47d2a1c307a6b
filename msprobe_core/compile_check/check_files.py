"""``compile.json`` and ``compile.csv``: what a check of compiled modules has found.

The table has the columns of mindstudio-probe's ``PrecisionChecker``; its status follows from our verdict, not from
fixed tolerances.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe_core.compile_check.check import CompileCheck, ModuleCheck
from msprobe_core.compile_check.verdict import CompileVerdict, ResultVerdict
from msprobe_core.findings import Finding, text_and_content
from msprobe_core.store.atomic_file import write_csv, write_json
from msprobe_core.store.layout import make_directory
from msprobe_core.store.results import OwnFiles, plain_result

CHECK_FILE = "compile.json"
CHECK_TABLE = "compile.csv"
VERSION = 1
COLUMNS = (
    "module_name", "check_type", "tensor_index", "status", "max_abs_diff", "mean_abs_diff", "max_rel_diff", "shape",
    "note",
)  # fmt: skip
COMPILE_RESULT = OwnFiles(
    "msprobe compile check",
    {CHECK_FILE: ("version", "backend", "headline", "modules"), CHECK_TABLE: ",".join(COLUMNS).encode()},
)


def write_check(found: CompileCheck, directory: Path, part: Finding | None = None) -> list[Path]:
    """Write both files; return their paths.

    Args:
        found: What was found.
        directory: It is made.
        part: The guilty part of the compiler.

    Raises:
        StoreError: one cannot be written; no part of it is left.
    """
    make_directory(directory)
    path, table = directory / CHECK_FILE, directory / CHECK_TABLE
    write_json(path, _content(found, part))
    write_published(found, table)
    return [path, table]


def write_published(found: CompileCheck, path: Path) -> None:
    """Write the table.

    Raises:
        StoreError: it cannot be written; no part of it is left.
    """
    write_csv(path, [COLUMNS, *(row for module in found.modules for row in _rows(module))])


def _rows(module: ModuleCheck) -> Iterator[tuple[object, ...]]:
    if module.problem is not None:
        yield module.path, "fwd_output", 0, "SKIP", "", "", "", "", module.problem.text
    for result in module.results:
        kind, index = _kind_of(result.name)
        yield (
            module.path, kind, index, _status_of(result), f"{result.max_abs_diff:.6e}", f"{result.mean_abs_diff:.6e}",
            f"{result.max_rel_diff:.6e}", str(result.shape), _note_of(result),
        )  # fmt: skip


def _kind_of(name: str) -> tuple[str, int | str]:
    parts = name.split(".")
    if parts[0] == "output":
        return "fwd_output", int(parts[1])
    if parts[0] == "input" and parts[1].isdigit():
        return "grad_input", int(parts[1])
    return "grad_param", name.removesuffix(".grad")


def _status_of(result: ResultVerdict) -> str:
    if result.verdict is CompileVerdict.CANNOT_TELL:
        return "SKIP"
    return "FAIL" if result.verdict.is_bad else "PASS"


def _note_of(result: ResultVerdict) -> str:
    numbers = f"eager {result.eager:.3g}, compiled {result.compiled:.3g} times what rounding explains"
    return f"{result.verdict.value}: {numbers}"


def _content(found: CompileCheck, part: Finding | None) -> dict[str, Any]:
    return {
        "version": VERSION,
        "backend": found.backend,
        **text_and_content("headline", found.headline),
        **text_and_content("notes", found.notes),
        **text_and_content("part", part),
        "seconds": found.seconds,
        "counts": {kind.value: count for kind, count in found.counts.items()},
        "culprits": [each.path for each in found.culprits],
        "modules": plain_result(found.modules, ("problem", "reason")),
    }
