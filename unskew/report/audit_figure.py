"""The figure of an audit: the lower bound that an attack found beside the epsilon that is claimed."""

import math
from collections.abc import Sequence

from unskew.report import charts
from unskew.run.audit import Audit


def document(audits: Sequence[Audit]) -> str:
    """An SVG file with a row for each method: a disc at the lower bound found, a line to the claimed upper bound."""
    rows = [
        {"name": a.method, "value": a.lower, "low": a.lower, "high": a.claimed if math.isfinite(a.claimed) else None}
        for a in audits
    ]
    caption = (
        f"Disc: epsilon that a method has at least ({100 * audits[0].confidence:g} % confidence). "
        "Line: to what it claims at most. A line to the left refutes the claim."
    )
    return charts.document(charts.forest(rows, "epsilon"), "Audit of differential privacy", caption)
