"""The experiment that follows a choice of methods: under fresh seeds, on unread test rows.

Another draw of test rows would include rows that methods were chosen by.  So all seeds divide the data as the choice
did, and the file says how that affects the spread over seeds.
"""

import json
import textwrap
from dataclasses import replace
from pathlib import Path

from unskew.api import DATA_FILE, RUN_DATA
from unskew.data.archives import save
from unskew.data.federated import to_manifest
from unskew.data.split import FromManifest
from unskew.decide.sites import Sites
from unskew.experiment.config import Experiment, to_toml
from unskew.files import write_atomically


def under_fresh_seeds(experiment: Experiment, first: int, count: int) -> Experiment:
    """The experiment under `count` seeds from `first` on; a rule for adding seeds starts there, too."""
    if experiment.until is None:
        return replace(experiment, seeds=tuple(range(first, first + count)))
    until = replace(experiment.until, first=first)
    return replace(experiment, until=until, seeds=until.seeds)


def division(sites: Sites, file: str) -> str:
    """A note that every seed divides the rows as in this file; empty if the data fix the division anyway."""
    natural = sites.setup.dataset.owners is not None
    if natural and sites.setup.dataset.own_test is not None:
        return ""
    drawn = "test rows" if natural else "clients' rows and test rows"
    return (
        f"Every seed has the {drawn} of {file}, since choices were made by others. The spread over seeds is "
        "without that of the division."
    )


def write_experiment(sites: Sites, experiment: Experiment, file: Path, clients: str) -> str:
    """Write an experiment and its files: the division of rows in `clients`, and data; return its text.

    The file names them without a folder, so that they can be moved together.

    Raises:
        OSError: If they cannot be written.
    """
    comment = division(sites, clients)
    if comment:
        write_atomically(file.with_name(clients), json.dumps(to_manifest(sites.fed)))
        experiment = replace(experiment, split=FromManifest(clients))
    if experiment.task.data == RUN_DATA:
        save(sites.setup.dataset, file.with_name(DATA_FILE))
    text = "".join(f"# {line}\n" for line in textwrap.wrap(comment, 100)) + to_toml(experiment)
    write_atomically(file, text)
    return text
