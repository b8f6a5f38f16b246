"""Figures as SVG text to embed in an HTML page.

Matplotlib draws, through its object interface: no pyplot, no display.  The drawing names colours by stand-ins that
become CSS (`currentColor`, `var(--s0)`, ...), so one figure serves the light, the dark and the printed page.  Ids carry
the figure's name, so that many figures fit one page, and equal input gives equal bytes.

Methods differ in three ways, by colour, dashes and marker; the colours are spaced for colour-blind readers.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path as Shape
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from unskew.report.stats import Curve
from unskew.report.tables import Difference
from unskew.tasks.measure import Measure

COLOURS = 8
MOST_CLIENTS = 100  # columns of the label chart
MOST_DOTS = 1500  # of a spread chart; beyond, boxes alone
MOST_POINTS = 200  # of one line

INK, _FAINT, BOUND, PAGE = "#010203", "#040506", "#070809", "#0a0b0c"
SERIES = tuple(f"#0d0e{i:02x}" for i in range(COLOURS))
_CSS = {INK: "currentColor", _FAINT: "var(--faint)", BOUND: "var(--bound)", PAGE: "var(--page)"} | {
    c: f"var(--s{i})" for i, c in enumerate(SERIES)
}
_WIDTH = 380.0  # points; a phone shows it nearly 1:1, so 10 pt text stays readable there
WIDE = 780.0
_RC = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "path.simplify": True,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a method may be called "a$b$"
    "xtick.color": INK,
    "ytick.color": INK,
}
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.4, 1.4), (6, 1.5, 1.4, 1.5))
_BOUND_DASHES: tuple[tuple[float, ...], ...] = ((2.5, 1.5), (1, 1), (7, 2), (4, 1.2, 1, 1.2, 1, 1.2))
_TURN = np.linspace(0.0, 2 * math.pi, 17)
_MARKERS: tuple[tuple[tuple[float, float], ...], ...] = (
    tuple((math.cos(a), math.sin(a)) for a in _TURN),
    ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85), (-0.85, -0.85)),
    ((-1.0, -0.8), (1.0, -0.8), (0.0, 1.0), (-1.0, -0.8)),
    ((-0.85, 0.0), (0.0, -1.0), (0.85, 0.0), (0.0, 1.0), (-0.85, 0.0)),
    ((-1.0, 0.8), (1.0, 0.8), (0.0, -1.0), (-1.0, 0.8)),
    tuple(  # a plus
        (x, y)
        for x, y in (
            *((-0.3, -1.0), (0.3, -1.0), (0.3, -0.3), (1.0, -0.3), (1.0, 0.3), (0.3, 0.3), (0.3, 1.0)),
            *((-0.3, 1.0), (-0.3, 0.3), (-1.0, 0.3), (-1.0, -0.3), (-0.3, -0.3), (-0.3, -1.0)),
        )
    ),
    tuple(  # a five-pointed star
        (r * math.sin(a), r * math.cos(a))
        for r, a in ((1.0 if i % 2 == 0 else 0.42, i * math.pi / 5) for i in range(11))
    ),
    ((-0.8, -1.0), (0.8, 1.0), (-0.8, 1.0), (0.8, -1.0), (-0.8, -1.0)),  # an hourglass
)


@dataclass(frozen=True)
class LineStyle:
    """The look of a line: a stand-in colour, dashes in line widths, the marker's corners, filled or not."""

    colour: str
    dashes: tuple[float, ...]
    marker: tuple[tuple[float, float], ...]
    filled: bool


@dataclass(frozen=True)
class Line:
    """A named curve and its look."""

    name: str
    look: LineStyle
    curve: Curve


def looks(bounds: Sequence[bool]) -> tuple[LineStyle, ...]:
    """A look for each method, in order; those of bounds are grey and hollow.

    Colours and markers repeat after eight methods, but not the same pair before sixty-four.
    """
    looks_so_far, methods, marks = [], 0, 0
    for bound in bounds:
        if bound:
            marker = _MARKERS[-1 - marks % len(_MARKERS)]
            looks_so_far.append(LineStyle(BOUND, _BOUND_DASHES[marks % len(_BOUND_DASHES)], marker, False))
            marks += 1
        else:
            turn, at = divmod(methods, COLOURS)
            marker = _MARKERS[(at + turn) % len(_MARKERS)]
            looks_so_far.append(LineStyle(SERIES[at], _DASHES[(at + turn) % len(_DASHES)], marker, True))
            methods += 1
    return tuple(looks_so_far)


def swatch(look: LineStyle, line: bool = True) -> Markup:
    """The look as a small SVG for legends and tables; without `line` only the marker."""
    colour, dashes = _CSS[look.colour], " ".join(f"{1.6 * d:.1f}" for d in look.dashes)
    corners = " ".join(f"{16 + 4 * x:.1f},{6 - 4 * y:.1f}" for x, y in look.marker)
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    fill = colour if look.filled else "var(--page)"
    through = f'<path d="M0 6H32" style="stroke:{colour}" stroke-width="1.6"{dash}/>' if line else ""
    return Markup(
        f'<svg class="swatch" viewBox="0 0 32 12" aria-hidden="true">{through}<polygon points="{corners}" '
        f'style="fill:{fill};stroke:{colour}"/></svg>'
    )


BLUE, ORANGE = "#2b83c4", "#e07b1a"  # these read on white and on black, and to colour-blind eyes


def shade(colour: str, opacity: float) -> Markup:
    """A square of a heatmap's colour, for legends."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 32 12" aria-hidden="true"><rect x="8" y="0.5" width="16" height="11" '
        f'style="fill:{colour};fill-opacity:{opacity:.2f};stroke:currentColor;stroke-width:.5"/></svg>'
    )


def shades(values: npt.NDArray[np.float64], above: str = BLUE, below: str = ORANGE) -> npt.NDArray[np.uint8]:
    """Pixels for numbers in [-1, 1]: a colour above 0, one below, the opacity |value|; NaN is clear, (..., 4)."""
    known = np.nan_to_num(values)
    pixels = np.zeros((*values.shape, 4), dtype=np.uint8)
    for colour, mask in ((above, known >= 0), (below, known < 0)):
        pixels[mask, :3] = tuple(bytes.fromhex(colour[1:]))
    pixels[..., 3] = np.round(255 * np.clip(np.abs(known), 0.0, 1.0))
    return pixels


RING = Markup(
    '<svg class="swatch" viewBox="0 0 32 12" aria-hidden="true"><circle cx="16" cy="6" r="5" '
    'style="fill:none;stroke:currentColor"/></svg>'
)


@contextmanager
def style(name: str) -> Iterator[None]:
    """Apply our settings over Matplotlib's defaults, ignoring the user's matplotlibrc; restore them afterwards."""
    ours = ("axes", "font", "lines", "path", "svg", "text", "xtick", "ytick")
    settings: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k.startswith(ours)}
    settings.update(_RC, **{"svg.hashsalt": name})
    with matplotlib.rc_context(settings):
        yield


def sheet(height: float, width: float = _WIDTH) -> Figure:
    """A figure with nothing on it; sizes are points."""
    return Figure(figsize=(width / 72, height / 72), layout="constrained")


def chart(height: float, width: float = _WIDTH) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = sheet(height, width)
    return figure, figure.add_subplot()


def markup(figure: Figure, name: str, alt: str) -> Markup:
    """The figure's `<svg>` element: no XML head, no metadata, no fixed size, ids and colours replaced by ours."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    layout = figure.get_layout_engine()
    if layout is not None:  # `savefig` would draw the whole figure once just to have this done
        figure.dpi = 72
        layout.execute(figure)
        figure.set_layout_engine("none")
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None, "Matplotlib writes a viewBox"
    opening = f'<svg role="img" aria-label="{escape(alt)}" viewBox="{box[1]}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    svg = svg.replace("xlink:href", "href")
    # Matplotlib names a picture by its pixels: two that are equal would have one id, which nothing refers to.
    svg = re.sub(r'(<image [^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    # The page's own font; sizes are those of the drawing.
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"font: (?:[a-z]+ )*([\d.]+px) [^;\"]*", r"font-size: \1", svg)  # before Matplotlib 3.11
    svg = re.sub(r' d="([^"]*)"', lambda m: f' d="{_shorter(m[1])}"', svg)
    for colour, css in _CSS.items():
        svg = svg.replace(colour, css)
    return Markup(re.sub(r"\n\s*", "\n", svg).strip())


def _shorter(path: str) -> str:
    """Round path data to a hundredth of a point: finer detail is invisible, and this halves the page."""
    return re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), " ".join(path.split()))


def _thin(curve: Curve) -> list[int]:
    n = len(curve.x)
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, MOST_POINTS))})


def lines_chart(
    name: str,
    lines: Sequence[Line],
    x: str,
    y: str,
    scale: float,
    alt: str,
    flat: Sequence[Line] = (),
    rings: Sequence[Curve] = (),
    log: bool = True,
) -> Markup:
    """Mean lines with a band from the lowest to the highest seed.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        lines: Curves to draw.
        x: Label of the horizontal axis, with its unit.
        y: Label of the vertical axis, with its unit.
        scale: Factor from values to the unit of `y`; 100 for percent.
        alt: Text for readers who cannot see the figure.
        flat: Lines drawn level at their last mean, for bounds that have no place on the horizontal axis.
        rings: Means drawn as open circles on top, to compare the lines with.
        log: Make the vertical axis logarithmic if the unit is not scaled and values span much.
    """
    with style(name):
        figure, axes = chart(250)
        axes.set_axisbelow(True)
        for i, line in enumerate(lines):
            at, curve, colour = _thin(line.curve), line.curve, line.look.colour
            xs = [curve.x[j] for j in at]
            if curve.seeds > 1:
                low, high = ([scale * side[j] for j in at] for side in (curve.low, curve.high))
                axes.fill_between(xs, low, high, color=colour, alpha=0.16, linewidth=0)
            every = max(1, len(at) // 7)
            axes.plot(
                xs,
                [scale * curve.mean[j] for j in at],
                **drawn(line.look),
                # Markers of different methods are at different rounds, so that equal curves stay readable.
                markevery=(i * max(1, every // max(1, len(lines))) % every, every) if len(at) > 1 else None,
            )
        for curve in rings:
            at = _thin(curve)
            xs, means = [curve.x[j] for j in at], [scale * curve.mean[j] for j in at]
            axes.plot(xs, means, "o", markersize=9, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=0.9)
        if _spans([v for line in lines for v in line.curve.mean]) and scale == 1 and log:
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
            y = f"{y}, log scale"
        if len(lines) > 1 and _spans([line.curve.x[-1] for line in lines], 20):
            smallest = min((v for line in lines for v in line.curve.x if v > 0), default=1.0)
            axes.set_xscale("symlog", linthresh=smallest)
            plain_numbers(axes.xaxis)
            x = f"{x}, log scale"
        elif x.endswith("round"):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        for line in flat:  # once the axis is final: a level line must not set its limits
            axes.axhline(scale * line.curve.mean[-1], **{**drawn(line.look), "marker": ""})
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return markup(figure, name, alt)


def plain_numbers(axis: Axis) -> None:
    """Write 0.01 rather than a power of ten: SVG text cannot show mathematics."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def drawn(look: LineStyle) -> dict[str, Any]:
    """The look as settings of a Matplotlib line."""
    return {
        "color": look.colour,
        "linestyle": (0, look.dashes) if look.dashes else "-",
        "linewidth": 1.6,
        "marker": Shape(np.array(look.marker)),
        "markersize": 6,
        "markerfacecolor": look.colour if look.filled else "none",
        "markeredgecolor": look.colour,
        "markeredgewidth": 0.8,
    }


def _spans(values: Sequence[float], factor: float = 50) -> bool:
    """True if the values need a logarithmic axis."""
    positive = [v for v in values if math.isfinite(v) and v > 0]
    return len(positive) > 1 and max(positive) > factor * min(positive)


def differences_chart(
    name: str, rows: Sequence[Difference], marks: Mapping[str, LineStyle], base: str, alt: str
) -> Markup:
    """Paired differences: one dot for each seed, the mean's marker, and its interval where there is one."""
    with style(name):
        figure, axes = chart(54 + 34 * len(rows))
        axes.set_axisbelow(True)
        measure, scale = rows[0].measure, rows[0].measure.scale
        axes.axvline(0, color=INK, linewidth=0.9)
        for i, row in enumerate(rows):
            look = marks[row.method]
            if row.low is not None and row.high is not None:
                ends = [scale * row.low, scale * row.high]
                axes.plot(ends, [i, i], color=look.colour, linewidth=2.2, solid_capstyle="butt")
            seeds = [scale * v for v in row.values]
            axes.plot(seeds, [i + 0.2] * len(row.values), "|", color=look.colour, markersize=5)
            axes.plot([scale * row.mean], [i], **{**drawn(look), "markersize": 8})
        _named_rows(axes, [row.method for row in rows])
        axes.set_xlabel(f"{measure.label} minus {_short(base)}{measure.apart}")
        return markup(figure, name, alt)


def spread_chart(
    name: str, rows: Sequence[tuple[str, LineStyle, Sequence[float]]], alt: str, measure: Measure
) -> Markup:
    """Clients' values of a measure: box of the quartiles, line from 10th to 90th percentile, a dot for each."""
    dots = sum(len(values) for _, _, values in rows) <= MOST_DOTS
    with style(name):
        figure, axes = chart(54 + (44 if dots else 32) * len(rows))
        axes.set_axisbelow(True)
        for i, (_, look, values) in enumerate(rows):
            p10, p25, p50, p75, p90 = (measure.scale * q for q in np.quantile(values, (0.1, 0.25, 0.5, 0.75, 0.9)))
            axes.plot([p10, p90], [i, i], color=look.colour, linewidth=1.2)
            box = Rectangle((p25, i - 0.13), p75 - p25, 0.26, facecolor=look.colour, alpha=0.3, edgecolor="none")
            axes.add_patch(box)
            axes.plot([p50, p50], [i - 0.13, i + 0.13], color=look.colour, linewidth=2.2, solid_capstyle="butt")
            if dots:
                # The golden ratio spreads dots evenly and needs no generator.
                up = [i + 0.2 + 0.22 * ((j * 0.6180339887) % 1) for j in range(len(values))]
                axes.plot(
                    [measure.scale * v for v in values], up, "o", color=look.colour, markersize=2.4, alpha=0.55, mew=0
                )
        _named_rows(axes, [method for method, _, _ in rows])
        axes.set_xlabel(", ".join(filter(None, [f"{measure.label} of a client on its own test data", measure.unit])))
        return markup(figure, name, alt)


def newcomers_chart(
    name: str, rows: Sequence[tuple[str, LineStyle, float | None, float, float]], alt: str, measure: Measure
) -> Markup:
    """Means of clients that trained, of newcomers as served, and of newcomers adapted: a row for each method."""
    with style(name):
        figure, axes = chart(54 + 34 * len(rows))
        axes.set_axisbelow(True)
        for i, (_, look, seen, served, adapted) in enumerate(rows):
            ends = [measure.scale * v for v in (seen, served, adapted) if v is not None]
            axes.plot([min(ends), max(ends)], [i, i], color=look.colour, linewidth=1.0, alpha=0.5)
            if seen is not None:
                # Filled for bounds, too: hollow is who did not train.
                axes.plot([measure.scale * seen], [i], **{**drawn(replace(look, filled=True)), "markersize": 8})
            hollow = {**drawn(look), "markersize": 8, "markerfacecolor": PAGE, "markeredgewidth": 1.4}
            axes.plot([measure.scale * served], [i], **hollow)
            axes.plot([measure.scale * adapted], [i], "|", color=look.colour, markersize=13, markeredgewidth=2.2)
        _named_rows(axes, [method for method, *_ in rows])
        axes.set_xlabel(", ".join(filter(None, [f"{measure.label} on own test data, mean over clients", measure.unit])))
        return markup(figure, name, alt)


def _named_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names above their rows, left-aligned inside the axes: long names then cost no width."""
    axes.set_ylim(len(names) - 0.45, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for i, text in enumerate(names):
        axes.annotate(
            _short(text),
            (0, i - 0.22),
            xycoords=("axes fraction", "data"),
            fontsize=9,
            va="bottom",
            annotation_clip=False,
            bbox={"facecolor": PAGE, "edgecolor": "none", "pad": 1.0},
        )


def _short(text: str, most: int = 46) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def apart(names: Sequence[str]) -> list[str]:
    """Names in 16 characters, or in as many as tell them apart; long ones lose the words that all begin or end with.

    >>> apart(["Hospital number 1 of the north", "Hospital number 12 of the north"])
    ['…1…', '…12…']
    """
    if max(map(len, names), default=0) <= 16 or len(names) == 1:
        return [_short(name, 16) for name in names]
    words = [name.split() for name in names]
    head, tail = (len(commonprefix([of[::way] for of in words])) for way in (1, -1))  # noqa: RUF071 - of words, not paths
    bare = [" ".join(of[head : len(of) - tail]) for of in words]
    if all(bare):
        names = [f"{'…' * (head > 0)}{core}{'…' * (tail > 0)}" for core in bare]
    shortened = ([_short(name, most) for name in names] for most in (16, 32))
    return next((short for short in shortened if len(set(short)) == len(set(names))), list(names))


def name_ticks(axis: Axis, at: Sequence[int], called: Callable[[int], str], size: float = 9.0) -> None:
    """Names at an axis, upright below a horizontal one unless all are short."""
    names = apart([called(k) for k in at])
    axis.set_ticks(at, names, fontsize=size)
    if isinstance(axis, XAxis) and max(map(len, names), default=0) > 3:
        axis.set_tick_params(labelrotation=90)


def opacity(share: Any) -> Any:
    """Opacity of a label's share of a client, both in [0, 1]: the square root, so that small shares can be seen."""
    return np.sqrt(share)


def labels_chart(
    name: str,
    label_counts: Sequence[Sequence[int]],
    alt: str,
    clients_called: Callable[[int], str] = str,
    labels_called: Callable[[int], str] = str,
) -> Markup:
    """Clients side by side: above, the number of examples of each; below, the share of each label in them.

    The first `MOST_CLIENTS` clients are drawn.

    Args:
        name: Prefix of the figure's ids, unique on its page.
        label_counts: Examples, (clients, labels).
        alt: Text for readers who cannot see the figure.
        clients_called, labels_called: Names of clients and labels by their numbers.
    """
    counts = np.array(label_counts[:MOST_CLIENTS], dtype=float)  # (clients, labels)
    sizes = counts.sum(axis=1)
    share = np.divide(counts, sizes[:, None], out=np.zeros_like(counts), where=sizes[:, None] > 0)
    clients, labels = counts.shape
    with style(name):
        height = 120 + min(240.0, max(90.0, 15.0 * labels))
        figure = sheet(height, WIDE)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, max(2.0, (height - 100) / 45)))
        above.bar(range(clients), sizes, width=0.8, color=BOUND)
        above.set_ylabel("number")
        above.set_axisbelow(True)
        above.grid(axis="x", visible=False)
        above.tick_params(axis="x", length=0)
        below.imshow(shades(opacity(share.T)), aspect="auto", interpolation="none", origin="upper")
        below.grid(visible=False)
        below.set_ylabel("label")
        below.set_xlabel("client")
        name_ticks(below.xaxis, range(0, clients, max(1, math.ceil(clients / 25))), clients_called)
        name_ticks(below.yaxis, range(0, labels, max(1, math.ceil(labels / 12))), labels_called)
        for spine in below.spines.values():
            spine.set_visible(True)
        return markup(figure, name, alt)
