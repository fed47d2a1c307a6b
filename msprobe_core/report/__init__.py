"""Results for people and for programs: tables, a summary, a few lines on the terminal."""

from msprobe_core.report.files import ReportFiles, TableForm, TableOptions, time_stamp, write_report
from msprobe_core.report.table import TableLayout

__all__ = ["ReportFiles", "TableForm", "TableLayout", "TableOptions", "time_stamp", "write_report"]
