"""Tables, figures and one HTML page, made from run folders and nothing else."""

from unskew.report.export import table
from unskew.report.html import write_comparison, write_report
from unskew.report.record import Record, read

__all__ = ["Record", "read", "table", "write_comparison", "write_report"]
