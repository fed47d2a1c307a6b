"""SQLite files that are written completely or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from msprobe_core.errors import StoreError
from msprobe_core.store.atomic_file import unfinished_path
from msprobe_core.store.layout import create_file, make_directory


@contextmanager
def whole_database(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """Open a new database for its owner only, which gets the name ``path`` once it is complete.

    Raises:
        StoreError: it cannot be written; no partial file remains.
    """
    make_directory(path.parent)
    part = unfinished_path(path)
    create_file(part).close()  # so that SQLite keeps the permissions of the file
    try:
        with closing(sqlite3.connect(part)) as connection, connection:
            yield connection
        part.replace(path)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written ({error}); free space or choose another directory") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
