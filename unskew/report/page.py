"""Writes HTML pages from one template: offline, self-contained, printable, usable by keyboard.

The first screen has what was run, the verdict, two pictures and the table; everything else is folded.  Pages are
written atomically.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import jinja2
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from unskew.errors import RunError
from unskew.files import write_atomically
from unskew.info import Effects, Importance, RecallByClass, SiteCurves, Subgroups, info_type
from unskew.record.logs import described, plain
from unskew.record.reader import Record, read
from unskew.registry import OURS
from unskew.report import charts, pictures, render, results, tables, verdict, worth
from unskew.report.section import SECTIONS, Chart, Section, SectionKind, Table, table
from unskew.report.sections import cost
from unskew.report.together import merge
from unskew.version import __version__
from unskew.words import beginning, counted

OF_MODELS = {info_type(of) for of in (RecallByClass, Effects, Importance, Subgroups, SiteCurves)}
"""What nearly every run reports, whose methods cost as much as the ledger says."""
MOST_NOTES = 3
"""Serious notes that stand above the pictures; the others are folded."""


unchecked = debug_mode(False)
"""Charts of ours are checked against Vega-Lite's schema by tests: it takes half of the time of a page."""


@dataclass(frozen=True)
class Page:
    """A page: subject, verdict, pictures and a table; the rest is folded.

    Attributes:
        title: Its heading.
        what: What was run, in one line.
        verdict: The answer, in at most 25 words.
        pictures: At most two, side by side.
        table: The numbers behind the answer.
        warnings: Notes that a reader must not miss.
        sections: The folded parts; an empty one is left out.
        opened: True for a page without folding, such as a model card.
        swatches: Marks beside the names of methods.
    """

    title: str
    what: str
    verdict: str
    pictures: Sequence[Chart] = ()
    table: Table | None = None
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = ()
    opened: bool = False
    swatches: Mapping[str, Markup] = field(default_factory=dict)


def write_page(page: Page, out: Path) -> Path:
    """Write a page, as Markdown if its name ends in .md, and return its path.

    Raises:
        RunError: If it cannot be written; an older page then stays.
    """
    try:
        write_atomically(out, markdown(page) if out.suffix == ".md" else html(page))
    except OSError as e:
        raise RunError(f"{out} cannot be written: {e.strerror or e}; give another place for the page") from e
    return out


@unchecked
def html(page: Page) -> str:
    """The page as an HTML document; a picture of the first screen is not repeated in a folded part."""
    shown = {chart.described for chart in page.pictures}
    folded = [
        replace(s, charts=tuple(c for c in s.charts if c.described not in shown or c.html))
        for s in page.sections
        if not s.empty
    ]
    return _template("page.html").render(
        page=replace(page, sections=folded), version=__version__, library=charts.library()
    )


def markdown(page: Page, files: Mapping[str, str] = MappingProxyType({})) -> str:
    """The page in Markdown; a figure is its file in `files`, by title, or else its description."""
    parts = [f"# {page.title}", page.what, f"**{page.verdict}**", *(f"> {sentence}" for sentence in page.warnings)]
    first = Section("", "", tuple(page.pictures), (page.table,) if page.table else ())
    for section in (first, *(s for s in page.sections if not s.empty)):
        parts += [f"## {section.title}" if section.title else "", section.lead]
        parts += [
            f"![{c.described}]({files[c.title]})" if c.title in files else f"*{c.described}*" for c in section.charts
        ]
        parts += [render.markdown(table).strip() for table in section.tables]
        parts += [f"```\n{section.code.strip()}\n```" if section.code else ""]
    return "\n\n".join(filter(None, parts)) + "\n"


@unchecked
def first_screen(page: Page) -> str:
    """The first screen for a notebook: verdict, pictures and table, without a script."""
    drawn = [replace(c, html=Markup(charts.still(c.drawing).decode())) for c in page.pictures]
    return _template("first.html").render(page=replace(page, pictures=drawn))


def _template(name: str) -> jinja2.Template:
    environment = render.templates()
    environment.filters.update({"table": render.html, "anchor": _anchor, "about": _about, "drawn": charts.drawn})
    return environment.get_template(name)


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.casefold()).strip("-")


def _about(section: Section) -> str:
    """A line that says what is in a section."""
    parts = [counted(len(section.charts), "picture")] if section.charts else []
    parts += [counted(len(section.tables), "table")] if section.tables else []
    return section.about or ", ".join(parts) or "text"


# ---------------------------------------------------------------- runs
def write_report(run: Path | Record, out: Path | None = None) -> Path:
    """Write the page of a run, finished or not, and return its path: `out`, or `report.html` in the run's folder.

    Raises:
        RunError: If the folder cannot be read or the page cannot be written; an older page then stays.
    """
    record = run if isinstance(run, Record) else read(run)
    return write_page(of_run(record), record.folder / "report.html" if out is None else Path(out))


def write_comparison(folders: Sequence[Path], out: Path, names: Sequence[str], note: str = "") -> Path:
    """Write one page of several runs side by side, and return `out`.

    Args:
        folders: Folders of the runs.
        out: The page.
        names: Distinct names of the runs.
        note: A sentence for the head of the page.

    Raises:
        RunError: With fewer than two folders, or as in `write_report`.
    """
    if len(folders) < 2:
        raise RunError(f"a comparison needs at least two run folders, got {len(folders)}; for one run use its report")
    page = of_run(merge([read(f) for f in folders], names))
    return write_page(replace(page, warnings=[*([note] if note else []), *page.warnings]), Path(out))


@unchecked
def of_run(record: Record, brief: bool = False) -> Page:
    """The page of a run, or of several as one; with `brief` only the first screen."""
    drawn, serious = (pictures.forest(record), pictures.curve(record, "round")), verdict.serious(record)
    shown = replace(results.headline(record, brief=True), caption="", note=tables.left_out(record))
    first = Page(
        record.name, verdict.what(record), verdict.verdict(record), [c for c in drawn if c], shown, serious[:MOST_NOTES]
    )
    if brief:  # a notebook has no style sheet for swatches
        return first
    marks = {method: charts.swatch(colour) for method, colour in pictures.colours(record).items()}
    return replace(first, sections=_sections(record), swatches=marks)


def _sections(record: Record) -> list[Section]:
    """The folded parts of a page."""
    m, base = record.headline, record.baseline
    named = [w for w in worth.rivals(record) if worth.named(w.clients)]
    curves = (
        pictures.curve(record, "traffic"), pictures.curve(record, "time"),
        *(pictures.curve(record, "round", name) for name in (m.shared, m.own, "global.loss", "train.loss")),
    )  # fmt: skip
    clients = pictures.spread(record)
    differences = results.differences(record, base) if base is not None else ()
    kind = "Student’s t" if record.until is None else "a confidence sequence, which pays for a look after every seed"
    seed_by_seed = f"Seed by seed on the same division of the data; intervals are {kind}, each method by itself."
    gains = [pictures.clients(w, m) for w in named[:6]]
    return [
        Section.of("All results", "", (), [results.headline(record)], "every metric"),
        Section.of(f"Differences to {base}", seed_by_seed if differences else "", (), differences, "seed by seed"),
        Section.of("Gains over training alone", "", gains, [results.gains(record)], "methods, clients"),
        Section.of("Clients", "", [clients], [results.by_client(record) if clients else None], "own results"),
        Section.of("Curves", "", curves, (), "traffic, time, losses"),
        Section.of("Unseen clients", "", (), [results.unseen(record)], "who came after training"),
        *([] if record.parts else [*_own_sections(record), data_of(record)]),
        Section.of("Traffic and losses", "", (), (results.traffic(record), results.lost(record),
                   results.forecast(record)), "messages, lost replies, forecast"),
        numbered("Notes", (*verdict.serious(record)[MOST_NOTES:], *verdict.notes(record))),
        *(settings_of(of, f" of {name}" if name else "") for name, of in (record.parts or {"": record}).items()),
    ]  # fmt: skip


# ---------------------------------------------------------------- folded parts
def _own_sections(record: Record) -> Iterator[Section]:
    """Sections on costs and on what methods report of their rounds."""
    marks = pictures.colours(record)
    if any(types - OF_MODELS for types in record.info.values()) and (costs := cost.section(record)) is not None:
        yield costs
    for entry in SECTIONS.entries():
        try:
            kind: SectionKind = SECTIONS.resolve(entry.name)
            methods = [m for m in record.methods if any(m in record.reports(of) for of in kind.types)]
            drawn = kind.draw(record, methods, marks) if methods else None
        except Exception as error:
            if entry.owner == OURS:
                raise
            # A stranger's code, which raises what it likes; the rest of the report is none the worse.
            drawn = Section(entry.name, f"This section of {entry.owner} could not be drawn: {error}")
        if drawn is not None:
            yield drawn


def data_of(record: Record) -> Section:
    """The section on the division of the data, under each seed."""
    first = next(iter(record.partitions.values()), None)
    if first is None:
        why = "Clients trained on data of their own." if record.finished else "The run has yet to write its division."
        return Section("Data", why, about="clients’ examples")
    counts = [of for p in record.partitions.values() for of in p.label_counts]
    classed = first.counted == "classes" and any(len(of) > 1 for of in counts)
    head = ["seed", "clients", "examples", "training", "own tests", "smallest client", "largest client"]
    head += ["IID distance", "Jensen-Shannon", "effective classes"] * classed + ["hash of the split"]
    rows = []
    for seed, p in record.partitions.items():
        sizes = (len(p.sizes), p.n, p.trained, p.tested, min(p.sizes, default=0), max(p.sizes, default=0))
        skew = (f"{p.iid_distance:.3f}", f"{p.js:.3f}", f"{p.effective_classes:.2f}") if classed else ()
        rows.append((str(seed), *("–" if n is None else f"{n:,}" for n in sizes), *skew, p.sha256[:12]))
    note = (
        "IID distance: of a client’s class shares from equal ones. Jensen-Shannon: of its shares from those of all, "
        "0 to 1. Effective classes: how many equally common classes would be as mixed. Means over clients."
    )
    splits = dict.fromkeys(described(p.split) for p in record.partitions.values())
    data = dict.fromkeys(f"{p.dataset} {p.dataset_sha256[:12]}".strip() for p in record.partitions.values())
    latest = " Own tests are each client’s latest examples." if first.in_time else ""
    called = {"Clients": first.client_names, beginning(first.counted): first.classes[1:] and first.classes}
    named = [
        f" {what}: {', '.join(f'{k} {name}' for k, name in enumerate(names))}."
        for what, names in called.items()
        if 0 < len(names) <= pictures.MOST_COLUMNS and list(names) != [str(k) for k in range(len(names))]
    ]
    division = table("Division of the data by seed", head, rows, note if classed else "")
    chart = pictures.labels(first)
    lead = f"{'; '.join(data)}, divided by {'; '.join(splits)}.{latest}{''.join(named)}"
    return Section.of("Data", lead, [chart], [division], "who has what")


def numbered(title: str, lines: Sequence[str]) -> Section:
    """A section of numbered sentences."""
    rows = [(str(i), line) for i, line in enumerate(lines, start=1)]
    return Section.of(title, "", (), [table("", ["no.", "note"], rows, words=[1])], counted(len(rows), "note"))


def settings_of(record: Record, named: str = "") -> Section:
    """Settings of a run, its machine, and the command that repeats it."""
    card, summary = record.card, record.summary
    of = {
        "run": record.folder.name, "unskew": card["unskew"], "started": card["created"],
        "command": "" if record.deployed else card["command"],
        "fingerprint": summary["fingerprint"] if summary else "none yet",
        "seconds": f"{summary['seconds']:.1f}" if summary else "",
        "configuration, SHA-256": card["config_sha256"], **{k: plain(v) for k, v in card["environment"].items()},
    }  # fmt: skip
    where = table("Where and how it ran", ["what", "value"], [(k, v) for k, v in of.items() if v], words=[1])
    again = "Run the command, or save the configuration below and give it to unskew run."
    if record.deployed:
        split = " --split" if record.partitions else ""
        again = f"Save the configuration below; then unskew fed run config.toml{split}."
    again += " The fingerprint hashes final state and metrics, no clocks."
    return Section(f"Run it again{named}", again, (), (where,), "settings, environment", record.config)
