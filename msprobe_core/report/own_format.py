"""The core's own format of result tables, registered as plugins register theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.presentation import Table, TableChoices, TableFormat

OWN_FORMAT = "ours"


class _OwnFormat:
    name = OWN_FORMAT
    summary = "msprobe"

    # polars takes long to import, and the command line needs the name alone.

    def table(self, unit: Any, choices: TableChoices) -> Table:
        from msprobe_core.report.default_table import own_table

        return own_table(unit, has_stacks=choices.has_stacks is not False)

    def titles(self) -> Collection[str]:
        from msprobe_core.report.default_table import titles

        return titles()


@hookimpl
def msprobe_register_tables() -> Sequence[TableFormat]:
    """Offer it."""
    return [_OwnFormat()]
