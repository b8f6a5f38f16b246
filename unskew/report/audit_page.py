"""The page of an audit: the lower bound on epsilon beside the claimed one."""

import math
from collections.abc import Sequence

from unskew.report import charts
from unskew.report.page import Page
from unskew.report.section import Chart, table
from unskew.run.audit import Audit
from unskew.words import counted


def page(audits: Sequence[Audit], name: str) -> Page:
    """The page, with a row of its table and figure for each method."""
    sure = f"{100 * audits[0].confidence:g} % confidence"
    false = [a.method for a in audits if not a.holds]
    verdict = f"The claim of {', '.join(false)} is false." if false else "No claim is refuted, and none is proven."
    drawn = [
        {"name": a.method, "value": a.lower, "low": a.lower, "high": a.claimed if math.isfinite(a.claimed) else None}
        for a in audits
    ]
    caption = (
        f"Disc: epsilon that a method has at least ({sure}). Line: to what it claims at most. "
        "A line to the left refutes the claim."
    )
    alt = "; ".join(f"{a.method} at least {a.lower:.3g}, claimed {_claimed(a)}" for a in audits)
    head = ["method", "clip", "noise", "epsilon at least", "claimed", "claim is"]
    rows = [(a.method, f"{a.clip:.3g}", f"{a.noise:.3g}", f"{a.lower:.3g}", _claimed(a), _reading(a)) for a in audits]
    note = f"With {sure}; clip and noise in clipping norms. Epsilon is for one client's data replaced by any others."
    return Page(
        f"Audit of {name}",
        f"an attack on the differential privacy of {counted(len(audits), 'method')}, {sure}",
        verdict,
        [Chart("Epsilon found and claimed", caption, charts.forest(drawn, "epsilon"), f"Epsilon: {alt}.")],
        table("Noise as measured, beside the claim", head, rows, note, [-1]),
    )


def _claimed(a: Audit) -> str:
    return f"{a.claimed:.3g}" if math.isfinite(a.claimed) else "none"


def _reading(a: Audit) -> str:
    if not math.isfinite(a.claimed):
        return "none"
    return "not refuted" if a.holds else f"false: {a.fault or 'epsilon'}"
