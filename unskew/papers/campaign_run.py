"""Running a campaign: arms, claims and the status page.

A claim is a plan: it asks for both its arms under a seed, and looks at the differences so far by the confidence
sequence of `unskew.run.decide`.  What arms have come to is in the queue; of it alone follows how a claim stands.

    campaign.sqlite           outcomes, a few kilobytes for an arm under a seed: it can be carried to another machine
    arms/ADDRESS/seed-0/      the run of an arm under a seed
    reproductions/ADDRESS/    the runs of a whole reproduction
    results/ADDRESS/          its result
    STATUS.md, status.json    claims decided, and what they cost; written after every arm
"""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from unskew import papers
from unskew.decide import cells
from unskew.decide.cells import Queue, QueuedCell, queue
from unskew.decide.crew import crew
from unskew.decide.runs import RunWork
from unskew.errors import ConfigError, DivergedError
from unskew.experiment import config
from unskew.experiment.config import Experiment, UntilDecided
from unskew.files import write_atomically
from unskew.papers import overview, toolkit
from unskew.papers.campaign import LABEL, Arm, Campaign, Comparison, Planned, Whole
from unskew.papers.claims import LEVEL, LEVEL_WORDS, Claim
from unskew.papers.result import Result, Row, over_seeds
from unskew.papers.result import keep as keep_result
from unskew.papers.toolkit import ReproductionRequest
from unskew.record.logs import rows
from unskew.run import decide, unchanged
from unskew.run.again import complete
from unskew.run.callbacks import Callback, NoCallback
from unskew.run.folder import read_json
from unskew.run.metrics import last_value, mean_of_last, minus
from unskew.run.progress import duration
from unskew.tasks.measure import Measure, described
from unskew.words import in_markdown

QUEUE = "campaign.sqlite"


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
    curves: Mapping[str, Mapping[int, float]] = dataclasses.field(default_factory=dict)
    measures: tuple[Measure, ...] = ()
    diverged: str = ""

    def metric(self, claim: Comparison) -> str:
        """The metric that a claim is about: its own, or the headline of the global model."""
        return claim.metric or self.measures[0].shared

    def scale(self, claim: Comparison) -> float:
        """100 for a metric that is shown in percent, else 1."""
        parts = self.metric(claim).split(".")
        return next((m.scale for m in self.measures if m.name in parts), 1.0)


def arm_cell(arm: Arm, seed: int) -> QueuedCell:
    """The cell of an arm under a seed."""
    experiment = config.to_toml(dataclasses.replace(arm.experiment, seeds=(seed,)))
    asked = {"experiment": experiment, "folder": f"arms/{arm.address}/seed-{seed}", "needs_all": arm.needs_all}
    return QueuedCell(asked, name=f"{arm.address}/{seed}")


@dataclass(eq=False)
class CampaignWork(RunWork):
    """A worker's work: arms, and whole reproductions, with their data in `data_dir`."""

    data_dir: Path | None = None

    def train(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Run an arm or a reproduction; what is known of it then."""
        if "whole" in asked:
            whole = Whole(**asked["whole"])
            place = self.root / "reproductions" / whole.address
            result = papers.reproduce(whole.reproduce, whole.scale, place, self.data_dir, self.callback, whole.changes)
            keep_result(result, self.root / "results" / whole.address)
            return {"seconds": result.seconds, "holds": [claim["holds"] for claim in result.to_json()["claims"]]}
        if asked["needs_all"]:
            request = ReproductionRequest("campaign", "paper", self.root, self.data_dir, self.callback)
            toolkit.load(request, asked["needs_all"])
        outcome: dict[str, Any] = super().train(asked)
        return outcome

    def outcome(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Run an arm; its curves."""
        try:
            try:
                complete(experiment, folder, self.callback)
            except unchanged.EnvironmentChanged:
                self.callback.note(f"{folder} was begun in another environment, and begins anew")
                shutil.rmtree(folder)
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


def outcome_of(kept: Queue, arm: Arm, seed: int) -> Outcome | None:
    """The outcome of an arm under a seed; None if it has not run to its end."""
    card = kept.known.get(f"{arm.address}/{seed}")
    if card is None:
        return None
    try:
        curves = {name: {int(t): value for t, value in of.items()} for name, of in card.get("curves", {}).items()}
        measures = tuple(map(described, card.get("measures", ())))
        return Outcome(card["seconds"], curves, measures, card.get("diverged", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise kept.damaged(repr(error)) from None


# ---------------------------------------------------------------- claims
@dataclass(frozen=True)
class Standing:
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


def standing(planned: Planned, kept: Queue) -> Standing:
    """The standing of a comparison by the arms that have run, seed by seed.

    Raises:
        ConfigError: If an arm does not have the claim's metric.
    """
    rule, claim = planned.rule, planned.claim
    last: list[float] = []
    fifth: list[float] = []
    for seed in rule.seeds:
        outcomes = [(arm, outcome_of(kept, arm, seed)) for arm in planned.arms]
        for arm, outcome in outcomes:
            if outcome is not None and outcome.diverged:
                return Standing(tuple(last), tuple(fifth), "diverged", f"{arm.label}, {outcome.diverged}")
        ran = [(arm, outcome) for arm, outcome in outcomes if outcome is not None]
        if len(ran) < 2:
            return Standing(tuple(last), tuple(fifth))
        metric, scale = ran[0][1].metric(claim), ran[0][1].scale(claim)
        for arm, outcome in ran:
            if metric not in outcome.curves:
                raise ConfigError(f"{claim.text!r}: {arm.label} has no {metric}, but {', '.join(outcome.curves)}")
        a, b = (outcome.curves[metric] for _, outcome in ran)
        for values, pick in ((last, last_value), (fifth, mean_of_last)):
            values += [scale * apart for apart in [minus(pick(a), pick(b))] if apart is not None]
        values = last if rule.metric == "last_round" else fifth
        if len(values) >= rule.least and (verdict := _verdict(values, claim, rule, percent=scale == 100.0)):
            return Standing(tuple(last), tuple(fifth), *verdict)
    return Standing(tuple(last), tuple(fifth), "undecided", f"{rule.most} seeds, the most")


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


# ---------------------------------------------------------------- running
def run(
    campaign: Campaign,
    folder: Path,
    callback: Callback,
    data_dir: Path | None = None,
    say: Callable[[str], None] = print,
    jobs: int | None = None,
) -> Path:
    """Decide the claims, those before others first; return the status page, which is written after every arm.

    Args:
        campaign: The claims.
        folder: The campaign's folder; what is done there is not done again.
        callback: Callback of every run.
        data_dir: Folder of named data sets.
        say: Called with a line for every claim.
        jobs: Arms at a time, each in a process; by default one, in this.

    Raises:
        ConfigError, DataError: If an arm or a reproduction is impossible, or data at a paper's size are not whole.
        RunError: If the folder cannot be written, or (Interrupted) the user stopped; the same command goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = CampaignWork(folder, callback if jobs is None else NoCallback(), data_dir=data_dir)
    with queue(folder / QUEUE) as kept, crew(work, jobs) as at_work:

        def decided(number: int, claim: Planned | Whole) -> Generator[Sequence[QueuedCell], Sequence[Any], None]:
            if isinstance(claim, Whole):
                yield [QueuedCell({"whole": dataclasses.asdict(claim)}, name=claim.address)]
            else:
                for seed in claim.rule.seeds:
                    if not standing(claim, kept).verdict:
                        yield [arm_cell(arm, seed) for arm in claim.arms]
            row = _row(claim, kept)
            evidence = "" if isinstance(claim, Whole) else f": {_evidence(_scored(claim, standing(claim, kept)))}"
            say(f"{number}/{len(campaign.claims)}: [{row['verdict']}] {row['text']}{evidence}")

        def ended(cell: QueuedCell, outcome: Any) -> None:
            write_status(campaign, kept, folder)

        write_status(campaign, kept, folder)
        plans = [decided(i, claim) for i, claim in enumerate(campaign.claims, start=1)]
        cells.run(plans, kept, at_work, ended=ended)
        return write_status(campaign, kept, folder)


def _scored(planned: Planned, at: Standing) -> tuple[float, ...]:
    return at.last if planned.rule.metric == "last_round" else at.fifth


def _evidence(differences: Sequence[float]) -> str:
    """The mean difference with its confidence sequence; of too few seeds for one, with the difference of each."""
    if not differences:
        return "–"
    ends = decide.interval(differences)
    each = ", ".join(f"{d:+.2f}" for d in differences)
    spread = f"(by seed {each})" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"
    return f"{fmean(differences):+.2f} {spread}"


# ---------------------------------------------------------------- the status
def _ran(planned: Planned, kept: Queue) -> dict[tuple[str, int], Outcome]:
    """The runs there are of a comparison's arms, by address and seed."""
    every = {(arm.address, seed): outcome_of(kept, arm, seed) for arm in planned.arms for seed in planned.rule.seeds}
    return {key: outcome for key, outcome in every.items() if outcome is not None}


def _row(claim: Planned | Whole, kept: Queue) -> dict[str, Any]:
    if isinstance(claim, Whole):
        done, verdict = kept.known.get(claim.address), ""
        if done is not None:
            n = Counter(done["holds"])
            verdict = f"{n[True]} hold, {n[False]} do not, {n['undecided']} are undecided"
        text = f"reproduction {claim.reproduce}, {claim.scale}{': ' * bool(claim.text)}{claim.text}"
        return {"text": text, "verdict": verdict, "spent_s": done["seconds"] if done else 0.0}
    at = standing(claim, kept)
    return {
        "text": claim.claim.text,
        "experiment": claim.claim.experiment,
        "arms": [arm.address for arm in claim.arms],
        "verdict": at.verdict,
        "why": at.why,
        "last_round": list(at.last),
        "last_fifth": list(at.fifth),
        "spent_s": sum(outcome.seconds for outcome in _ran(claim, kept).values()),
    }


def to_json(campaign: Campaign, kept: Queue) -> dict[str, Any]:
    """The campaign's state; an arm that several claims share counts once in the sum of seconds."""
    claims = [_row(claim, kept) for claim in campaign.claims]
    arms: dict[tuple[str, int], Outcome] = {}
    for claim in campaign.claims:
        arms |= _ran(claim, kept) if isinstance(claim, Planned) else {}
    wholes = sum(row["spent_s"] for row in claims if "arms" not in row)
    return {
        "title": campaign.title,
        "claims": claims,
        "done": sum(bool(row["verdict"]) for row in claims),
        "decided": sum(row["verdict"] not in ("", "undecided", "diverged") for row in claims),
        "spent_s": sum(outcome.seconds for outcome in arms.values()) + wholes,
    }


def markdown(campaign: Campaign, kept: Queue) -> str:
    """The status as a page."""
    state = to_json(campaign, kept)
    lines = [
        f"# {campaign.title}",
        "",
        f"{state['done']} of {len(campaign.claims)} claims are done, {state['decided']} decided; "
        f"{duration(state['spent_s'])} so far.  Differences are points where the metric is shown in percent, with a "
        "95 % confidence sequence, which pays for a look after every seed.",
        "",
        "| | claim | verdict | seeds | last round | mean of the last fifth | cost |",
        "|---:|---|---|---:|---|---|---:|",
    ]
    for i, row in enumerate(state["claims"], start=1):
        verdict = f"{row['verdict'] or 'open'}{': ' + in_markdown(row['why']) if row.get('why') else ''}"
        numbers = ["–"] * 3
        if "arms" in row:
            numbers = [str(len(row["last_round"])), *(_evidence(row[key]) for key in ("last_round", "last_fifth"))]
        cost = duration(row["spent_s"])
        lines.append(f"| {' | '.join((str(i), row['text'], verdict, *numbers, cost))} |")
    return "\n".join([*lines, ""])


def write_status(campaign: Campaign, kept: Queue, folder: Path) -> Path:
    """Write the page and status.json into the campaign's folder; return the page's path."""
    write_atomically(folder / "status.json", json.dumps(to_json(campaign, kept), indent=1) + "\n")
    page = folder / "STATUS.md"
    write_atomically(page, markdown(campaign, kept))
    return page


# ---------------------------------------------------------------- results to keep
def keep(campaign: Campaign, folder: Path, root: Path) -> Iterator[Path]:
    """Keep the results of claims, and of whole reproductions that are done, below `root`; gives their folders.

    A reproduction that the campaign has twice at one scale, in parts, is no page and is not kept.
    """
    for result in results(campaign, known(folder)):
        yield papers.keep(result, root)
    wholes = [c for c in campaign.claims if isinstance(c, Whole)]
    times = Counter((w.reproduce, w.scale) for w in wholes)
    for whole in wholes:
        done = folder / "results" / whole.address / whole.reproduce / whole.scale
        if (done / "result.json").exists() and times[whole.reproduce, whole.scale] == 1:
            page = root / whole.reproduce / whole.scale
            shutil.rmtree(page, ignore_errors=True)
            shutil.copytree(done, page)
            overview.write(root)
            yield page


def results(campaign: Campaign, kept: Queue) -> tuple[Result, ...]:
    """A result for each page that claims name, to be kept as a reproduction's: arms by both headlines, claims."""
    pages: dict[str, list[Planned]] = {}
    for claim in campaign.claims:
        if isinstance(claim, Planned):
            pages.setdefault(claim.claim.page or f"campaign/{campaign.name}", []).append(claim)
    return tuple(_result(name, campaign.title, claims, kept) for name, claims in pages.items())


def _result(name: str, title: str, planned: Sequence[Planned], kept: Queue) -> Result:
    rows: list[Row] = []
    claims: list[Claim] = []
    ran: dict[tuple[str, int], Outcome] = {}
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
        own = {key: outcome for key, outcome in _ran(p, kept).items() if not outcome.diverged}
        ran |= own
        for arm in p.arms:
            mine = [outcome for (where, _), outcome in own.items() if where == arm.address]
            for ending, pick in (("", last_value), (".mean_last_fifth", mean_of_last)) if mine else ():
                metric = mine[0].metric(p.claim)
                values = [value for o in mine if (value := pick(o.curves[metric])) is not None]
                row = over_seeds(arm.label, arm.setting, f"{metric}{ending}", values)
                rows += [row] if row not in rows else []
    seeds, seconds = tuple(sorted({seed for _, seed in ran})), sum(o.seconds for o in ran.values())
    about = f"{title}. Seeds were added until each claim was decided; a confidence sequence pays for the looks."
    return Result(name, "campaign", seconds, tuple(rows), tuple(claims), about, seeds=seeds)
