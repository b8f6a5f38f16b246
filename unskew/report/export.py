r"""The headline table of a run for a paper, a page or a spreadsheet.

Accuracies are of the last round, and beside it the mean of the last fifth of evaluations, in percent in Markdown and
LaTeX and as fractions in CSV, with the standard deviation over seeds.  Bounds are marked as such.  A number is bold
only if its method is higher than each other competitor by the 95 % interval of their paired differences over seeds: the
highest mean by itself is not enough.

LaTeX needs `\usepackage{booktabs}` and UTF-8; names are escaped.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from unskew.errors import ConfigError, did_you_mean
from unskew.ledger import DIRECTIONS
from unskew.record.reader import Record
from unskew.report.stats import Spread
from unskew.report.tables import (
    BOUNDS,
    Difference,
    Headline,
    amount,
    asked,
    bracket,
    fewer_clients,
    for_own_models,
    headline,
    last_round,
    last_words,
    leader,
    left_out,
    paired,
    paired_tails,
    reference,
    span,
    with_spread,
)
from unskew.words import in_a_cell

Lines = list[list[str]]


def table(record: Record, format: str = "markdown") -> str:
    """The headline table in one of `FORMATS`, ending in a newline.

    Raises:
        ConfigError: If there is no such format.
    """
    if format not in FORMATS:
        raise ConfigError(f"a table is written as {', '.join(FORMATS)}, got {format!r}{did_you_mean(format, FORMATS)}")
    return FORMATS[format](record)


# ---------------------------------------------------------------- Markdown and LaTeX
def _markdown(record: Record) -> str:
    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    def written(lines: Lines) -> str:
        rule = ["---", *["---:"] * (len(lines[0]) - 1)]
        return "".join(map(row, (lines[0], rule, *lines[1:])))

    def escape(text: str) -> str:
        return re.sub(r"([\\|*_`<])", r"\\\1", text)

    further = (f"\n{title}:\n\n{written(lines)}" for title, lines in _further(record, escape))
    main = written(_lines(record, escape, lambda text: f"**{text}**"))
    return f"{main}\n{_note(record)}\n{''.join(further)}"


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "“": "``", "”": "''",
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def _latex(record: Record) -> str:
    main = _tabular(_note(record), _lines(record, _escaped, lambda text: rf"\textbf{{{text}}}"))
    further = (f"\n{_tabular(title, lines)}" for title, lines in _further(record, _escaped))
    return "% \\usepackage{booktabs}\n" + main + "".join(further)


def _tabular(note: str, lines: Lines) -> str:
    head, *rows = lines
    # A row that begins with [ or * would be read as an option of the \\ before it.
    body = [("{}" if row[0][0] in "[*" else "") + " & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            f"% {note}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _lines(record: Record, escape: Callable[[str], str], bold: Callable[[str], str]) -> Lines:
    """Head and rows as escaped text."""
    measure, base = record.headline, reference(record)
    minus = f"minus {base}{', points' if measure.percent else ''} [95 %]"
    differences, own = ({d.method: d for d in paired(record, metric)} for metric in (measure.shared, measure.own))
    by_own = bool(own.keys() & for_own_models(record))
    best = {metric: leader(record, metric) for metric in (measure.shared, measure.own, measure.worst)}
    head = ["method", "seeds", "round", f"global {measure.axis}", f"mean of {last_words(record)}"]
    head += [minus] if base is not None else []
    head += [
        f"personal {measure.axis}",
        *([f"personal {minus}"] if by_own else []),
        f"mean of worst decile{', %' if measure.percent else ''}",
    ]
    later = any(row.unseen for row in headline(record))
    head += [f"unseen clients{', %' if measure.percent else ''}", "adapted"] if later else []
    head += ["MB", "seconds"]
    lines = [[escape(_plain(title)) for title in head]]
    for row in headline(record):

        def value(metric: str, spread: Spread | None, method: str = row.method) -> str:
            text = escape(with_spread(spread, measure))
            return bold(text) if best[metric] == method else text

        def apart(by_method: dict[str, Difference], method: str = row.method) -> str:
            return escape(bracket(by_method[method]) if method in by_method else "–")

        lines.append(
            [
                escape(_plain(f"{row.method} ({BOUNDS[row.bound]})" if row.bound else row.method)),
                str(len(row.seeds)) + (f" of {row.planned}" if len(row.seeds) < row.planned else ""),
                escape(span(row.rounds)),
                value(measure.shared, row.shared),
                escape(with_spread(row.tail, measure)),
                *([apart(differences)] if base is not None else []),
                value(measure.own, row.personal),
                *([apart(own)] if by_own else []),
                value(measure.worst, row.worst),
                *([escape(with_spread(of, measure)) for of in (row.unseen, row.adapted)] if later else []),
                escape(amount(sum(s.mean for s in row.mb.values())) if row.mb else "–"),
                escape(amount(row.seconds.mean) if row.seconds else "–"),
            ]
        )
    return lines


def _further(record: Record, escape: Callable[[str], str]) -> Iterator[tuple[str, Lines]]:
    """Tables of the metrics that `evaluate` asks for: title, and head and rows as escaped text."""
    for of in asked(record):
        head = [escape(_plain(title)) for title in ("method", *of.heads)]
        rows = [
            [escape(_plain(method)), *(escape(with_spread(v, m)) for v, m in zip(values, of.measures, strict=True))]
            for method, values in of.rows
        ]
        yield f"Last round, {of.where}", [head, *rows]


def _plain(text: str) -> str:
    """One line."""
    return " ".join(text.split()) or "–"


def _note(record: Record) -> str:
    """One line without markup that says what the numbers are."""
    names = [name for name, done in record.runs.items() if not done] or ([] if record.finished else [record.name])
    unfinished = f" Not finished: {', '.join(names)}." if names else ""
    kind = "95 % interval" if record.until is None else "95 % confidence sequence"
    bold = (
        f"Bold: {record.headline.direction} than every other method that is not a bound, by the {kind} of paired "
        "differences, each pair by itself."
        if record.comparable and not record.same_test_rows
        else "Nothing is bold."
        if record.comparable
        else "These runs are not comparable, so that no differences are given and nothing is bold."
    )
    clients = fewer_clients(record, record.headline.own)
    over = f" Personal {record.headline.label} is a mean over {clients.strip(' ()')}." if clients else ""
    chance = f" {text}" if (text := left_out(record)) else ""
    return (
        f"Last round, and beside it the mean of the {last_words(record)} of evaluations, a dash where it is the last "
        f"round alone; mean ± standard deviation over seeds. {bold}{over}{chance}{unfinished}"
    )


# ---------------------------------------------------------------- CSV
def _csv(record: Record) -> str:
    """The table as CSV, unrounded: accuracies are fractions, an empty field was not measured."""
    differences = (paired(record), paired_tails(record), paired(record, record.headline.own))
    last, tail, own = ({d.method: d for d in of} for of in differences)
    rows = [_csv_row(record, row, *(of.get(row.method) for of in (last, tail, own))) for row in headline(record)]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writerow({name: in_a_cell(name) for name in rows[0]})
    writer.writerows({k: in_a_cell(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
    return file.getvalue()


def _csv_row(
    record: Record, row: Headline, last: Difference | None, tail: Difference | None, own: Difference | None
) -> dict[str, object]:
    return {
        "run": record.run_of.get(row.method, record.name),
        "method": row.method,
        "setting": row.setting,
        "bound": row.bound,
        "finished": _finished(record, row.method),
        "seeds": len(row.seeds),
        "same_test_rows": record.same_test_rows if len(row.seeds) > 1 else None,
        **_both("round", row.rounds),
        **_both(f"global_{row.measure.name}", row.shared),
        **_both(f"global_{row.measure.name}_tail", row.tail),
        **_both(f"global_{row.measure.name}_best_on_test", row.best),
        "compared_with": reference(record) if last or own else None,
        **_apart("difference", last),
        **_apart("difference_tail", tail),
        **_both(f"personal_{row.measure.name}", row.personal),
        **_apart("personal_difference", own),
        **_both("worst_decile", row.worst),
        "spread_over_clients": row.across.mean if row.across else None,
        **(_both("unseen", row.unseen) | _both("unseen_adapted", row.adapted) if row.unseen else {}),
        **_both_of_each("global", record, [m.shared for m in record.asked], row.method),
        **_both_of_each("personal", record, [m.own for m in record.asked], row.method),
        **{f"mb_{d}": row.mb[d].mean if d in row.mb else None for d in DIRECTIONS},
        "seconds": row.seconds.mean if row.seconds else None,
    }


def _finished(record: Record, method: str) -> bool:
    """True if the run with this method is finished."""
    return record.runs.get(record.run_of.get(method, ""), record.finished)


def _both(name: str, spread: Spread | None) -> dict[str, object]:
    return {name: spread.mean if spread else None, f"{name}_std": spread.std if spread else None}


def _apart(name: str, difference: Difference | None) -> dict[str, object]:
    return {
        name: difference.mean if difference else None,
        f"{name}_low_95": difference.low if difference else None,
        f"{name}_high_95": difference.high if difference else None,
    }


def _both_of_each(model: str, record: Record, names: Sequence[str], method: str) -> dict[str, object]:
    """Every metric that `evaluate` asks for, as `_both`; `names` are those in the record."""
    both = (
        _both(f"{model}_{m.name}", value)
        for m, value in zip(record.asked, last_round(record, method, names), strict=True)
    )
    return {name: value for of in both for name, value in of.items()}


FORMATS: dict[str, Callable[[Record], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}
