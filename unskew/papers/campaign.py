"""A campaign: claims as data, each given seeds until it is decided.

    title = "..."
    rule = { until = 0.5, most = 8 }           # seeds until a claim is decided, as in an experiment

    [experiments.cifar10]                      # an experiment as `unskew run` reads it, its methods a table by label
    rounds = 50
    task = { data = "cifar10", model = "cnn_cifar10" }
    methods = { fedavg = {}, feddw = { mu = 0.1 } }

    [experiments.practical]                    # or one of a paper's file or reproduction, with changes
    paper = "feddw"
    ground = "cifar10"
    setting = "practical"

    [[claims]]
    text = "FedDW ends above FedAvg"
    experiment = "practical"
    above = "feddw"
    below = "fedavg"
    minutes = 2                                # of an arm, until one has run
    value = 3                                  # against other claims', where minutes are short

An *arm* is one method of one experiment, addressed by a hash of its settings: under a seed it runs once, however many
claims need it.  A claim is a plan (`unskew.decide.cells`): it asks for both its arms under a seed.  It tests the
differences so far by a sequential interval (`Comparison`), or once by Student's where `least` is `most`.

    campaign.sqlite           outcomes, a few kilobytes for an arm under a seed: it can be carried to another machine
    arms/ADDRESS/seed-0/      the run of an arm under a seed
    status.json               claims decided, and what they cost; written after every arm
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from unskew.papers import study
from unskew.papers.claims import Claim, Comparison, Row, over_seeds
from unskew.papers.result import Result
from unskew.record.logs import rows
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.run.folder import read_json
from unskew.run.metrics import LAST_FIFTH
from unskew.tasks.measure import Measure, described

SHIPPED = {"papers": study.FOLDER / "campaign.toml", "strength": study.FOLDER / "campaign-strength.toml"}
"""Our own campaigns: headline claims at the papers' size, and FedDW's term alone at the paper's size."""

LABEL = "arm"
"""Name of every arm's method in its own run, whatever claims call it."""

QUEUE, STATUS = "campaign.sqlite", "status.json"
ENDINGS = {"last_round": "", "last_fifth": f".{LAST_FIFTH}"}
"""What decides, by the rule's name: the ending of the metric in the table of results."""


# ---------------------------------------------------------------- the file
@dataclass(frozen=True, kw_only=True)
class Asked(Comparison):
    """A claim of the file.

    Attributes:
        experiment: Name of the experiment.
        rule: Settings of the seeds that differ from the campaign's.
        page: The result's page of the claim, as PAPER/NAME.
        minutes: Expected minutes of an arm, until one has run.
        value: Weight of the claim; with little time the highest value a minute goes first.
    """

    experiment: str
    rule: dict[str, Any] = field(default_factory=dict)
    page: str | None = None
    minutes: Annotated[float, Gt(0.0)] = 30.0
    value: Annotated[float, Gt(0.0)] = 1.0


@dataclass(frozen=True)
class Arm:
    """One method of one experiment; under a seed it is run once.

    Attributes:
        label: Its name in the campaign.
        setting: The experiment it belongs to.
        experiment: The experiment with this method alone, called LABEL, and seed 0.
        needs_all: Data set that must be complete, since it runs at a paper's size; empty if none.
    """

    label: str
    setting: str
    experiment: Experiment
    needs_all: str = ""

    @property
    def address(self) -> str:
        """Hash of its settings, without executor or the place of its data."""
        return config.fingerprint(dataclasses.replace(self.experiment, runtime=Runtime()))[:16]

    def cell(self, seed: int) -> QueuedCell:
        """The cell of the arm under a seed."""
        experiment = config.to_toml(dataclasses.replace(self.experiment, seeds=(seed,)))
        asked = {"experiment": experiment, "folder": f"arms/{self.address}/seed-{seed}", "needs_all": self.needs_all}
        return QueuedCell(asked, name=f"{self.address}/{seed}")


@dataclass(frozen=True)
class Planned:
    """A claim with its two arms (the one above first) and its rule."""

    asked: Asked
    arms: tuple[Arm, Arm]
    rule: UntilDecided


@dataclass(frozen=True)
class Campaign:
    """Claims in order."""

    name: str
    title: str
    claims: tuple[Planned, ...]


@dataclass(frozen=True)
class _File:
    """The file as it is written."""

    title: str
    claims: Annotated[list[dict[str, Any]], MinLen(1)]
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=lambda: {"until": 0.5, "most": 30})


def load(path: Path, data_dir: Path | None = None) -> Campaign:
    """Read a campaign from a file, and check it.

    Args:
        path: The file.
        data_dir: Folder of named data sets.

    Raises:
        ConfigError: If the file is no campaign; it names claim and setting.
    """
    with schema.in_file(str(path)):
        file: _File = schema.build(_File, config.read_toml(path), "", owner="a campaign")
        tables = {name: _table(name, raw, data_dir) for name, raw in file.experiments.items()}
        claims = []
        for i, claim in enumerate(file.claims):
            place = f"claims.{i}"
            asked: Asked = schema.build(Asked, claim, place, owner="a claim")
            table = _named(tables, asked.experiment, f"{place}.experiment")
            if asked.above == asked.below:
                raise ConfigError(f"{place} compares {asked.above} with itself")
            rule = schema.build(UntilDecided, {**file.rule, **asked.rule}, f"{place}.rule", owner="a rule")
            raw = file.experiments[asked.experiment]
            whole = "paper" in raw and raw.get("scale", "paper") == "paper"
            above, below = (
                _arm(asked.experiment, table, getattr(asked, side), f"{place}.{side}", whole)
                for side in ("above", "below")
            )
            if "metric" not in claim and "personal" in {arm.experiment.methods[0].kind for arm in (above, below)}:
                # The global model of a method for clients' own models is FedAvg's, or there is none.
                asked = dataclasses.replace(asked, metric="personal.{headline}.mean")
            claims.append(Planned(asked, (above, below), rule))
    return Campaign(path.stem, file.title, tuple(claims))


def _arm(name: str, table: Mapping[str, Any], label: str, place: str, whole: bool) -> Arm:
    method = {"name": label, **_named(table["methods"], label, place), "label": LABEL}
    # One core for an arm, so that several run side by side; a machine with a GPU has a rule of its own.
    runtime = {} if torch.cuda.is_available() else {"executor": "sequential", "threads": 1}
    with schema.errors_at(f"experiments.{name}"):
        # The user's own file may name code, as `unskew run` has it.
        fixed = {"methods": [method], "name": LABEL, "seeds": [0], "runtime": runtime}
        experiment = config.parse({**table, **fixed}, allow_code=True)
    return Arm(label, name, experiment, experiment.task.data if whole else "")


def _named(table: Mapping[str, Any], name: str, place: str) -> Any:
    """The entry of this name; if there is none, a ConfigError lists those there are."""
    if name not in table:
        known = list(table)
        raise ConfigError(
            f"{place}: there is no {name!r}{did_you_mean(name, known)}; there are {', '.join(known) or 'none'}"
        )
    return table[name]


def _table(name: str, raw: Mapping[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """An experiment's settings, those of a paper's file below its own."""
    place = f"experiments.{name}"
    own = {key: value for key, value in raw.items() if key not in ("paper", "scale", "ground", "setting")}
    if said := [key for key in ("seeds", "seed", "name", "runtime") if key in own]:
        raise ConfigError(f"{place}.{said[0]} is set by the campaign; leave it out")
    layers: list[Mapping[str, Any]] = [{"methods": {}}]
    if "paper" in raw:
        settings = study.settings_of(raw["paper"], raw.get("scale", "paper"))
        if "experiment" not in settings:
            raise ConfigError(
                f"{place}.paper: {raw['paper']} has an experiment in each reproduction; name one, as in NAME/accuracy"
            )
        chosen = [_named(settings.get(f"{k}s", {}), raw[k], f"{place}.{k}") for k in ("ground", "setting") if k in raw]
        layers += [
            {k: v for k, v in layer.items() if k not in study.OWN} for layer in (settings["experiment"], *chosen)
        ]
    data = {} if data_dir is None else {"task": {"data_dir": str(data_dir.resolve())}}
    return study.merged(*layers, own, data)


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
        if asked["needs_all"]:
            request = study.ReproductionRequest("campaign", "paper", self.root, self.data_dir, self.callback)
            study.load(request, asked["needs_all"])
        return super().train(asked)

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
DECIDED = "decided"


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
    asked, rule, ended = planned.asked, planned.rule, ""
    outcomes = {arm.label: ran(arm, rule, kept) for arm in planned.arms}
    values: list[tuple[float, ...]] = []
    for seed in rule.seeds:
        both = {label: of[seed] for label, of in outcomes.items() if seed in of}
        if lost := [f"{label}, {outcome.diverged}" for label, outcome in both.items() if outcome.diverged]:
            ended = f"diverged: {lost[0]}"
            break
        if len(both) < 2:
            break
        asked = planned.asked.about(both[asked.above].measures)
        names = [name + ENDINGS[rule.metric] for name in (asked.metric, asked.against or asked.metric)]
        for name, (label, outcome) in zip(names, both.items(), strict=True):
            if name not in outcome.values:
                raise ConfigError(f"{asked.text!r}: {label} has no {name}, but {', '.join(outcome.values)}")
        ends = [of for name, one in zip(names, both.values(), strict=True) if (of := one.values[name]) is not None]
        values += [tuple(ends)] if len(ends) == 2 else []
        if ended := so_far(asked, values, rule).ended:
            break
    else:
        ended = f"{rule.most} seeds, the most"
    claim = so_far(asked, values, rule).claim
    more = f"; {ended}" if ended not in ("", DECIDED) else ""
    text = asked.text.format(above=asked.above, below=asked.below, where=asked.experiment)
    return Standing(dataclasses.replace(claim, text=text, evidence=claim.evidence + more), ended)


def so_far(compared: Comparison, values: Sequence[tuple[float, ...]], rule: UntilDecided) -> Standing:
    """A claim by its values, a pair for each seed, and why it needs no more of them."""
    above, below = zip(*values, strict=True) if values else ((), ())
    # Seeds that are added by what they say have to pay for the looks; of a fixed number the interval is Student's.
    sequential = rule.least < rule.most or len(values) < rule.most
    claim, ended = compared.claim("", above, below, sequential=sequential), ""
    narrow = claim.interval is not None and claim.interval[1] - claim.interval[0] < rule.until
    if len(values) >= rule.least and claim.holds is not None:
        ended = DECIDED
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
    """A result for each page that claims name, in the form of a reproduction's: values of the arms, and claims."""
    pages: dict[str, list[Planned]] = {}
    for claim in campaign.claims:
        pages.setdefault(claim.asked.page or f"campaign/{campaign.name}", []).append(claim)
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
    for arm in planned.arms:
        there = [outcome for outcome in ran(arm, planned.rule, kept).values() if not outcome.diverged]
        metric = planned.asked.about(there[0].measures).metric if there else ""
        for name in (metric + ending for ending in ENDINGS.values() if there and metric + ending in there[0].values):
            values = [value for outcome in there if (value := outcome.values[name]) is not None]
            yield over_seeds(arm.label, arm.setting, name, values)
