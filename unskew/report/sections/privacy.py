"""Differential privacy of models: epsilon spent by round, and what is guaranteed.

`unskew.wrappers.central_dp`, `unskew.wrappers.local_dp` and `unskew.wrappers.dp_sgd` have the mechanisms.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from unskew.info import ExampleBudget, PrivacyBudget
from unskew.record.reader import Record
from unskew.report import charts, stats, tables
from unskew.report.section import Chart, Section, SectionKind, Table, seen, table
from unskew.server import privacy as accountant
from unskew.words import sentence

LISTED = 20
"""Clients whose spending is listed."""

Spent = Mapping[str, Mapping[int, Mapping[int, PrivacyBudget]]]
"""Method -> seed -> round -> what was spent."""


def draw(record: Record, methods: Sequence[str], marks: Mapping[str, str]) -> Section | None:
    """The section; None if no counted seed has spent anything."""
    spent = {m: seeds for m in methods if (seeds := tables.reported(record, m, PrivacyBudget))}
    if not spent:
        return None
    ends = {m: {seed: rounds[max(rounds)] for seed, rounds in seeds.items()} for m, seeds in spent.items()}
    worst = {m: max(by, key=lambda seed: by[seed].privacy.bound) for m, by in ends.items()}
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
    noises = (_noise(seed, info) for seeds in ends.values() for seed, info in seeds.items())
    words = " ".join([f"{lead}.", *map(sentence, accountant.together(noises))])
    return Section("Differential privacy", words, figures(spent, marks), (_table(last), *by_client))


def _noise(seed: int, info: PrivacyBudget) -> accountant.Training:
    """The noise of a training by what it spent."""
    delta = info.privacy.delta or math.nan
    return accountant.Training(_protected(info), seed, info.each.multiplier, info.each.sample, info.releases, delta)


def _protected(info: PrivacyBudget) -> str:
    return "one example of a client" if isinstance(info, ExampleBudget) else "one client's data"


def figures(spent: Spent, marks: Mapping[str, str]) -> tuple[Chart, ...]:
    """A chart for each unit of protection and each delta, since other epsilons cannot be compared."""
    alike: dict[tuple[str, float | None], dict[str, stats.Curve]] = {}
    for method, seeds in spent.items():
        finite = [
            {t: i.privacy.bound for t, i in rounds.items() if isinstance(i.privacy.epsilon, float)}
            for rounds in seeds.values()
        ]
        if (curve := stats.curve_by_round(finite)) is not None:
            first = next(iter(next(iter(seeds.values())).values()))
            alike.setdefault((_protected(first), first.privacy.delta), {})[method] = replace(curve, mean=curve.high)
    parts = []
    for (covers, delta), lines in alike.items():
        title = f"Epsilon by round, for {covers}" + ("" if delta is None else f", at delta {delta:g}")
        caption = f"The most that all rounds so far tell about {covers}, the largest of the seeds. Smaller is better."
        parts.append(charts.lines(title, caption, lines, marks, "round", "epsilon spent", log=True))
    return tuple(parts)


def _table(last: Mapping[str, PrivacyBudget]) -> Table:
    head = ["method", "clipping norm", "noise | std", "budget | ε", "guarantee", "the server saw", "clients saw"]
    rows = [
        (method, "–" if i.clip is None else f"{i.clip:.3g}", f"{i.noise:.3g}", f"{i.budget:g}" if i.budget else "–",
         *seen(i.privacy))
        for method, i in last.items()
    ]  # fmt: skip
    note = (
        "Noise is that of the last round. Of several seeds the largest ε is given. A simulation’s noise follows from "
        "its seed: the guarantee is that of the same rounds with secret noise."
    )
    title = "What is guaranteed after the last round, and what each party saw"
    return table(title, head, rows, note, [4, 5, 6])


def clients_table(training: str, info: ExampleBudget) -> Table:
    """Epsilon by client of one training, the largest first, up to a readable number."""
    most = sorted(info.spent.items(), key=lambda spent: (-spent[1], spent[0]))
    others = len(most) - LISTED
    rest = f" The {others} other clients spent at most {most[LISTED][1]:.3g}." if others > 0 else ""
    rows = [(str(c), f"{epsilon:.3g}") for c, epsilon in most[:LISTED]]
    note = f"For one example of the client, by how often it trained.{rest}"
    return table(f"What each client has spent: {training}", ["client", "spent | ε"], rows, note)


KIND = SectionKind("epsilon of differential privacy by round, and what is guaranteed", (PrivacyBudget,), draw)
