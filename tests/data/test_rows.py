"""Inputs of several parts, sequences of several lengths, and data sets that are read item by item."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import unskew as us
from unskew import tasks
from unskew.data import own
from unskew.data.rows import Items
from unskew.errors import DataError, DataWarning

RNG = np.random.default_rng(0)
IMAGES, TABLE = RNG.normal(size=(60, 1, 6, 6)).astype("float32"), RNG.normal(size=(60, 3)).astype("float32")
Y = (TABLE[:, 0] + IMAGES.mean((1, 2, 3)) > 0).astype(int)
IDS = RNG.integers(1, 20, (60, 8))
run = partial(us.simulate, "fedavg", split=us.IID(3), rounds=2, progress=False)


class Two(nn.Module):
    """An image and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.read = nn.Linear(36, 4), nn.Linear(3, 4)
        self.head = nn.Linear(8, 2)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.head(torch.cat([self.seen(image.flatten(1)), self.read(table)], 1))


class One(Two):
    """The same for a table of zeros, of which nothing is left but the layer's bias."""

    def forward(self, image: Tensor, table: Tensor | None = None) -> Tensor:
        return super().forward(image, image.new_zeros(len(image), 3))


@pytest.mark.parametrize("executor", ["sequential", "workers", "stacked"])
def test_a_network_of_two_inputs_whose_second_is_constant_is_that_of_one(executor: str) -> None:
    learned = []
    runtime = us.Runtime(executor=executor)
    none = np.zeros((60, 3), "float32")
    for x, net in (((IMAGES, none), Two), ({"table": none, "image": IMAGES}, Two), (IMAGES, One)):
        history = run(data=(x, Y), model=net, runtime=runtime, evaluate=["global", "personal", "macro_f1"])
        learned.append(history.model("fedavg").state_dict())
    for other in learned[1:]:  # plain tensors may be stacked, which rounds otherwise
        assert all(torch.allclose(learned[0][name], t, rtol=1e-4, atol=1e-6) for name, t in other.items())


@pytest.mark.usefixtures("unreported")
def test_parts_are_predicted_for_by_name_and_a_run_of_them_is_resumed(tmp_path: Path) -> None:
    history = run(data=({"image": IMAGES, "table": TABLE}, Y), model=Two, out=tmp_path / "run")
    model = history.model("fedavg")
    alone = model(torch.from_numpy(IMAGES[:4]), torch.from_numpy(TABLE[:4])).argmax(1).tolist()
    assert us.predict(model, {"table": TABLE[:4], "image": IMAGES[:4]}) == alone
    with pytest.raises(DataError, match="must have the parts image, table"):
        us.predict(model, {"image": IMAGES})
    again = us.resume(tmp_path / "run", allow_code=True).model("fedavg")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


class Masked(nn.Module):
    """The mean of the vectors of ids that count."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        counts = attention_mask[..., None].float()
        return {"logits": self.head((self.vectors(input_ids) * counts).sum(1) / counts.sum(1))}


def test_padding_that_the_mask_leaves_out_changes_no_prediction() -> None:
    rows = [ids[: 3 + i % 6].tolist() for i, ids in enumerate(IDS)]
    named = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
    model = run(data=(named, Y), model=Masked).model("fedavg")
    together = us.predict(model, named, probabilities=True)
    for i in (0, 3, 7):
        alone = us.predict(model, {key: [of[i]] for key, of in named.items()}, probabilities=True)
        assert alone[0] == pytest.approx(together[i], rel=1e-5)


def test_without_targets_the_token_after_each_is_learned_where_the_mask_counts() -> None:
    mask = np.ones_like(IDS)
    mask[0, 5:] = 0
    x = {"input_ids": IDS, "attention_mask": mask}
    targets = tasks.kind_of("next_token").targets
    parts = [own.table((x, y), kind=targets).y for y in (None, np.where(mask, IDS, -100), IDS)]
    assert parts[0][0].tolist() == [*IDS[0, 1:5].tolist(), -100, -100, -100, -100]
    assert (parts[0] == parts[1]).all()
    assert parts[0][1].tolist() == [*IDS[1, 1:].tolist(), -100]


class Turned(Dataset[Any]):
    """Images that are shifted at random, from the global generator."""

    reads = 0

    def __init__(self, source: str = "global") -> None:
        self.rng = None if source == "global" else np.random.default_rng(0)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> Any:
        Turned.reads += 1
        shift = int(torch.randint(6, ())) if self.rng is None else int(self.rng.integers(6))
        return torch.roll(torch.from_numpy(IMAGES[i]), shift, 2), int(Y[i])


def test_items_that_are_drawn_are_drawn_anew_in_each_epoch_and_alike_in_tests() -> None:
    with pytest.warns(DataWarning, match="drawn at random"):
        data = own.dataset(Turned())
    x = data.x_train
    assert isinstance(x, Items)
    assert torch.equal(x[:9], x[:9])
    assert not torch.equal(x.read(slice(9), anew=True), x.read(slice(9), anew=True))
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    Turned.reads = 0
    fits = [run(data=Turned(), model=net, rounds=3).model("fedavg").state_dict() for _ in (0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(fits[0].values(), fits[1].values(), strict=True))
    assert Turned.reads > 2 * 3 * 30
    with pytest.raises(DataError, match="draws from a generator of its own"):
        own.dataset(Turned("its own"))


def test_items_read_when_they_are_needed_train_as_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [(torch.from_numpy(image), int(y)) for image, y in zip(IMAGES, Y, strict=True)]
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    models = []
    for most in (own.IN_MEMORY, 0):
        monkeypatch.setattr(own, "IN_MEMORY", most)
        data = torch.utils.data.Subset(items, range(60))  # type: ignore[arg-type]
        models.append(run(data=data, model=net, local=us.SgdConfig(lr=0.1)).model("fedavg").state_dict())
    assert all(torch.equal(a, b) for a, b in zip(models[0].values(), models[1].values(), strict=True))
