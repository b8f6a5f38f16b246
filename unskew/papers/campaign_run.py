"""Running a campaign: arms, claims and the status page.

A claim is looked at after every seed, by the confidence sequence of `unskew.run.decide`.  All that is known lies in the
campaign's folder, and how a claim stands is read from there, so that a campaign may be stopped or killed anywhere:

    arms/ADDRESS/seed-0/      an arm under a seed: the folder of a run; arm.toml beside it says what it runs
    arms/ADDRESS/seed-0.json  its outcome, a few kilobytes: where this file is, the arm is not run again, so it can be
                              carried to another machine without the run
    reproductions/ADDRESS/    the runs of a whole reproduction
    results/ADDRESS/          its result
    STATUS.md, status.json    claims decided, cost so far and to come; written after every arm
"""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from unskew import papers
from unskew.errors import ConfigError, DivergedError, RunError
from unskew.experiment import config
from unskew.experiment.config import UntilDecided
from unskew.files import write_atomically
from unskew.papers import overview, toolkit
from unskew.papers.campaign import LABEL, Arm, Campaign, Comparison, Planned, Whole
from unskew.papers.claims import LEVEL, LEVEL_WORDS, Claim
from unskew.papers.result import Result, Row, over_seeds
from unskew.papers.result import keep as keep_result
from unskew.papers.toolkit import ReproductionRequest
from unskew.record.logs import rows
from unskew.run import decide, loop, unchanged
from unskew.run.callbacks import Callback
from unskew.run.folder import read_json
from unskew.run.metrics import last_value, mean_of_last, minus
from unskew.run.progress import duration
from unskew.tasks.measure import Measure, described
from unskew.words import in_markdown


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


class CampaignWork:
    """The work done in the folder of a campaign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[str, int], Outcome] = {}

    def outcome(self, arm: Arm, seed: int) -> Outcome | None:
        """The outcome of an arm under a seed; None if it has not run to its end."""
        key, place = (arm.address, seed), self._place(arm, seed)
        if key not in self._known:
            if (card := _card_of(place)).exists():
                self._known[key] = _read_card(card)
            elif self._has(arm, seed, "summary.json"):
                self._known[key] = _outcome(_read_run(place))
        return self._known.get(key)

    def run(self, arm: Arm, seed: int, callback: Callback) -> Outcome:
        """The outcome of an arm under a seed, after it has been run, or resumed, if it had not."""
        if (known := self.outcome(arm, seed)) is not None:
            return known
        place, experiment = self._place(arm, seed), dataclasses.replace(arm.experiment, seeds=(seed,))
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place.parent / "arm.toml", config.to_toml(arm.experiment))
        try:
            if self._has(arm, seed, "run.json"):
                try:
                    loop.resume(place, callback, allow_code=True)  # the user's own file, as `loop.start` has run it
                except unchanged.EnvironmentChanged:
                    callback.note(f"{arm.label}, seed {seed}, was begun in another environment, and begins anew")
                    shutil.rmtree(place)
            if not (place / "run.json").exists():
                loop.start(experiment, place, callback)
        except DivergedError as error:
            spent = sum(row["value"] for row in rows(place, "metrics") if row["name"] == "seconds")
            card = {"seconds": spent, "diverged": str(error).removeprefix(f"{LABEL}, ")}
            write_atomically(_card_of(place), json.dumps(card))
        self.write_card(arm, seed)
        outcome = self.outcome(arm, seed)
        assert outcome is not None
        return outcome

    def write_card(self, arm: Arm, seed: int) -> None:
        """Write the file of an arm that has run, if it is not there: its run may have been killed just before."""
        place = self._place(arm, seed)
        if not _card_of(place).exists() and self._has(arm, seed, "summary.json"):
            write_atomically(_card_of(place), json.dumps(_read_run(place)))

    def _has(self, arm: Arm, seed: int, name: str) -> bool:
        """True if the arm's run under a seed has this file; the folder may have come from elsewhere.

        Raises:
            RunError: If it is a run of something else, which would be believed, and whose code would be imported.
        """
        place, experiment = self._place(arm, seed), dataclasses.replace(arm.experiment, seeds=(seed,))
        if not (place / name).exists():
            return False
        if not config.is_written_in(place / "config.toml", experiment):
            raise RunError(
                f"{place} holds a run of another experiment than {arm.label}; remove it, and the arm runs again"
            )
        return True

    def _place(self, arm: Arm, seed: int) -> Path:
        return self.folder / "arms" / arm.address / f"seed-{seed}"

    def result(self, whole: Whole) -> Path:
        """The file with a reproduction's result."""
        return self.folder / "results" / whole.address / whole.reproduce / whole.scale / "result.json"

    def standing(self, planned: Planned) -> Standing:
        """The standing of a comparison by the arms that have run, seed by seed.

        Raises:
            ConfigError: If an arm does not have the claim's metric.
        """
        rule, claim = planned.rule, planned.claim
        last: list[float] = []
        fifth: list[float] = []
        for seed in rule.seeds:
            above, below = (self.outcome(arm, seed) for arm in planned.arms)
            for arm, outcome in zip(planned.arms, (above, below), strict=True):
                if outcome is not None and outcome.diverged:
                    return Standing(tuple(last), tuple(fifth), "diverged", f"{arm.label}, {outcome.diverged}")
            if above is None or below is None:
                return Standing(tuple(last), tuple(fifth))
            metric, scale = above.metric(claim), above.scale(claim)
            for arm, outcome in zip(planned.arms, (above, below), strict=True):
                if metric not in outcome.curves:
                    raise ConfigError(f"{claim.text!r}: {arm.label} has no {metric}, but {', '.join(outcome.curves)}")
            a, b = above.curves[metric], below.curves[metric]
            for found, pick in ((last, last_value), (fifth, mean_of_last)):
                found += [scale * apart for apart in [minus(pick(a), pick(b))] if apart is not None]
            values = last if rule.metric == "last_round" else fifth
            percent = above.scale(claim) == 100.0
            if len(values) >= rule.least and (verdict := _verdict(values, claim, rule, percent)):
                return Standing(tuple(last), tuple(fifth), *verdict)
        return Standing(tuple(last), tuple(fifth), "undecided", f"{rule.most} seeds, the most")


def _card_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _read_run(place: Path) -> dict[str, Any]:
    """Read what is known of an arm that has run, as its file has it."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows(place, "metrics"):
        if "client" not in row:
            curves.setdefault(row["name"], {})[row["round"]] = row["value"]
    seconds, measures = read_json(place / "summary.json")["seconds"], read_json(place / "run.json")["measures"]
    return {"seconds": seconds, "curves": curves, "measures": measures}


def _read_card(path: Path) -> Outcome:
    """The outcome in an arm's file, which may come from another machine."""
    try:
        return _outcome(read_json(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is no outcome of an arm ({error!r}); delete it, and the arm runs again") from None


def _outcome(card: Mapping[str, Any]) -> Outcome:
    curves = {name: {int(t): value for t, value in of.items()} for name, of in card.get("curves", {}).items()}
    return Outcome(card["seconds"], curves, tuple(map(described, card.get("measures", ()))), card.get("diverged", ""))


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
) -> Path:
    """Decide the claims one after another; return the status page, which is written after every arm.

    Args:
        campaign: The claims.
        folder: The campaign's folder; what is done there is not done again.
        callback: Callback of every run.
        data_dir: Folder of named data sets.
        say: Called with a line for every claim.

    Raises:
        ConfigError, DataError: If an arm or a reproduction is impossible, or data at a paper's size are not whole.
        RunError: If the folder cannot be written, or (Interrupted) the user stopped; the same command goes on.
    """
    work = CampaignWork(folder)
    checked: set[str] = set()
    folder.mkdir(parents=True, exist_ok=True)
    for i, claim in enumerate(campaign.claims, start=1):
        if isinstance(claim, Planned):
            for seed in claim.rule.seeds:
                for arm in claim.arms:
                    if not work.standing(claim).verdict and work.outcome(arm, seed) is None:
                        write_status(campaign, work)
                        if arm.needs_all and arm.needs_all not in checked:
                            request = ReproductionRequest(campaign.name, "paper", folder, data_dir, callback)
                            toolkit.load(request, arm.needs_all)
                            checked.add(arm.needs_all)
                        work.run(arm, seed, callback)
                    work.write_card(arm, seed)
        elif not work.result(claim).exists():
            write_status(campaign, work)
            place = folder / "reproductions" / claim.address
            result = papers.reproduce(claim.reproduce, claim.scale, place, data_dir, callback, claim.changes)
            keep_result(result, folder / "results" / claim.address)
        say(f"{i}/{len(campaign.claims)}: {_outcome_of(claim, work)}")
    return write_status(campaign, work)


def _outcome_of(claim: Planned | Whole, work: CampaignWork) -> str:
    if isinstance(claim, Whole):
        return f"{claim.reproduce} ({claim.scale}): {_counts(work.result(claim))}"
    standing = work.standing(claim)
    scored = standing.last if claim.rule.metric == "last_round" else standing.fifth
    return f"[{standing.verdict}] {claim.claim.text}: {_evidence(scored)}"


def _counts(path: Path) -> str:
    verdicts = [claim["holds"] for claim in read_json(path)["claims"]]
    return f"{verdicts.count(True)} hold, {verdicts.count(False)} do not, {verdicts.count('undecided')} are undecided"


def _evidence(differences: Sequence[float]) -> str:
    """The mean difference with its confidence sequence; of too few seeds for one, with the difference of each."""
    if not differences:
        return "–"
    ends = decide.interval(differences)
    each = ", ".join(f"{d:+.2f}" for d in differences)
    spread = f"(by seed {each})" if ends is None else f"[{ends[0]:+.2f}, {ends[1]:+.2f}]"
    return f"{fmean(differences):+.2f} {spread}"


# ---------------------------------------------------------------- the status
def to_json(campaign: Campaign, work: CampaignWork) -> dict[str, Any]:
    """The campaign's state; seconds to come are at least and at most so many, None where that is not known yet.

    An arm costs what it has cost under other seeds, or what arms of its experiment have cost.
    """
    planned = [c for c in campaign.claims if isinstance(c, Planned)]
    arms = {(arm.address, seed): arm for c in planned for arm in c.arms for seed in c.rule.seeds}
    spent = {key: o.seconds for key, arm in arms.items() if (o := work.outcome(arm, key[1])) is not None}

    def cost(arm: Arm) -> float | None:
        own = [s for (address, _), s in spent.items() if address == arm.address]
        alike = own or [s for key, s in spent.items() if arms[key].size == arm.size]
        return fmean(alike) if alike else None

    claims: list[dict[str, Any]] = []
    whole_s: dict[str, float] = {}
    least: dict[Any, float | None] = {}
    most: dict[Any, float | None] = {}
    for i, claim in enumerate(campaign.claims):
        soon: dict[Any, float | None] = {}
        later: dict[Any, float | None] = {}
        if isinstance(claim, Planned):
            standing, rule = work.standing(claim), claim.rule
            fewest = max(rule.least, decide.FIRST if claim.claim.within is None else 2, len(standing.last) + 1)
            for n, seed in enumerate(rule.seeds if not standing.verdict else ()):
                for arm in claim.arms:
                    if (key := (arm.address, seed)) not in spent:
                        later[key] = cost(arm)
                        soon |= {key: later[key]} if n < fewest else {}
            mine = sum(spent.get((arm.address, seed), 0.0) for arm in claim.arms for seed in rule.seeds)
            row: dict[str, Any] = {
                "text": claim.claim.text,
                "experiment": claim.claim.experiment,
                "arms": [arm.address for arm in claim.arms],
                "verdict": standing.verdict,
                "why": standing.why,
                "last_round": list(standing.last),
                "last_fifth": list(standing.fifth),
            }
        else:
            done = work.result(claim).exists()
            mine = read_json(work.result(claim))["seconds"] if done else 0.0
            whole_s[claim.address] = mine
            soon = later = {} if done else {i: None if claim.hours is None else 3600.0 * claim.hours}
            verdict = _counts(work.result(claim)) if done else ""
            row = {"text": claim.text, "reproduce": claim.reproduce, "scale": claim.scale, "verdict": verdict}
        least |= soon
        most |= later
        claims.append({**row, "spent_s": mine, "least_s": _total(soon.values()), "most_s": _total(later.values())})
    return {
        "title": campaign.title,
        "claims": claims,
        "done": sum(bool(row["verdict"]) for row in claims),
        "decided": sum(row["verdict"] not in ("", "undecided", "diverged") for row in claims),
        "spent_s": sum(spent.values()) + sum(whole_s.values()),
        "least_s": _total(least.values()),
        "most_s": _total(most.values()),
    }


def _total(costs: Iterable[float | None]) -> float | None:
    """The sum; None if one is not known."""
    known = list(costs)
    return None if None in known else float(sum(c for c in known if c is not None))


def markdown(campaign: Campaign, work: CampaignWork) -> str:
    """The status as a page: claims decided, cost so far and to come."""
    state = to_json(campaign, work)
    lines = [
        f"# {campaign.title}",
        "",
        f"{state['done']} of {len(campaign.claims)} claims are done, {state['decided']} decided; "
        f"{duration(state['spent_s'])} so far; to come: {_range(state)}.  Differences are points where the metric is "
        "shown in percent, with a 95 % confidence sequence, which pays for a look after every seed.  An arm that "
        "several claims share is run once, and counted once in these sums.",
        "",
        "| | claim | verdict | seeds | last round | mean of the last fifth | cost so far | to come |",
        "|---:|---|---|---:|---|---|---:|---:|",
    ]
    for i, row in enumerate(state["claims"], start=1):
        verdict = f"{row['verdict'] or 'open'}{': ' + in_markdown(row['why']) if row.get('why') else ''}"
        text, numbers = row["text"], "– | – | –"
        if "reproduce" in row:
            text = f"reproduction {row['reproduce']}, {row['scale']}{': ' + text if text else ''}"
        else:
            of = (_evidence(row[key]) for key in ("last_round", "last_fifth"))
            numbers = " | ".join((str(len(row["last_round"])), *of))
        lines.append(f"| {i} | {text} | {verdict} | {numbers} | {duration(row['spent_s'])} | {_range(row)} |")
    return "\n".join([*lines, ""])


def _range(row: Mapping[str, Any]) -> str:
    least, most = row["least_s"], row["most_s"]
    if least is None or most is None:
        return "not known yet"
    return duration(most) if least == most else f"{duration(least)} to {duration(most)}"


def write_status(campaign: Campaign, work: CampaignWork) -> Path:
    """Write the page and status.json into the campaign's folder; return the page's path."""
    write_atomically(work.folder / "status.json", json.dumps(to_json(campaign, work), indent=1) + "\n")
    page = work.folder / "STATUS.md"
    write_atomically(page, markdown(campaign, work))
    return page


# ---------------------------------------------------------------- results to keep
def keep(campaign: Campaign, work: CampaignWork, root: Path) -> Iterator[Path]:
    """Keep the results of claims, and of whole reproductions that are done, below `root`; gives their folders.

    A reproduction that the campaign has twice at one scale, in parts, is no page and is not kept.
    """
    for result in results(campaign, work):
        yield papers.keep(result, root)
    wholes = [c for c in campaign.claims if isinstance(c, Whole)]
    times = Counter((w.reproduce, w.scale) for w in wholes)
    for whole in wholes:
        if (done := work.result(whole)).exists() and times[whole.reproduce, whole.scale] == 1:
            folder = root / whole.reproduce / whole.scale
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(done.parent, folder)
            overview.write(root)
            yield folder


def results(campaign: Campaign, work: CampaignWork) -> tuple[Result, ...]:
    """A result for each page that claims name, to be kept as a reproduction's: arms by both headlines, claims."""
    pages: dict[str, list[Planned]] = {}
    for claim in campaign.claims:
        if isinstance(claim, Planned):
            pages.setdefault(claim.claim.page or f"campaign/{campaign.name}", []).append(claim)
    return tuple(_result(name, campaign.title, claims, work) for name, claims in pages.items())


def _result(name: str, title: str, planned: Sequence[Planned], work: CampaignWork) -> Result:
    rows: list[Row] = []
    claims: list[Claim] = []
    spent: dict[tuple[str, int], float] = {}
    for p in planned:
        standing = work.standing(p)
        claims.append(
            Claim(
                p.claim.text,
                {"holds": True, "does not hold": False}.get(standing.verdict),
                f"last round {_evidence(standing.last)}, mean of the last fifth {_evidence(standing.fifth)}, decided "
                f"by the {'first' if p.rule.metric == 'last_round' else 'second'}; 95 % confidence sequence "
                f"{'over' if len(standing.last) >= decide.FIRST else f'from {decide.FIRST} seeds on, here'} "
                f"{len(standing.last)} seeds{'; ' + standing.why if standing.why else ''}",
                standing.why == LEVEL_WORDS,
            )
        )
        for arm in p.arms:
            ran = {s: o for s in p.rule.seeds if (o := work.outcome(arm, s)) is not None and not o.diverged}
            for ending, of in (("", last_value), (".mean_last_fifth", mean_of_last)) if ran else ():
                metric = next(iter(ran.values())).metric(p.claim)
                values = [value for o in ran.values() if (value := of(o.curves[metric])) is not None]
                row = over_seeds(arm.label, arm.size, f"{metric}{ending}", values)
                rows += [row] if row not in rows else []
            spent |= {(arm.address, seed): o.seconds for seed, o in ran.items()}
    seeds = tuple(sorted({seed for _, seed in spent}))
    about = f"{title}. Seeds were added until each claim was decided; a confidence sequence pays for the looks."
    return Result(name, "campaign", sum(spent.values()), tuple(rows), tuple(claims), about, seeds=seeds)
