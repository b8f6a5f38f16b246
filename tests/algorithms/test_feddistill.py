"""FedDistill and FedDistill+: the divergence, the teacher, and FedDW's variant of it."""

from typing import Any

import torch

from unskew.algorithms.feddistill import FedDistill
from unskew.algorithms.parts import mean_by_class
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


# ---------------------------------------------------------------- eq. 2


def test_what_a_client_says_are_its_trained_models_mean_logits(classes: Any) -> None:
    """In evaluation mode, with the model that it keeps."""
    world = classes(n=[5, 8], norm=True)
    play = world.play(FedDistill(local=SMALL), rounds=1)
    trainer = play.sim.executor.trainer
    means, counts = [], []
    for c in (0, 1):
        rows = world.device_data.train[c]
        _, logits = trainer.refer(world.device_data.x[rows], play.own(c))
        y = world.device_data.y[rows]
        counts.append(torch.bincount(y, minlength=3))
        means.append(torch.stack([logits[y == k].sum(0) / max(int((y == k).sum()), 1) for k in range(3)]))
    expected, held = mean_by_class(means, counts, "clients")
    torch.testing.assert_close(play.states[1].z, expected, rtol=0, atol=1e-12)
    assert torch.equal(play.states[1].known, held)
