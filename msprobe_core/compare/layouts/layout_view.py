"""A view of a dump in another layout than the stored one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import polars as pl

from msprobe_core.compare.derived import DerivedDump
from msprobe_core.model import RunHeader
from msprobe_core.protocols.storage import Dump, TensorSource

Open: TypeAlias = Callable[[], TensorSource]
Row: TypeAlias = dict[str, Any]
"""A row of a frame by column."""


class LayoutView(DerivedDump):
    """A view of a dump in another layout than the stored one.

    Attributes:
        views: Functions that open tensors in the layout of the view, by file name.
        names: New names of calls, by stored name.
    """

    def __init__(
        self, dump: Dump, frame: pl.DataFrame, header: RunHeader | None = None, names: dict[str, str] | None = None
    ) -> None:
        """Begin with the stored layout, or with the names that are given."""
        super().__init__(dump, frame, header)
        self.views: dict[str, Open] = {}
        self.names = {} if names is None else names

    @property
    def stacks(self) -> Mapping[str, Sequence[str]]:
        """As stored; a fused module has the stack of its first part."""
        return _under_new_names(super().stacks, self.names)

    @property
    def parents(self) -> Mapping[str, str | None]:
        """As stored; a fused module has the parent of its first part."""
        parents = super().parents.items()
        found = {entry: None if name is None else self.names.get(name, name) for entry, name in parents}
        return _under_new_names(found, self.names)

    def open_tensor(self, file_name: str) -> TensorSource:
        """Return a tensor in the layout of the view.

        Raises:
            DumpError: it cannot be read.
        """
        view = self.views.get(file_name)
        return super().open_tensor(file_name) if view is None else view()

    def opener(self, file_name: str) -> Open:
        """Return a function that opens a tensor in the current layout, even after later changes."""
        view = self.views.get(file_name)
        return view if view is not None else functools.partial(super().open_tensor, file_name)


def _under_new_names(found: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    renamed = dict(found)
    for old, new in names.items():
        if old in found:
            renamed.setdefault(new, found[old])
    return renamed
