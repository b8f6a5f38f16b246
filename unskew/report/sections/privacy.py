"""Differential privacy of models: epsilon spent by round, and what is guaranteed.

`unskew.wrappers.central_dp`, `unskew.wrappers.local_dp` and `unskew.wrappers.dp_sgd` have the mechanisms.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unskew.info import ExampleBudget, PrivacyBudget
from unskew.record.reader import Record, info_of
from unskew.report import figures, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, TableRow, in_rows
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
    ends = {m: {seed: rounds[max(rounds)] for seed, rounds in seeds.items()} for m, seeds in spent.items()}
    worst = {m: max(by.items(), key=lambda of: _bound(of[1]))[0] for m, by in ends.items()}
    last = {m: by[worst[m]] for m, by in ends.items()}
    lead = "; ".join(
        f"{m} spent "
        + (f"ε = {i.privacy.bound:.3g}" if isinstance(i.privacy.epsilon, float) else "no privacy, as there is no noise")
        for m, i in last.items()
    )
    by_client = [
        clients_table(f"{m}, seed {worst[m]}" if len(ends[m]) > 1 else m, i)
        for m, i in last.items()
        if isinstance(i, ExampleBudget) and i.spent
    ]
    noises = (_noise(seed, rounds[max(rounds)]) for seeds in spent.values() for seed, rounds in seeds.items())
    together = accountant.together(filter(None, noises))
    return Section(
        "Differential privacy",
        " ".join([f"{lead}.", *map(sentence, together)]),
        in_rows(_charts(spent, marks)),
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
        return accountant.ClientsNoise(_protected(info), own.multiplier, own.share, info.releases, delta)
    return None


def _protected(info: PrivacyBudget) -> str:
    return "one example of a client" if isinstance(info, ExampleBudget) else "one client's data"


def _bound(info: PrivacyBudget) -> float:
    return info.privacy.bound


def _charts(
    spent: Mapping[str, Mapping[int, Mapping[int, PrivacyBudget]]], marks: Mapping[str, figures.LineStyle]
) -> tuple[Chart, ...]:
    """A chart for whatever is protected, and for each delta: epsilons of others cannot be compared."""
    lines: dict[tuple[str, float | None], list[figures.Line]] = {}
    for method, seeds in spent.items():
        finite = [
            {t: i.privacy.bound for t, i in rounds.items() if isinstance(i.privacy.epsilon, float)}
            for rounds in seeds.values()
        ]
        curve = stats.curve_by_round(finite)
        if curve is not None:
            first = next(iter(next(iter(seeds.values())).values()))
            largest = replace(curve, mean=curve.high)
            lines.setdefault((_protected(first), first.privacy.delta), []).append(
                figures.Line(method, marks[method], largest)
            )
    return tuple(_chart(f"privacy-epsilon{i or ''}", *of, drawn) for i, (of, drawn) in enumerate(lines.items()))


def _chart(name: str, covers: str, delta: float | None, lines: Sequence[figures.Line]) -> Chart:
    title = f"Epsilon by round, for {covers}" + ("" if delta is None else f", at delta {delta:g}")
    ends = "; ".join(f"{line.name} {line.curve.mean[-1]:.3g}" for line in lines)
    svg = figures.lines_chart(name, lines, "round", "epsilon spent, no unit", 1.0, f"{title}: {ends}.")
    several = max(line.curve.seeds for line in lines) > 1
    caption = (
        f"The upper bound on what all rounds so far tell about {covers}: no outcome is more than e to the power of "
        f"epsilon times as probable with its data as with any others{'' if delta is None else ', but for delta'}. "
        "Smaller is better. Every round adds to it."
        + " The line is the largest of the seeds, the band goes down to the smallest."
        * several
    )
    return Chart(title, caption, svg, tuple((x.name, figures.swatch(x.look)) for x in lines))


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


def clients_table(training: str, info: ExampleBudget) -> Table:
    """Epsilon by client of one training, the largest first, of as many clients as can be read."""
    most = sorted(info.spent.items(), key=lambda of: (-of[1], of[0]))
    rest = (
        "" if len(most) <= LISTED else f" The {len(most) - LISTED} other clients spent at most {most[LISTED][1]:.3g}."
    )
    return Table(
        f"What each client has spent: {training}",
        (("Client", ""), ("Spent", "ε")),
        tuple(TableRow(str(c), (f"{epsilon:.3g}",)) for c, epsilon in most[:LISTED]),
        f"For one example of the client. It follows from how often the client trained.{rest}",
    )


KIND = SectionKind("epsilon of differential privacy by round, and what is guaranteed", (PrivacyBudget,), draw)
