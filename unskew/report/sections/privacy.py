"""Differential privacy of models: epsilon spent by round, and what is guaranteed.

`unskew.wrappers.central_dp`, `unskew.wrappers.local_dp` and `unskew.wrappers.dp_sgd` have the mechanisms.
"""

import math
from collections.abc import Mapping, Sequence

from unskew.info import ExampleBudget, PrivacyBudget
from unskew.record.reader import Record, info_of
from unskew.report import figures, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow
from unskew.server import privacy as accountant
from unskew.words import sentence

LISTED = 20
"""Clients whose spending is listed."""


def draw(record: Record, methods: Sequence[str], marks: Mapping[str, figures.LineStyle]) -> Section | None:
    """The section; None if no seed that counts has spent anything."""
    spent = {m: by_seed(record, m) for m in methods}
    spent = {m: seeds for m, seeds in spent.items() if seeds}
    if not spent:
        return None
    last = {m: max((rounds[max(rounds)] for rounds in seeds.values()), key=_bound) for m, seeds in spent.items()}
    lead = "; ".join(
        f"{m} spent "
        + (f"ε = {i.privacy.bound:.3g}" if isinstance(i.privacy.epsilon, float) else "no privacy, as there is no noise")
        for m, i in last.items()
    )
    by_client = [clients_table(m, i) for m, i in last.items() if isinstance(i, ExampleBudget) and i.spent]
    noises = (_noise(seed, rounds[max(rounds)]) for seeds in spent.values() for seed, rounds in seeds.items())
    together = accountant.together(filter(None, noises))
    return Section(
        "Differential privacy",
        " ".join([f"{lead}.", *map(sentence, together)]),
        tuple(c for c in [_chart(spent, marks)] if c),
        (_table(last, marks), *by_client),
    )


def by_seed(record: Record, method: str) -> dict[int, dict[int, PrivacyBudget]]:
    """A method's spending by seed and round, of the seeds that count."""
    counted = set(tables.counted_seeds(record, method))
    seeds: dict[int, dict[int, PrivacyBudget]] = {}
    for seed, at, info in info_of(record, method, PrivacyBudget):
        if seed in counted:
            seeds.setdefault(seed, {})[at] = info
    return seeds


def _noise(seed: int, info: PrivacyBudget) -> accountant.NoisedSums | accountant.ClientsNoise | None:
    """The noise of a training by what it spent; None where the record does not say."""
    delta = info.privacy.delta or math.nan
    if (sums := info.sums) is not None:
        return accountant.NoisedSums(seed, sums.multiplier, sums.clients, sums.cohort, info.releases, delta)
    if (own := info.by_clients) is not None:
        covers = "one example of a client" if isinstance(info, ExampleBudget) else "one client's data"
        return accountant.ClientsNoise(covers, own.multiplier, own.share, info.releases, delta)
    return None


def _bound(info: PrivacyBudget) -> float:
    return info.privacy.bound


def _chart(
    spent: Mapping[str, Mapping[int, Mapping[int, PrivacyBudget]]], marks: Mapping[str, figures.LineStyle]
) -> Chart | None:
    lines = []
    for method, seeds in spent.items():
        finite = [
            {t: i.privacy.bound for t, i in rounds.items() if isinstance(i.privacy.epsilon, float)}
            for rounds in seeds.values()
        ]
        curve = stats.curve_by_round(finite)
        if curve is not None:
            lines.append(figures.Line(method, marks[method], curve))
    if not lines:
        return None
    ends = "; ".join(f"{line.name} {line.curve.mean[-1]:.3g}" for line in lines)
    svg = figures.lines_chart(
        "privacy-epsilon", lines, "round", "epsilon spent, no unit", 1.0, f"Epsilon spent: {ends}."
    )
    caption = (
        "The upper bound on what all rounds so far tell about one client, or one example where the table says so: no "
        "outcome is more than e to the power of epsilon times as probable with its data as with any others, but for "
        "delta. Smaller is better. "
        "Every round adds to it."
    )
    return Chart("Epsilon by round", caption, svg, tuple((x.name, figures.swatch(x.look)) for x in lines))


def _table(last: Mapping[str, PrivacyBudget], marks: Mapping[str, figures.LineStyle]) -> Table:
    return Table(
        "What is guaranteed after the last round, and what each party saw",
        (
            ("Method", ""), ("Clipping norm", ""), ("Noise", "std"), ("Budget", "ε"),
            ("Guarantee", ""), ("The server saw", ""), ("Clients saw", ""),
        ),
        tuple(
            TableRow(
                method,
                (
                    "–" if info.clip is None else f"{info.clip:.3g}",
                    f"{info.noise:.3g}",
                    "–" if info.budget is None else f"{info.budget:g}",
                    info.privacy.guarantee,
                    sentence(info.privacy.server),
                    sentence(info.privacy.clients),
                ),
                figures.swatch(marks[method]),
            )
            for method, info in last.items()
        ),
        "Noise is that of the last round on every number of the sum, or of an upload. Of several seeds the largest ε "
        "is given, and whoever sees the models of several trainings learns more than from one. "
        "A simulation's noise follows from its seed: the guarantee is that of the same rounds with secret noise.",
        frozenset({4, 5, 6}),
    )  # fmt: skip


def clients_table(method: str, info: ExampleBudget) -> Table:
    """Epsilon by client, the largest first, of as many clients as can be read."""
    most = sorted(info.spent.items(), key=lambda of: (-of[1], of[0]))
    rest = (
        "" if len(most) <= LISTED else f" The {len(most) - LISTED} other clients spent at most {most[LISTED][1]:.3g}."
    )
    return Table(
        f"What each client has spent: {method}",
        (("Client", ""), ("Spent", "ε")),
        tuple(TableRow(str(c), (f"{epsilon:.3g}",)) for c, epsilon in most[:LISTED]),
        f"For one example of the client. It follows from how often the client trained.{rest}",
    )


KIND = SectionKind("epsilon of differential privacy by round, and what is guaranteed", (PrivacyBudget,), draw)
