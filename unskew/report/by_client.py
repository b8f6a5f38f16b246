"""Results of single clients: each method's headline of the client's own model on its own test data, last round.

The table that `unskew table --by-client` prints, and the report's section, have the same rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unskew.record.reader import Record
from unskew.report import tables, worth
from unskew.report.section import Section, Table, TableRow
from unskew.report.stats import Spread
from unskew.words import beginning, counted

MOST = 20
"""Clients that the section has at most."""


Client = tuple[str | int, int | None]
"""A client's name, or its number where the data name none, and the only seed that has it, None where all have it."""


@dataclass(frozen=True)
class ClientResult:
    """A method's result at a client.

    Attributes:
        method: The method.
        client: Whose result it is.
        number: The client's number under its first seed.
        tested: Seeds that have a result, and the number of the client's test examples under each, 0 if not known.
        spread: The values over seeds.
    """

    method: str
    client: Client
    number: int
    tested: Mapping[int, int]
    spread: Spread

    @property
    def name(self) -> str:
        """The client in words."""
        label, seed = self.client
        of = label if isinstance(label, str) else f"client {label}"
        return of if seed is None else f"{of} of seed {seed}"

    @property
    def rows(self) -> str:
        """Its test examples in words: a range where seeds have other numbers of them."""
        return tables.span(Spread(tuple(map(float, self.tested.values())))) if all(self.tested.values()) else "–"


def results(record: Record) -> list[ClientResult]:
    """Each method's results of its clients, in the run's order; empty if the run has none of single clients."""
    names = {seed: of.client_names for seed, of in record.partitions.items()}
    # Clients without names are drawn anew by each seed, and so are others.
    lasting = len(record.seeds) == 1 or (len(set(names.values())) == 1 and all(names.values()))
    of = []
    for method in record.methods:
        by_client: dict[Client, dict[int, int]] = {}
        seeds = tables.counted_seeds(record, method)
        for seed in seeds:
            for c in record.clients.get((method, seed), {}):
                who = (names[seed][c] if names.get(seed) else c, None if lasting else seed)
                by_client.setdefault(who, {})[seed] = c
        planned = len(seeds) + len(record.diverged_seeds(method)) if lasting else 1
        for who, numbers in by_client.items():
            tested = {seed: round(record.tested.get((method, seed), {}).get(c, 0)) for seed, c in numbers.items()}
            values = tuple(record.clients[method, seed][c] for seed, c in numbers.items())
            spread = Spread(values, planned - len(values))
            of.append(ClientResult(method, who, next(iter(numbers.values())), tested, spread))
    return of


def what(record: Record, of: Sequence[ClientResult]) -> str:
    """Sentences on what the results are, what ± leaves out, where test examples are few, and who has no result."""
    m, clients = record.headline, [_tested(record, r) for r in {r.client: r for r in of}.values()]
    over = "; mean ± standard deviation over seeds" if any(len(r.spread.values) > 1 for r in of) else ""
    sentences = [f"{beginning(m.label)} of each client’s own model on its own test data, last round{over}"]
    if over and record.same_test_rows:
        sentences.append("Every seed has the same test rows, whose chance ± leaves out")
    few = [c for c in clients if 0 < c.telling < worth.FEW]
    if few:
        some = f"{len(few)} of {counted(len(clients), 'client')} {'have' if len(few) > 1 else 'has'}"
        rarest = f" {worth.few_of(m)}" if few[0].rarest else ""
        sentences.append(f"{some} fewer than {worth.FEW} test examples{rarest}: {worth.fewest(few, m)}")
    if names := worth.unjudged(record):
        sentences.append(worth.unmeasured(names, m))
    return f"{'. '.join(sentences)}."


def _tested(record: Record, of: ClientResult) -> worth.ClientGain:
    return worth.tested_client(record, list(of.tested), of.number, of.name, min(of.tested.values()))


def section(record: Record) -> Section | None:
    """A row for each client with each method's result, of many those that are tested most; None if the run has none."""
    of, m = results(record), record.headline
    by_client: dict[Client, dict[str, ClientResult]] = {}
    for r in of:
        by_client.setdefault(r.client, {})[r.method] = r
    if not by_client:
        return None
    rows = [(_tested(record, next(iter(by.values()))), by) for by in by_client.values()]
    methods = [k for k in record.methods if any(k in by for _, by in rows)]
    caption, note = f"{beginning(m.label)} on each client’s own test data{', ' * bool(m.way)}{m.way}", what(record, of)
    if len(rows) > MOST:
        # Not those with the worst results: of many clients these are the ones with a test row or two.
        rows.sort(key=lambda row: -row[0].telling)
        which = "with the most test examples" if rows[0][0].telling else "that come first"
        caption += f": the {MOST} of {counted(len(rows), 'client')} {which}"
    if len(rows) > worth.MOST_NAMED:
        note += " unskew table FOLDER --by-client has all, with their gains over local training if that is in the run."
    of_patients, of_classes = (any(values) for values in zip(*((c.patients, c.rarest) for c, _ in rows), strict=True))
    head = [("Client", ""), ("Test rows", ""), *[("Patients", "tested")] * of_patients]
    head += [("Events" if m.of_events else "Rarest class", "test rows")] * of_classes
    head += [(k, _below(record, k)) for k in methods]
    entries = []
    for c, by in rows[:MOST]:
        cells = [next(iter(by.values())).rows, *[f"{c.patients:,}" if c.patients else "–"] * of_patients]
        cells += [": ".join(filter(None, (c.rarest[1], f"{c.rarest[0]:,}"))) if c.rarest else "–"] * of_classes
        cells += [tables.with_spread(by[k].spread if k in by else None, m) for k in methods]
        entries.append(TableRow(c.name, tuple(cells)))
    return Section("Results by client", "", (), (Table(caption, tuple(head), tuple(entries), note),))


def _below(record: Record, method: str) -> str:
    return ", ".join(filter(None, (tables.bounds(record).get(method), "%" * record.headline.percent)))
