"""What tests of sections share: the rows that a chart draws."""

from collections.abc import Callable
from typing import Any

import pytest

from unskew.report.section import Chart


@pytest.fixture
def rows() -> Callable[[Chart], list[dict[str, Any]]]:
    """Give the rows of a chart, of all of its layers."""
    return lambda chart: [row for values in chart.drawing.to_dict()["datasets"].values() for row in values]
