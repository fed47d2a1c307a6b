"""Tables and summary of a comparison, written at once; the product writes each table as soon as it is made."""

from pathlib import Path

from msprobe_core.compare.result import ComparisonResult, UnitResult
from msprobe_core.report.files import ReportFiles, TableOptions, time_stamp, write_summary, write_tables


def write_report(
    result: ComparisonResult[UnitResult], directory: Path, options: TableOptions | None = None
) -> ReportFiles:
    """Write a table for each unit, and the summary.

    Args:
        result: The result to write.
        directory: Created if it is missing.
        options: How to write tables; by default csv in our layout.

    Raises:
        StoreError: a file cannot be written.
    """
    options = options or TableOptions(stamp=time_stamp())
    return write_summary(result, [write_tables(unit, directory, options).tables for unit in result.units], directory)
