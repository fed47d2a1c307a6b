"""Files that are written completely or not at all."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msprobe_core.errors import StoreError
from msprobe_core.store.layout import create_file, make_directory
from msprobe_core.untrusted.paths import encode_json

_MAX_STEM = 60
"""Characters of the name that are kept: four bytes each at most, so that the path of the part is below 255 bytes."""


def unfinished_path(path: Path) -> Path:
    """Return a path beside ``path`` for its content until it is complete; no other process uses the same one.

    Several commands may write the same file at the same time: the last one to finish replaces what the others wrote.
    """
    return path.with_name(f".{path.name[:_MAX_STEM]}.{secrets.token_hex(4)}.part")


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO, None, None]:
    """Open a file for its owner only, which gets the name ``path`` once it is complete.

    Raises:
        StoreError: it cannot be written; no part of it is left.
    """
    with whole_path(path) as part, create_file(part) as file:
        yield file


@contextmanager
def whole_path(path: Path) -> Generator[Path, None, None]:
    """Yield a path beside ``path``, whose file gets that name once it is complete: for writers that create it.

    Raises:
        StoreError: it cannot be written; no part of it is left, and a file that was there stays.
    """
    part = unfinished_path(path)
    try:
        yield part
        part.replace(path)
    except StoreError as error:
        part.unlink(missing_ok=True)
        if str(part) not in str(error):
            raise
        # Users know nothing of the part.
        raise StoreError(str(error).replace(str(part), str(path))) from error
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = error.strerror or error
        raise StoreError(f"{path}: cannot be written ({reason}); free space or choose another directory") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: object) -> None:
    """Write a JSON file, completely or not at all; missing directories are created.

    Raises:
        StoreError: it cannot be written.
    """
    make_directory(path.parent)
    with whole_file(path) as file:
        file.write(encode_json(content, indent=2) + b"\n")


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV whose lines end as on Unix."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[object]], *, errors: str = "strict") -> None:
    """Write a CSV file in UTF-8, completely or not at all; its directory exists.

    Args:
        path: Path of the file.
        rows: The heading among them.
        errors: What to do with text that UTF-8 cannot encode, as `str.encode` has it.

    Raises:
        StoreError: it cannot be written.
    """
    content = csv_text(rows).encode("utf-8", errors)
    with whole_file(path) as file:
        file.write(content)


def unused_paths(directory: Path, stem: str, suffixes: Sequence[str]) -> list[Path]:
    """Return unused paths with a common stem: two commands may end within one second.

    Args:
        directory: Directory of the paths.
        stem: Common beginning of the names.
        suffixes: Suffix of each path, without the dot.
    """
    number = 1
    while True:
        mark = f"_{number}" if number > 1 else ""
        paths = [directory / f"{stem}{mark}.{suffix}" for suffix in suffixes]
        if not any(path.exists() for path in paths):
            return paths
        number += 1
