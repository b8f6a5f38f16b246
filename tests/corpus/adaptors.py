"""What the public doors do not show: one function a concern, so that a move changes one place."""

import contextlib
import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import unskew as us


def names(kind: str) -> tuple[str, ...]:
    """All names of a registry, as `unskew list KIND` has them: methods, wrappers, splits, tasks, executors, attacks."""
    from unskew import algorithms, tasks
    from unskew.data.split import SPLITS
    from unskew.local.executor import EXECUTORS
    from unskew.models import MODELS
    from unskew.world.attack import ATTACKS

    registries = {
        "methods": algorithms.METHODS,
        "wrappers": algorithms.WRAPPERS,
        "splits": SPLITS,
        "tasks": tasks.KINDS,
        "executors": EXECUTORS,
        "models": MODELS,
        "attacks": ATTACKS,
    }
    return tuple(registries[kind].names())


def method(name: str, **options: Any) -> Any:
    """The method that an experiment's `name`, wrappers after a + included, stands for."""
    from unskew import algorithms

    return algorithms.resolve(name)(**options)


def attack(name: str, fraction: float) -> Any:
    """The attack of that name by this share of the clients."""
    from unskew.world.attack import ATTACKS

    return ATTACKS.resolve(name)(fraction=fraction) if fraction else ATTACKS.resolve(name)()


def traffic(history: us.History) -> dict[str, list[int]]:
    """{"direction kind": [messages, bytes]} of all methods and seeds."""
    from unskew.record.database import rows

    total: Counter[tuple[str, int]] = Counter()
    for row in rows(history.folder, "transfers"):
        direction = "down" if row["src"] == 0 else "up" if row["dst"] == 0 else "d2d"
        total[f"{direction} {row['kind']}", 0] += 1
        total[f"{direction} {row['kind']}", 1] += row["bytes"]
    return {way: [total[way, 0], total[way, 1]] for way in sorted({way for way, _ in total})}


def stops_after(round: int) -> Any:
    """A callback of `simulate` that stops the run after this round, as Ctrl-C does."""
    from unskew.run.cell import Observer

    class Stops(Observer):
        def ended_round(self, cell: Any) -> None:
            if cell.round == round:
                raise KeyboardInterrupt

    return Stops()


def prepared(arguments: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """What clients train, validate and are tested on, as `simulate(**arguments)` prepares it.

    Data without clients are divided evenly among four where the arguments name no split.
    """
    from unskew.api import described
    from unskew.run import setup

    own = ("data", "model", "target", "client", "patient", "patient_ids", "test", "preprocess", "split", "task")
    given = {key: arguments[key] for key in own if key in arguments}
    settings = {key: value for key, value in arguments.items() if key not in (*own, "methods", "local")}
    settings["unseen"] = {"clients": settings.get("unseen", ())}
    plain = {"name": "corpus", "seeds": [seed], **settings}
    experiment, inputs = described("fedavg", plain, **given)
    if given.get("split") is None and inputs.dataset is not None and inputs.dataset.owners is None:
        experiment = dataclasses.replace(experiment, split=us.IID(4))
    ready = setup.prepare(experiment, inputs)
    divided = setup.divide(experiment, ready.dataset, seed)
    data = divided.dataset  # whose numbers are agreed anew for the seed
    clients = {}
    for number, rows in enumerate(divided.clients):
        name = data.client_names[number] if data.client_names else str(number)
        parts = {"train": rows.train, "val": rows.val, "test": rows.test}
        clients[name] = {part: digest(data.x_train[i], data.y_train[i]) for part, i in parts.items() if len(i)}
    return {
        "clients": clients,
        "test": digest(data.x_test[: len(data.y_test)], data.y_test),
        "shape": list(data.input_shape),
        "outputs": list(data.outputs or data.classes),
        "features": [column.name for column in data.inputs.columns],
        "domains": list(data.domain_names),
        "division": divided.sha256[:16],
    }


def digest(*tensors: Any) -> str:
    """ "ROWS x SHA", of values rounded to six significant digits where they are no whole numbers."""
    sha = hashlib.sha256()
    for tensor in tensors:
        values = np.ascontiguousarray(torch.as_tensor(tensor).numpy())
        if values.dtype.kind == "f":
            values = values.astype(np.float64)
            power = 10.0 ** (5 - np.floor(np.log10(np.abs(values), where=values != 0, out=np.zeros_like(values))))
            values = np.round(values * power) / power + 0.0  # no minus zero
        sha.update(f"{values.dtype} {values.shape}".encode() + values.tobytes())
    return f"{len(tensors[-1])} x {sha.hexdigest()[:16]}"


def state_norm(history: us.History, clients: bool) -> float:
    """Norm of the trained models of all methods: the global one, and where asked for or none is, a client's."""
    models = []
    for label in history.methods:
        of_all = None
        with contextlib.suppress(us.UnskewError):
            of_all = history.model(label)
            models.append(of_all)
        if of_all is None or clients:
            models.append(history.model(label, client=next(iter(history.client_values(label)))))
    return math.sqrt(sum(float(t.double().square().sum()) for m in models for t in m.state_dict().values()))


def command(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command `unskew` with these words, in this process."""
    import io
    import os
    import sys
    from unittest import mock

    from unskew.cli import main

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["unskew", *words]),
        mock.patch.object(sys, "path", list(sys.path)),  # to which the command adds the working directory
        mock.patch.dict(os.environ),  # in which it says where a policy lies
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def ends_with(call: Callable[[], object]) -> tuple[str, str]:
    """(class, message) of the error that a call ends with; empty where it ends well."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def framed(data: bytes) -> Any:
    """What these bytes of the wire are."""
    from unskew import wire
    from unskew.algorithms.fedavg import ModelMessage

    return wire.decode(data, ModelMessage)
