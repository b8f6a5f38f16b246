"""Tables, figures and the HTML page of a run, made from its record.

Altair is imported when a figure is first drawn.
"""

from typing import TYPE_CHECKING

import lazy_loader

from unskew.record.reader import Record, read

if TYPE_CHECKING:
    from unskew.report.page import write_comparison, write_report

__all__ = ["Record", "read", "write_comparison", "write_report"]

__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs={"page": ["write_comparison", "write_report"]})
