"""The figure of an audit: the lower bound that an attack found beside the epsilon that is claimed."""

import math
from collections.abc import Sequence

from unskew.report import figures, svg_file
from unskew.report.section import Chart
from unskew.run.audit import Audit

TICKS = (0.0, 0.5, *(m * 10.0**e for e in range(6) for m in (1, 2, 5)))


def chart(audits: Sequence[Audit]) -> Chart:
    """Draw a line for each method: the lower bound found at its left end, the claimed upper bound at its right."""
    marks = figures.looks([False] * len(audits))
    with figures.style("audit"):
        figure, axes = figures.chart(60 + 30 * len(audits), 430)
        axes.set_axisbelow(True)
        for i, (a, look) in enumerate(zip(audits, marks, strict=True)):
            if math.isfinite(a.claimed):
                axes.plot([a.lower, a.claimed], [i, i], color=look.colour, linewidth=1.2)
                axes.plot([a.claimed], [i], color=look.colour, marker="|", markersize=14, markeredgewidth=2.2)
            axes.plot([a.lower], [i], color=look.colour, marker="o", markersize=7)
        axes.set_yticks(range(len(audits)), [a.method for a in audits])
        axes.set_ylim(len(audits) - 0.5, -0.5)
        axes.set_xscale("symlog", linthresh=1.0)
        ends = [v for a in audits for v in (a.lower, a.claimed) if math.isfinite(v)]
        ticks = [t for t in TICKS if t < 2 * max(ends)]
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("epsilon, no unit, log scale from 1 on")
        each = "; ".join(f"{a.method} at least {a.lower:.3g}, claimed {a.claimed:.3g}" for a in audits)
        svg = figures.markup(figure, "audit", f"Epsilon measured beside the claim: {each}.")
    caption = (
        "Disc: epsilon that a method has at least, by the noise that was measured "
        f"({100 * audits[0].confidence:g} % confidence). Bar: epsilon that it claims at most; without one it claims "
        "nothing. A disc right of its bar refutes the claim."
    )
    return Chart("Audit of differential privacy", caption, svg)


def document(audits: Sequence[Audit]) -> str:
    """Return the figure as an SVG document."""
    return svg_file.document(chart(audits))
