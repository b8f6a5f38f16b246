"""Figures in Altair: each function makes a chart of a frame, for a page, a notebook or a paper.

Arguments: `marks` are colours by method, x and y are titles of axes.  A page shows each chart first as a still picture
in the colours of its style sheet.  Then it redraws it interactively with the `library` in the page, without a network.
Import this module only to draw, as it imports Altair.
"""

import base64
import functools
import json
import math
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import altair as alt
import vl_convert
from markupsafe import Markup, escape

from unskew.files import write_atomically
from unskew.report.section import Chart, Columns
from unskew.report.stats import Curve

PAGE, INK, FAINT, BOUND = "#ffffff", "#1b1f24", "#dfe3e8", "#7a828c"
COLOURS = ("#0072b2", "#d55e00", "#00815f", "#b5458a", "#8a6d00", "#3b9fdc", "#7048b0", "#8c3b2a")
_LIGHT = (PAGE, INK, FAINT, BOUND, *COLOURS)
_DARK = (
    *("#14171b", "#e4e7eb", "#333a42", "#8f98a3"),
    *("#56b0f0", "#ff8f4d", "#37c99a", "#ee92c8", "#e3c14a", "#a5dcff", "#b79cf0", "#e58a78"),
)
_CSS = dict(
    zip(_LIGHT, ("var(--page)", "currentColor", "var(--faint)", "var(--bound)", *(f"var(--s{i})" for i in range(8))),
        strict=True)
)  # fmt: skip
WIDTH, HEIGHT = 480, 280
MOST_LABELLED = 8
"""Lines up to which each has its name beside its end, instead of in a legend."""

MOST_ROWS = 40
"""Rows of a forest; of more clients a strip and a line of quantiles are drawn."""

MOST_POINTS = 60
"""Points of one line that are drawn."""

HEAVY = 60_000
"""Characters of a drawing beyond which a page has it as pixels, until it is drawn anew."""

Rows = Columns | Sequence[Mapping[str, Any]]


def colours(methods: Sequence[str], bounds: Sequence[str] = ()) -> dict[str, str]:
    """A colour for each method, the same in every figure; methods that do not compete are grey."""
    competing = [m for m in methods if m not in bounds]
    return {m: BOUND if m in bounds else COLOURS[competing.index(m) % len(COLOURS)] for m in methods}


def swatch(colour: str) -> Markup:
    """A small coloured square, to stand beside a name."""
    return Markup('<i class="swatch" style="background:{}"></i>').format(_CSS.get(colour, colour))


# ---------------------------------------------------------------- pictures and pages
def drawn(chart: Chart) -> Markup:
    """A chart for a page: a picture, and the data from which the library redraws it."""
    if chart.html:
        return chart.html
    spec = json.dumps(chart.drawing.to_dict(validate=False), sort_keys=True, separators=(",", ":"))
    svg = _slim(_svg(spec))
    if len(svg) > HEAVY:
        picture = base64.b64encode(still(chart.drawing, "png")).decode()
        svg = f'<img alt="{escape(chart.described)}" src="data:image/png;base64,{picture}">'
    for colour, name in _CSS.items():
        svg = svg.replace(colour, name)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(chart.described)}" ', 1)
    data = spec.replace("<", "\\u003c")  # no name ends the element, or begins a comment in it
    return Markup(f'<div class="plot"><div>{svg}</div><script type="application/json">{data}</script></div>')


def _slim(svg: str) -> str:
    """The picture without what nobody sees, and with places to a tenth of a pixel."""
    says = r' (?:class|role|pointer-events|aria-[a-z]+|xmlns:xlink)="[^"]*"| (?:opacity|stroke-width)="1"'
    svg = re.sub(says, "", svg)
    svg = re.sub(r'<path [^>]*(?<![-\w])opacity="0"[^>]*?(/>|></path>)', "", svg)
    places = r' (?:d|transform|x|y|x1|x2|y1|y2|width|height)="[^"]*"'
    return re.sub(places, lambda place: re.sub(r"\d*\.\d{2,}", lambda n: f"{float(n[0]):.1f}", place[0]), svg)


def _fitted(chart: alt.TopLevelMixin, width: int, **more: Any) -> str:
    """The chart on white, as wide as that if it is drawn as wide as a page has room."""
    spec = chart.to_dict() | more
    spec |= {"width": width} if "fits" in spec.get("usermeta", {}) else {}
    return json.dumps({**spec, "config": {**spec.get("config", {}), "background": PAGE}}, sort_keys=True)


def still(chart: alt.TopLevelMixin, kind: Literal["svg", "png"] = "svg") -> bytes:
    """A chart as an SVG or PNG file; it needs no network and no browser."""
    text = _fitted(chart, WIDTH)
    return bytes(vl_convert.vegalite_to_png(text, scale=2)) if kind == "png" else _svg(text).encode()


def document(chart: alt.TopLevelMixin, title: str, caption: str = "") -> str:
    """A chart as an SVG file of its own, with its title and caption, on white."""
    lines = textwrap.wrap(caption, 75)
    words = {"text": title, "subtitle": lines, "anchor": "start", "subtitleColor": INK, "color": INK}
    return _svg(_fitted(chart, WIDTH, title=words))


def file(chart: Chart) -> bytes:
    """A chart with its words as an SVG file."""
    return document(chart.drawing, chart.title, chart.caption).encode()


@functools.lru_cache(64)
def _svg(spec: str) -> str:
    return str(vl_convert.vegalite_to_svg(spec))


def library() -> Markup:
    """The script with Vega that draws the charts of a page; it is included once."""
    twin = json.dumps(dict(zip(_LIGHT, _DARK, strict=True)))
    draw = (Path(__file__).parent / "templates" / "draw.js").read_text(encoding="utf-8").replace("TWIN", twin)
    return Markup(f"<script>{_vega()}</script><script>{draw}</script>")


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed.  Making them one script takes seconds, so it is kept in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = home / "unskew" / f"vega-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        bundle: Any = vl_convert.javascript_bundle  # its stub asks for what has a default
        script = str(bundle()).replace("</script", "<\\/script")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, script)
    except OSError:
        pass  # it is only slower without
    return script


# ---------------------------------------------------------------- parts of charts
def rows(data: Rows) -> alt.InlineData:
    """A frame, or rows, as a chart's data: numbers to five digits, null for one that is not finite."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) or hasattr(value, "dtype"):
            value = float(value)
            return float(f"{value:.5g}") if math.isfinite(value) else None
        return value

    every: Any = tuple({k: plain(v) for k, v in row.items()} for row in _each(data))
    return alt.InlineData(values=every)  # Altair copies lists at every step, and no tuples


def _each(data: Rows) -> list[Mapping[str, Any]]:
    if isinstance(data, Mapping):
        return [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    return list(data)


_TITLES = {"titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 140}
_CONFIG = {
    "background": "transparent", "font": "system-ui, sans-serif", "aria": False, "view": {"stroke": None},
    "axis": {"gridColor": FAINT, "domainColor": BOUND, "tickColor": BOUND, "labelColor": INK, "titleColor": INK,
             "labelSeparation": 6, **_TITLES},
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": -26, "titleY": -8},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontWeight": "normal",
               "orient": "bottom", "columns": 3, "symbolOpacity": 1},
    "text": {"color": INK, "fontSize": 12},
    "range": {"category": list(COLOURS)},
}  # fmt: skip
_FITS = {"width": WIDTH, "autosize": {"type": "fit-x", "contains": "padding"}, "usermeta": {"fits": True}}


def themed(chart: Any, right: int = 5, facets: int = 0, **more: Any) -> alt.LayerChart:
    """The chart itself in our fonts and colours, as wide as the page allows.

    `right` leaves room for names, which browsers may draw wider.  `more` are properties of the chart; its method
    `properties` would copy it and check them against the schema, which takes longer than making it.
    """
    padding = {"left": 12, "top": 5, "bottom": 5, "right": right}
    size = {"usermeta": {"facets": facets}} if facets else _FITS
    drawn: alt.LayerChart = chart
    for name, value in {**size, "padding": padding, "config": _CONFIG, **more}.items():
        drawn[name] = value
    return drawn


def by_name(marks: Mapping[str, str], field: str = "method", legend: bool = False) -> alt.Color:
    """Colours by method, or by another field."""
    scale = alt.Scale(domain=list(marks), range=list(marks.values()))
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=None) if legend else None)


def over(title: str, values: Iterable[float | None], log: bool = False) -> dict[str, Any]:
    """Title and scale of an axis that covers the data, with a little room at both ends."""
    finite = [v for v in values if v is not None and math.isfinite(v) and not (log and v <= 0)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if log:
        return {
            "title": f"{title}, log scale",
            "scale": alt.Scale(type="log", domain=[low * 0.95, high * 1.05], nice=False),
        }
    edge = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    return {"title": title, "scale": alt.Scale(domain=[low - edge, high + edge], nice=False, zero=False)}


def names(field: str, order: Sequence[Any] | None = None) -> alt.Y:
    """An axis with the names of rows."""
    plain = alt.Axis(grid=False, ticks=False, domain=False)
    return alt.Y(f"{field}:N", sort=None if order is None else list(order), title=None, axis=plain)


def bare(field: str, **more: Any) -> Any:
    """An encoding without an axis, for positions without a meaning; `more` are its options."""
    axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
    kind = alt.X if field.startswith("x") else alt.Y
    return kind(f"{field}:Q", axis=axis, **more)


def interval(name: str, gain: Any, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    """A row of `forest`: a mean with its interval, low and high, in units of the axis."""
    low, high = (None if end is None else scale * end for end in (gain.low, gain.high))
    return {"name": name, "value": scale * gain.mean, "low": low, "high": high, **more}


def rule(value: float = 0.0, across: bool = True) -> alt.Chart:
    """A line at a value of the horizontal axis (or with `across` false, of the vertical one)."""
    at = (alt.X if across else alt.Y)("at:Q")
    drawn: alt.Chart = alt.Chart(rows([{"at": value}])).mark_rule(color=INK, strokeWidth=1).encode(at)
    return drawn


def points(by_method: Mapping[str, Any], x: str, y: str) -> list[dict[str, Any]]:
    """Rows of `square`: two attributes of each method's or site's values."""
    pairs = ((name, zip(getattr(one, x), getattr(one, y), strict=True)) for name, one in by_method.items())
    return [{"method": name, "x": across, "y": up} for name, both in pairs for across, up in both]


def _tip(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f, format=".4~g") if f.endswith(":Q") else alt.Tooltip(f) for f in fields]


def _picked(pick: Any) -> alt.OpacityValue:
    """Fades what is not picked.  Typed channels are much faster than words, and than `condition` and `value`."""
    return alt.OpacityValue(0.15, condition={"param": pick.name, "value": 1.0})


def spans(values: Iterable[float], factor: float) -> bool:
    """True if the values need a logarithmic axis."""
    positive = [v for v in values if math.isfinite(v) and v > 0]
    return len(positive) > 1 and max(positive) > factor * min(positive)


# ---------------------------------------------------------------- charts of any run
def curves(
    data: Rows, marks: Mapping[str, str], x: str, y: str, log: bool = False, far: bool = False
) -> alt.LayerChart:
    """Lines with bands from the lowest to the highest seed; `data` is method, x, mean, low, high.

    With `log` the vertical axis is logarithmic if values span much.  The horizontal axis is logarithmic if the ends of
    lines are far apart, or with `far`.
    """
    every = _each(data)
    shown = {m: colour for m, colour in marks.items() if any(r["method"] == m for r in every)}
    far = far or spans((max(r["x"] for r in every if r["method"] == m) for m in shown), 20)
    points = [r for r in every if not (far and r["x"] <= 0)]
    tall, few = log and spans((r["mean"] for r in every), 50), len(shown) <= MOST_LABELLED
    up = over(y, (r[k] for r in every for k in ("mean", "low", "high")), tall)
    mean, band = alt.Y("mean:Q", **up), alt.Y("low:Q", **up)
    pick = alt.selection_point(fields=["method"], on="click")
    zoom = alt.selection_interval(bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey]")
    # Bounds are dotted, and who has the colour of an earlier method dashed.
    dashes = [[4, 3] if c == BOUND else [1, 0] if i < len(COLOURS) else [8, 3] for i, c in enumerate(shown.values())]
    scale, legend = alt.Scale(domain=list(shown), range=dashes), None if few else alt.Legend(title=None)
    dash, named = alt.StrokeDash("method:N", scale=scale, legend=legend), by_name(shown, legend=not few)
    base = alt.Chart(rows(points)).encode(x=_across(x, points, far), color=by_name(shown))
    dotted = alt.OpacityValue(float(len(points) <= 25 * len(shown)))
    mark = base.mark_point(filled=True, size=28).encode(
        y=mean, tooltip=_tip("method:N", "x:Q", "mean:Q", "low:Q", "high:Q"), opacity=dotted
    )
    line = base.mark_line(strokeWidth=2).encode(mean, named, dash, _picked(pick))
    layers: list[Any] = [base.mark_area(opacity=0.15).encode(y=band, y2=alt.Y2("high:Q"))] if few else []
    layers += [line, mark.add_params(pick, zoom)]
    layers += [_end_names(every, up["scale"].domain, tall, shown)] if few and shown else []
    right = 12 + 7 * min(max(map(len, shown)), 22) if few and shown else 0
    return themed(alt.layer(*layers), 5 + right, height=HEIGHT)


def _across(title: str, points: Sequence[Mapping[str, Any]], far: bool) -> alt.X:
    """The horizontal axis of curves: rounds and trials are whole numbers, each with a tick if they are few."""
    if far:
        return alt.X("x:Q", **over(title, (r["x"] for r in points), True))
    steps = sorted({r["x"] for r in points})
    few: dict[str, Any] = {"values": steps} if len(steps) <= 12 else {"tickMinStep": 1}
    whole = {"format": "d", **few} if title.endswith(("round", "trial")) else {}
    return alt.X("x:Q", title=title, scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(grid=False, **whole))


def of_curves(lines: Mapping[str, Curve], scale: float = 1.0) -> list[dict[str, Any]]:
    """Curves over seeds as rows of `curves`, thinned to `MOST_POINTS` each."""
    return [
        {"method": name, "x": c.x[i], "mean": scale * c.mean[i], "low": scale * c.low[i], "high": scale * c.high[i]}
        for name, c in lines.items()
        for i in thin(len(c.x))
    ]


def thin(count: int, most: int = MOST_POINTS) -> list[int]:
    """At most `most` indices of `count`, with the first and the last."""
    last = min(count, most) - 1
    return sorted({round(i * (count - 1) / max(last, 1)) for i in range(last + 1)})


def lines(
    title: str, caption: str, by_method: Mapping[str, Curve], marks: Mapping[str, str], x: str, y: str,
    scale: float = 1.0, log: bool = False,
) -> Chart:  # fmt: skip
    """Curves over seeds with title and caption; further arguments are those of `curves`."""
    parts = (f"{name} from {scale * c.mean[0]:.3g} to {scale * c.mean[-1]:.3g}" for name, c in by_method.items())
    drawn = curves(of_curves(by_method, scale), marks, x, y, log=log)
    return Chart(title, caption, drawn, f"{title}: {'; '.join(parts)}.")


def _end_names(points: Sequence[Mapping[str, Any]], ends: Any, log: bool, marks: Mapping[str, str]) -> alt.Chart:
    """The methods' names at the right, as high as their lines end, moved apart where these are too close."""
    low, high = map(math.log, ends) if log else ends
    step = 15 * (high - low) / HEIGHT
    last = {r["method"]: r["mean"] for r in points if math.isfinite(r["mean"]) and not (log and r["mean"] <= 0)}
    ordered = sorted(last, key=lambda method: (last[method], method))
    groups: list[tuple[float, int]] = []  # names that touch stand around the mean of where they belong
    for i, method in enumerate(ordered):
        at, n = (math.log(last[method]) if log else last[method]) - i * step, 1
        while groups and groups[-1][0] > at:
            before, k = groups.pop()
            at, n = (n * at + k * before) / (n + k), n + k
        groups.append((at, n))
    lowest = [at for at, n in groups for _ in range(n)]
    top = high - (len(ordered) - 1) * step
    placed = [(method, min(max(lowest[i], low), top) + i * step) for i, method in enumerate(ordered)]
    texts = [
        {"text": m if len(m) <= 22 else f"{m[:21]}…", "method": m, "at": math.exp(y) if log else y} for m, y in placed
    ]
    text = alt.Chart(rows(texts)).mark_text(align="left", dx=7, baseline="middle", clip=False)
    edge: Any = alt.XValue  # its stub has no types
    drawn: alt.Chart = text.encode(edge("width"), alt.Y("at:Q"), alt.Text("text:N"), color=by_name(marks))
    return drawn


_KINDS = {"gains": COLOURS[2], "loses": COLOURS[1], **dict.fromkeys(("open", "level"), COLOURS[0]), "mean": INK}


def forest(data: Rows, x: str, marks: Mapping[str, str] | None = None, log: bool = False) -> alt.LayerChart:
    """A row for each name: its value, its 95 % interval, and the line of no difference.

    `data` is name, value, low, high (None without an interval, drawn hollow), and optionally kind (gains, loses, open,
    or mean, drawn as a diamond) and size.  `marks` are colours by name instead of by kind.  With `log` the axis is
    logarithmic, and 1 is no difference.
    """
    zero = 1.0 if log else 0.0
    every = [{"kind": "open", "size": 1, **row} for row in _each(data)]
    order = [r["name"] for r in every]
    axis = over(x, [v for r in every for v in (zero, r["value"], r["low"], r["high"])], log)
    colour = by_name(_KINDS, "kind") if marks is None else by_name({n: marks[n] for n in order}, "name")
    base = alt.Chart(rows(every)).encode(y=names("name", order), color=colour)
    size = alt.Size("size:Q", legend=None, scale=alt.Scale(domain=[0, max(r["size"] for r in every)], range=[25, 170]))
    shape = alt.ShapeValue("circle", condition={"test": "datum.kind == 'mean'", "value": "diamond"})
    hollow = alt.FillOpacityValue(1.0, condition={"test": "datum.low == null", "value": 0.0})
    tip = _tip("name:N", "value:Q", "low:Q", "high:Q", "size:Q")
    layers = (
        rule(zero),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", **axis), x2=alt.X2("high:Q")),
        base.mark_point(opacity=1).encode(alt.X("value:Q", **axis), size, shape, hollow, fill=colour, tooltip=tip),
    )
    return themed(alt.layer(*layers), height=alt.Step(max(16, min(26, HEIGHT // len(order)))))


def strip(data: Rows, x: str) -> alt.LayerChart:
    """Gains of many clients in rank order, lowest first, with the line of no difference and three quantiles.

    `data` is as in `forest`.
    """
    clients = sorted((r for r in _each(data) if r.get("kind") != "mean"), key=lambda r: float(r["value"]))
    n = len(clients)
    ranked = [{**r, "share": 100 * (i + 0.5) / n} for i, r in enumerate(clients)]
    share = alt.X("share:Q", title="% of the clients", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(grid=False))
    base = alt.Chart(rows(ranked)).encode(x=share, y=alt.Y("value:Q", **over(x, [0.0, *(r["value"] for r in clients)])))
    points = base.mark_point(filled=True, size=22, opacity=0.8)
    quantiles = alt.Chart(rows([{"share": q} for q in (10, 50, 90)])).mark_rule(strokeDash=[3, 3], color=BOUND)
    kinds = by_name({k: c for k, c in _KINDS.items() if k != "mean"}, "kind")
    drawn = points.encode(color=kinds, tooltip=_tip("name:N", "value:Q", "low:Q", "high:Q"))
    line = base.mark_line(color=BOUND, strokeWidth=1)
    return themed(alt.layer(rule(across=False), quantiles.encode(x=share), line, drawn), height=HEIGHT)


def spread(data: Rows, marks: Mapping[str, str], x: str) -> alt.LayerChart:
    """Results of the clients by method: a tick for each client, a bar for the middle half, and the median.

    `data` is method, value.
    """
    every = _each(data)
    axis = over(x, (r["value"] for r in every))
    shown = [m for m in marks if any(r["method"] == m for r in every)]
    base = alt.Chart(rows(every)).encode(y=names("method", shown), color=by_name(marks))
    half = base.mark_bar(size=14, opacity=0.25).encode(x=alt.X("q1(value):Q", **axis), x2=alt.X2("q3(value):Q"))
    ticks = base.mark_tick(thickness=1, size=14, opacity=0.5).encode(x=alt.X("value:Q", **axis))
    median = base.mark_tick(thickness=3, size=20).encode(x=alt.X("median(value):Q", **axis))
    tip = _tip("method:N", "value:Q")
    return themed(alt.layer(half, ticks.encode(tooltip=tip), median), height=alt.Step(28))


def _squares(every: Sequence[Mapping[str, Any]], x: str, y: str, kind: str, most: int, **look: Any) -> alt.LayerChart:
    """A square for each row, in columns and rows in the order given, of at most so many pixels."""
    names: dict[str, Any] = {"labelOverlap": True, "ticks": False, "labelLimit": 150}
    flat = kind == "O" or sum(map(len, {str(r["column"]) for r in every})) < 30
    left, below = alt.Axis(**names), alt.Axis(**names, labelAngle=0 if flat else -90)
    titles = [alt.Tooltip("column:N", title=x), alt.Tooltip("row:N", title=y)]
    base = alt.Chart(rows(every)).encode(
        x=alt.X(f"column:{kind}", title=x, sort=None, axis=below), y=alt.Y("row:N", title=y, sort=None, axis=left)
    )
    down = len({r["row"] for r in every})
    drawn = base.transform_calculate(strength="abs(datum.value)").mark_rect()
    drawn = drawn.encode(**{**look, "tooltip": [*titles, *look["tooltip"]]})
    return themed(alt.layer(drawn), height=max(5, min(most, 400 // max(down, 1))) * down)


def matrix(data: Rows, x: str, y: str, value: str, colour: str = COLOURS[0]) -> alt.LayerChart:
    """Values in [-1, 1] as shades of `colour`, or of another colour below zero; `data` is column, row, value."""
    scale = alt.Scale(type="sqrt", domain=[0, 1], range=[0, 1])
    return _squares(
        _each(data), x, y, "N", 22, opacity=alt.Opacity("strength:Q", legend=None, scale=scale),
        color=alt.ColorValue(colour, condition={"test": "datum.value < 0", "value": COLOURS[1]}),
        tooltip=[alt.Tooltip("value:Q", title=value, format=".3~g")],
    )  # fmt: skip


def groups(data: Rows, x: str, y: str) -> alt.LayerChart:
    """The group of each client by round, as colours; alone is grey, and no group is empty.

    `data` is row, column, and group: its number, or "alone".
    """
    every = _each(data)
    numbers = sorted({r["group"] for r in every}, key=lambda g: (not g.isdigit(), int(g) if g.isdigit() else 0))
    marks = {g: COLOURS[(int(g) - 1) % len(COLOURS)] if g.isdigit() else BOUND for g in numbers}
    return _squares(every, x, y, "O", 16, color=by_name(marks, "group", legend=True), tooltip=[alt.Tooltip("group:N")])


def group_sizes(data: Rows) -> alt.LayerChart:
    """Number of clients in each group, by round; `data` as in `groups`."""
    axis = alt.Axis(labelOverlap=True, labelAngle=0)
    bars = alt.Chart(rows(data)).mark_bar().encode(
        x=alt.X("column:O", title="round", axis=axis), y=alt.Y("count():Q", title="clients"),
        color=alt.Color("group:N", legend=None), tooltip=["group:N", "count():Q"],
    )  # fmt: skip
    return themed(alt.layer(bars), height=HEIGHT)


def faceted(chart: Any, panels: Sequence[str], columns: int, height: int = 170) -> Any:
    """A panel for each value of the rows' field `panel`; narrow pages show fewer in a row."""
    columns = min(columns, len(panels))
    header = alt.Header(title=None, labelColor=INK, labelFontSize=12)
    drawn: Any = chart.properties(width=2 * WIDTH // columns - 60 if columns > 1 else WIDTH, height=height)
    drawn = drawn.facet(facet=alt.Facet("panel:N", sort=list(panels), header=header), columns=columns)
    return themed(drawn, facets=columns)


def dots(data: Rows, marks: Mapping[str, str], x: str) -> alt.LayerChart:
    """A mark of each method, or site, in each row; `data` is method, row, value."""
    axis = over(x, [0.0, *(r["value"] for r in _each(data))])
    shapes = alt.Shape("method:N", scale=alt.Scale(domain=list(marks)), legend=None)
    base = alt.Chart(rows(data)).mark_point(filled=True, size=60).encode(
        x=alt.X("value:Q", **axis), y=names("row"), color=by_name(marks, legend=True), shape=shapes,
        tooltip=_tip("method:N", "row:N", "value:Q"),
    )  # fmt: skip
    return themed(alt.layer(rule(), base), height=alt.Step(20))


def square(
    data: Rows, marks: Mapping[str, str], x: str, y: str, level: float | None = None, dotted: bool = False
) -> alt.LayerChart:
    """Curves in the unit square by method or site, such as ROC or calibration; `data` is method, x, y, in order.

    A thin line is at the height `level`, or the diagonal; with `dotted` points are drawn, too.
    """
    every = [{**r, "at": i} for i, r in enumerate(_each(data))]
    ends = [{"x": 0, "y": level or 0}, {"x": 1, "y": 1 if level is None else level}]
    shown = {m: colour for m, colour in marks.items() if any(r["method"] == m for r in every)}
    pick, unit = alt.selection_point(fields=["method"], bind="legend"), alt.Scale(domain=[0, 1])
    lines = alt.Chart(rows(every)).mark_line(strokeWidth=2, point=dotted).encode(
        x=alt.X("x:Q", title=x, scale=unit), y=alt.Y("y:Q", title=y, scale=unit), order=alt.Order("at:Q"),
        color=by_name(shown, legend=len(shown) > 1), tooltip=_tip("method:N", "x:Q", "y:Q"),
        opacity=_picked(pick),
    )  # fmt: skip
    thread = alt.Chart(rows(ends)).mark_line(color=INK, strokeWidth=1).encode(x=alt.X("x:Q"), y=alt.Y("y:Q"))
    return themed(alt.layer(thread, lines.add_params(pick)), height=HEIGHT)


def scatter(data: Rows, x: str, y: str, colour: alt.Color, text: str = "", lines: Rows = ()) -> alt.LayerChart:
    """A mark for each row, coloured by `colour`, with the field `text` beside it, and thin `lines` from x, y to x2, y2.

    `data` is x, y, and fields for colour, text and hover; `open` marks are hollow.
    """
    every = _each(data)
    across, up = over(x, (r["x"] for r in every)), over(y, (r["y"] for r in every))
    base = alt.Chart(rows(every)).encode(x=alt.X("x:Q", **across), y=alt.Y("y:Q", **up), color=colour)
    hollow = alt.FillOpacityValue(0.8, condition={"test": "datum.open", "value": 0.0})
    tip = _tip(*(f"{k}:{'Q' if k in ('x', 'y') else 'N'}" for k in (every[0] if every else {}) if k != "open"))
    layers: list[Any] = [base.mark_point(size=45, strokeWidth=1.5).encode(fill=colour, fillOpacity=hollow, tooltip=tip)]
    if lines:
        segments = (
            alt.Chart(rows(lines))
            .mark_rule(color=BOUND)
            .encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), x2=alt.X2("x2:Q"), y2=alt.Y2("y2:Q"))
        )
        layers.insert(0, segments)
    if text:
        layers.append(base.mark_text(align="left", dx=6, dy=-5, fontSize=11).encode(text=alt.Text(f"{text}:N")))
    return themed(alt.layer(*layers), height=HEIGHT)


def parallel(data: Rows, settings: Sequence[str], score: str) -> alt.LayerChart:
    """Trials of a tuning as lines through their values, each scale from the lowest to the highest value.

    `data` is trial, score (the colour), and a column for each of `settings`, None for no value.  Settings whose values
    span much have a logarithmic scale.
    """
    every, points, ticks = _each(data), [], []
    for name in settings:
        held = [r for r in every if r[name] is not None]
        bend = math.log if spans((r[name] for r in held), 50) and min(r[name] for r in held) > 0 else float
        low, high = (bend(end(r[name] for r in held)) if held else 0.0 for end in (min, max))
        ends = (min(r[name] for r in held), max(r[name] for r in held)) if held else ()
        ticks += [{"name": name, "at": at, "text": f"{v:.3g}"} for at, v in zip((-0.07, 1.07), ends, strict=False)]
        for r in held:
            at = (bend(r[name]) - low) / (high - low) if high > low else 0.5
            points.append({"trial": r["trial"], "score": r["score"], "name": name, "value": r[name], "at": at})
    across = alt.X("name:N", sort=list(settings), title=None, axis=alt.Axis(grid=True, labelAngle=0, domain=False))
    up = alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[-0.1, 1.1]))
    shade = alt.Scale(range=[FAINT, COLOURS[0]], interpolate="rgb")
    colour = alt.Color("score:Q", title=score, scale=shade, legend=alt.Legend(type="gradient", gradientLength=140))
    lines = alt.Chart(rows(points)).mark_line(point=True).encode(
        alt.Detail("trial:N"), x=across, y=up, color=colour, tooltip=_tip("trial:N", "name:N", "value:Q", "score:Q")
    )  # fmt: skip
    ends_of = alt.Chart(rows(ticks)).mark_text(fontSize=11).encode(x=across, y=up, text=alt.Text("text:N"))
    return themed(alt.layer(lines, ends_of), height=HEIGHT)


def best_so_far(data: Rows, marks: Mapping[str, str], y: str, higher: bool = True) -> alt.LayerChart:
    """The best score after each trial; `data` is method, trial from 1, score; `higher` if more is better."""
    best: dict[str, float] = {}
    points = []
    for r in sorted(_each(data), key=lambda r: int(r["trial"])):
        m, score = r["method"], float(r["score"])
        best[m] = (max if higher else min)(best.get(m, score), score)
        points.append({"method": m, "x": r["trial"], "mean": best[m], "low": best[m], "high": best[m]})
    return curves(points, marks, "trial", y)
