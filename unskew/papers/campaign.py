"""A campaign: claims of reproductions, each given seeds until it is decided.

    title = "..."
    rule = { until = 0.5, most = 8 }           # seeds until a claim is decided, as in an experiment

    [[claims]]
    of = "feddw/gain"                          # a reproduction of ours, or of this file
    claim = "feddw ends above fedavg (*"       # those of its claims that fit, by default all
    on = ["cifar10, practical"]                # in place of its own runs
    minutes = 2                                # of an arm, until one has run
    value = 3                                  # against other claims', where minutes are short

All else in the file is a study (`unskew.papers.study`).

An *arm* is one method of one run, addressed by a hash of its settings: under a seed it runs once, however many claims
need it.  A claim is a plan (`unskew.decide.cells`): it asks for both its arms under a seed.  It tests the differences
so far by a sequential interval (`Comparison`), or once by Student's where `least` is `most`.

    campaign.sqlite           outcomes, a few kilobytes for an arm under a seed: it can be carried to another machine
    arms/ADDRESS/seed-0/      the run of an arm under a seed
    status.json               claims decided, and what they cost; written after every arm
"""

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Gt, MinLen

from unskew import schema
from unskew.decide import cells
from unskew.decide.cells import Plan, Queue, QueuedCell, queue
from unskew.decide.crew import crew
from unskew.decide.runs import RunWork
from unskew.errors import ConfigError, DivergedError, did_you_mean
from unskew.experiment import config
from unskew.experiment.config import Experiment, Runtime, UntilDecided
from unskew.files import write_atomically
from unskew.papers import TABLE, study
from unskew.papers.claims import Claim, Comparison, Row, over_seeds, published_gain
from unskew.papers.result import Result
from unskew.papers.study import Draft, ReproductionRequest, Settings
from unskew.record.logs import rows
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.run.folder import read_json
from unskew.run.metrics import LAST_FIFTH
from unskew.tasks.measure import ACCURACY, Measure, described

PAPERS = study.FOLDER / "campaign.toml"
"""Our own campaign: headline claims at the papers' size."""

LABEL = "arm"
"""Name of every arm's method in its own run, whatever claims call it."""

QUEUE, STATUS = "campaign.sqlite", "status.json"
ENDINGS = {"last_round": "", "last_fifth": f".{LAST_FIFTH}"}
"""What decides, by the rule's name: the ending of the metric in the table of results."""


# ---------------------------------------------------------------- the file
@dataclass(frozen=True, kw_only=True)
class Asked:
    """An entry of the file: claims of a reproduction.

    Attributes:
        of: The reproduction.
        claim: Pattern of the claims' texts.
        on: Its runs, by default those of the reproduction.
        scale: Its size.
        rule: Settings of the seeds that differ from the campaign's.
        minutes: Expected minutes of an arm, until one has run.
        value: Weight of the claims; with little time the highest value a minute goes first.
    """

    of: str
    claim: str = "*"
    on: tuple[str, ...] = ()
    scale: str = "paper"
    rule: dict[str, Any] = field(default_factory=dict)
    minutes: Annotated[float, Gt(0.0)] = 30.0
    value: Annotated[float, Gt(0.0)] = 1.0


@dataclass(frozen=True)
class Arm:
    """One method of one run; under a seed it is run once.

    Attributes:
        asked: The reproduction, its size, and the run's settings with this method alone, its examples not drawn.
    """

    asked: Mapping[str, Any]

    @cached_property
    def address(self) -> str:
        """Hash of its settings, whatever claims need it."""
        table = self.asked["table"]
        parts = (self.asked["of"].partition("/")[0], self.asked["scale"], table.get("draw"),
                 config.fingerprint(dataclasses.replace(_experiment(table, 0), runtime=Runtime())))  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def cell(self, seed: int) -> QueuedCell:
        """The cell of the arm under a seed."""
        asked = {**self.asked, "seed": seed, "folder": f"arms/{self.address}/seed-{seed}"}
        return QueuedCell(asked, name=f"{self.address}/{seed}")


@dataclass(frozen=True)
class Planned:
    """A claim with its two arms (the one above first), their rows without seeds, and its rule."""

    asked: Asked
    compared: Comparison
    arms: tuple[Arm, Arm]
    rows: tuple[Row, Row]
    rule: UntilDecided

    @property
    def text(self) -> str:
        """The claim."""
        return self.compared.said(*self.rows)


@dataclass(frozen=True)
class Campaign:
    """Claims in order."""

    title: str
    claims: tuple[Planned, ...]


@dataclass(frozen=True)
class _File:
    """The file as it is written, without its study."""

    title: str
    claims: Annotated[list[dict[str, Any]], MinLen(1)]
    rule: dict[str, Any] = field(default_factory=lambda: {"until": 0.5, "most": 30})


def load(path: Path) -> Campaign:
    """Read a campaign from a file, and check it.

    Raises:
        ConfigError: If the file is no campaign; it names claim and setting.
    """
    with schema.in_file(str(path)):
        raw = config.read_toml(path)
        own: dict[str, Any] = {key: raw.pop(key) for key in ("title", "claims", "rule") if key in raw}
        file: _File = schema.build(_File, own, "", owner="a campaign")
        claims: list[Planned] = []
        for i, entry in enumerate(file.claims):
            asked: Asked = schema.build(Asked, entry, f"claims.{i}", owner="a claim")
            rule = schema.build(UntilDecided, {**file.rule, **asked.rule}, f"claims.{i}.rule", owner="a rule")
            known = [*TABLE, *raw.get("reproductions", ())]
            if asked.of not in known:
                raise ConfigError(f"claims.{i}.of: there is no {asked.of!r}{did_you_mean(asked.of, known)}")
            ours = asked.of in TABLE
            settings = (study.settings_of if ours else partial(study.settings_in, raw))(asked.of, asked.scale)
            with schema.errors_at(f"claims.{i}, {asked.of}"):
                fits = [*_planned(asked, settings, rule)]
            if not fits:
                raise ConfigError(f"claims.{i}.claim: {asked.of} has no claim that fits {asked.claim!r}")
            claims += fits
    return Campaign(file.title, tuple(claims))


def _planned(asked: Asked, settings: Settings, rule: UntilDecided) -> Iterator[Planned]:
    """The claims of a reproduction that are asked for."""
    draft = Draft(ReproductionRequest(asked.of, asked.scale, Path(), None, Observer()), settings)
    comparisons = draft.comparisons()
    metrics = {m for of in comparisons for c in [of.about((ACCURACY,))] for m in (c.metric, c.against) if m}
    arms: dict[tuple[str, str], Arm] = {}
    rows: list[Row] = []
    for name, table in draft.tables(asked.on or settings.get("on", [""])).items():
        labels = table.pop("compare", settings.get("compare")) or [*table["methods"]]
        where, printed = settings.get("where", "{name}").format(name=name, **table) or name, draft.printed(name)
        for label in labels:
            method = {"name": label, **table["methods"][label], "label": LABEL}
            alone = {**table, "methods": [method]}
            arms[label, where] = Arm({"of": asked.of, "scale": asked.scale, "table": alone})
            _ = arms[label, where].address  # which refuses impossible settings
            rows += [Row(label, where, m, printed.get((label, m)), None, None, "seeds", ()) for m in metrics]
    for where in dict.fromkeys(row.setting for row in rows):
        for c in comparisons:
            for a, b in c.about((ACCURACY,)).pairs(rows, where):
                if fnmatchcase(c.said(a, b), asked.claim):
                    both = arms[a.method, a.setting], arms[b.method, b.setting]
                    yield Planned(asked, c, both, (a, b), rule)


def _experiment(table: Mapping[str, Any], seed: int) -> Experiment:
    # One core for an arm, so that several run side by side; a machine with a GPU has a rule of its own.
    runtime = {} if torch.cuda.is_available() else {"executor": "sequential", "threads": 1}
    own = {key: value for key, value in table.items() if key not in study.OWN}
    # The user's own file may name code, as `unskew run` has it.
    return config.parse({**own, "name": LABEL, "seeds": [seed], "runtime": runtime}, allow_code=True)


# ---------------------------------------------------------------- arms
@dataclass(frozen=True)
class Outcome:
    """An arm that has run under a seed.

    Attributes:
        seconds: Duration.
        values: Its table of results by metric; None if a metric is not defined in the last round.
        measures: The task's metrics, the headline first.
        diverged: Seed, round and cause of its divergence, in words; empty if it did not diverge.
    """

    seconds: float
    values: Mapping[str, float | None] = field(default_factory=dict)
    measures: tuple[Measure, ...] = ()
    diverged: str = ""


@dataclass(eq=False)
class CampaignWork(RunWork):
    """The work of a cell: run an arm, with data from `data_dir`."""

    data_dir: Path | None = None

    def train(self, asked: Mapping[str, Any]) -> Any:
        """Run an arm; its outcome as JSON."""
        os.chdir(self.cwd)
        request = ReproductionRequest(asked["of"], asked["scale"], self.root, self.data_dir, self.callback)
        table = Draft(request, {}).with_data(dict(asked["table"]))
        return self.outcome(_experiment(table, asked["seed"]), self.root / asked["folder"])

    def outcome(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Run an arm, and read its table of results."""
        try:
            complete(experiment, folder, self.callback)
        except DivergedError as error:
            spent = sum(row["value"] for row in rows(folder, "metrics") if row["name"] == "seconds")
            return {"seconds": spent, "diverged": str(error).removeprefix(f"{LABEL}, ")}
        summary, known = read_json(folder / "summary.json"), {row["name"] for row in rows(folder, "metrics")}
        values = dict.fromkeys(known) | {row["metric"]: row["seeds"][0] for row in summary["rows"]}
        return {"seconds": summary["seconds"], "values": values, "measures": read_json(folder / "run.json")["measures"]}


def known(folder: Path) -> Queue:
    """The queue of the campaign in a folder."""
    return Queue(folder / QUEUE if (folder / QUEUE).exists() else None)


def ran(arm: Arm, rule: UntilDecided, kept: Queue) -> dict[int, Outcome]:
    """The finished runs of an arm, by seed."""
    outcomes = {}
    for seed in rule.seeds:
        if (card := kept.known.get(f"{arm.address}/{seed}")) is not None:
            try:
                measures = tuple(map(described, card.get("measures", ())))
                outcomes[seed] = Outcome(**{**card, "values": dict(card.get("values", {})), "measures": measures})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise kept.damaged(repr(error)) from None
    return outcomes


# ---------------------------------------------------------------- claims
@dataclass(frozen=True)
class Standing:
    """A claim so far, and why it gets no more seeds (empty while it may)."""

    claim: Claim
    ended: str = ""

    def __str__(self) -> str:
        return f"[{self.claim.verdict if self.ended else 'open'}] {self.claim.text}: {self.claim.evidence}"


def standing(planned: Planned, kept: Queue) -> Standing:
    """A claim so far, decided after the first seed at which it can be.

    Raises:
        ConfigError: If an arm does not have the claim's metric.
    """
    compared, rule, ended = planned.compared, planned.rule, ""
    outcomes = [(row, ran(arm, rule, kept)) for row, arm in zip(planned.rows, planned.arms, strict=True)]
    gain = planned.rows[0].paper if compared.alone else published_gain(*planned.rows)
    values: list[tuple[float, ...]] = []
    for seed in rule.seeds:
        both = [(row, of[seed]) for row, of in outcomes if seed in of]
        if lost := [f"{row.method}, {one.diverged}" for row, one in both if one.diverged]:
            ended = f"diverged: {lost[0]}"
            break
        if len(both) < 2:
            break
        compared = planned.compared.about(both[0][1].measures)
        names = [name + ENDINGS[rule.metric] for name in (compared.metric, compared.against or compared.metric)]
        for name, (row, one) in zip(names, both, strict=True):
            if name not in one.values:
                raise ConfigError(f"{planned.text!r}: {row.method} has no {name}, but {', '.join(one.values)}")
        ends = [of for name, (_, one) in zip(names, both, strict=True) if (of := one.values[name]) is not None]
        values += [tuple(ends)] if len(ends) == 2 else []
        if ended := so_far(compared, values, rule).ended:
            break
    else:
        ended = f"{rule.most} seeds, the most"
    claim = so_far(compared, values, rule, gain).claim
    more = f"; {ended}" if ended not in ("", "decided") else ""
    return Standing(dataclasses.replace(claim, text=planned.text, evidence=claim.evidence + more), ended)


def so_far(
    compared: Comparison, values: Sequence[tuple[float, ...]], rule: UntilDecided, gain: float | None = None
) -> Standing:
    """A claim by its values, a pair for each seed, and why it needs no more of them; `gain` is the published one."""
    above, below = zip(*values, strict=True) if values else ((), ())
    # Seeds that are added by what they say have to pay for the looks; of a fixed number the interval is Student's.
    sequential = rule.least < rule.most or len(values) < rule.most
    claim, ended = compared.claim("", above, below, gain, sequential), ""
    narrow = claim.interval is not None and claim.interval[1] - claim.interval[0] < rule.until
    if len(values) >= rule.least and claim.holds is not None:
        ended = "decided"
    elif len(values) >= rule.least and narrow and compared.within is None:
        ended = f"the interval is narrower than {rule.until:g}"
    return Standing(claim, ended)


# ---------------------------------------------------------------- running
def run(
    campaign: Campaign,
    folder: Path,
    callback: Observer,
    data_dir: Path | None = None,
    say: Callable[[str], None] = print,
    jobs: int | None = None,
    minutes: float | None = None,
) -> Path:
    """Decide the claims in order, and return the file of their status.

    Args:
        campaign: The claims.
        folder: The campaign's folder; finished arms are not run again.
        callback: Observer of every run.
        data_dir: Folder of named data sets.
        say: Called with a line for every claim.
        jobs: Arms at a time, each in a process; by default one, in this process.
        minutes: Time limit: claims with the highest value a minute go first, and no arm starts that would not end.

    Raises:
        ConfigError, DataError: If an arm is impossible, or data at a paper's size are incomplete.
        RunError: If the folder cannot be written; (Interrupted) if the user stopped.  The same command resumes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = CampaignWork(folder, callback if jobs is None else Observer(), data_dir=data_dir)
    ends = math.inf if minutes is None else time.monotonic() + 60.0 * minutes

    def decided(claim: Planned) -> Plan[None]:
        for seed in claim.rule.seeds:
            if standing(claim, kept).ended:
                break
            asked = [arm.cell(seed) for arm in claim.arms]
            if time.monotonic() + seconds(claim, [c for c in asked if c.key not in kept.known], kept) > ends:
                break
            yield asked
        say(str(standing(claim, kept)))

    def in_turn(claims: Sequence[Planned]) -> Plan[None]:
        for claim in claims:
            yield from decided(claim)

    def write(*_: Any) -> None:
        write_atomically(folder / STATUS, json.dumps(to_json(campaign, kept), indent=1) + "\n")

    with queue(folder / QUEUE) as kept, crew(work, jobs) as at_work:
        write()
        by_value = sorted(campaign.claims, key=lambda c: -c.asked.value / c.asked.minutes)
        plans = [decided(claim) for claim in campaign.claims] if minutes is None else [in_turn(by_value)]
        cells.run(plans, kept, at_work, ended=write)
    return folder / STATUS


def seconds(claim: Planned, asked: Sequence[QueuedCell], kept: Queue) -> float:
    """Expected seconds of a claim's cells: the longest run of the arm so far, or the minutes in the file."""
    before = {arm.address: [o.seconds for o in ran(arm, claim.rule, kept).values()] for arm in claim.arms}
    longest = {address: max(of, default=60.0 * claim.asked.minutes) for address, of in before.items()}
    return sum(longest[cell.key.partition("/")[0]] for cell in asked)


def spent(claims: Sequence[Planned], kept: Queue) -> dict[tuple[str, int], float]:
    """Seconds of each arm that has run, by address and seed."""
    arms = [(arm, claim.rule) for claim in claims for arm in claim.arms]
    return {(arm.address, seed): o.seconds for arm, rule in arms for seed, o in ran(arm, rule, kept).items()}


def to_json(campaign: Campaign, kept: Queue) -> dict[str, Any]:
    """The campaign's state."""
    claims = [standing(claim, kept) for claim in campaign.claims]
    return {
        "title": campaign.title,
        "claims": [{**at.claim.to_json(), "ended": at.ended} for at in claims],
        "done": sum(bool(at.ended) for at in claims),
        "decided": sum(at.claim.holds is not None for at in claims),
        "spent_s": sum(spent(campaign.claims, kept).values()),
    }


def results(campaign: Campaign, kept: Queue) -> tuple[Result, ...]:
    """A result for each reproduction: values of the arms, and claims."""
    pages: dict[str, list[Planned]] = {}
    for claim in campaign.claims:
        pages.setdefault(claim.asked.of if "/" in claim.asked.of else f"campaign/{claim.asked.of}", []).append(claim)
    about = (
        f"{campaign.title}. Seeds were added until each claim was decided, with a confidence sequence for the looks; "
        "where their number was fixed the interval is Student's."
    )
    out = []
    for name, claims in pages.items():
        table = tuple(dict.fromkeys(row for claim in claims for row in _rows(claim, kept)))
        decided = tuple(standing(claim, kept).claim for claim in claims)
        took = spent(claims, kept)
        seeds = tuple(sorted({seed for _, seed in took}))
        out.append(Result(name, "campaign", sum(took.values()), table, decided, about, seeds=seeds))
    return tuple(out)


def _rows(planned: Planned, kept: Queue) -> Iterator[Row]:
    """The ends of both arms that did not diverge."""
    for arm, row in zip(planned.arms, planned.rows, strict=True):
        there = [outcome for outcome in ran(arm, planned.rule, kept).values() if not outcome.diverged]
        metric = planned.compared.about(there[0].measures).metric if there else ""
        for name in (metric + ending for ending in ENDINGS.values() if there and metric + ending in there[0].values):
            values = [value for outcome in there if (value := outcome.values[name]) is not None]
            yield over_seeds(row.method, row.setting, name, values, None if name != row.metric else row.paper)
