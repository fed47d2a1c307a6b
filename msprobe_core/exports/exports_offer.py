"""The core's own exports, registered through the same hook as those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.presentation import Export, Page

DATABASE = "tb-database"


@dataclass(frozen=True)
class _Export:
    name: str
    summary: str
    writer: Callable[[Page], Sequence[Path]]
    needs_graphs: bool = True

    def write(self, page: Page) -> Sequence[Path]:
        return self.writer(page)


@hookimpl
def msprobe_register_exports() -> Sequence[Export]:
    """Register the exports of the core."""
    return [
        _Export("model-explorer", "Graphs, node data and mappings, in JSON.", _model_explorer),
        _Export("perfetto", "A trace of the order of calls, with communication.", _perfetto),
        _Export("tensorboard", "Statistics over steps as event files.", _tensorboard, needs_graphs=False),
        _Export(DATABASE, "SQLite with tb_nodes, tb_stack and tb_config.", _database),
    ]


# The command's options need only the names, so each writer module is imported when it is used.


def _model_explorer(page: Page) -> Sequence[Path]:
    from msprobe_core.exports.model_explorer import write_model_explorer

    return write_model_explorer(page.data, page.graphs, page.directory / "model_explorer")


def _perfetto(page: Page) -> Sequence[Path]:
    from msprobe_core.exports.perfetto import write_perfetto

    return write_perfetto(page.data, page.graphs, page.directory / "perfetto")


def _tensorboard(page: Page) -> Sequence[Path]:
    from msprobe_core.exports.tensorboard import write_tensorboard

    return write_tensorboard(page.data, page.directory / "tensorboard")


def _database(page: Page) -> Sequence[Path]:
    from msprobe_core.exports.database import write_database

    return [write_database(page.data, page.graphs, page.directory / f"{page.stem}.vis.db")]
