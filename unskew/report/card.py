"""A model card: task, data, training, results by site, and limits.

M. Mitchell et al., "Model Cards for Model Reporting", FAT* 2019.  A card is a page with nothing folded and no figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from unskew.errors import ConfigError, RunError, did_you_mean
from unskew.info import PrivacyBudget
from unskew.record.reader import Record, configured, method_tables
from unskew.report import page, results, tables, verdict
from unskew.report.page import Page
from unskew.report.section import SECTIONS, Section, Table, table
from unskew.report.together import written

OF_MODEL = ("effects", "subgroups", "privacy")
"""The sections of a report that a card has the tables of."""
TASK = ("kind", "model", "model_options", "loss", "class_weights", "preprocess")
APART = ("personal", "worst_decile", "spread_over_clients")
MOST_CLIENTS = 20


def of_run(record: Record, method: str | None = None) -> Page:
    """The card of a run's method.

    Args:
        record: The run.
        method: The method; by default the only one, or the one with clearly the best models.

    Raises:
        ConfigError: If there is no such method, or no method is clearly best.
    """
    method = _chosen(record, method)
    beside = (method, *tables.bounds(record))
    headline = results.headline(record, brief=True)
    entries = tuple(entry for entry in headline.entries if entry.name in beside)
    sections = [
        page.data_of(record), _sites(record, beside), Section("Method", "", (), (_method(record, method),)),
        *_of_model(record, method), _limits(record, method),
        replace(page.settings_of(record), title="Where it comes from", lead="", code=""),
    ]  # fmt: skip
    title, shown = f"Model card: {method} of {record.name}", replace(headline, entries=entries, caption="")
    bare = [replace(section, charts=(), about="") for section in sections if section is not None]
    return Page(
        title,
        verdict.what(record),
        verdict.of_method(record, method),
        (),
        shown,
        verdict.serious(record),
        bare,
        opened=True,
    )


def _chosen(record: Record, method: str | None) -> str:
    competing = [k for k in record.methods if record.cell(k).bound is None]
    if method is None:
        own = tables.leader(record, record.headline.own)
        method = competing[0] if len(competing) == 1 else tables.leader(record) or own
        if method is None:
            raise ConfigError(f"no method is clearly the best; give --method, one of {', '.join(competing)}")
    if method not in record.methods:
        known = ", ".join(record.methods)
        raise ConfigError(f"--method must be one of {known}, got {method!r}{did_you_mean(method, record.methods)}")
    return method


def _sites(record: Record, beside: Sequence[str]) -> Section | None:
    """Results by client and gains over training alone, where clients have names; else how far clients are apart."""
    if not any(map(record.names, record.seeds)):
        apart = results.headline(record, [name for name in APART if name in results.columns(record)])
        shown = replace(apart, caption="", entries=tuple(e for e in apart.entries if e.name in beside))
        return Section("Results by client", "Clients have no names.", (), (shown,))
    try:
        by_client = results.by_client(record)
    except RunError:  # no client was evaluated by itself
        return None
    return Section("Results by client", "", (), (_of_methods(by_client, beside, record),))


def _of_methods(whole: Table, methods: Sequence[str], record: Record) -> Table:
    """The table without the columns of other methods, and without clients beyond the first that fit on a page."""
    whose = [title.removesuffix(" gain") for title, _ in whole.head]
    kept = [k for k, name in enumerate(whose) if name not in record.methods or name in methods]
    rows = (replace(entry, cells=tuple(entry.cells[k - 1] for k in kept[1:])) for entry in whole.entries[:MOST_CLIENTS])
    left = len(whole.entries) - MOST_CLIENTS
    note = f"{whole.note} {left} more clients are in the run’s report." if left > 0 else whole.note
    return Table(whole.caption, tuple(whole.head[k] for k in kept), tuple(rows), note)


def _method(record: Record, method: str) -> Table:
    """The training, a line for each setting."""
    config = configured(record)
    task = {name: value for name, value in config.get("task", {}).items() if name in TASK}
    run = {name: config[name] for name in ("rounds", "clients_per_round") if name in config}
    own = method_tables(record).get(method, {})
    every = own | task | run | {"parameters of the network": record.card.get("parameters")}
    rows = [(name, words) for name, of in every.items() if name != "label" and (words := written(of)) != "none"]
    return table("", ["setting", "value"], rows, words=[1])


def _of_model(record: Record, method: str) -> Iterator[Section]:
    """Sections on what the model goes by, for whom it works, and its privacy, where the run has measured it."""
    for name in OF_MODEL:
        kind = SECTIONS.resolve(name)
        if any(method in record.reports(of) for of in kind.types):
            section = kind.draw(record, [method], {method: ""})
            yield from (section,) if section is not None and section.tables else ()


def _limits(record: Record, method: str) -> Section:
    """Limits of what the run shows, and every note on it."""
    first = next(iter(record.partitions.values()), None)
    unmeasured = {
        "Only the clients of this run were tested, so nothing is known of others.": first is None or not first.unseen,
        "Test rows are of the same time as training rows, so nothing is known of later ones.":
            first is not None and not first.in_time,
        "The model is not differentially private: it may tell of rows it was trained on.":
            method not in record.reports(PrivacyBudget),
        "One seed was trained, so the part of chance in training is not known.": len(record.seeds) == 1,
    }  # fmt: skip
    lines = [*(sentence for sentence, holds in unmeasured.items() if holds), *verdict.notes(record)]
    return page.numbered("Limits", lines)
