"""The page of a first look at data (`unskew.data.look`), and the command's output."""

import textwrap
from dataclasses import replace
from pathlib import Path

from unskew.data.look import Look, TargetLook
from unskew.report import charts, render
from unskew.report.page import MOST_NOTES, Page, numbered, write_page
from unskew.report.pictures import shares
from unskew.report.section import Chart, Section, Table, TableRow, columns, table
from unskew.words import counted, sentence

MOST_SITES = 20
"""Sites up to which each has a mark in figures, and a row on the first screen."""

MOST_WITH_GAPS = 8
"""Sites up to which each has a column in the table of gaps."""

MOST_ON_PAGE = 500
"""Columns of data, and sites, that the page's tables have."""

MOST_COLUMNS = 15
"""Columns of data that figures show: those that differ most, or have most gaps."""

MOST_DRAWN = 100
"""Sites in a figure by site."""

MOST_PRINTED = 5
"""Sites that a terminal shows beside one row of all smaller ones."""


def write_look(look: Look, out: Path) -> Path:
    """Write a page, and return its path.

    Raises:
        RunError: If it cannot be written.
    """
    sections = [_sites(look), _disagreement(look), _columns(look)]
    pictures = [chart for s in sections for chart in s.charts][:2]
    first = sites_table(look, MOST_SITES) if look.sites else disagreement_table(look)
    shown = first if look.sites or look.disagreement else None
    sections.append(numbered("Notes", look.notes[MOST_NOTES:]))
    page = Page(look.name, sentence(look.size), look.verdict, pictures, shown, look.notes[:MOST_NOTES], sections)
    return write_page(page, out)


# ---------------------------------------------------------------- tables
def sites_table(look: Look, most: int, target: TargetLook | None = None) -> Table:
    """A row for each site, the largest first, and one for all beyond `most`: rows, patients, target and gaps.

    By default the only target is shown.
    """
    tested, people = look.test_rows is not None, look.patients is not None
    target = look.targets[0] if target is None and len(look.targets) == 1 else target
    classes = target.classes if target is not None and len(target.classes) <= 8 else ()
    numeric = target is not None and not target.classes
    head = ["site", *["patients"] * people, "rows | training" if tested else "rows"]
    head += ["rows | testing"] * tested + [f"{label} | %" for label in classes]
    head += ["target | mean ± sd"] * numeric + ["gaps | %"]
    of_target = target.by_site if target is not None else ((),) * len(look.sites)
    order = sorted(zip(look.sites, of_target, strict=True), key=lambda pair: -(pair[0].train + pair[0].test))
    groups = [[one] for one in order] if len(order) <= most + 1 else [*([one] for one in order[:most]), order[most:]]
    rows = []
    for group in groups:
        sites, (first, of) = [site for site, _ in group], group[0]
        train, test = sum(site.train for site in sites), sum(site.test for site in sites)
        missing = sum((site.train + site.test) * site.missing for site in sites) / ((train + test) or 1)
        one = len(group) == 1
        cells = [f"{first.patients:,}" if one and first.patients is not None else "–"] * people
        cells += [f"{train:,}", *[f"{test:,}"] * tested]
        labels = map(sum, zip(*(labels for _, labels in group), strict=True)) if classes else ()
        cells += [f"{100 * count / ((train + test) or 1):.0f}" for count in labels]
        cells += [f"{of[0]:.3g} ± {of[1]:.2g}" if one and of else "–"] * numeric
        name = first.name if one else f"{len(group):,} smaller"
        rows.append(TableRow(name, (*cells, f"{100 * missing:.1f}")))
    return table("Rows of each site, target in % of them, and gaps in % of values", head, rows)


def disagreement_table(look: Look) -> Table:
    """A row for each number, beside its mean under chance."""
    rows = [
        TableRow(d.name, (f"{d.value:.3g}", f"{d.chance:.3g}", "–" if d.p is None else f"{d.p:.2g}", d.meaning))
        for d in look.disagreement
    ]
    head = ["differ in", "number", "if alike", "p", "in words"]
    return table("Numbers, and what alike sites would have", head, rows, words=[4])


# ---------------------------------------------------------------- sections
def _sites(look: Look) -> Section:
    """Sites with each target, and where test rows are the latest the first and the last time of each site's."""
    pictures, tables = [], []
    for target in look.targets if look.sites else ():
        by_site = [(s.name, s.train + s.test, of) for s, of in zip(look.sites, target.by_site, strict=True)]
        title = f"Rows and classes of {target.name} by site"
        if target.classes:
            pictures.append(shares(title, by_site, list(map(str, target.classes)), "site", "classes"))
        tables.append(replace(sites_table(look, MOST_ON_PAGE, target), caption=f"{target.name} at each site"))
    if look.train_span is not None:
        spans = {site.name: (site.train_span, site.test_span) for site in look.sites[:MOST_ON_PAGE]}
        rows = [
            TableRow(name, tuple(time for span in both for time in span or ("none", "none")))
            for name, both in (spans or {"all": (look.train_span, look.test_span)}).items()
        ]
        head = ["site", "to train on | from", " | to", "for testing | from", " | to"]
        tables.append(table("Times of each site", head, rows))
    return Section.of("Sites", "", pictures, tables, "rows, target and gaps")


def _disagreement(look: Look) -> Section:
    drawn = "rows" if look.patients is None else "patients"
    text = (
        f"Each number stands beside that of sites drawn at random from all {drawn}. Sites that disagree "
        "may still train together: look at each site’s own result, and try methods that fit a model to each."
    )
    shifts = [_shift_chart(look)] if look.disagreement else []
    return Section.of("How much sites disagree", text, shifts, [disagreement_table(look)], "beside chance")


def _columns(look: Look) -> Section:
    rows = [
        TableRow(
            c.name,
            (c.kind, c.summary, *("–" if end is None else f"{end:.5g}" for end in (c.lowest, c.highest)),
             f"{100 * c.missing:.1f}", "–" if c.between is None else f"{100 * c.between.share:.0f}"),
        )
        for c in look.columns[:MOST_ON_PAGE]
    ]  # fmt: skip
    left = len(look.columns) - len(rows)
    note = f"{left:,} more columns are in --json." if left > 0 else ""
    head = ["column", "kind", "values", "lowest", "highest", "gaps | %", "between sites | % of variance"]
    tables = [table("What each column holds", head, rows, note, [1, 2])]
    some = [c for c in look.columns if c.missing][:MOST_ON_PAGE]
    if some and 0 < len(look.sites) <= MOST_WITH_GAPS:
        by_site = (TableRow(c.name, tuple(f"{100 * share:.0f}" for share in c.missing_by_site)) for c in some)
        sites = [f"{site.name} | %" for site in look.sites]
        tables.append(table("Gaps of each column by site", ["column", *sites], by_site))
    return Section.of("Columns", "", [_gaps_chart(look)], tables, "what each holds, and gaps")


def _shift_chart(look: Look) -> Chart | None:
    """Each site's mean, for the columns that differ most."""
    differing = [(c.between.share, c) for c in look.columns if c.between is not None and c.kind == "number"]
    chosen = [c for _, c in sorted(differing, key=lambda pair: -pair[0])[:MOST_COLUMNS]]
    if not chosen or not 2 <= len(look.sites) <= MOST_SITES:
        return None
    points = [
        {"method": site.name, "row": column.name, "value": column.means[i]}
        for column in chosen
        for i, site in enumerate(look.sites)
        if column.means[i] is not None
    ]
    colours = charts.colours([site.name for site in look.sites])
    chart = charts.dots(columns(points), colours, "site’s mean, standard deviations")
    caption = f"Far from the line: patients, instruments or units differ, most in {chosen[0].name}."
    return Chart("Where sites’ means lie", caption, chart)


def _gaps_chart(look: Look) -> Chart | None:
    """The share of gaps, by column and site."""
    chosen = sorted((c for c in look.columns if c.missing), key=lambda c: -c.missing)[:MOST_COLUMNS]
    if not chosen or not 2 <= len(look.sites) <= MOST_DRAWN:
        return None
    cells = [
        {"column": site.name, "row": column.name, "value": share}
        for column in chosen
        for site, share in zip(look.sites, column.missing_by_site, strict=True)
    ]
    chart = charts.matrix(columns(cells), "site", "column", "share without a value", "#d55e00")
    caption = f"Stronger colour: a larger share of rows without a value; most in {chosen[0].name}."
    return Chart("Gaps by column and site", caption, chart)


# ---------------------------------------------------------------- a terminal
def screen(look: Look, width: int) -> str:
    """The data on a screen: their size, the largest sites, three numbers on how they differ, and three notes.

    Args:
        look: The look at the data.
        width: Characters in a line.
    """
    lines = textwrap.wrap(f"{look.name}: {look.size}.", width, max_lines=2, placeholder=" …")
    lines += render.text(replace(sites_table(look, MOST_PRINTED), caption=""), width).splitlines() if look.sites else []
    if look.disagreement:
        numbers = disagreement_table(replace(look, disagreement=look.disagreement[:3]))
        few = tuple(replace(row, cells=row.cells[:-1]) for row in numbers.entries)
        lines += render.text(replace(numbers, caption="", head=numbers.head[:-1], entries=few), width).splitlines()
    lines += [line for note in look.notes[:MOST_NOTES] for line in textwrap.wrap(f"- {note}", width)]
    more = len(look.notes) - MOST_NOTES
    lines += [f"{counted(more, 'more note')}: on the page, or --json"] if more > 0 else []
    return "\n".join(filter(None, lines))
