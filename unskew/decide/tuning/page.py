"""The page of a tuning, and the tuned experiment beside it."""

import json
from pathlib import Path
from statistics import fmean

from unskew.decide.follow_up import division, write_experiment
from unskew.decide.pages import gains, own_folder, table
from unskew.decide.tuning.result import Tuning
from unskew.decide.tuning.search import Searched
from unskew.files import write_atomically
from unskew.report import html
from unskew.report.section import Section
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
from unskew.version import __version__

PAGE, EXPERIMENT, SUMMARY, CLIENTS = "tuning.html", "tuned.toml", "tuning.json", "clients.json"


def write_tuning(tuning: Tuning, folder: Path) -> Path:
    """Write page, summary and the tuned experiment, with the division of rows where the data do not fix it.

    Raises:
        RunError: If they cannot be written.
    """
    with own_folder(folder):
        write_experiment(tuning.sites, tuning.experiment, folder / EXPERIMENT, CLIENTS)
        write_atomically(folder / SUMMARY, json.dumps(tuning.to_json(), indent=1))
    return html.write(html.page("tuning.html", view(tuning)), folder / PAGE)


def view(tuning: Tuning) -> dict[str, object]:
    """Collect the variables of the template."""
    experiment, m = tuning.sites.experiment, tuning.sites.measure
    return {
        "version": __version__,
        "name": experiment.name,
        "what": f"{tuning.budget} for each of {len(tuning.searches)} methods, {experiment.rounds} rounds a trial",
        "lead": tuning.lead,
        "sections": [_worth(tuning, m), *(_trials(s, m) for s in tuning.searches if s.ranges)],
        "file": EXPERIMENT,
        "division": division(tuning.sites, CLIENTS),
    }


def _worth(tuning: Tuning, m: Measure) -> Section:
    rows = []
    for s in tuning.searches:
        worth = tuning.worth[s.method.label]
        means = ("–" if of is None else m.show(fmean(x.mean for x in of)) for of in (worth.before, worth.after))
        values = "" if s.best is None else ", ".join(f"{n} {v:.3g}" for n, v in s.trials[s.best].values.items())
        rows.append((s.method.label, *means, bracket(worth.gain, m), values, worth.reading))
    percent = "%" * m.percent
    head = ["Method", f"Default | {percent}", f"Tuned | {percent}", f"Gain | {m.points}", "Values", "Reading"]
    caption = f"{m.label} on test rows, mean over clients, seeds {', '.join(map(str, tuning.seeds))}"
    known = [(label, w.gain) for label, w in tuning.worth.items() if w.gain is not None]
    return Section("What was it worth?", "", gains("worth", "Gain from tuning", known, m), table(caption, head, rows))


def _trials(searched: Searched, m: Measure) -> Section:
    """A row for each trial."""
    rows = [
        (str(i + 1), *(f"{t.values[n]:.4g}" if n in t.values else "as it was" for n in searched.ranges),
         "–" if t.score is None else m.show(t.score), str(t.rounds), f"{t.seconds:.1f}",
         "best" if i == searched.best else t.state)
        for i, t in enumerate(searched.trials)
    ]  # fmt: skip
    head = ["Trial", *searched.ranges, f"{m.label} | on validation rows", "Rounds", "Time | s", "End"]
    title = f"Trials of {searched.method.label}"
    return Section(title, "", (), table(f"{title}; the first has the settings as they were", head, rows))
