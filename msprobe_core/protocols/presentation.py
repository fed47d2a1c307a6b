"""What results can be presented with: files for other viewers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class PageGraphs(Protocol):
    """The graphs of a page; they are held outside of its data, since there may be thousands."""

    def content(self, number: int) -> bytes | None:
        """Return the graph of a unit as JSON, see ``docs/view_format.md``; ``None`` if there is none."""
        ...


@dataclass(frozen=True)
class Page:
    """What is to be exported, and where to.

    Attributes:
        data: What the page shows: `msprobe_core.view.data.ViewData`, described in ``docs/view_format.md``.
        graphs: The graphs of its units.
        directory: That of ``-o``; may be missing.
        stem: For the names of files that are not overwritten: ``build_TIME`` of one run, ``compare_TIME`` of two.
    """

    data: Any
    graphs: PageGraphs
    directory: Path
    stem: str


class Export(Protocol):
    """A format of another viewer."""

    @property
    def name(self) -> str:
        """Option of ``msprobe export`` that asks for it, without the dashes."""
        ...

    @property
    def summary(self) -> str:
        """Help text of the option: one sentence."""
        ...

    @property
    def needs_graphs(self) -> bool:
        """Whether it shows graphs; a subject that has none, such as a monitor's files, is then refused."""
        ...

    def write(self, page: Page) -> Sequence[Path]:
        """Write the files and return them.

        Raises:
            StoreError: a file cannot be written.
            CompareError: the page has nothing that the viewer shows.
        """
        ...
