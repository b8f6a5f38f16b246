"""The page of a first look at data (`unskew.data.look`), and the tables that the command prints of it."""

import textwrap
from dataclasses import replace
from pathlib import Path

from unskew.data.look import Look
from unskew.report import charts
from unskew.report.page import Page, write_page
from unskew.report.pictures import shares
from unskew.report.section import Chart, Section, Table, TableRow, columns, table

MOST_SITES = 20
"""Sites up to which each has a mark in figures."""

MOST_WITH_GAPS = 8
"""Sites up to which each has a column in the table of gaps."""

MOST_ON_PAGE = 500
"""Columns of data that the page's tables have."""

MOST_COLUMNS = 15
"""Columns of data that figures show: those that differ most, or have most gaps."""

MOST_DRAWN = 100
"""Sites in a figure by site."""


def write_look(look: Look, out: Path) -> Path:
    """Write one self-contained page, and return its path.

    Raises:
        RunError: If it cannot be written.
    """
    sections = [section for section in (_sites(look), _disagreement(look), _columns(look)) if section is not None]
    pictures = [chart for s in sections for chart in s.charts]
    table = sites_table(look) if 0 < len(look.sites) <= 20 else disagreement_table(look) if look.disagreement else None
    return write_page(
        Page(look.name, "a first look at the data", look.lead, pictures[:2], table, look.warnings, sections), out
    )


# ---------------------------------------------------------------- tables
def sites_table(look: Look) -> Table:
    """A row for each site: patients where they are known, rows, classes or mean of the target, gaps."""
    tested = look.test_rows is not None
    by_class = len(look.classes) if len(look.classes) <= 8 else 0
    numeric = any(site.mean is not None for site in look.sites)
    people = look.patients is not None
    head = ["site", *["patients"] * people, "rows | to train on" if tested else "rows"]
    head += ["rows | for testing"] * tested
    head += [f"{label} | % of rows" for label in look.classes[:by_class]]
    head += ["target | mean ± sd"] * numeric + ["gaps | % of values"]
    rows = []
    for site in look.sites:
        n = max(site.train + site.test, 1)
        cells = [f"{site.patients:,}"] if people else []
        cells += [f"{site.train:,}", *([f"{site.test:,}"] if tested else [])]
        cells += [f"{100 * count / n:.0f}" for count in site.labels[:by_class]]
        cells += [f"{site.mean:.3g} ± {site.sd:.2g}"] if numeric and site.mean is not None else []
        rows.append(TableRow(site.name, (*cells, f"{100 * site.missing:.1f}")))
    return table("Rows, target and gaps of each site", head, rows)


def times_tables(look: Look) -> list[Table]:
    """A table of the first and the last time of each site's rows, where test rows are the latest; else none."""
    if look.train_span is None:
        return []
    spans = {site.name: (site.train_span, site.test_span) for site in look.sites} or {
        "all": (look.train_span, look.test_span)
    }
    head = ["site", "to train on | from", " | to", "for testing | from", " | to"]
    rows = [
        TableRow(name, tuple(time for span in both for time in span or ("none", "none")))
        for name, both in spans.items()
    ]
    return [table("Times of each site", head, rows)]


def target_tables(look: Look) -> list[Table]:
    """A table for each of several targets: its classes, or its mean, at each site."""
    tables = []
    for target in look.targets if look.sites else ():
        alone = sites_table(replace(look, sites=target.sites, classes=target.classes, targets=()))
        tables.append(replace(alone, caption=f"Target {target.name} at each site"))
    return tables


def disagreement_table(look: Look) -> Table:
    """A row for each number, beside what chance would give."""
    rows = [
        TableRow(d.name, (f"{d.value:.3g}", f"{d.chance:.3g}", "–" if d.p is None else f"{d.p:.2g}", d.meaning))
        for d in look.disagreement
    ]
    head = ["differ in", "number", "alike sites | would have", "p", "in words"]
    return table("Numbers, and what alike sites would have", head, rows, words=[4])


def columns_table(look: Look, most: int, longest: int | None = None) -> Table:
    """A row for each column: what it holds, and how much of it lies between sites.

    Of columns the first `most`, and of what they hold the first `longest` characters.
    """
    rows = [
        TableRow(
            column.name,
            (
                column.kind,
                column.summary if longest is None else textwrap.shorten(column.summary, longest, placeholder=" …"),
                *("–" if end is None else f"{end:.5g}" for end in (column.lowest, column.highest)),
                f"{100 * column.missing:.1f}",
                "–" if column.between is None else f"{100 * column.between.share:.0f}",
            ),
        )
        for column in look.columns[:most]
    ]
    left = len(look.columns) - len(rows)
    note = f"{left:,} more columns are in --json and on the page." if left > 0 else ""
    head = ["column", "kind", "values", "lowest", "highest", "gaps | %", "between sites | % of variance"]
    return table("What each column holds", head, rows, note, [1, 2])


def gaps_table(look: Look, most: int) -> Table | None:
    """The gaps of each column that has some, by site; None where there are none, or sites are many."""
    some = [column for column in look.columns if column.missing]
    if not some or not 0 < len(look.sites) <= MOST_WITH_GAPS:
        return None
    head = ["column", *(f"{site.name} | %" for site in look.sites)]
    rows = (TableRow(c.name, tuple(f"{100 * share:.0f}" for share in c.missing_by_site)) for c in some[:most])
    return table("Gaps of each column by site", head, rows)


# ---------------------------------------------------------------- sections
def _sites(look: Look) -> Section | None:
    if not look.sites:
        return None
    drawn = [("Rows and classes by site", look.classes, look.sites)]
    drawn += [(f"Rows and classes of {of.name} by site", of.classes, of.sites) for of in look.targets]
    pictures = tuple(
        shares(title, [(s.name, s.train + s.test, s.labels) for s in sites], list(map(str, classes)), "site", "classes")
        for title, classes, sites in drawn
        if classes
    )
    tables = (sites_table(look), *times_tables(look), *target_tables(look)) if len(look.sites) <= 200 else ()
    return Section("Sites", "", pictures, tables, "rows, target and gaps")


def _disagreement(look: Look) -> Section | None:
    if not look.disagreement:
        return None
    chart = _shift_chart(look)
    drawn = "rows" if look.patients is None else "patients"
    text = (
        f"Each number stands beside that of sites drawn at random from all {drawn}. Sites that disagree "
        "may still train together: look at each site’s own result, and try methods that fit a model to each."
    )
    tables = (disagreement_table(look),)
    return Section("How much sites disagree", text, () if chart is None else (chart,), tables, "beside chance")


def _columns(look: Look) -> Section | None:
    if not look.columns:
        return None
    chart, gaps = _gaps_chart(look), gaps_table(look, MOST_ON_PAGE)
    tables = (columns_table(look, MOST_ON_PAGE), *(() if gaps is None else (gaps,)))
    return Section("Columns", "", () if chart is None else (chart,), tables, "what each holds, and gaps")


def _shift_chart(look: Look) -> Chart | None:
    """Each site's mean, for the columns that differ most."""
    chosen = sorted(
        (c for c in look.columns if c.between is not None and c.kind == "number"),
        key=lambda c: -(c.between.share if c.between else 0.0),
    )[:MOST_COLUMNS]
    if not chosen or not 2 <= len(look.sites) <= MOST_SITES:
        return None
    points = [
        {"method": site.name, "row": column.name, "value": column.means[i]}
        for column in chosen
        for i, site in enumerate(look.sites)
        if column.means[i] is not None
    ]
    chart = charts.dots(
        columns(points), charts.colours([site.name for site in look.sites]), "site’s mean, standard deviations"
    )
    caption = "Far from the line: patients, instruments or units differ."
    alt = f"Sites' means of {len(chosen)} columns; they differ most in {chosen[0].name}."
    return Chart("Where sites’ means lie", caption, chart, alt)


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
    alt = f"Gaps in {len(chosen)} columns by site; most in {chosen[0].name}."
    return Chart("Gaps by column and site", "Darker: a larger share of rows without a value.", chart, alt)
