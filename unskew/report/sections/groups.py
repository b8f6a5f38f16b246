"""Groups of clients that train together, formed by HCCT and other methods, and the value of joining one.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate", IEEE TMC 2024 (HCCT), Algorithm 2 and Figs. 3 to 5.  Equation
numbers in brackets are the paper's.
"""

from collections.abc import Mapping, Sequence

from unskew.info import ClientGroups
from unskew.record.reader import Record, method_tables
from unskew.report import figures, stats
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, in_rows
from unskew.report.sections.group_figures import flow_chart, gain_chart, rand_chart, similarity_chart, tree_chart
from unskew.report.sections.group_history import ALONE, GroupHistory, grouping
from unskew.report.worth import alone
from unskew.words import counted

MOST_SHOWN = 4  # methods whose groups are drawn
MOST_CLIENTS = 100  # of a figure with a mark for each client


def section(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section on methods that form groups; None if no partition is known.

    Raises:
        RunError: If the info contradicts itself.
    """
    base = alone(record)
    histories = [g for m in methods if (g := grouping(record, m, base)) is not None]
    if not histories:
        return None
    options = method_tables(record)
    charts: list[Chart | None] = [rand_chart(histories, marks)]
    for i, g in enumerate(histories[:MOST_SHOWN]):
        charts.append(flow_chart(g, f"flow{i}"))
        if g.clients <= MOST_CLIENTS:
            own = {**options.get(g.method, {}), **({} if g.judged.alpha is None else {"alpha": g.judged.alpha})}
            charts.append(tree_chart(g, own, f"tree{i}"))
            charts.append(similarity_chart(g, f"similar{i}"))
            charts.append(gain_chart(g, own, record.partitions[g.seed].sizes, base, f"gain{i}"))
    drawn = in_rows([c for c in charts if c is not None])
    pilots = [_pilot(g) for g in histories if g.judged.tried]
    return Section("Groups", lead(histories, base), drawn, (_summary(histories, marks), *pilots))


def lead(histories: Sequence[GroupHistory], base: str | None) -> str:
    """Describe the final groups in a sentence for each method, and name the figures left out."""
    sentences = [formed(g) for g in histories]
    sentences.append("A group keeps its number and colour from round to round by the members it keeps.")
    if base is None:
        sentences.append(
            "No method of this run trains every client alone, so the gain from joining is not known: add the method "
            "“independent”."
        )
    if len(histories) > MOST_SHOWN:
        sentences.append(f"Drawn are the groups of the first {MOST_SHOWN} methods.")
    if any(g.clients > MOST_CLIENTS for g in histories):
        sentences.append(
            f"Trees of merges, similarities and the gains of single clients are drawn for up to {MOST_CLIENTS} clients."
        )
    return " ".join(sentences)


def formed(g: GroupHistory) -> str:
    """A sentence with the number of groups in the last round and of clients in none."""
    several = sum(n != ALONE for n in g.last.numbers)
    by_itself = len(g.last.numbers) - several
    out = g.clients - len({c for members in g.last.groups for c in members})
    parts = [f"{counted(several, 'group') if several else 'no group'} of two or more"]
    parts += [f"{counted(by_itself, 'client')} alone"] if by_itself else []
    parts += [f"{counted(out, 'client')} in none"] if out else []
    return f"{g.method}: in round {g.last.round} of seed {g.seed}, {', '.join(parts)}."


def _summary(histories: Sequence[GroupHistory], marks: Mapping[str, figures.LineStyle]) -> Table:
    head = (
        ("Method", ""), ("Groups", "of two or more"), ("Alone", "clients"),
        *((("Adjusted Rand", "index"),) if any(g.rand for g in histories) else ()),
    )  # fmt: skip
    entries = tuple(
        TableRow(
            g.method,
            (
                *map(_mean, (g.several, g.alone)),
                *([f"{g.rand.mean[-1]:.2f}" if g.rand else "–"] if len(head) > 3 else []),
            ),
            figures.swatch(marks[g.method]),
        )
        for g in histories
    )
    note = "One alone now may have learned in a group before.  What joining is worth stands under “Should I join?”."
    return Table("Groups in the last round; mean ± standard deviation over seeds", head, entries, note)


def _mean(spread: stats.Spread) -> str:
    return f"{spread.mean:.1f}" + ("" if spread.std is None else f" ± {spread.std:.1f}")


def _pilot(g: GroupHistory) -> Table:
    """Table of what HCCT's pilot measured for each alpha."""
    by_class = all(t.accuracy is not None for t in g.judged.tried)
    head = (
        ("Alpha", "examples"), ("Groups", "at the pilot's end"),
        ("Accuracy", "% of held-out examples") if by_class else ("Loss", "mean on held-out examples"), ("", ""),
    )  # fmt: skip
    rows = tuple(
        TableRow(
            f"{t.alpha:.4g}",
            (
                str(t.groups),
                f"{100 * t.accuracy:.1f}" if by_class and t.accuracy is not None else _loss(t.loss),
                "chosen" if t.alpha == g.judged.alpha else "",
            ),
        )
        for t in g.judged.tried
    )
    return Table(
        f"{g.method}: the alphas tried in a pilot under seed {g.seed}, on training examples that were held out",
        head,
        rows,
        "A larger alpha makes larger groups; at 0 every client trains alone. Another than the first is chosen if its "
        "gain on that is more than a standard error over clients.",
    )


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


KIND = SectionKind("groups of clients that train together", (ClientGroups,), section)
