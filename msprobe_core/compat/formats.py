"""The tables of mstt 8.x and ``mindstudio-probe`` 26.x, registered as plugins register theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.presentation import Table, TableChoices, TableFormat

GENERATION_A, GENERATION_C = "a", "c"


@dataclass(frozen=True)
class _Format:
    name: str
    summary: str
    make: Callable[[Any, TableChoices], Table]

    def table(self, unit: Any, choices: TableChoices) -> Table:
        return self.make(unit, choices)

    def titles(self) -> Collection[str]:
        from msprobe_core.compat.call_table import titles

        return titles()


@hookimpl
def msprobe_register_tables() -> Sequence[TableFormat]:
    """Offer both."""
    return [_Format(GENERATION_A, "mstt 8.x", _table_a), _Format(GENERATION_C, "mindstudio-probe 26.x", _table_c)]


# polars takes long to import, and the command line needs the names alone.


def _table_a(unit: Any, choices: TableChoices) -> Table:
    from msprobe_core.compat.call_table import table_of_a

    return table_of_a(unit, choices)


def _table_c(unit: Any, choices: TableChoices) -> Table:
    from msprobe_core.compat.call_table import table_of_c
    from msprobe_core.compat.kernel_table import is_of_kernels, kernel_table

    return kernel_table(unit) if is_of_kernels(unit) else table_of_c(unit, choices)
