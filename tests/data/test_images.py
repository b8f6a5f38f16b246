"""Images that stay bytes: they read as the floats they would have become, to the last bit, in whatever is done."""

import numpy as np
import pytest
import torch
from torch import Tensor

from unskew.data import Dataset, build, own
from unskew.data.rows import ByteImages, as_tensor, extremes
from unskew.experiment.config import TaskConfig
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Batch, Fold, Local, Me, Run, Sgd, SgdConfig
from unskew.run import setup as run_setup
from unskew.tree import Params

RNG = np.random.default_rng(3)
COLOUR = RNG.integers(0, 256, (90, 12, 10, 3), dtype=np.uint8)
GREY = RNG.integers(0, 256, (90, 12, 10), dtype=np.uint8)
Y = np.arange(90) % 3
NEVER = 1 << 60


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Dataset, Dataset]:
    """The same images as floats and as bytes."""
    x = {"colour": COLOUR, "grey": GREY}[getattr(request, "param", "colour")]
    monkeypatch.setattr(build, "BYTES_FROM", NEVER)
    eager = own.dataset((x, Y))
    monkeypatch.setattr(build, "BYTES_FROM", 0)
    kept = own.dataset((x, Y))
    assert isinstance(eager.x_train, Tensor)
    assert isinstance(kept.x_train, ByteImages)
    assert isinstance(kept.x_test, ByteImages)
    return eager, kept


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.is_contiguous() == b.is_contiguous() and torch.equal(a, b)


# ---------------------------------------------------------------- the value
@pytest.mark.parametrize("both", ["colour", "grey"], indirect=True)
def test_rows_of_bytes_are_the_floats_they_would_have_become(both: tuple[Dataset, Dataset]) -> None:
    eager, kept = both
    for floats, images in ((eager.x_train, kept.x_train), (eager.x_test, kept.x_test)):
        assert isinstance(floats, Tensor)
        assert isinstance(images, ByteImages)
        assert (images.shape, images.dtype, images.device) == (floats.shape, floats.dtype, floats.device)
        rows = torch.tensor([4, 0, 4, 17])
        assert same(images[rows], floats[rows])
        assert same(images.index_select(0, rows), floats.index_select(0, rows))
        assert same(images[rows.view(2, 2)], floats[rows.view(2, 2)])
        assert same(images[3:9], floats[3:9])
        assert same(images[rows[:0]], floats[rows[:0]])
        assert same(as_tensor(images), floats)
        assert extremes(images) == (float(floats.min()), float(floats.max()))
    assert (kept.sha256, kept.inputs.levels, kept.inputs) == (eager.sha256, eager.inputs.levels, eager.inputs)


# ---------------------------------------------------------------- local work
def _sum(carry: Tensor, batch: Batch) -> Tensor:
    return carry + batch.x.double().sum() + batch.loss.double().sum()


def _looked_at(local: Local, params: Params) -> tuple[Tensor, Params]:
    return local.x, local.gradient(params)


@pytest.mark.parametrize("network", ["mlp", "cnn_small"])
def test_local_work_on_bytes_ends_with_the_same_bits(network: str, both: tuple[Dataset, Dataset]) -> None:
    answers = []
    for data in both:
        config = TaskConfig(model=network)
        task = run_setup.make_named_task(config, data, run_setup.InMemoryInputs())
        rows = torch.randperm(len(data.y_train), generator=Key(1).generator())
        device_data = DeviceData(
            data.x_train, data.y_train, (rows[:31], rows[31:60]), (rows[60:], rows[:0]), None, data.x_test, data.y_test
        )
        trainer = LocalTrainer(task, device_data)
        params = task.init(Key(0))
        histogram = torch.bincount(data.y_train[rows[:31]], minlength=3)
        me = Me(0, 31, histogram, 1, Key(7), task.layout, params, Key(7), Key(7))
        fitted = trainer.answer(me, 0, Sgd(params, SgdConfig(local_epochs=2, batch_size=8, lr=0.1, momentum=0.9)))
        x, gradient = trainer.answer(me, 0, Run(_looked_at, (params,)))
        answers.append(
            {
                **fitted.params,
                "loss": torch.tensor(fitted.loss),
                "fold": trainer.answer(me, 0, Fold(_sum, params, torch.zeros((), dtype=torch.float64))),
                "x": x,
                **{f"gradient {n}": g for n, g in gradient.items()},
                **{f"test {i}": t for i, t in enumerate(trainer.evaluate(params, "test"))},
                **{f"rows {i}": t for i, t in enumerate(trainer.evaluate(params, "train", rows[5:40]))},
            }
        )
    assert answers[0].keys() == answers[1].keys()
    for name, value in answers[0].items():
        assert torch.equal(value, answers[1][name]), name
