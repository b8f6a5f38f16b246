"""Draws docs/architecture.svg from the imports of the code:  python docs/architecture.py

A box is a package or module directly below `unskew`; a line goes down to what it imports, unless a package in between
leads there already.  A test compares the file with what this script would write, so the picture cannot go stale.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

PAGE = Path(__file__).with_suffix(".svg")
FOUNDATION = ("errors", "files", "keys", "lock", "machine", "signals", "tree", "units", "words")
"""Small modules that nearly everything imports: one box at the bottom."""
LEFT_OUT = ("__main__", "version")
BASE = "foundation"
WIDTH, ROW, BOX, GAP, MARGIN = 960, 62, 30, 14, 16
PER_LETTER = 7.4
FONT = "font-family='ui-sans-serif, system-ui, sans-serif' font-size='13'"

Graph = Mapping[str, frozenset[str]]


def imports() -> dict[str, frozenset[str]]:
    """Packages below unskew -> the packages they import while running (imports for type checkers are left out)."""
    graph = grimp.build_graph("unskew", exclude_type_checking_imports=True)
    below: dict[str, set[str]] = {}
    for module in graph.modules:
        importer = _box(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if importer and (target := _box(imported)) and target != importer:
                below.setdefault(importer, set()).add(target)
                below.setdefault(target, set())
    return {name: frozenset(targets) for name, targets in sorted(below.items())}


def _box(module: str) -> str | None:
    parts = module.split(".")
    if len(parts) == 1 or parts[1] in LEFT_OUT:
        return None
    return BASE if parts[1] in FOUNDATION else parts[1]


def reduced(graph: Graph) -> dict[str, frozenset[str]]:
    """The graph without lines that a longer way down makes superfluous (its transitive reduction)."""
    return {
        a: frozenset(b for b in bs if not any(b in reached(graph, [c]) for c in bs - {b})) for a, bs in graph.items()
    }


def reached(graph: Graph, starts: Iterable[str]) -> set[str]:
    """Everything below `starts`, along any number of lines."""
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        for target in graph[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def rows(graph: Graph) -> list[list[str]]:
    """Boxes in rows from top to bottom, every line going down; within a row, near what they are joined to."""
    depth: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max(map(height, graph[name]), default=-1)
        return depth[name]

    levels: dict[int, list[str]] = {}
    for name in sorted(graph):
        levels.setdefault(height(name), []).append(name)
    ordered = [levels[level] for level in sorted(levels)]  # from the bottom
    for sweep in range(8):
        upward = sweep % 2 == 0
        for row in ordered if upward else reversed(ordered):
            at = {n: (i + 1) / (len(r) + 1) for r in ordered for i, n in enumerate(r)}
            row.sort(key=lambda n: (_mean([at[m] for m in _joined(graph, n, upward)], at[n]), n))
    return ordered[::-1]


def _joined(graph: Graph, name: str, below: bool) -> list[str]:
    return sorted(graph[name]) if below else sorted(m for m in graph if name in graph[m])


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def drawn(graph: Graph) -> str:
    """The picture as SVG, readable on light and dark pages."""
    lines = reduced(graph)
    layers = rows(lines)
    centre: dict[str, tuple[float, float]] = {}
    wide = {n: 2 * GAP + PER_LETTER * len(_label(n)) for n in graph}
    for i, row in enumerate(layers):
        free = WIDTH - 2 * MARGIN - sum(wide[n] for n in row)
        step, x = free / (len(row) + 1), float(MARGIN)
        for name in row:
            x += step + wide[name] / 2
            centre[name] = (x, MARGIN + BOX / 2 + i * ROW)
            x += wide[name] / 2
    height = 2 * MARGIN + BOX + (len(layers) - 1) * ROW
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img'>",
        "<title>Packages of unskew and what they import</title>",
        f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>",
    ]
    for name, targets in sorted(lines.items()):
        for target in sorted(targets):
            (x1, y1), (x2, y2) = centre[name], centre[target]
            y1, y2 = y1 + BOX / 2, y2 - BOX / 2
            bend = (y2 - y1) / 2
            parts.append(
                f"<path d='M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}' "
                "fill='none' stroke='#9aa4b2' stroke-width='1.2'/>"
            )
    for name, (x, y) in sorted(centre.items()):
        parts.append(
            f"<rect x='{x - wide[name] / 2:.0f}' y='{y - BOX / 2:.0f}' width='{wide[name]:.0f}' height='{BOX}' rx='6' "
            "fill='#eef2fb' stroke='#4a63b8'/>"
            f"<text x='{x:.0f}' y='{y + 4.5:.1f}' text-anchor='middle' fill='#1c2742' {FONT}>{_label(name)}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _label(name: str) -> str:
    present = [m for m in FOUNDATION if (Path(__file__).parents[1] / "unskew" / f"{m}.py").exists()]
    return " · ".join(present) if name == BASE else name


def written(_: str = "") -> str:
    """The picture of today's code."""
    return drawn(imports())


if __name__ == "__main__":
    PAGE.write_text(written())
