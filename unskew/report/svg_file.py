"""Writes a figure as a file of its own, with title, caption and legend inside the SVG.

Drawings name their colours as the page's style sheet does.  Here each becomes the sheet's colour for light pages, on a
white ground, so that programs that know no CSS variables show the file too.
"""

import re
import textwrap
from pathlib import Path

from markupsafe import escape

from unskew.report.section import Chart

_MARGIN = 14.0
_TITLE, _TEXT = 14.0, 10.5  # sizes of letters
_LINE = 1.4  # height of a line, in letters
_WIDTH = 0.56  # of a letter on average; nobody measures text without a font
_SWATCH = 32.0


def document(chart: Chart) -> str:
    """The chart as SVG text: title, caption, legend and drawing above each other, readable without a page."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart.svg)
    assert box is not None, "figures.markup writes a viewBox from 0 0"
    width, height = float(box[1]), float(box[2])
    parts: list[str] = []
    y = _MARGIN
    for text, size, weight in ((chart.title, _TITLE, "bold"), (chart.caption, _TEXT, "normal")):
        for line in textwrap.wrap(text, int(width / (_WIDTH * size))):
            y += _LINE * size
            parts.append(
                f'<text x="{_MARGIN}" y="{y:.1f}" font-size="{size}" font-weight="{weight}">{escape(line)}</text>'
            )
    x, y = _MARGIN, y + 0.8 * _TEXT
    for name, swatch in chart.legend:
        needed = _SWATCH + 6 + (len(name) + 3) * _WIDTH * _TEXT
        if x > _MARGIN and x + needed > _MARGIN + width:
            x, y = _MARGIN, y + 1.6 * _TEXT
        parts.append(_placed(str(swatch), x, y, _SWATCH, 12.0))
        parts.append(f'<text x="{x + _SWATCH + 5:.1f}" y="{y + 10:.1f}" font-size="{_TEXT}">{escape(name)}</text>')
        x += needed
    y += (2.0 if chart.legend else 0.4) * _TEXT
    parts.append(_placed(str(chart.svg), _MARGIN, y, width, height))
    across, down = width + 2 * _MARGIN, y + height + _MARGIN
    page, colours = "\n".join(parts), _colours()
    for name, colour in colours.items():
        page = page.replace(f"var(--{name})", colour)
    ink, ground = colours["ink"], colours["page"]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{across:.1f}pt" height="{down:.1f}pt" '
        f'viewBox="0 0 {across:.1f} {down:.1f}" font-family="sans-serif" fill="{ink}" color="{ink}">\n'
        f'<rect width="100%" height="100%" fill="{ground}"/>\n{page}\n</svg>\n'
    )


def _placed(svg: str, x: float, y: float, width: float, height: float) -> str:
    """A drawing at its place inside another."""
    svg = re.sub(r' (?:style|class|aria-hidden)="[^"]*"', "", svg[: svg.index(">")], flags=re.S) + svg[svg.index(">") :]
    return svg.replace("<svg ", f'<svg x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" ', 1)


def _colours() -> dict[str, str]:
    """The style sheet's names and their colours on light pages, which come first."""
    sheet = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", sheet[: sheet.index("}")]))
