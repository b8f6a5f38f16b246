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

An *arm* is one method of one experiment under one seed, addressed by a hash of what it runs: whatever claims ask for
it, it runs once.  A claim is a plan (`unskew.decide.cells`): it asks for both its arms under a seed, and looks at the
differences so far by the confidence sequence of `unskew.run.decide`.

    campaign.sqlite           outcomes, a few kilobytes for an arm under a seed: it can be carried to another machine
    arms/ADDRESS/seed-0/      the run of an arm under a seed
    status.json               claims decided, and what they cost; written after every arm
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
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
from unskew.papers import toolkit
from unskew.papers.claims import LEVEL, LEVEL_WORDS, Claim
from unskew.papers.result import Result, Row, over_seeds
from unskew.record.logs import rows
from unskew.run import decide
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.run.folder import read_json
from unskew.run.metrics import last_value, mean_of_last, minus
from unskew.tasks.measure import Measure, described

SHIPPED = {"papers": toolkit.FOLDER / "campaign.toml", "strength": toolkit.FOLDER / "campaign-strength.toml"}
"""Our own campaigns: headline claims at the papers' size, and FedDW's term alone at the paper's size."""

LABEL = "arm"
"""Name of every arm's method in its own run, whatever claims call it."""

KEYS = {f.name for f in dataclasses.fields(Experiment)}
QUEUE, STATUS = "campaign.sqlite", "status.json"


# ---------------------------------------------------------------- the file
@dataclass(frozen=True)
class Comparison:
    """A claim about two arms: `above` ends above `below`, by more than `by`; or, with `within`, as high within so much.

    Attributes:
        text: The claim, in words.
        experiment: Name of the experiment.
        above, below: Labels of its methods.
        metric: A metric of single rounds; by default the headline of the global model.
        rule: Settings of the seeds that differ from the campaign's.
        by: What the difference has to exceed, in points of a metric shown in percent, else in its own unit.
        within: In place of above: the difference has to lie within so much of zero.
        page: The result's page that the claim is kept on, as PAPER/NAME.
        minutes: What an arm takes, where none has run yet.
        value: What the claim is worth beside others; with little time those of most value a minute go first.
    """

    text: str
    experiment: str
    above: str
    below: str
    metric: str | None = None
    rule: dict[str, Any] = field(default_factory=dict)
    by: float = 0.0
    within: Annotated[float, Gt(0.0)] | None = None
    page: str | None = None
    minutes: Annotated[float, Gt(0.0)] = 30.0
    value: Annotated[float, Gt(0.0)] = 1.0


@dataclass(frozen=True)
class Arm:
    """One method of one experiment; under a seed it is run once.

    Attributes:
        label: What the campaign calls it.
        setting: The experiment that it belongs to.
        experiment: The experiment with this method alone, called LABEL, and seed 0.
        needs_all: The data set that has to be whole, since it runs at a paper's size; empty if none has to be.
    """

    label: str
    setting: str
    experiment: Experiment
    needs_all: str = ""

    @property
    def address(self) -> str:
        """Hash of what it runs, whatever the machinery or the place of its data."""
        return config.fingerprint(dataclasses.replace(self.experiment, runtime=Runtime()))[:16]

    def cell(self, seed: int) -> QueuedCell:
        """The cell of the arm under a seed."""
        experiment = config.to_toml(dataclasses.replace(self.experiment, seeds=(seed,)))
        asked = {"experiment": experiment, "folder": f"arms/{self.address}/seed-{seed}", "needs_all": self.needs_all}
        return QueuedCell(asked, name=f"{self.address}/{seed}")


@dataclass(frozen=True)
class Planned:
    """A comparison with its arms, the one above first, and its rule."""

    claim: Comparison
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
    claims: Annotated[list[Comparison], MinLen(1)]
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=lambda: {"until": 0.5, "most": 30})


def load(path: Path, data_dir: Path | None = None) -> Campaign:
    """The campaign that a file describes, checked before anything runs.

    Args:
        path: The file.
        data_dir: Folder of named data sets.

    Raises:
        ConfigError: If the file is no campaign; names claim and setting.
    """
    with schema.in_file(str(path)):
        return _planned(path, schema.build(_File, config.read_toml(path), "", owner="a campaign"), data_dir)


def _planned(path: Path, file: _File, data_dir: Path | None) -> Campaign:
    """The campaign that a file describes."""
    # One core for an arm, so that several run side by side; a machine with a GPU has a rule of its own.
    runtime = {} if torch.cuda.is_available() else {"executor": "sequential", "threads": 1}
    tables = {name: _table(name, raw, data_dir) for name, raw in file.experiments.items()}

    def arm(claim: Comparison, label: str, place: str) -> Arm:
        own = _named(tables[claim.experiment]["methods"], label, place)
        method = {"name": label, **own, "label": LABEL}
        fixed = {"methods": [method], "name": LABEL, "seeds": [0], "runtime": runtime}
        with schema.errors_at(f"experiments.{claim.experiment}"):
            # The user's own file may name code, as `unskew run` has it.
            experiment = config.parse({**tables[claim.experiment], **fixed}, allow_code=True)
        raw = file.experiments[claim.experiment]
        whole = "paper" in raw and raw.get("scale", "paper") == "paper"
        return Arm(label, claim.experiment, experiment, experiment.task.data if whole else "")

    claims = []
    for i, claim in enumerate(file.claims):
        place = f"claims.{i}"
        _named(tables, claim.experiment, f"{place}.experiment")
        if claim.above == claim.below:
            raise ConfigError(f"{place} compares {claim.above} with itself")
        rule = schema.build(UntilDecided, {**file.rule, **claim.rule}, f"{place}.rule", owner="a rule")
        arms = arm(claim, claim.above, f"{place}.above"), arm(claim, claim.below, f"{place}.below")
        claims.append(Planned(claim, arms, rule))
    return Campaign(path.stem, file.title, tuple(claims))


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
    layers: list[Mapping[str, Any]] = []
    if "paper" in raw:
        settings = toolkit.settings_of(raw["paper"], raw.get("scale", "paper"))
        if "experiment" not in settings:
            raise ConfigError(
                f"{place}.paper: {raw['paper']} has an experiment in each reproduction; name one, as in NAME/accuracy"
            )
        layers.append(settings["experiment"])
        for key in ("ground", "setting"):
            if key in raw:
                chosen = _named(settings.get(f"{key}s", {}), raw[key], f"{place}.{key}")
                layers.append({k: v for k, v in chosen.items() if k in KEYS})
    table = toolkit.merged(*layers, own)
    if said := [key for key in ("seeds", "seed", "name", "runtime") if key in own]:
        raise ConfigError(f"{place}.{said[0]} is the campaign's to say; leave it out")
    if data_dir is not None:
        table = toolkit.merged(table, {"task": {"data_dir": str(data_dir.resolve())}})
    return {"methods": {}, **table}


# ---------------------------------------------------------------- arms
@dataclass(frozen=True)
class Outcome:
    """An arm under a seed that has run.

    Attributes:
        seconds: Duration.
        curves: Metric -> {round: value}, without those of single clients.
        measures: The task's metrics, the headline first.
        diverged: Seed, round and cause of its divergence, in words; empty if it did not diverge.
    """

    seconds: float
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    measures: tuple[Measure, ...] = ()
    diverged: str = ""

    def metric(self, claim: Comparison) -> str:
        """The metric that a claim is about: its own, or the headline of the global model."""
        return claim.metric or self.measures[0].shared

    def scale(self, claim: Comparison) -> float:
        """100 for a metric that is shown in percent, else 1."""
        parts = self.metric(claim).split(".")
        return next((m.scale for m in self.measures if m.name in parts), 1.0)


@dataclass(eq=False)
class CampaignWork(RunWork):
    """A worker's work: arms, with their data in `data_dir`."""

    data_dir: Path | None = None

    def train(self, asked: Mapping[str, Any]) -> Any:
        """Run an arm; what is known of it then."""
        if asked["needs_all"]:
            request = toolkit.ReproductionRequest("campaign", "paper", self.root, self.data_dir, self.callback)
            toolkit.load(request, asked["needs_all"])
        return super().train(asked)

    def outcome(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Run an arm; its curves."""
        try:
            complete(experiment, folder, self.callback)
        except DivergedError as error:
            spent = sum(row["value"] for row in rows(folder, "metrics") if row["name"] == "seconds")
            return {"seconds": spent, "diverged": str(error).removeprefix(f"{LABEL}, ")}
        curves: dict[str, dict[int, float]] = {}
        for row in rows(folder, "metrics"):
            if "client" not in row:
                curves.setdefault(row["name"], {})[row["round"]] = row["value"]
        seconds, measures = read_json(folder / "summary.json")["seconds"], read_json(folder / "run.json")["measures"]
        return {"seconds": seconds, "curves": curves, "measures": measures}


def known(folder: Path) -> Queue:
    """The state of the campaign in a folder."""
    return Queue(folder / QUEUE if (folder / QUEUE).exists() else None)


def ran(planned: Planned, kept: Queue) -> dict[tuple[str, int], Outcome]:
    """The runs there are of a comparison's arms, by address and seed."""
    outcomes = {}
    for address, seed in ((arm.address, seed) for arm in planned.arms for seed in planned.rule.seeds):
        if (card := kept.known.get(f"{address}/{seed}")) is not None:
            try:
                curves = {name: {int(t): v for t, v in of.items()} for name, of in card.get("curves", {}).items()}
                measures = tuple(map(described, card.get("measures", ())))
                outcomes[address, seed] = Outcome(card["seconds"], curves, measures, card.get("diverged", ""))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise kept.damaged(repr(error)) from None
    return outcomes


# ---------------------------------------------------------------- claims
@dataclass(frozen=True)
class ClaimStanding:
    """The standing of a comparison; differences are in points, or in the metric's own unit if that is not a percentage.

    Attributes:
        last, fifth: Differences of the last round and of the mean of the last fifth of evaluations, seed by seed.
        verdict: holds, does not hold, undecided or diverged; empty while seeds are to be run.
        why: Reason for which it has no more seeds to run.
    """

    last: tuple[float, ...]
    fifth: tuple[float, ...]
    verdict: str = ""
    why: str = ""


def standing(planned: Planned, kept: Queue) -> ClaimStanding:
    """The standing of a comparison by the arms that have run, seed by seed.

    Raises:
        ConfigError: If an arm does not have the claim's metric.
    """
    rule, claim, outcomes = planned.rule, planned.claim, ran(planned, kept)
    last: list[float] = []
    fifth: list[float] = []
    for seed in rule.seeds:
        both = {arm.label: outcomes[arm.address, seed] for arm in planned.arms if (arm.address, seed) in outcomes}
        for label, outcome in both.items():
            if outcome.diverged:
                return ClaimStanding(tuple(last), tuple(fifth), "diverged", f"{label}, {outcome.diverged}")
        if len(both) < 2:
            return ClaimStanding(tuple(last), tuple(fifth))
        first = next(iter(both.values()))
        metric, scale = first.metric(claim), first.scale(claim)
        for label, outcome in both.items():
            if metric not in outcome.curves:
                raise ConfigError(f"{claim.text!r}: {label} has no {metric}, but {', '.join(outcome.curves)}")
        a, b = (outcome.curves[metric] for outcome in both.values())
        for values, pick in ((last, last_value), (fifth, mean_of_last)):
            values += [scale * apart for apart in [minus(pick(a), pick(b))] if apart is not None]
        values = last if rule.metric == "last_round" else fifth
        if len(values) >= rule.least and (verdict := _verdict(values, claim, rule, percent=scale == 100.0)):
            return ClaimStanding(tuple(last), tuple(fifth), *verdict)
    return ClaimStanding(tuple(last), tuple(fifth), "undecided", f"{rule.most} seeds, the most")


def _verdict(
    differences: Sequence[float], claim: Comparison, rule: UntilDecided, percent: bool
) -> tuple[str, str] | None:
    """The verdict on differences, with its reason; None if more seeds are needed.

    Differences in points (`percent`) may be level, as in `unskew.papers.claims`.
    """
    ends = decide.interval([d - claim.by for d in differences])
    if ends is None:
        return None
    low, high = ends
    if claim.within is not None:
        if -claim.within <= low and high <= claim.within:
            return "holds", f"the interval lies within {claim.within:g} of zero"
        beyond = low > claim.within or high < -claim.within
        return ("does not hold", f"the interval lies beyond {claim.within:g}") if beyond else None
    if low > 0.0 or high < 0.0:
        return "holds" if low > 0.0 else "does not hold", f"the interval excludes {claim.by:g}"
    if percent and not claim.by and low > -100 * LEVEL and high < 100 * LEVEL:
        return "does not hold", LEVEL_WORDS
    return ("undecided", f"the interval is narrower than {rule.until:g}") if high - low < rule.until else None


def _evidence(differences: Sequence[float]) -> str:
    """The mean difference with its confidence sequence; of too few seeds for one, with the difference of each."""
    if not differences:
        return "–"
    ends = decide.interval(differences)
    each = ", ".join(f"{d:+.2f}" for d in differences)
    spread = f"(by seed {each})" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"
    return f"{fmean(differences):+.2f} {spread}"


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
    """Decide the claims, those before others first; return the file of their status.

    Args:
        campaign: The claims.
        folder: The campaign's folder; what is done there is not done again.
        callback: Observer of every run.
        data_dir: Folder of named data sets.
        say: Called with a line for every claim.
        jobs: Arms at a time, each in a process; by default one, in this.
        minutes: Time there is: claims of most value a minute first, and no arm that would not end in time.

    Raises:
        ConfigError, DataError: If an arm is impossible, or data at a paper's size are not whole.
        RunError: If the folder cannot be written, or (Interrupted) the user stopped; the same command goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = CampaignWork(folder, callback if jobs is None else Observer(), data_dir=data_dir)

    ends = math.inf if minutes is None else time.monotonic() + 60.0 * minutes

    def decided(claim: Planned) -> Plan[None]:
        for seed in claim.rule.seeds:
            if standing(claim, kept).verdict:
                break
            asked = [arm.cell(seed) for arm in claim.arms]
            if time.monotonic() + seconds(claim, [c for c in asked if c.key not in kept.known], kept) > ends:
                break
            yield asked
        say(line(row(claim, kept)))

    def in_turn(claims: Sequence[Planned]) -> Plan[None]:
        for claim in claims:
            yield from decided(claim)

    def write(*_: Any) -> None:
        write_atomically(folder / STATUS, json.dumps(to_json(campaign, kept), indent=1) + "\n")

    with queue(folder / QUEUE) as kept, crew(work, jobs) as at_work:
        write()
        by_value = sorted(campaign.claims, key=lambda c: -c.claim.value / c.claim.minutes)
        plans = [decided(claim) for claim in campaign.claims] if minutes is None else [in_turn(by_value)]
        cells.run(plans, kept, at_work, ended=write)
    return folder / STATUS


def seconds(claim: Planned, asked: Sequence[QueuedCell], kept: Queue) -> float:
    """Expected seconds of a claim's cells: each as long as its arm's longest, or as the file says where none ran."""
    ran_before: dict[str, float] = {}
    for (address, _), outcome in ran(claim, kept).items():
        ran_before[address] = max(outcome.seconds, ran_before.get(address, 0.0))
    return sum(ran_before.get(cell.key.partition("/")[0], 60.0 * claim.claim.minutes) for cell in asked)


def row(claim: Planned, kept: Queue) -> dict[str, Any]:
    """A claim's standing as JSON holds it."""
    at = standing(claim, kept)
    return {
        "text": claim.claim.text,
        "experiment": claim.claim.experiment,
        "arms": [arm.address for arm in claim.arms],
        "verdict": at.verdict,
        "why": at.why,
        "decided_by": claim.rule.metric,
        "last_round": list(at.last),
        "last_fifth": list(at.fifth),
        "spent_s": sum(outcome.seconds for outcome in ran(claim, kept).values()),
    }


def line(of: Mapping[str, Any]) -> str:
    """A claim's standing as a line."""
    differences = of["last_round" if of["decided_by"] == "last_round" else "last_fifth"]
    why = f"; {of['why']}" * bool(of["why"])
    return f"[{of['verdict'] or 'open'}] {of['text']}: {_evidence(differences)} over {len(differences)} seeds{why}"


def to_json(campaign: Campaign, kept: Queue) -> dict[str, Any]:
    """The campaign's state; an arm that several claims share counts once in the sum of seconds."""
    claims = [row(claim, kept) for claim in campaign.claims]
    arms = {key: outcome for claim in campaign.claims for key, outcome in ran(claim, kept).items()}
    return {
        "title": campaign.title,
        "claims": claims,
        "done": sum(bool(of["verdict"]) for of in claims),
        "decided": sum(of["verdict"] not in ("", "undecided", "diverged") for of in claims),
        "spent_s": sum(outcome.seconds for outcome in arms.values()),
    }


# ---------------------------------------------------------------- results to keep
def results(campaign: Campaign, kept: Queue) -> tuple[Result, ...]:
    """A result for each page that claims name, to be kept as a reproduction's: arms by both headlines, claims."""
    pages: dict[str, list[Planned]] = {}
    for claim in campaign.claims:
        pages.setdefault(claim.claim.page or f"campaign/{campaign.name}", []).append(claim)
    return tuple(_result(name, campaign.title, claims, kept) for name, claims in pages.items())


def _result(name: str, title: str, planned: Sequence[Planned], kept: Queue) -> Result:
    table: list[Row] = []
    claims: list[Claim] = []
    arms: dict[tuple[str, int], Outcome] = {}
    for p in planned:
        at = standing(p, kept)
        evidence = (
            f"last round {_evidence(at.last)}, mean of the last fifth {_evidence(at.fifth)}, decided by the "
            f"{'first' if p.rule.metric == 'last_round' else 'second'}; 95 % confidence sequence "
            f"{'over' if len(at.last) >= decide.FIRST else f'from {decide.FIRST} seeds on, here'} {len(at.last)} seeds"
            f"{'; ' + at.why if at.why else ''}"
        )
        holds = {"holds": True, "does not hold": False}.get(at.verdict)
        claims.append(Claim(p.claim.text, holds, evidence, at.why == LEVEL_WORDS))
        own = {key: outcome for key, outcome in ran(p, kept).items() if not outcome.diverged}
        arms |= own
        for arm in p.arms:
            mine = [outcome for (address, _), outcome in own.items() if address == arm.address]
            for ending, pick in (("", last_value), (".mean_last_fifth", mean_of_last)) if mine else ():
                metric = mine[0].metric(p.claim)
                values = [value for o in mine if (value := pick(o.curves[metric])) is not None]
                of = over_seeds(arm.label, arm.setting, f"{metric}{ending}", values)
                table += [of] if of not in table else []
    seeds, seconds = tuple(sorted({seed for _, seed in arms})), sum(o.seconds for o in arms.values())
    about = f"{title}. Seeds were added until each claim was decided; a confidence sequence pays for the looks."
    return Result(name, "campaign", seconds, tuple(table), tuple(claims), about, seeds=seeds)
