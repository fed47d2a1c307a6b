"""The core's own exports, registered through the same hook as those of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.presentation import Export, Page

DATABASE = "tb-database"


@dataclass(frozen=True)
class _Export:
    name: str
    summary: str
    module: str
    needs_graphs: bool = True

    def write(self, page: Page) -> Sequence[Path]:
        # The command's options need only the names, so each writer's module is imported when it is used.
        return import_module(f"msprobe_core.exports.{self.module}").write(page)


@hookimpl
def msprobe_register_exports() -> Sequence[Export]:
    """Register the exports of the core."""
    return [
        _Export("model-explorer", "Graphs, node data and mappings, in JSON.", "model_explorer"),
        _Export("perfetto", "A trace of the order of calls, with communication.", "perfetto"),
        _Export("tensorboard", "Statistics over steps as event files.", "tensorboard", needs_graphs=False),
        _Export(DATABASE, "SQLite with tb_nodes, tb_stack and tb_config.", "database"),
    ]
