"""A campaign: claims of reproductions, each given seeds until it is decided.

    title = "..."
    rule = { until = 0.5, most = 8 }           # seeds until a claim is decided, as in an experiment

    [[claims]]
    of = "feddw/gain"                          # a reproduction of ours, or of this file
    claim = "feddw ends above fedavg (*"       # those of its claims that fit, by default all
    on = ["cifar10, practical"]                # in place of its own runs
    scale = "paper"                            # its size
    rule = { least = 8 }                       # what differs from the rule above
    minutes = 2                                # of an arm, until one has run; by default 30
    value = 3                                  # against other claims' 1: with little time, most value a minute is first

All else in the file is a study (`unskew.papers.study`).

An *arm* is one method of one run, addressed by a hash of its settings: under a seed it runs once, however many claims
need it.  A claim is a plan (`unskew.decide.cells`): it asks for its arms under a seed.  They are compared by the seeds
that all of them have so far: by a sequential interval, or where `least` is `most` by Student's once all are there.

    campaign.sqlite           cards, a few kilobytes for an arm under a seed: it can be carried to another machine
    arms/ADDRESS/seed-0/      the run of an arm under a seed
    status.json               rows and claims of each reproduction so far; written after every arm
"""

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt

from unskew import schema
from unskew.decide import cells
from unskew.decide.cells import Plan, Queue, QueuedCell, queue
from unskew.decide.crew import crew
from unskew.decide.runs import RunWork
from unskew.errors import ConfigError, did_you_mean
from unskew.experiment import config
from unskew.experiment.config import UntilDecided
from unskew.files import from_toml, write_atomically
from unskew.papers import TABLE, study
from unskew.papers.claims import Claim, Comparison, Row, over_seeds
from unskew.papers.result import Result
from unskew.papers.study import Draft, Settings
from unskew.run.cell import Observer
from unskew.run.metrics import LAST_FIFTH

PAPERS = study.FOLDER / "campaign.toml"
"""Our own campaign: headline claims at the papers' size."""

QUEUE, STATUS = "campaign.sqlite", "status.json"
ENDINGS = {"last_round": "", "last_fifth": f".{LAST_FIFTH}"}
"""What decides, by the rule's name: the ending of the metric in the table of results."""
LOOKS = "Claims with a confidence sequence got seeds until decided, those with an interval a fixed number of them."


# ---------------------------------------------------------------- the file
@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of the file, as the head of this module explains it, with the file's own title and rule below it."""

    title: str
    rule: UntilDecided
    of: str
    claim: str = "*"
    on: tuple[str, ...] = ()
    scale: Literal["small", "paper"] = "paper"
    minutes: Annotated[float, Gt(0.0)] = 30.0
    value: Annotated[float, Gt(0.0)] = 1.0


@dataclass(frozen=True)
class Planned:
    """A claim about pairs of rows that have no values yet, as an entry asks for it.

    Attributes:
        arms: The arm of each of these rows: a cell without its seed.
    """

    entry: Entry
    compared: Comparison
    pairs: Sequence[tuple[Row, Row]]
    arms: Mapping[Row, QueuedCell]


def load(path: Path) -> tuple[Planned, ...]:
    """Read the claims of a campaign from a file, in order, and check them.

    Raises:
        ConfigError: If the file is no campaign; it names claim and setting.
    """
    claims: list[Planned] = []
    with schema.in_file(str(path)):
        raw = config.read_toml(path)
        above = {"title": path.stem, "rule": {"until": 0.5}} | {k: raw.pop(k) for k in ("title", "rule") if k in raw}
        entries = raw.pop("claims", None)
        if not entries or not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            raise ConfigError("claims must be a list of at least one table, as in [[claims]]")
        known = [*TABLE, *raw.get("reproductions", ())]
        for i, table in enumerate(entries):
            entry: Entry = schema.build(Entry, study.merged(above, table), f"claims.{i}", owner="a claim")
            if entry.of not in known:
                raise ConfigError(f"claims.{i}.of: there is no {entry.of!r}{did_you_mean(entry.of, known)}")
            at = entry.of, entry.scale
            settings = study.settings_of(*at) if entry.of in TABLE else study.settings_in(raw, *at)
            with schema.errors_at(f"claims.{i}, {entry.of}"):
                fits = [*planned(entry, settings)]
            if not fits:
                raise ConfigError(f"claims.{i}.claim: {entry.of} has no claim that fits {entry.claim!r}")
            claims += fits
    return tuple(claims)


def planned(entry: Entry, settings: Settings) -> Iterator[Planned]:
    """The claims that an entry asks for, of a reproduction with these settings.

    Raises:
        ConfigError: If an arm is impossible.
    """
    draft = Draft(entry.of, entry.scale, Path(), None, Observer())
    draft.settings = settings
    arms: dict[Row, QueuedCell] = {}
    for name, table in draft.tables(entry.on or settings.get("on", [""])).items():
        labels = table.pop("compare", settings.get("compare")) or [*table["methods"]]
        where, printed = settings.get("where", "{name}").format(name=name, **table), draft.printed(name)
        draw = table.pop("draw", None)
        for label in labels:
            method = {"name": label, **table["methods"][label], "label": "arm"}  # whatever claims call it
            alone = {**table, "name": "arm", "methods": [method], "seeds": [0], "runtime": {}}
            experiment = config.parse(alone, allow_code=True)  # the user's own file, as `unskew run` has it
            asked = {"paper": entry.of.partition("/")[0], "scale": entry.scale, "draw": draw}
            arm = QueuedCell({**asked, "experiment": config.to_toml(experiment)})
            headline = experiment.task.check().headline
            about = [c.about([headline]) for c in draft.comparisons()]
            for metric in dict.fromkeys(m for c in about for m in (c.metric, c.against) if m):
                arms[Row(label, where, metric, printed.get((label, metric)), None, None, "seeds", ())] = arm
            draft.measures[where] = (headline,)
    draft.rows = [*arms]
    for (compared, text), pairs in draft.pairs().items():
        if fnmatchcase(text, entry.claim):
            yield Planned(entry, compared, pairs, {row: arms[row] for pair in pairs for row in pair})


# ---------------------------------------------------------------- arms
@dataclass(frozen=True)
class Card:
    """What is kept of an arm that has run under a seed.

    Attributes:
        seconds: Duration.
        values: Its table of results by metric, without metrics that are undefined in the last round.
        diverged: Seed and cause of its divergence, in words; empty if it did not diverge.
        about: Sentences on what was run, and on data that differ from the paper's.
    """

    seconds: float
    values: Mapping[str, float]
    diverged: str = ""
    about: tuple[str, ...] = ()


@dataclass(eq=False)
class CampaignWork(RunWork):
    """The work of a cell: run an arm, with data from `data_dir`."""

    data_dir: Path | None = None

    def train(self, asked: Mapping[str, Any]) -> Any:
        """Run an arm; its card as JSON."""
        os.chdir(self.cwd)
        draft = Draft(asked["paper"], asked["scale"], self.root, self.data_dir, self.callback)
        # One core for an arm, so that several run side by side; a machine with a GPU has a rule of its own.
        runtime = {} if torch.cuda.is_available() else {"executor": "sequential", "threads": 1}
        here = {"draw": asked["draw"], "seeds": [asked["seed"]], "runtime": runtime}
        experiment = config.parse(draft.with_data(from_toml(asked["experiment"]) | here), allow_code=True)
        history = draft.complete(experiment, f"arms/{asked['arm']}/seed-{asked['seed']}")
        card = Card(
            seconds=history.summary["seconds"] or time.monotonic() - draft.began,  # a diverged run has no summary
            values={r["metric"]: v for r in history.summary["rows"] for v in r["seeds"] if math.isfinite(v)},
            diverged="".join(f"seed {row['seed']}: {row['reason']}" for row in history.diverged),
            about=(*(f"Run on {ran}." for ran in draft.ran), *draft.notes),
        )
        return asdict(card)


Cards = defaultdict[str, dict[int, Card]]
"""The cards of arms, by address and seed."""


def cards_in(folder: Path) -> Cards:
    """The cards of the campaign in a folder; none if it has not begun.

    Raises:
        RunError: If one is damaged.
    """
    cards: Cards = defaultdict(dict)
    with closing(Queue(folder / QUEUE if (folder / QUEUE).exists() else None)) as kept:
        for key, card in kept.known.items():
            address, _, seed = key.partition("/")
            try:
                cards[address][int(seed)] = schema.build(Card, card, "card")
            except ConfigError as error:
                raise kept.damaged(error) from None
    return cards


def valued(row: Row, cards: Iterable[Card], ending: str) -> Row:
    """A row with the values on these cards, of its metric with this ending; the published number is that of none."""
    metric = row.metric + ending
    values = [card.values[metric] for card in cards if metric in card.values]
    return over_seeds(row.method, row.setting, metric, values, None if ending else row.paper)


# ---------------------------------------------------------------- claims
def standing(claim: Planned, cards: Cards) -> tuple[Claim, str]:
    """A claim so far, and why it gets no more seeds (empty while it may).

    An arm that diverged, or lacks the claim's metric, ends it undecided.
    """
    rule = claim.entry.rule
    ending = ENDINGS[rule.metric]
    ran = {row: {s: card for s, card in cards[arm.key].items() if s in rule.seeds} for row, arm in claim.arms.items()}
    lacking = [
        f"{row.method}, {card.diverged or f'seed {seed}: no {metric}{did_you_mean(metric, card.values)}'}"
        for row, of in ran.items()
        for seed, card in of.items()
        if (metric := row.metric + ending) not in card.values
    ]
    seeds = [] if lacking else [seed for seed in rule.seeds if all(seed in of for of in ran.values())]
    rows = {row: valued(row, [of[seed] for seed in seeds], ending) for row, of in ran.items()}
    # Seeds that are added by what they say have to pay for the looks; of a fixed number the interval is Student's.
    sequential = rule.least < rule.most or len(seeds) < rule.most
    text, pairs = claim.compared.said(*claim.pairs[0]), [(rows[a], rows[b]) for a, b in claim.pairs]
    judged = claim.compared.of(text, pairs, sequential)
    width = math.inf if judged.interval is None else judged.interval[1] - judged.interval[0]
    if lacking or len(seeds) < rule.least:
        ended = "".join(lacking[:1])
    elif judged.holds is not None:
        return judged, "decided"
    elif width < rule.until and claim.compared.within is None:
        ended = f"the interval is narrower than {rule.until:g}"
    else:
        ended = f"{rule.most} seeds, the most" * (len(seeds) == rule.most)
    return replace(judged, holds=None, level=False, evidence=f"{judged.evidence}; {ended or 'open'}"), ended


def results(claims: Sequence[Planned], cards: Cards) -> Iterator[Result]:
    """A result for each reproduction: values of the arms, and claims."""
    for name in dict.fromkeys(claim.entry.of for claim in claims):
        ours = [claim for claim in claims if claim.entry.of == name]
        arms = [(row, cards[arm.key]) for claim in ours for row, arm in claim.arms.items()]
        rows = [valued(row, [of[s] for s in sorted(of)], ending) for row, of in arms for ending in ENDINGS.values()]
        each = {arm.key: cards[arm.key] for claim in ours for arm in claim.arms.values()}.values()
        ran = [card for of in each for card in of.values()]
        about = [f"{ours[0].entry.title}.", LOOKS, *(text for card in ran for text in card.about)]
        yield Result(
            name=name if "/" in name else f"campaign/{name}",
            scale="campaign",
            seconds=sum(card.seconds for card in ran),
            rows=tuple(dict.fromkeys(row for row in rows if row.seeds)),
            claims=tuple(standing(claim, cards)[0] for claim in ours),
            about=" ".join(dict.fromkeys(about)),
            seeds=tuple(sorted({seed for of in each for seed in of})),
        )


# ---------------------------------------------------------------- running
def run(
    claims: Sequence[Planned],
    folder: Path,
    callback: Observer,
    data_dir: Path | None = None,
    jobs: int | None = None,
    minutes: float | None = None,
) -> Path:
    """Decide the claims in order, and return the file of their status.

    Args:
        claims: The claims.
        folder: The campaign's folder; finished arms are not run again.
        callback: Observer of every run, with a note on every claim.
        data_dir: Folder of named data sets.
        jobs: Arms at a time, each in a process; by default one, in this process.
        minutes: Time limit: claims with the highest value a minute go first, and no arm starts that would not end.

    Raises:
        ConfigError, DataError: If an arm is impossible, or data at a paper's size are incomplete.
        RunError: If the folder cannot be written; (Interrupted) if the user stopped.  The same command resumes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = CampaignWork(folder, callback if jobs is None else Observer(), data_dir=data_dir)
    ends = math.inf if minutes is None else time.monotonic() + 60.0 * minutes

    def in_turn(*claims: Planned) -> Plan[None]:
        for claim in claims:
            arms = {arm.key: arm for arm in claim.arms.values()}
            for seed in claim.entry.rule.seeds:
                new = [cards[key].values() for key in arms if seed not in cards[key]]
                left = sum(max((card.seconds for card in of), default=60.0 * claim.entry.minutes) for of in new)
                if standing(claim, cards)[1] or time.monotonic() + left > ends:
                    break
                yield [QueuedCell({**arms[at].asked, "arm": at, "seed": seed}, name=f"{at}/{seed}") for at in arms]
            callback.note(str(standing(claim, cards)[0]))

    def write() -> None:
        state = [result.to_json() for result in results(claims, cards)]
        write_atomically(folder / STATUS, json.dumps(state, indent=1) + "\n")

    def ended(cell: QueuedCell, card: Mapping[str, Any]) -> None:
        cards[cell.asked["arm"]][cell.asked["seed"]] = Card(**card)
        write()

    with queue(folder / QUEUE) as kept, crew(work, jobs) as at_work:
        cards = cards_in(folder)
        write()
        by_value = sorted(claims, key=lambda c: -c.entry.value / c.entry.minutes)
        plans = [in_turn(claim) for claim in claims] if minutes is None else [in_turn(*by_value)]
        cells.run(plans, kept, at_work, ended=ended)
    return folder / STATUS
