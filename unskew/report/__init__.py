"""Tables, figures and one HTML page, made from run folders and nothing else."""

from unskew.record.reader import Record, read
from unskew.report.export import table
from unskew.report.html import write_comparison, write_report

__all__ = ["Record", "read", "table", "write_comparison", "write_report"]
