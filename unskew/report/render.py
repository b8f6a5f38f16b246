r"""Writes a table as text, Markdown, LaTeX, CSV or HTML.

LaTeX needs `\usepackage{booktabs}` and UTF-8; names are escaped.
"""

import csv
import functools
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

import jinja2
from markupsafe import Markup
from rich.cells import cell_len

from unskew.errors import ConfigError, did_you_mean, shown
from unskew.report.section import Columns, Table, TableRow
from unskew.words import in_a_cell, in_markdown

WIDTH = 100
"""Characters in a line of text where nobody says how many there are."""

NAME_WIDTH = 28
"""Characters of a name in text; a longer one is folded."""


def frame(table: Table) -> Columns:
    """The table's numbers, unrounded if it has them, else its cells."""
    if table.data:
        return table.data
    heads = [", ".join(filter(None, part)) or f"column {k}" for k, part in enumerate(table.head)]
    return dict(zip(heads, zip(*((e.name, *e.cells) for e in table.entries), strict=True), strict=True))


# ---------------------------------------------------------------- text
def text(table: Table, width: int = WIDTH, note: bool = True) -> str:
    """The table in lines of at most `width` characters; columns that do not fit follow below."""
    names = [(e.name + f" ({e.below})" * bool(e.below)) for e in table.entries]
    first = [table.head[0][0], "", *names]
    columns = [
        [title, unit, *(e.cells[k] for e in table.entries)] for k, (title, unit) in enumerate(table.head[1:])
    ]  # fmt: skip
    words = {k - 1 for k in table.text}
    space = width - min(max(map(cell_len, first)), NAME_WIDTH) - 2
    blocks: list[list[int]] = [[]]
    left = space
    for k, column in enumerate(columns):
        wide = min(max(map(cell_len, column)), space) + 2
        if wide > left and blocks[-1]:
            blocks.append([])
            left = space
        blocks[-1].append(k)
        left -= wide
    parts = [_block(first, [(columns[k], k in words) for k in block], space) for block in blocks]
    lines = [*textwrap.wrap(table.caption, width), "\n\n".join(parts)]
    lines += textwrap.wrap(table.note, width) if note and table.note else []
    return "\n".join(lines) + "\n"


def _block(first: Sequence[str], columns: Sequence[tuple[Sequence[str], bool]], space: int) -> str:
    """Columns beside the rows' names; cells that are too long are folded."""
    units = any(column[1] for column, _ in columns)
    held = [(_folded(first, NAME_WIDTH), True), *((_folded(column, space), word) for column, word in columns)]
    widths = [max(cell_len(line) for cell in column for line in cell) for column, _ in held]
    lines = []
    for i in range(len(first)):
        if i == 1 and not units:
            continue
        for line in zip_longest(*(column[i] for column, _ in held), fillvalue=""):
            cells = [
                cell + " " * (w - cell_len(cell)) if word else " " * (w - cell_len(cell)) + cell
                for cell, w, (_, word) in zip(line, widths, held, strict=True)
            ]
            lines.append(" " + "  ".join(cells).rstrip())
        if i == (1 if units else 0):
            lines.append(" " + "─" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def _folded(cells: Sequence[str], width: int) -> list[list[str]]:
    return [textwrap.wrap(shown(cell), width, break_on_hyphens=False) or [""] for cell in cells]


# ---------------------------------------------------------------- Markdown
def markdown(table: Table) -> str:
    """The table in Markdown, its caption before it and its note below."""
    rule = ["---" if k in {0, *table.text} else "---:" for k in range(len(table.head))]
    lines = [[in_markdown(cell) for cell in _heads(table)], rule]
    for e in table.entries:
        cells = [in_markdown(_plain(cell)) for cell in e.cells]
        cells = [f"**{cell}**" if k in e.bold else cell for k, cell in enumerate(cells)]
        lines.append([in_markdown(_plain(_named(e))), *cells])
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    caption = f"{in_markdown(table.caption)}\n\n" if table.caption else ""
    return caption + body + (f"\n{in_markdown(_plain(table.note))}\n" if table.note else "")


def _heads(table: Table) -> list[str]:
    return [_plain(", ".join(filter(None, part))) for part in table.head]


def _named(entry: TableRow) -> str:
    return entry.name + (f" ({entry.below})" if entry.below else "")


def _plain(text: str) -> str:
    return " ".join(text.split()) or "–"


# ---------------------------------------------------------------- LaTeX
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "–": "--", "“": "``", "”": "''",
}  # fmt: skip
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma",
    "τ": "tau", "υ": "upsilon", "φ": "varphi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta",
    "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_LATEX |= {letter: rf"$\{name}$" for letter, name in _GREEK.items()}  # pdfLaTeX's text fonts lack them


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in _plain(text))


def latex(table: Table) -> str:
    r"""The table as a `tabular` with rules of booktabs; caption and note are comments."""
    rows = []
    for e in table.entries:
        cells = [rf"\textbf{{{_escaped(c)}}}" if k in e.bold else _escaped(c) for k, c in enumerate(e.cells)]
        name = _escaped(_named(e))
        # A row that begins with [ or * would be read as an option of the \\ before it.
        rows.append(("{}" if name[0] in "[*" else "") + " & ".join([name, *cells]) + r" \\")
    align = "".join("l" if k in {0, *table.text} else "r" for k in range(len(table.head)))
    comments = [f"% {_plain(part)}" for part in (table.caption, table.note) if part]
    head = " & ".join(map(_escaped, _heads(table))) + r" \\"
    lines = [*comments, rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join(["% \\usepackage{booktabs}", *lines, r"\end{tabular}", ""])


# ---------------------------------------------------------------- CSV
def as_csv(columns: Columns, separator: str = ",", decimal: str = ".") -> str:
    """A frame as CSV, unrounded; an empty field was not measured."""

    def cell(value: object) -> object:
        if isinstance(value, float):
            return str(value).replace(".", decimal)
        return in_a_cell(value) if isinstance(value, str) else value

    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, lineterminator="\n")
    writer.writerow(map(in_a_cell, columns))
    writer.writerows([cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return file.getvalue()


# ---------------------------------------------------------------- HTML
def html(table: Table, swatches: Mapping[str, Markup] = MappingProxyType({})) -> Markup:
    """The table as an HTML element with its caption, and its note as a paragraph below.

    `swatches` stand beside the names of methods.
    """
    marks = swatches if table.head[0][0].casefold() == "method" else {}
    return Markup(templates().get_template("table.html").render(table=table, marks=marks))


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of pages."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unskew.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    return environment


def unbroken(cell: str) -> str:
    """Text that may break at spaces, but not inside an interval, after a ± or before a %."""
    return re.sub(r"\[[^][]*\]|± | %", lambda part: part[0].replace(" ", "\N{NO-BREAK SPACE}"), cell)


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": text,
    "md": markdown,
    "latex": latex,
    "csv": lambda table: as_csv(frame(table)),
    # As a spreadsheet opens it where the decimal sign is a comma; only by the mark it knows UTF-8.
    "csv2": lambda table: "\ufeff" + as_csv(frame(table), ";", ","),
    "html": html,
}
"""Writers of a table by the names of their formats."""


def render(table: Table, format: str) -> str:
    """The table in one of `FORMATS`, ending in a newline.

    Raises:
        ConfigError: If there is no such format.
    """
    if format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {format!r}{did_you_mean(format, FORMATS)}")
    return str(FORMATS[format](table)).rstrip("\n") + "\n"
