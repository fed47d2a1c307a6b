"""The tables of mstt 8.x and ``mindstudio-probe`` 26.x, registered as plugins register theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msprobe_core.hookspecs import hookimpl
from msprobe_core.protocols.presentation import Table, TableChoices, TableFormat

GENERATION_A, GENERATION_C = "a", "c"

# polars takes long to import, and the command line needs the names alone.


class _FormatA:
    name = GENERATION_A
    summary = "mstt 8.x"

    def table(self, unit: Any, choices: TableChoices) -> Table:
        from msprobe_core.compat.call_table import table_of_a

        return table_of_a(unit, choices)

    def titles(self) -> Collection[str]:
        return _titles()


class _FormatC:
    name = GENERATION_C
    summary = "mindstudio-probe 26.x"

    def table(self, unit: Any, choices: TableChoices) -> Table:
        from msprobe_core.compat.call_table import table_of_c
        from msprobe_core.compat.kernel_table import is_of_kernels, kernel_table

        return kernel_table(unit) if is_of_kernels(unit) else table_of_c(unit, choices)

    def titles(self) -> Collection[str]:
        return _titles()


def _titles() -> Collection[str]:
    from msprobe_core.compat.call_table import titles

    return titles()


@hookimpl
def msprobe_register_tables() -> Sequence[TableFormat]:
    """Offer both."""
    return [_FormatA(), _FormatC()]
