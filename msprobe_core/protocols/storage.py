"""How values are reduced, written and read: processors, writers, readers, and the dumps that readers return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msprobe_core.findings import Finding
from msprobe_core.model import Batch, Digest, Ending, RunHeader
from msprobe_core.protocols.framework import Reducer

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray


class Processor(Protocol):
    """A way to reduce a tensor to a digest."""

    @property
    def name(self) -> str:
        """Value of ``summary_mode`` that selects it."""
        ...

    def reduce(self, tensor: Any, digest: Digest, reducer: Reducer) -> None:
        """Fill in ``digest``, using ``reducer``; called once per recorded tensor value."""
        ...


class Writer(Protocol):
    """Stores the entries of one step of one rank."""

    def write(self, batch: Batch) -> None:
        """Append entries, in execution order. When it returns, the files are valid and contain them."""
        ...

    def close(self) -> None:
        """Finish the files; called once."""
        ...


@runtime_checkable
class EndingWriter(Protocol):
    """A `Writer` that stores how the recording ended, so that half a step is not taken for a whole one."""

    def end(self, ending: Ending) -> None:
        """Write the end mark after everything else; ``EARLY`` without a reason removes an earlier mark.

        Called after each window, at the end of the step, and before another window begins. A subsequent ``write`` also
        removes the mark.

        Args:
            ending: What is known. The writer itself adds how many calls it has written.

        Raises:
            StoreError: it cannot be written; the files are then unchanged, without a mark.
        """
        ...


class WriterFactory(Protocol):
    """A format that runs can be stored in."""

    @property
    def name(self) -> str:
        """Value of the setting ``writer`` that selects it."""
        ...

    def check(self) -> None:
        """Raise if this format cannot be written here; called when a session is created, long before the first step.

        Raises:
            PluginError: a required library is not installed; the message says how to install it.
        """
        ...

    def open(self, directory: Path, header: RunHeader) -> Writer:
        """Begin a dump in ``directory``, which exists; replaces an existing dump.

        Raises:
            StoreError: a file cannot be created.
        """
        ...


class TensorSource(Protocol):
    """A stored tensor whose elements are read on demand."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        ...

    @property
    def dtype(self) -> str:
        """The stored dtype without a framework's name, for example ``bfloat16``; ``text`` if it has no numbers."""
        ...

    def chunks(self, num_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the elements in C order, as vectors of at most ``num_elements``; can be called more than once.

        bfloat16 and float8 are widened to float32, which represents them exactly. An empty tensor yields nothing.

        Raises:
            DumpError: the tensor cannot be read, or not to its end.
        """
        ...


class Dump(Protocol):
    """A dump that has been read: the columns that compare works on, and its metadata.

    ``frame`` has one row per value, in execution order, with the columns of `msprobe_core.store.frame.COLUMNS`.
    """

    @property
    def path(self) -> Path:
        """The file or directory that was read."""
        ...

    @property
    def header(self) -> RunHeader:
        """Task, level and framework."""
        ...

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """Frames by entry name, innermost first; empty if none were kept."""
        ...

    @property
    def parents(self) -> Mapping[str, str | None]:
        """Enclosing call by entry name; empty if the nesting was not kept."""
        ...

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a stored tensor; its elements are read on demand.

        Args:
            file_name: As in the column ``file_name``.

        Raises:
            DumpError: it is missing, damaged, not a tensor, or outside of the dump.
        """
        ...

    @property
    def frame(self) -> pl.DataFrame:
        """One row per value."""
        ...

    @property
    def notes(self) -> Sequence[str | Finding]:
        """Notes of the reader for the user, for example how much it recovered."""
        ...


@runtime_checkable
class MarkedDump(Protocol):
    """A `Dump` that knows whether it holds all of its step; other dumps are assumed to."""

    @property
    def ending(self) -> Ending:
        """How the recording ended."""
        ...


class Reader(Protocol):
    """A format that dumps can be read from."""

    @property
    def name(self) -> str:
        """Name of the format."""
        ...

    def recognises(self, path: Path) -> bool:
        """Whether ``path``, a file or a rank's directory, looks like this format; must not raise."""
        ...

    def read(self, path: Path) -> Dump:
        """Read the dump.

        Raises:
            DumpError: the file is missing, truncated beyond recovery, or of another format.
        """
        ...
