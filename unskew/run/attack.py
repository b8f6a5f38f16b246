"""Malicious clients in a run: the data they train on, and how often a backdoor opens.

Malicious clients are left out of client metrics.  The global test set and the data of honest clients never change.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unskew.data.federated import FederatedData
from unskew.data.rows import ByteImages, as_tensor, extremes
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.local.executor import Trainer
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId
from unskew.run.metrics import Metric
from unskew.tree import Params
from unskew.world.attack import Attack

ATTACK_SUCCESS = "global.attack_success"


def poisoned(attack: Attack, fed: FederatedData) -> tuple[Tensor | ByteImages, Tensor]:
    """The training examples, with those of malicious clients changed.

    Raises:
        ConfigError: If the targets of the examples are not classes.
    """
    dataset = fed.dataset
    key = Key(fed.seed)
    malicious = attack.malicious(fed.num_clients, key) if attack.poisons else frozenset()
    if not malicious:
        return dataset.x_train, dataset.y_train
    if dataset.y_train.is_floating_point() or dataset.y_train.dim() != 1:
        raise ConfigError(
            f"world.attack {attack.name!r} changes labels, and the targets of {dataset.name} are not classes"
        )
    target = getattr(attack, "target", 0)
    if target >= dataset.num_classes:
        raise ConfigError(f"world.attack.target must be one of {dataset.num_classes} classes, got {target}")
    x, y = as_tensor(dataset.x_train).clone(), dataset.y_train.clone()
    bounds = extremes(dataset.x_train)
    for c in sorted(malicious):
        rows = fed.clients.train[c]
        if len(rows):
            x[rows], y[rows] = attack.poison(x[rows], y[rows], dataset.num_classes, bounds, key / "poison" / c)
    return x, y


def honest(attack: Attack, clients: Sequence[ClientId], num_clients: int, seed: int) -> Sequence[ClientId]:
    """Those of the given clients that do not attack."""
    malicious = attack.malicious(num_clients, Key(seed))
    return [c for c in clients if c not in malicious] if malicious else clients


def success(attack: Attack, fed: FederatedData, trainer: Trainer | None) -> Callable[[Params], Metric] | None:
    """A function from a model to the share of marked test examples of other classes that it takes for the attack's
    class.

    None if the attack has no mark, all clients are honest, or accuracy is not measured.
    """
    dataset = fed.dataset
    if type(attack).trigger is Attack.trigger or not attack.malicious(fed.num_clients, Key(fed.seed)):
        return None
    with_mark = attack.trigger(as_tensor(dataset.x_test).clone(), extremes(dataset.x_train))
    assert isinstance(trainer, LocalTrainer)
    names = [measure.name for measure in trainer.task.measures]
    if with_mark is None or "accuracy" not in names or bool((dataset.y_test == with_mark[1]).all()):
        return None
    others = dataset.y_test != with_mark[1]
    x, y = (t.to(trainer.device) for t in (with_mark[0][others], torch.full_like(dataset.y_test[others], with_mark[1])))

    def measured(params: Params) -> Metric:
        columns = trainer.evaluate_on(params, x, y)
        return Metric(ATTACK_SUCCESS, trainer.task.values(columns)[names.index("accuracy")], float(len(y)))

    return measured
