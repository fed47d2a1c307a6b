"""Results for people and for programs: tables, a summary, a few lines on the terminal."""

from msprobe_core.report.files import ReportFiles, TableOptions, time_stamp, write_report

__all__ = ["ReportFiles", "TableOptions", "time_stamp", "write_report"]
