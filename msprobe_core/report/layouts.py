"""The table of each layout."""

from __future__ import annotations

from msprobe_core.compare.result import UnitResult
from msprobe_core.report.compat_kernels import kernel_table
from msprobe_core.report.compat_table import compat_table
from msprobe_core.report.default_table import own_table
from msprobe_core.report.table import Table, TableLayout
from msprobe_core.store.kernel_files import holds_kernels


def table_of(
    result: UnitResult,
    layout: TableLayout = TableLayout.OURS,
    *,
    has_stacks: bool | None = None,
    has_highlights: bool = False,
) -> Table:
    """Return the table of one result.

    Args:
        result: The result to show.
        layout: The columns, and the format of their cells.
        has_stacks: Whether there is a column of recorded call stacks; ``None`` for the default of the layout: all but
            ``A`` have one.
        has_highlights: Whether spreadsheets of layout ``A`` are coloured by its rules instead of our verdict.
    """
    if has_stacks is None:
        has_stacks = layout is not TableLayout.A
    if layout is TableLayout.OURS:
        return own_table(result, has_stacks=has_stacks)
    if layout is TableLayout.C and is_of_kernels(result):
        return kernel_table(result)
    has_highlights = has_highlights and layout is TableLayout.A
    return compat_table(result, layout, has_stacks=has_stacks, has_highlights=has_highlights)


def is_of_kernels(result: UnitResult) -> bool:
    """Whether the dumps are of kernels, for which some layouts have a separate table."""
    return result.target.is_dir() and holds_kernels(result.target)
