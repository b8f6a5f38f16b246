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
    hours = 0.75

An *arm* is one method of one experiment under one seed, addressed by a hash of what it runs: whatever claims ask for
it, it runs once (`unskew.papers.campaign_run`).
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt

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
    rule: dict[str, Any] = dataclasses.field(default_factory=dict)
    by: float = 0.0
    within: Annotated[float, Gt(0.0)] | None = None
    page: str | None = None


@dataclass(frozen=True)
class Whole:
    """A whole reproduction, with the claims of its own.

    Attributes:
        reproduce: Its name, as in `unskew list reproductions`.
        scale: small or paper.
        text: A remark on it.
        hours: What it will cost, as far as known before it has run.
        changes: Settings laid over those of the paper's file.
    """

    reproduce: str
    scale: str = "small"
    text: str = ""
    hours: Annotated[float, Ge(0.0)] | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

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
        size: The experiment that it belongs to: arms of one cost about the same.
        address: Hash of what it runs.
        experiment: The experiment with this method alone, called LABEL, and seed 0.
        needs_all: The data set that has to be whole, since it runs at a paper's size; empty if none has to be.
    """

    label: str
    size: str
    address: str
    experiment: Experiment
    needs_all: str = ""


@dataclass(frozen=True)
class Planned:
    """A comparison with its arms and its rule."""

    claim: Comparison
    above: Arm
    below: Arm
    rule: UntilDecided

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Return both arms."""
        return self.above, self.below


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
    claims: list[dict[str, Any]]
    experiments: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    rule: dict[str, Any] = dataclasses.field(default_factory=lambda: {"until": 0.5, "most": 30})


def load(path: Path, data_dir: Path | None = None, cores: int = 1) -> Campaign:
    """The campaign that a file describes, checked before anything runs.

    Args:
        path: The file.
        data_dir: Folder of named data sets.
        cores: Processes that train, on a machine without a GPU; arms have the same numbers with any.

    Raises:
        ConfigError: If the file is no campaign; names claim and setting.
    """
    where = str(path)
    file: _File = schema.build(_File, config.read_toml(path), "", where, owner="a campaign")
    if not file.claims:
        raise ConfigError(f"claims must name at least one{schema.in_file(where)}")
    tables = {name: _table(name, raw, data_dir, where) for name, raw in file.experiments.items()}
    claims: list[Planned | Whole] = []
    for i, raw in enumerate(file.claims):
        place = f"claims.{i}"
        if "reproduce" in raw:
            whole: Whole = schema.build(Whole, raw, place, where, owner="a reproduction's claim")
            _check_whole(whole, place, where)
            claims.append(whole)
            continue
        claim: Comparison = schema.build(Comparison, raw, place, where, owner="a claim")
        if claim.experiment not in tables:
            near = did_you_mean(claim.experiment, list(tables))
            raise ConfigError(
                f"{place}.experiment: there is no [experiments.{claim.experiment}]{near}{schema.in_file(where)}"
            )
        if claim.above == claim.below:
            raise ConfigError(f"{place} compares {claim.above} with itself{schema.in_file(where)}")
        rule = schema.build(UntilDecided, {**file.rule, **claim.rule}, f"{place}.rule", where, owner="a rule")
        above, below = (
            _arm(claim, side, tables, file.experiments, cores, f"{place}.{side}", where) for side in ("above", "below")
        )
        claims.append(Planned(claim, above, below, rule))
    return Campaign(path.stem, file.title, tuple(claims))


def _check_whole(whole: Whole, place: str, where: str) -> None:
    from unskew.papers import REPRODUCTIONS

    with schema.errors_at(f"{place}.reproduce", where):
        REPRODUCTIONS.check(whole.reproduce)
    if whole.scale not in toolkit.SCALES:
        raise ConfigError(
            f"{place}.scale must be one of {', '.join(toolkit.SCALES)}, got {whole.scale!r}{schema.in_file(where)}"
        )


_OF_A_PAPER = ("paper", "scale", "ground", "setting")


def _table(name: str, raw: Mapping[str, Any], data_dir: Path | None, where: str) -> dict[str, Any]:
    """An experiment's settings, those of a paper's file below its own."""
    place, own = f"experiments.{name}", {k: v for k, v in raw.items() if k not in _OF_A_PAPER}
    if "paper" not in raw:
        table = toolkit.merged(own)
    else:
        path = toolkit.FOLDER / f"{raw['paper']}.toml"
        if not path.is_file():
            raise ConfigError(f"{place}.paper: there is no {path.name} among the papers{schema.in_file(where)}")
        file = config.read_toml(path)
        settings = toolkit.merged(file, file.get(raw.get("scale", "paper"), {}))
        layers = [settings["experiment"]]
        for key, tables in (("ground", "grounds"), ("setting", "settings")):
            if key in raw:
                if raw[key] not in settings.get(tables, {}):
                    known = ", ".join(settings.get(tables, {}))
                    raise ConfigError(
                        f"{place}.{key}: {path.name} has no {raw[key]!r}, but {known}{schema.in_file(where)}"
                    )
                layers.append(settings[tables][raw[key]])
        table = toolkit.merged(*layers, own)
    if "draw" in table:
        raise ConfigError(
            f"{place}: at this scale {raw['paper']} draws examples, which a campaign does not"
            f'{schema.in_file(where)}; use scale = "paper", or reproduce = "{raw["paper"]}/..."'
        )
    if not isinstance(table.get("methods"), Mapping):
        raise ConfigError(f"{place}.methods must be a table of methods by label{schema.in_file(where)}")
    for key in ("seeds", "seed", "name", "runtime"):
        if key in table:
            raise ConfigError(f"{place}.{key} is the campaign's to say; leave it out{schema.in_file(where)}")
    if data_dir is not None and isinstance(table.get("task"), Mapping):
        table["task"] = {**table["task"], "data_dir": str(data_dir.resolve())}
    return table


def _arm(
    claim: Comparison,
    side: str,
    tables: Mapping[str, Mapping[str, Any]],
    written: Mapping[str, Mapping[str, Any]],
    cores: int,
    place: str,
    where: str,
) -> Arm:
    size, label = claim.experiment, str(getattr(claim, side))
    table = tables[size]
    if label not in table["methods"]:
        near = did_you_mean(label, list(table["methods"]))
        raise ConfigError(f"{place}: experiments.{size} has no method {label!r}{near}{schema.in_file(where)}")
    method = {"name": label, **table["methods"][label], "label": LABEL}
    raw = {**table, "methods": [method], "name": LABEL, "seeds": [0], "runtime": _runtime(cores)}
    with schema.errors_at(f"experiments.{size}", where):
        experiment = config.parse(raw, allow_code=True)  # the user's own file, as `unskew run` has it
    at_paper_size = "paper" in written[size] and written[size].get("scale", "paper") == "paper"
    return Arm(label, size, address(experiment), experiment, experiment.task.data if at_paper_size else "")


def _runtime(cores: int) -> dict[str, Any]:
    """Settings of an arm's run: so many cores, or the rule on a machine with a GPU."""
    if torch.cuda.is_available():
        return {}
    return {"executor": "sequential", "threads": 1} if cores == 1 else {"executor": "workers", "workers": cores}


def address(experiment: Experiment) -> str:
    """Hash of what an experiment runs, whatever the machinery, the place of its data, or its seed."""
    return config.fingerprint(dataclasses.replace(experiment, runtime=Runtime(), seeds=(0,)))[:16]
