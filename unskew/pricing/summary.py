"""Costs of a run's methods and of reaching a target: means over seeds, from the prices of single rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.errors import ConfigError
from unskew.pricing.radio import Cost, measures, summed
from unskew.pricing.traffic import RecordedRun
from unskew.record.logs import document
from unskew.run.metrics import peaks, result_row, rounds_to

FEDAVG_PEAK = "fedavg-peak"


# ---------------------------------------------------------------- cost to a target
def targets(run: RecordedRun, target: str) -> dict[int, float]:
    """The value to reach, by seed: a number, or `fedavg-peak`, the best of FedAvg's test curve under that seed.

    This is reporting only, as in the papers: no choice depends on it.

    Raises:
        ConfigError: If the target is neither, or the run has no FedAvg under some seed.
    """
    seeds = tuple(dict.fromkeys(t.seed for t in run.trainings))
    if target == FEDAVG_PEAK:
        label = document(run.folder / "run.json").get("baseline", "")
        best = peaks(run.curves, label, run.headline)
        if len(best) < len(seeds):
            raise ConfigError(
                f"{run.folder} does not have FedAvg's {run.headline.label} under every seed; give a number, as in "
                "--target 0.7"
            )
        return best
    try:
        value = float(target)
    except ValueError:
        value = math.nan
    if not run.headline.reachable(value):
        value_of = f"a value of {run.headline.label} in {run.headline.levels}"
        raise ConfigError(f"--target must be {FEDAVG_PEAK} or {value_of}, got {target!r}")
    return dict.fromkeys(seeds, value)


# ---------------------------------------------------------------- the table
@dataclass(frozen=True)
class CostSummary:
    """The costs of a run's methods.

    Attributes:
        rows: Rows as in `unskew run --json`: method, setting, metric, mean, std (ddof 1) and the values of the seeds.
            The headline metric, as `accuracy`, is the last round's; `to_target.X` is X until the target, over seeds
            that reached it.
        notes: Anything the rows leave out, in sentences.
    """

    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]


def cost_summary(run: RecordedRun, costs: Sequence[Cost], target: str | None = None) -> CostSummary:
    """Means over seeds of a run's costs and of reaching a target; if unfinished, over the seeds furthest along.

    Raises:
        ConfigError: If the target is not valid (`targets`).
    """
    rows: list[Mapping[str, Any]] = []
    notes = _notes(run, costs)

    def add(method: str, by_seed: Sequence[Mapping[str, float]], prefix: str = "") -> None:
        for metric in dict.fromkeys(name for one in by_seed for name in one):
            values = [one[metric] for one in by_seed if metric in one]
            rows.append(result_row(method, run.setting, prefix + metric, values))

    first = {} if target is None else rounds_to(targets(run, target), run.curves, run.headline)
    totals = summed(costs)
    until = summed(c for c in costs if c.round <= (first.get((c.method, c.seed)) or 0))
    last = 0 if run.finished else max((total.round for total in totals.values()), default=0)
    for method in dict.fromkeys(t.method for t in run.trainings):
        cells = [(method, t.seed) for t in run.trainings if t.method == method]
        seeds = [s for m, s in cells if not last or ((m, s) in totals and totals[m, s].round == last)]
        series = {s: run.curves[method, s] for s in seeds if run.curves[method, s]}
        add(method, [{run.headline.name: curve[max(curve)]} for curve in series.values()])
        add(method, [measures(totals[method, s]) for s in seeds if (method, s) in totals])
        if target is None:
            continue
        if seeds and not series:
            notes.append(f"{method}: it has no global model, so it reaches no {run.headline.label} on the test set")
        when = {s: t for s in series if (t := first[method, s]) is not None}
        if len(when) < len(series):
            under = f"under {len(when)} of {len(series)} seeds, which alone count" if when else "under any seed"
            notes.append(f"{method}: the target was {'' if when else 'not '}reached {under}")
        add(method, [{"rounds": float(t)} for t in when.values()], "to_target.")
        # A seed that reaches the target at round 0 has cost nothing, and counts.
        cost = {s: measures(totals[method, s]) for s in when if (method, s) in totals}
        nothing = {s: dict.fromkeys(measured, 0.0) for s, measured in cost.items()}
        add(method, [measures(until[method, s]) if (method, s) in until else nothing[s] for s in cost], "to_target.")
    return CostSummary(tuple(rows), tuple(notes))


def _notes(run: RecordedRun, costs: Sequence[Cost]) -> list[str]:
    notes = []
    if not run.finished:
        notes.append(f"{run.folder} is not finished: these are its costs so far, over what came furthest")
    notes += [f"{why}; its costs are left out" for why in run.diverged]
    pooled = dict.fromkeys(t.method for t in run.trainings if t.bound == "pooled")
    if pooled:
        notes.append(
            f"{', '.join(pooled)}: a bound that pools the data; what pooling sends is not part of a method's cost"
        )
    if any(t.work is None for t in run.trainings):
        notes.append(f"{run.folder} recorded no local work: no joules of computing")
    below = round(sum(c.numbers.get("below_qos", 0.0) for c in costs))
    if below:
        notes.append(
            f"{below} transfers were on links below the minimum quality of service; they are priced all the same"
        )
    return notes
