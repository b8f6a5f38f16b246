"""Tables, figures and one HTML page, made from run folders and nothing else.

What draws is imported when it is first used: a run that writes no page waits for no Matplotlib.
"""

from typing import TYPE_CHECKING

import lazy_loader

from unskew.record.reader import Record, read

if TYPE_CHECKING:
    from unskew.report.export import table
    from unskew.report.html import write_comparison, write_report

__all__ = ["Record", "read", "table", "write_comparison", "write_report"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"export": ["table"], "html": ["write_comparison", "write_report"]}
)
