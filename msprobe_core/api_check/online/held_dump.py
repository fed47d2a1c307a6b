"""The calls of one step, held in memory, as a dump."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe_core.errors import DumpError
from msprobe_core.model import Entry, RunHeader, TensorContent
from msprobe_core.store.frame import FrameBuilder
from msprobe_core.store.json_reader import decode_record
from msprobe_core.store.json_writer import encoded_entry
from msprobe_core.store.tensor_values import DTYPES, widen

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class HeldTensor:
    """A tensor on the host; see `msprobe_core.plugin.TensorSource`."""

    content: TensorContent

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dimensions."""
        return self.content.shape

    @property
    def dtype(self) -> str:
        """Name without a framework's."""
        return self.content.dtype

    def chunks(self, num_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the elements in C order, as vectors of at most ``num_elements``."""
        stored: Any = np.frombuffer(self.content.data, DTYPES[self.dtype])
        for begin in range(0, math.prod(self.shape), num_elements):
            yield widen(stored[begin : begin + num_elements], self.dtype)


@dataclass(frozen=True, kw_only=True)
class HeldDump:
    """Entries and copies of tensors as a dump that can be read; see `msprobe_core.plugin.Dump`.

    Attributes:
        path: Of the dump that holds what is kept of them.
        header: Of the recording.
        frame: One row per value.
        copies: Copies of tensors by the names that the entries have for them.
        fetch: Returns the elements of a copy, or ``None``.
    """

    path: Path
    header: RunHeader
    frame: pl.DataFrame
    copies: Mapping[str, Any]
    fetch: Callable[[Any], TensorContent | None]
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    parents: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls, entries: Iterable[Entry], copies: Mapping[str, Any], fetch: Callable[[Any], TensorContent | None], *,
        header: RunHeader, path: Path,
    ) -> HeldDump:  # fmt: skip
        """Make a dump of entries; those that cannot be described are left out."""
        builder = FrameBuilder()
        for entry in entries:
            _add(builder, entry)
        return cls(path=path, header=header, frame=builder.build(), copies=copies, fetch=fetch)

    def open_tensor(self, file_name: str) -> HeldTensor:
        """Return a copied tensor, fetched from its device.

        Raises:
            DumpError: it has no plain elements.
        """
        content = self.fetch(self.copies[file_name]) if file_name in self.copies else None
        if content is None or content.dtype not in DTYPES:
            raise DumpError(f"{file_name}: holds no plain numbers")
        return HeldTensor(content)


def _add(builder: FrameBuilder, entry: Entry) -> None:
    record = encoded_entry(entry)
    try:
        builder.add_json(entry.name, record)
    except msgspec.DecodeError:  # infinities, which are numbers beyond float64
        builder.add_entry(entry.name, decode_record(msgspec.Raw(record)))
