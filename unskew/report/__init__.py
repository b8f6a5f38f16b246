"""Tables, figures and one HTML page, made from run folders and nothing else."""

from unskew.report.html import write_comparison, write_report
from unskew.report.record import Record, read
from unskew.report.tables import markdown_table

__all__ = ["Record", "markdown_table", "read", "write_comparison", "write_report"]
