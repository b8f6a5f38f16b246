"""Opens a client for an experiment."""

import functools
import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from unskew import tasks, wire
from unskew.data import build
from unskew.data.federated import FederatedData, cut, named_in
from unskew.data.places import path_of
from unskew.data.preprocess import ColumnRule, ColumnSums
from unskew.data.rows import ByteImages
from unskew.data.sources import gives_bytes, table
from unskew.data.tables import ENDINGS
from unskew.deploy.settings import AGREED, ANSWER, EXPERIMENT, Site, account, read_rules, text_of
from unskew.errors import ConfigError, DataError, WireError
from unskew.experiment.config import Experiment, TaskConfig, fingerprint, load, read_toml
from unskew.files import write_atomically
from unskew.keys import Key
from unskew.protocol import Spending, hook, steps_of
from unskew.run import models
from unskew.run import setup as run_setup
from unskew.run.setup import PreparedRun, Setup
from unskew.runtime.accounts import check_planned
from unskew.runtime.client import ClientRuntime, ClientSetup
from unskew.runtime.membership import layout_hash
from unskew.runtime.message import REQUESTS, ClientInfo, Envelope, read
from unskew.runtime.policy import Rules
from unskew.tree import Params
from unskew.version import __version__
from unskew.wire import tensors_hash
from unskew.words import counted


def open_client(
    folder: Path, client: int, num_clients: int, site: Site = Site(), home: Path | None = None
) -> ClientRuntime:
    """Open a client for the experiment in a folder, which also holds its state/ and models/.

    The experiment comes from the coordinator: its code is imported only with `allow_code`, and its paths are read only
    if the site's policy has them in `paths`.  While agreed.json lacks numbers to agree on, the client can only send the
    sums of its columns.

    Args:
        folder: Has experiment.toml.
        client: Number of the client, from 0.
        num_clients: Number of clients of the experiment.
        site: The site's own settings.
        home: Folder of the audit log, unless the policy names a file; by default that of the experiment.

    Raises:
        ConfigError, DataError: If the experiment or the site's data cannot be used.
        WireError: If its uploads would cost more privacy than the policy allows.
    """
    if not 0 <= client < num_clients:
        raise ConfigError(f"a client's number must be 0 to {num_clients - 1}, got {client}")
    rules, own = read_rules(site), site.data is not None
    with rules.reading(site.place):
        experiment = load(folder / EXPERIMENT, allow_code=rules.code_allowed(site.allow_code))
        for m in experiment.methods:
            rules.check_method(m.name, bool(hook(m.method, "covers_replies")))
        source = account_of(site.data or experiment.task.data)
        if rules.policy.max_epsilon is not None and not any((folder / "state").glob("*/*")):  # it has yet to begin
            check_planned(account(rules), source, planned(experiment), rules)
        runtime = functools.partial(
            ClientRuntime,
            state=folder / "state",
            rules=rules,
            audit=rules.audit(home or folder),
            privacy=account(rules),
            account=source,
            rounds=experiment.rounds,
        )
        declared = json.loads(text_of(folder / AGREED) or "null")
        if own:
            try:
                if declared and (preprocess := experiment.task.preprocess):
                    preprocess = replace(preprocess, columns=wire.build(dict[str, ColumnRule], declared, {}))
                    experiment = replace(experiment, task=replace(experiment.task, preprocess=preprocess))
                elif sums := own_sums(experiment, site, rules):
                    config = fingerprint(folder / EXPERIMENT, portable=True)
                    info = ClientInfo(client, num_clients, __version__, config, (), "", "", own, sums=sums)
                    return runtime(info, open_setup=_not_yet)
                setup = own_setup(experiment, site)
            except (ConfigError, DataError) as error:
                yours = "your data and how you joined are yours to change, the experiment is the coordinator's"
                raise type(error)(f"{error}.  Here {yours}") from error
            feds = [own_data(experiment, setup, client, num_clients, seed) for seed in experiment.seeds]
            data = json.dumps([setup.dataset.sha256, declared])  # on other inputs there is other noise
        else:
            if _has_own_sets(experiment.task):
                experiment = replace(experiment, task=replace(experiment.task, data_dir=None))
            setup = run_setup.prepare(experiment)
            feds = divided(experiment, setup, num_clients)
            data = json.dumps([setup.dataset.sha256, *(fed.sha256 for fed in feds)])
        examples = tuple(len(fed.clients[client].train) for fed in feds)
        for method in experiment.methods:
            run_setup.check_prior(method, setup)
            if (check_examples := hook(method.method, "check_examples")) is not None:
                check_examples(max(examples))
        # The number of examples has no noise, nor has the scale of images.
        silent = not rules.policy.metrics or any(hook(m.method, "has_dp_noise") for m in experiment.methods)
        declared = {"examples": (), "scale": None} if silent else {"examples": examples}
        info = replace(introduction(setup, num_clients, folder / EXPERIMENT, own), client=client, data=data, **declared)

    def open_setup(cell: int) -> ClientSetup:
        cells = run_setup.cells(experiment)
        if not 0 <= cell < len(cells):
            raise WireError(f"cell must be 0 to {len(cells) - 1}, got {cell}")
        seed, method = cells[cell]
        fed = feds[experiment.seeds.index(seed)]
        trainer, population, _ = run_setup.clients(PreparedRun(experiment, setup, {seed: fed}), method, seed)
        trainer, mine = trainer.of(client), fed.clients[client]

        def keep_model(own: Params, shared: Params | None) -> None:
            scale = run_setup.target_scale(experiment.task, setup, fed)
            at = named_in(fed, [of.clients for of in experiment.task.models], "task.models").get(client, 0)
            task = models.task_card(experiment.task.of(at), fed.dataset, trainer.task, scale)
            clients, frozen = models.ModelClients(num_clients, fed.client_names), trainer.task.constants()
            card = models.ModelCard(method.label, seed, None, None, task)
            models.save(folder / "models", replace(card, clients=clients), None, [{client: own}], frozen)
            if shared is not None and shared.keys() == own.keys():  # it may be a part that others share
                models.save_beside(folder / "models", card, {**shared, **frozen}, "shared")

        # Own data have a test part of their own; a shard of the experiment's split has rows of the training part.
        return ClientSetup(
            run_setup.played(experiment, method, seed, num_clients, simulated=False),
            trainer,
            population.me,
            population.initial,
            seed,
            {"personal": ("test", None) if own else ("train", mine.test), "val": ("train", mine.val)},
            keep_model,
            method.label,
        )

    return runtime(info, open_setup=functools.lru_cache(maxsize=2)(open_setup))


def _not_yet(cell: int) -> ClientSetup:
    raise WireError("this client does not have the agreed numbers yet")


def consider(folder: Path, own_data: bool, site: Site) -> str:
    """Refuse an experiment that a person, the policy or missing data forbid, before reading anything it names.

    Returns the reason to wait; empty if there is none.
    """
    word, rules = text_of(folder / ANSWER), read_rules(site)
    if word == "refused":
        raise WireError("a person at this site has refused it")
    if own_data and site.data is None:
        raise ConfigError("this site has named no data of its own; name some with --data, or data in its settings")
    rules.check_names(read_toml(folder / EXPERIMENT))
    asks = rules.policy.accept == "ask" and word != "accepted"
    return f"somebody at the site has yet to accept it: unskew site accept {folder.name}" if asks else ""


def keep_agreed(folder: Path, envelope: Envelope) -> str:
    """Keep the agreed numbers in a greeting for `open_client`; returns those kept, as JSON."""
    if envelope.action == "hello":
        write_atomically(folder / AGREED, json.dumps(wire.flatten(read(envelope, REQUESTS).agreed)[0]))
    return text_of(folder / AGREED)


def own_sums(experiment: Experiment, site: Site, rules: Rules) -> dict[str, ColumnSums]:
    """Sums of the columns of a client's own data, from which the clients agree on numbers; {} if none are missing."""
    task = own_task(experiment, site)
    if task.preprocess is None:
        return {}
    rows = table(task.data, None, task.data_options, tasks.kind_of(task.kind).targets, task.preprocess)
    sums = {} if rows is None else build.sums(rows)
    noised = [m.label for m in experiment.methods if hook(m.method, "has_dp_noise")]
    if sums and (noised or not rules.policy.sums):
        why = f"the noise of {noised[0]} does not cover them" if noised else f"{rules.where} has sums = false"
        raise ConfigError(f"sums of columns stay here ({why}); declare numbers in task.preprocess.columns")
    return sums


def planned(experiment: Experiment) -> list[Spending]:
    """Privacy cost of all noised uploads of an experiment, for a client asked in each round."""
    costs = []
    for _, method in run_setup.cells(experiment):
        spending = hook(method.method, "spending")
        for s in {s.purpose: s for step in steps_of(method.method) for s in spending(step, None)}.values():
            n = experiment.rounds * s.mechanisms
            costs.append(replace(s, mechanisms=n if s.most is None else min(n, s.most)))
    return costs


def introduction(setup: Setup, num_clients: int, experiment: Path, own: bool) -> ClientInfo:
    """Terms that server and clients must agree on: experiment, data and network.

    The scale of images is the exponent of the power of two next to the largest absolute value; no other pixel value
    leaves.  Bytes have one scale, and are standardised.
    """
    inputs = setup.dataset.inputs
    columns = [[c.name, c.kind, list(c.features)] for c in inputs.columns]
    kind = ("bytes" if inputs.kind == "images" else "floats") if inputs.are_images else ""
    return ClientInfo(
        client=0,
        num_clients=num_clients,
        library=__version__,
        config=fingerprint(experiment, portable=True),
        classes=setup.dataset.outputs,
        layout=layout_hash(setup.task.init(Key(0))),
        data="",
        own=own,
        columns=hashlib.sha256(json.dumps(columns).encode()).hexdigest() if columns else "",
        images=f"{kind} {' x '.join(map(str, inputs.shape))}" if kind else "",
        scale=round(math.log2(inputs.largest)) if kind == "floats" and inputs.largest else None,
        frozen=tensors_hash(setup.task.constants(frozen=True)),
        input=shape_of(setup.dataset.x_train),
        target=shape_of(setup.dataset.y_train),
    )


def shape_of(rows: Tensor | ByteImages) -> tuple[str, ...]:
    """Type and shape of one row, as text."""
    return str(rows[:0].dtype).removeprefix("torch."), *map(str, rows.shape[1:])


def own_setup(experiment: Experiment, site: Site) -> Setup:
    """Read a client's own data, check them against the experiment, and build the network."""
    task = own_task(experiment, site)
    setup = run_setup.prepare(replace(experiment, task=task), one_client=True)
    inputs = setup.dataset.inputs
    if inputs.kind == "texts":
        raise DataError(
            f"{task.data} are texts, whose words each client would number by itself. Agree on one vocabulary, and give "
            "token ids (--data npz:FILE, whole numbers in rows of one length)"
        )
    if gives_bytes(experiment.task.data) and inputs.are_images and inputs.kind != "images":
        raise DataError(
            f"the experiment's images ({experiment.task.data}) are bytes, and those of {task.data} are floats, which "
            "are not standardised. Scale all by one number to 0 to 255, round, and save them in 8 bits"
        )
    return setup


def own_task(experiment: Experiment, site: Site) -> TaskConfig:
    """The task on a client's own data; only for a CSV file its options may differ."""
    task = replace(experiment.task, data=site.data or "", data_dir=None)
    written = {key: getattr(site, key) for key in ("separator", "thousands", "decimal", "encoding")}
    written = {key: value for key, value in written.items() if value is not None}
    kind = task.data.partition(":")[0]
    if _family(kind) != _family(experiment.task.data.partition(":")[0]):  # such as the size of images for arrays
        constants = ("mean", "std") if kind in ("npz", "images") else ()
        task = replace(task, data_options={k: v for k, v in task.data_options.items() if k in constants})
    if written and kind not in ENDINGS:
        raise ConfigError(f"--{', --'.join(written)} say how a CSV file is written, and data is {task.data}")
    if kind in (*ENDINGS, "images", "npz"):
        task = replace(task, data_options={**task.data_options, **written, "alone": True})
    return task


def _family(kind: str) -> str:
    """The kinds of data whose options are the same: tables are, whatever their files."""
    return "table" if kind in ENDINGS else kind


def account_of(source: str) -> str:
    """SHA-256 of a participant's files, which identifies its privacy account whatever columns an experiment reads.

    If the source names no files, it is the hash of the source.
    """
    _, _, rest = source.partition(":")
    path = Path(rest).expanduser()
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if rest else []
    if not files:
        return hashlib.sha256(f"source {source}".encode()).hexdigest()
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as f:
            whole.update(hashlib.file_digest(f, "sha256").digest())
    return whole.hexdigest()


def _has_own_sets(task: TaskConfig) -> bool:
    """True if a named set is read from this machine's UNSKEW_DATA, not from the coordinator's folder."""
    if task.data_dir is None or ":" in task.data or not os.environ.get("UNSKEW_DATA"):
        return False
    try:
        path_of(task.data_dir)
    except DataError:
        return True
    return False


def divided(experiment: Experiment, setup: Setup, num_clients: int) -> list[FederatedData]:
    """Split the data set under every seed, for this number of clients."""
    feds = [run_setup.divide(experiment, setup.dataset, seed) for seed in experiment.seeds]
    for seed, fed in zip(experiment.seeds, feds, strict=True):
        if fed.num_clients != num_clients:
            raise ConfigError(
                f"the experiment's split has {counted(fed.num_clients, 'client')} under seed {seed}, and {num_clients} "
                f"sites take part; take as many, or --set split.num_clients={num_clients}"
            )
    return feds


def own_data(experiment: Experiment, setup: Setup, client: int, num_clients: int, seed: int) -> FederatedData:
    """A federation in which only this client holds examples: its training part, some of it set aside for validation.

    Validation examples are the latest ones where times are known, else a random share of each label (of patients, if
    known).
    """
    rows, nothing = np.arange(len(setup.dataset.labels)), np.empty(0, np.int64)
    held = [rows if c == client else nothing for c in range(num_clients)]
    clients = cut(setup.dataset, held, Key(seed) / "data" / "client", 0, experiment.val_fraction)
    return FederatedData(setup.dataset, clients, {"name": run_setup.OWN_DATA}, seed)
