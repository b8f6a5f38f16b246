"""A campaign: claims as data, decided one after another.

    title = "..."
    rule = { until = 0.5, most = 8 }           # seeds until a claim is decided, as in an experiment

    [experiments.cifar10]                      # an experiment as `unskew run` reads it, its methods a table by label
    rounds = 50
    task = { data = "cifar10", model = "cnn_cifar10" }
    methods = { fedavg = {}, feddw = { mu = 0.1 } }

    [experiments.practical]                    # or one of a paper's file, with changes
    paper = "feddw"
    ground = "cifar10"
    setting = "practical"

    [[claims]]
    text = "FedDW ends above FedAvg"
    experiment = "practical"
    above = "feddw"
    below = "fedavg"

    [[claims]]
    reproduce = "hcct/table2"                  # or a whole reproduction, at a scale
    scale = "paper"

An *arm* is one method of one experiment under one seed, addressed by a hash of what it runs: whatever claims ask for
it, it runs once (`unskew.papers.campaign_run`).
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, MinLen

from unskew import schema
from unskew.errors import ConfigError, did_you_mean
from unskew.experiment import config
from unskew.experiment.config import Experiment, Runtime, UntilDecided
from unskew.papers import toolkit

SHIPPED = {
    "papers": toolkit.FOLDER / "campaign.toml",
    "small": toolkit.FOLDER / "campaign-small.toml",
    "strength": toolkit.FOLDER / "campaign-strength.toml",
}
"""Our own campaigns: headline claims at the papers' size, more seeds for what small sizes left open, and FedDW's term
alone at the paper's size."""

LABEL = "arm"
"""Name of every arm's method in its own run, whatever claims call it."""


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


@dataclass(frozen=True)
class Whole:
    """A whole reproduction, with the claims of its own.

    Attributes:
        reproduce: Its name, as in `unskew list reproductions`.
        scale: Its size.
        text: A remark on it.
        changes: Settings laid over those of the paper's file.
    """

    reproduce: str
    scale: Literal["small", "paper"] = "small"
    text: str = ""
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Hash of what it runs."""
        runs = [self.reproduce, self.scale, self.changes]
        return hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Arm:
    """One method of one experiment; under a seed it is run once.

    Attributes:
        label: What the campaign calls it.
        setting: The experiment that it belongs to.
        address: Hash of what it runs.
        experiment: The experiment with this method alone, called LABEL, and seed 0.
        needs_all: The data set that has to be whole, since it runs at a paper's size; empty if none has to be.
    """

    label: str
    setting: str
    address: str
    experiment: Experiment
    needs_all: str = ""


@dataclass(frozen=True)
class Planned:
    """A comparison with its arms, the one above first, and its rule."""

    claim: Comparison
    arms: tuple[Arm, Arm]
    rule: UntilDecided


@dataclass(frozen=True)
class Campaign:
    """Claims in order, of arms and of whole reproductions."""

    name: str
    title: str
    claims: tuple[Planned | Whole, ...]


@dataclass(frozen=True)
class _File:
    """The file as it is written."""

    title: str
    claims: Annotated[list[dict[str, Any]], MinLen(1)]
    experiments: dict[str, dict[str, Any]] = field(default_factory=dict)
    rule: dict[str, Any] = field(default_factory=lambda: {"until": 0.5, "most": 30})


def load(path: Path, data_dir: Path | None = None, cores: int = 1) -> Campaign:
    """The campaign that a file describes, checked before anything runs.

    Args:
        path: The file.
        data_dir: Folder of named data sets.
        cores: Processes that train, on a machine without a GPU; arms have the same numbers with any.

    Raises:
        ConfigError: If the file is no campaign; names claim and setting.
    """
    from unskew.papers import REPRODUCTIONS

    where = str(path)
    file: _File = schema.build(_File, config.read_toml(path), "", where, owner="a campaign")
    tables = {name: _table(name, raw, data_dir, where) for name, raw in file.experiments.items()}

    def arm(claim: Comparison, label: str, place: str) -> Arm:
        own = _named(tables[claim.experiment]["methods"], label, place, where)
        method = {"name": label, **own, "label": LABEL}
        fixed = {"methods": [method], "name": LABEL, "seeds": [0], "runtime": _runtime(cores)}
        with schema.errors_at(f"experiments.{claim.experiment}", where):
            # The user's own file may name code, as `unskew run` has it.
            experiment = config.parse({**tables[claim.experiment], **fixed}, allow_code=True)
        raw = file.experiments[claim.experiment]
        whole = "paper" in raw and raw.get("scale", "paper") == "paper"
        data = experiment.task.data if whole else ""
        return Arm(label, claim.experiment, address(experiment), experiment, data)

    claims: list[Planned | Whole] = []
    for i, raw in enumerate(file.claims):
        place = f"claims.{i}"
        if "reproduce" in raw:
            claims.append(schema.build(Whole, raw, place, where, owner="a reproduction's claim"))
            with schema.errors_at(f"{place}.reproduce", where):
                REPRODUCTIONS.check(raw["reproduce"])
            continue
        claim: Comparison = schema.build(Comparison, raw, place, where, owner="a claim")
        _named(tables, claim.experiment, f"{place}.experiment", where)
        if claim.above == claim.below:
            raise ConfigError(f"{place} compares {claim.above} with itself{schema.in_file(where)}")
        rule = schema.build(UntilDecided, {**file.rule, **claim.rule}, f"{place}.rule", where, owner="a rule")
        arms = arm(claim, claim.above, f"{place}.above"), arm(claim, claim.below, f"{place}.below")
        claims.append(Planned(claim, arms, rule))
    return Campaign(path.stem, file.title, tuple(claims))


def _named(table: Mapping[str, Any], name: str, place: str, where: str) -> Any:
    """The entry of this name.

    Raises:
        ConfigError: If there is none; lists those there are.
    """
    if name not in table:
        known = list(table)
        raise ConfigError(
            f"{place}: there is no {name!r}{did_you_mean(name, known)}; there are {', '.join(known) or 'none'}"
            f"{schema.in_file(where)}"
        )
    return table[name]


def _table(name: str, raw: Mapping[str, Any], data_dir: Path | None, where: str) -> dict[str, Any]:
    """An experiment's settings, those of a paper's file below its own."""
    place, own = (
        f"experiments.{name}",
        {k: v for k, v in raw.items() if k not in ("paper", "scale", "ground", "setting")},
    )
    layers: list[Mapping[str, Any]] = []
    if "paper" in raw:
        file = config.read_toml(toolkit.FOLDER / f"{raw['paper']}.toml")
        settings = toolkit.merged(file, file.get(raw.get("scale", "paper"), {}))
        layers.append(settings["experiment"])
        for key in ("ground", "setting"):
            if key in raw:
                layers.append(_named(settings.get(f"{key}s", {}), raw[key], f"{place}.{key}", where))
    table = toolkit.merged(*layers, own)
    if said := [key for key in ("seeds", "seed", "name", "runtime") if key in table]:
        raise ConfigError(f"{place}.{said[0]} is the campaign's to say; leave it out{schema.in_file(where)}")
    if data_dir is not None:
        table = toolkit.merged(table, {"task": {"data_dir": str(data_dir.resolve())}})
    return {"methods": {}, **table}


def _runtime(cores: int) -> dict[str, Any]:
    """Settings of an arm's run: so many cores, or the rule on a machine with a GPU."""
    if torch.cuda.is_available():
        return {}
    return {"executor": "sequential", "threads": 1} if cores == 1 else {"executor": "workers", "workers": cores}


def address(experiment: Experiment) -> str:
    """Hash of what an experiment runs, whatever the machinery, the place of its data, or its seed."""
    return config.fingerprint(dataclasses.replace(experiment, runtime=Runtime(), seeds=(0,)))[:16]
