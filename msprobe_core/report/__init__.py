"""Results as tables, summaries and terminal output, and functions to compare from a script."""

from msprobe_core.report.api import Comparison, compare, compare_distributed
from msprobe_core.report.files import ReportFiles, TableForm, TableOptions, time_stamp, write_report
from msprobe_core.report.table import TableLayout

__all__ = [
    "Comparison",
    "ReportFiles",
    "TableForm",
    "TableLayout",
    "TableOptions",
    "compare",
    "compare_distributed",
    "time_stamp",
    "write_report",
]
