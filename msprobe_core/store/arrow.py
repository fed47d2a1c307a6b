"""Runs as Arrow IPC streams: ``dump.arrow``, ``stack.arrow`` and ``construct.arrow``; needs the extra ``arrow``.

The format is registered even if pyarrow is not installed, so that users who select it get instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msprobe_core.errors import DumpError, PluginError
from msprobe_core.hookspecs import hookimpl
from msprobe_core.model import RunHeader
from msprobe_core.protocols.storage import Dump, Reader, Writer, WriterFactory
from msprobe_core.store import layout


class ArrowWriterFactory:
    """Stores runs as Arrow IPC streams."""

    name = "arrow"

    def check(self) -> None:
        """Raise if pyarrow is not installed."""
        from msprobe_core.store.arrow_columns import import_pyarrow  # imports NumPy, slow to load

        import_pyarrow()

    def open(self, directory: Path, header: RunHeader) -> Writer:
        """Begin a dump in ``directory``."""
        from msprobe_core.store.arrow_writer import ArrowWriter  # as above

        return ArrowWriter(directory, header)


class ArrowReader:
    """Reads ``dump.arrow``."""

    name = "arrow"

    def recognises(self, path: Path) -> bool:
        """Whether ``path`` is an Arrow file or a directory with a ``dump.arrow``."""
        return path.suffix == ".arrow" if path.is_file() else (path / layout.ARROW_DUMP_FILE).is_file()

    def read(self, path: Path) -> Dump:
        """Read the dump at ``path``, a file or a rank's directory."""
        from msprobe_core.store.arrow_reader import read_arrow_dump  # imports polars

        path = path / layout.ARROW_DUMP_FILE if path.is_dir() else path
        try:
            return read_arrow_dump(path)
        except PluginError as error:
            raise DumpError(f"{path}: {error}") from error


@hookimpl
def msprobe_register_writers() -> Sequence[WriterFactory]:
    """Offer the writer of this format."""
    return [ArrowWriterFactory()]


@hookimpl
def msprobe_register_readers() -> Sequence[Reader]:
    """Offer the reader of this format."""
    return [ArrowReader()]
