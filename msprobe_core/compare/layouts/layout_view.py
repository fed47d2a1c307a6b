"""A view of a dump in another layout than the stored one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from msprobe_core.findings import Finding
from msprobe_core.model import Ending, RunHeader
from msprobe_core.protocols.storage import Dump, TensorSource
from msprobe_core.store.ending import ending_of

Open: TypeAlias = Callable[[], TensorSource]
Row: TypeAlias = dict[str, Any]
"""A row of a frame by column."""


@dataclass
class LayoutView:
    """A view of a dump in another layout than the stored one; see `msprobe_core.plugin.Dump`.

    Attributes:
        inner: The stored dump.
        frame: Its rows in the layout of the view.
        notes: Notes of the dump, and on the changes.
    """

    inner: Dump
    frame: pl.DataFrame
    notes: list[str | Finding]
    views: dict[str, Open] = field(default_factory=dict[str, Open])
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def path(self) -> Path:
        """As stored."""
        return self.inner.path

    @property
    def header(self) -> RunHeader:
        """As stored."""
        return self.inner.header

    @property
    def ending(self) -> Ending:
        """As stored."""
        return ending_of(self.inner)

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """As stored; a fused module has the stack of its first part."""
        return _under_new_names(self.inner.stacks, self.names)

    @property
    def parents(self) -> Mapping[str, str | None]:
        """As stored; a fused module has the parent of its first part."""
        found = {
            entry: None if name is None else self.names.get(name, name) for entry, name in self.inner.parents.items()
        }
        return _under_new_names(found, self.names)

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor in the layout of the view.

        Raises:
            DumpError: it cannot be read.
        """
        view = self.views.get(file_name)
        return self.inner.open_tensor(file_name) if view is None else view()

    def opener(self, file_name: str) -> Open:
        """Return a function that opens a tensor in the current layout, even after later changes."""
        view = self.views.get(file_name)
        return view if view is not None else lambda: self.inner.open_tensor(file_name)


def _under_new_names(found: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    renamed = dict(found)
    for old, new in names.items():
        if old in found:
            renamed.setdefault(new, found[old])
    return renamed


def sizes_in(shape: str) -> tuple[int, ...]:
    """Return the shape in a text of a frame."""
    return tuple(ast.literal_eval(shape))
