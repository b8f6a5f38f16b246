r"""The headline table of a run for a paper, a page or a spreadsheet.

Accuracies are of the last round, and beside it the mean of the last fifth of evaluations, in percent in Markdown and
LaTeX and as fractions in CSV, with the standard deviation over seeds.  Local training and pooled data are marked.  A
number is bold only if its method is higher than each other federated one by the 95 % interval of their paired
differences over seeds: the highest mean by itself is not enough.

LaTeX needs `\usepackage{booktabs}` and UTF-8; names are escaped.
"""

import csv
import io
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unskew.errors import ConfigError, RunError, did_you_mean
from unskew.ledger import DIRECTIONS
from unskew.record.reader import Record
from unskew.report import by_client, worth
from unskew.report.stats import Spread
from unskew.report.tables import (
    BOUNDS,
    Difference,
    Headline,
    amount,
    asked,
    bounds,
    bracket,
    diverged,
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
from unskew.tasks.measure import Measure
from unskew.words import in_a_cell, in_markdown, listed

Lines = list[list[str]]


def table(record: Record, format: str = "markdown", columns: Sequence[str] = ()) -> str:
    """The headline table in one of `FORMATS`, ending in a newline.

    In Markdown and LaTeX, `columns` stand beside the method in the order given.  There are seeds, round, global, tail,
    difference, personal, personal_difference, worst_decile, unseen, unseen_adapted, mb, seconds, and global_ and
    personal_ with each further metric that the run was evaluated with.  Without them the table has the usual ones, and
    further metrics follow in tables of their own.

    Raises:
        ConfigError: If there is no such format or column, or columns of CSV, which has all, are chosen.
    """
    _check_format(format)
    if format in MARKUPS:
        return MARKUPS[format].table(record, columns)
    if columns:
        raise ConfigError(f"columns are chosen in {' and '.join(MARKUPS)}; {format} has all of them")
    return WRITERS[format](_rows(record))


def client_table(record: Record, format: str = "markdown") -> str:
    """Each method's results by client, in one of `FORMATS`, ending in a newline.

    It is the headline of the client's own model on its own test data, last round, with its test examples and its gain
    over local training where the run has that (`unskew.report.worth`).

    Raises:
        ConfigError: If there is no such format.
        RunError: If the run has no results of single clients.
    """
    _check_format(format)
    of = by_client.results(record)
    if not of:
        raise RunError(
            f'{record.folder} has no results of single clients; run it with "personal" in evaluate, or leave '
            "--by-client out"
        )
    gains = _gains(record)
    if format in WRITERS:
        return WRITERS[format]([_client_row(record, each, gains.get((each.method, each.client))) for each in of])
    escape = MARKUPS[format].escape
    m, with_gains = record.headline, any((each.method, each.client) in gains for each in of)
    unit = ", points" if m.percent else ""
    head = ["method", "client", "test rows", "seeds", f"own {m.axis}"]
    head += [f"gain over {worth.alone(record)}{unit} [95 %]"] if with_gains else []
    lines = [[escape(_plain(title)) for title in head]]
    for each in of:
        gain = gains.get((each.method, each.client))
        apart = m.with_interval(gain["gain"], gain["low"], gain["high"]) if gain and gain["gain"] is not None else "–"
        cells = [each.method, each.name, each.rows, str(len(each.spread.values))]
        cells += [with_spread(each.spread, m), *([apart] if with_gains else [])]
        lines.append([escape(_plain(cell)) for cell in cells])
    note = by_client.what(record, of)
    if with_gains:
        note += (
            f" A gain is above zero where the client does better{m.turned and ', so that its sign is reversed'}; its "
            "interval is over seeds and the client’s test rows, and there is none where the chance of these is not "
            "known."
        )
    return _tabular(note, lines) if format == "latex" else f"{_marked_down(lines)}\n{in_markdown(note)}\n"


def _check_format(format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(f"a table is written as {', '.join(FORMATS)}, got {format!r}{did_you_mean(format, FORMATS)}")


def _gains(record: Record) -> dict[tuple[str, by_client.Client], worth.GainRow]:
    """Gains of single clients by method and client."""
    of = worth.rows(record) if record.comparable else []
    return {(g["method"], (g["client"], g["seed"])): g for g in of if g["client"] is not None}


def _client_row(record: Record, of: by_client.ClientResult, gain: worth.GainRow | None) -> dict[str, object]:
    tested = list(of.tested.values())
    return {
        "run": record.run_of.get(of.method, record.name),
        "method": of.method,
        "bound": record.cell(of.method).bound,
        "client": of.client[0],
        "seed": of.client[1],
        "test_rows": None if not all(tested) else tested[0] if len(set(tested)) == 1 else statistics.fmean(tested),
        "seeds": len(of.spread.values),
        **_both(record.headline.name, of.spread),
        "same_test_rows": record.same_test_rows if len(of.spread.values) > 1 else None,
        "gain": gain["gain"] if gain else None,
        "gain_low_95": gain["low"] if gain else None,
        "gain_high_95": gain["high"] if gain else None,
    }


# ---------------------------------------------------------------- Markdown and LaTeX
def _markdown(record: Record, columns: Sequence[str]) -> str:
    chosen = _chosen(record, columns)
    main = _marked_down(_lines(record, chosen, in_markdown, lambda text: f"**{text}**"))
    further = () if columns else _further(record, in_markdown)
    after = (f"\n{title}:\n\n{_marked_down(lines)}" for title, lines in further)
    return f"{main}\n{in_markdown(_note(record, chosen))}\n{''.join(after)}"


def _marked_down(lines: Lines) -> str:
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (lines[0], rule, *lines[1:]))


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
    return "".join(_LATEX.get(c, c) for c in text)


def _latex(record: Record, columns: Sequence[str]) -> str:
    chosen = _chosen(record, columns)
    main = _tabular(_note(record, chosen), _lines(record, chosen, _escaped, lambda text: rf"\textbf{{{text}}}"))
    after = (f"\n{_tabular(title, lines)}" for title, lines in (() if columns else _further(record, _escaped)))
    return f"% \\usepackage{{booktabs}}\n{main}{''.join(after)}"


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


@dataclass(frozen=True)
class _Column:
    """A column of the headline table: its title, a row's text, and the method that is bold in it."""

    title: str
    text: Callable[[Headline], str]
    bold: str | None = None


def _columns(record: Record) -> dict[str, _Column]:
    """Every column that the headline table of this run can have, by the names that `table` takes."""
    measure, base = record.headline, reference(record)
    percent = ", %" if measure.percent else ""

    def value(title: str, of: Callable[[Headline], Spread | None], metric: str = "") -> _Column:
        return _Column(title, lambda row: with_spread(of(row), measure), leader(record, metric) if metric else None)

    def apart(title: str, metric: str) -> _Column:
        by_method = {d.method: d for d in paired(record, metric)}
        return _Column(title, lambda row: bracket(by_method[row.method]) if row.method in by_method else "–")

    def further(model: str, of: Measure, name: str) -> _Column:
        title = f"{model} {of.axis}{fewer_clients(record, name)}"
        return _Column(title, lambda row: with_spread(last_round(record, row.method, [name])[0], of))

    columns = {
        "method": _Column("method", lambda row: f"{row.method} ({BOUNDS[row.bound]})" if row.bound else row.method),
        "seeds": _Column("seeds", _seeds),
        "round": _Column("round", lambda row: span(row.rounds)),
        "global": value(f"global {measure.axis}", lambda row: row.shared, measure.shared),
        "tail": value(f"mean of {last_words(record)}", lambda row: row.tail),
        "personal": value(f"personal {measure.axis}", lambda row: row.personal, measure.own),
        "worst_decile": value(f"mean of worst decile{percent}", lambda row: row.worst, measure.worst),
        "unseen": value(f"unseen clients{percent}", lambda row: row.unseen),
        "unseen_adapted": value("adapted", lambda row: row.adapted),
        "mb": _Column("MB", lambda row: amount(sum(s.mean for s in row.mb.values())) if row.mb else "–"),
        "seconds": _Column("seconds", lambda row: amount(row.seconds.mean) if row.seconds else "–"),
    }
    if base is not None:
        minus = f"minus {base}{', points' if measure.percent else ''} [95 %]"
        columns["difference"] = apart(minus, measure.shared)
        columns["personal_difference"] = apart(f"personal {minus}", measure.own)
    columns |= {f"global_{m.name}": further("global", m, m.shared) for m in record.asked}
    return columns | {f"personal_{m.name}": further("personal", m, m.own) for m in record.asked}


def _seeds(row: Headline) -> str:
    return str(len(row.seeds)) + (f" of {row.planned}" if len(row.seeds) < row.planned else "")


def _chosen(record: Record, columns: Sequence[str]) -> dict[str, _Column]:
    """These columns after the method's, or without any the usual ones."""
    every = _columns(record)
    if unknown := [name for name in columns if name not in every]:
        raise ConfigError(
            f"the table of {record.name} has the columns {', '.join(every)}; got {unknown[0]!r}"
            f"{did_you_mean(unknown[0], every)}"
        )
    if columns:
        return {name: every[name] for name in ("method", *columns)}
    by_own = {d.method for d in paired(record, record.headline.own)} & for_own_models(record)
    usual = ["method", "seeds", "round", "global", "tail", *every.keys() & {"difference"}, "personal"]
    usual += ["personal_difference"] if by_own else []
    usual += ["worst_decile"]
    usual += ["unseen", "unseen_adapted"] if any(row.unseen for row in headline(record)) else []
    return {name: every[name] for name in (*usual, "mb", "seconds")}


def _lines(
    record: Record, columns: Mapping[str, _Column], escape: Callable[[str], str], bold: Callable[[str], str]
) -> Lines:
    """Head and rows as escaped text."""
    lines = [[escape(_plain(column.title)) for column in columns.values()]]
    for row in headline(record):
        texts = [(escape(_plain(column.text(row))), column.bold == row.method) for column in columns.values()]
        lines.append([bold(text) if leads else text for text, leads in texts])
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


def _note(record: Record, columns: Collection[str]) -> str:
    """One line without markup that says what the numbers in these columns are."""
    rows = headline(record)
    names = [name for name, done in record.runs.items() if not done] or ([] if record.finished else [record.name])
    kind = "95 % interval" if record.until is None else "95 % confidence sequence"
    sentences = [
        f"{_of_all('Last round', 'round', columns, [row.rounds for row in rows])}"
        f"{_BESIDE.format(last_words(record)) if 'tail' in columns else ''}; mean ± standard deviation over "
        f"{_of_all('seeds', 'seeds', columns, [Spread((float(len(row.seeds)),)) for row in rows])}."
    ]
    if not record.comparable:
        sentences.append("These runs are not comparable, so that no differences are given and nothing is bold.")
    elif record.same_test_rows:
        sentences.append("Nothing is bold.")
    elif not {"global", "personal", "worst_decile"}.isdisjoint(columns):
        sentences.append(
            f"Bold: {record.headline.direction} than every other federated method, by the {kind} of paired "
            "differences, each pair by itself."
        )
        if not_compared := list(bounds(record)):
            verb = "take" if len(not_compared) > 1 else "takes"
            sentences.append(f"{listed(not_compared)} {verb} no part in that.")
    clients = fewer_clients(record, record.headline.own)
    if clients and "personal" in columns:
        sentences.append(f"Personal {record.headline.label} is a mean over {clients.strip(' ()')}.")
    sentences += [left_out(record), *diverged(record), f"Not finished: {', '.join(names)}." if names else ""]
    return _plain(" ".join(filter(None, sentences)))


_BESIDE = ", and beside it the mean of the {} of evaluations, a dash where it is the last round alone"


def _of_all(what: str, name: str, columns: Collection[str], values: Sequence[Spread | None]) -> str:
    """The words for a number of each row, with the numbers where the column of this name is left out."""
    numbers = Spread(tuple(n for spread in values if spread for n in spread.values))
    return what if name in columns or not numbers.values else f"{what} ({span(numbers)})"


# ---------------------------------------------------------------- CSV
def _rows(record: Record) -> list[dict[str, object]]:
    """The table's rows, unrounded: accuracies are fractions, an empty field was not measured."""
    differences = (paired(record), paired_tails(record), paired(record, record.headline.own))
    last, tail, own = ({d.method: d for d in of} for of in differences)
    return [_csv_row(record, row, *(of.get(row.method) for of in (last, tail, own))) for row in headline(record)]


def _as_csv(rows: Sequence[Mapping[str, object]], separator: str = ",", decimal: str = ".") -> str:
    def cell(value: object) -> object:
        if isinstance(value, float):
            return str(value).replace(".", decimal)
        return in_a_cell(value) if isinstance(value, str) else value

    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), delimiter=separator, lineterminator="\n")
    writer.writerow({name: in_a_cell(name) for name in rows[0]})
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _as_csv2(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as a spreadsheet opens them where the decimal sign is a comma; only by the mark it knows UTF-8."""
    return "\ufeff" + _as_csv(rows, ";", ",")


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


@dataclass(frozen=True)
class Markup:
    """A format for people: a record's table of some columns, and what keeps a text from being read as markup."""

    table: Callable[[Record, Sequence[str]], str]
    escape: Callable[[str], str]


MARKUPS = {"markdown": Markup(_markdown, in_markdown), "latex": Markup(_latex, _escaped)}
WRITERS: dict[str, Callable[[Sequence[Mapping[str, object]]], str]] = {"csv": _as_csv, "csv2": _as_csv2}
FORMATS = (*MARKUPS, *WRITERS)
