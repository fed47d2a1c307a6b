"""Results for people and for programs: tables, a summary, a few lines on the terminal; and comparing from a script."""

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
