"""Extensions that present results: files for other viewers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class PageGraphs(Protocol):
    """The graphs of a page, held outside of its data because there may be thousands."""

    def content(self, number: int) -> bytes | None:
        """Return the graph of a unit as JSON, see ``docs/view_format.md``; ``None`` if there is none."""
        ...


@dataclass(frozen=True)
class Page:
    """The page to export, and the destination.

    Attributes:
        data: Contents of the page: `msprobe_core.view.data.ViewData`, described in ``docs/view_format.md``.
        graphs: The graphs of its units.
        directory: The value of ``-o``; may not exist.
        stem: Beginning of the names of files that must not be overwritten: ``build_TIME`` for one run, ``compare_TIME``
            for two.
    """

    data: Any
    graphs: PageGraphs
    directory: Path
    stem: str


class Export(Protocol):
    """A format of another viewer."""

    @property
    def name(self) -> str:
        """Option of ``msprobe export`` that selects it, without the dashes."""
        ...

    @property
    def summary(self) -> str:
        """Help text of the option: one sentence."""
        ...

    @property
    def needs_graphs(self) -> bool:
        """Whether it exports graphs. An input without graphs, such as a monitor's files, is then rejected."""
        ...

    def write(self, page: Page) -> Sequence[Path]:
        """Write the files and return them.

        Raises:
            StoreError: a file cannot be written.
            CompareError: the page has nothing to export in this format.
        """
        ...
