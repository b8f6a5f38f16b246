"""HCCT's alpha = "auto": a pilot tries alphas, and takes the one that does best on held-out training examples."""

from typing import Any

import pytest
import torch

from tests.algorithms.conftest import World, half_square, line, world
from unskew.algorithms.hcct import HCCT, HCCT_P, Pilot, ScoreReply, TrialMessage, _add_held_out, best_trial
from unskew.info import TriedAlpha
from unskew.protocol import Batch, SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
ONE = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SHARES = (0.0, 0.1, 100.0)


def line_world(trained: list[float], held_out: list[float]) -> World:
    """Clients of ten examples y = w x at x = 1: `trained` is each client's y, but for those two that are held out."""
    x = [torch.ones(10, 1, dtype=torch.float64) for _ in trained]
    y = [torch.full((10,), a, dtype=torch.float64) for a in trained]
    for values, b in zip(y, held_out, strict=True):
        values[[4, 9]] = b
    return world(line, half_square, x, y, 1)


def tried(play: Any) -> tuple[TriedAlpha, ...]:
    results: tuple[TriedAlpha, ...] = play.sim.method.info(play.states[-1]).tried
    return results


def test_groups_are_formed_if_their_models_do_better_on_what_is_held_out() -> None:
    """Clients train on 6, 2, -6, -2 and are tested on 3, 3, -3, -3.

    A step of .5 goes half of the way to the client's y, so after two rounds w = .75 y alone: 4.5 and 1.5, 1.5 away from
    what is held out, which is a loss of 9/8.  Two clients of one sign have equal directions and merge at alpha = 1,
    B = alpha / 20 > 0; their mean after two rounds is .75 x 4 = 3, a loss of 0.  At alpha = 100 x 10 all four merge
    (B of the two pairs is -4 alpha / 40 - (4 - 4 alpha / 20) = 96 > 0): w = 0 and a loss of 9/2.
    """
    clients = line_world([6.0, 2.0, -6.0, -2.0], [3.0, 3.0, -3.0, -3.0])
    play = clients.play(HCCT(ONE, pilot=Pilot(SHARES, rounds=2)), 2)
    assert tried(play) == (
        TriedAlpha(0.0, 4, None, 1.125),
        TriedAlpha(1.0, 2, None, 0.0),
        TriedAlpha(1000.0, 1, None, 4.5),
    )
    info = play.sim.method.info(play.states[-1])
    assert (info.alpha, info.groups, info.warnings) == (1.0, ((0, 1), (2, 3)), ())


def test_nobody_joins_if_training_alone_does_best_and_the_pilot_is_the_evidence() -> None:
    """As above, but each is tested on what it trains on: alone it is .25 y away, 9/8 and 1/8; a pair is 3 or 1 away."""
    play = line_world([6.0, 2.0, -6.0, -2.0], [6.0, 2.0, -6.0, -2.0]).play(HCCT(ONE, pilot=Pilot(SHARES, rounds=2)), 2)
    alone, pairs, everybody = tried(play)
    assert alone.loss == (9 / 8 + 1 / 8) / 2
    assert pairs.loss == (9 / 2 + 1 / 2) / 2
    assert everybody.loss == (18 + 2) / 2
    info = play.sim.method.info(play.states[-1])
    assert info.groups == ((0,), (1,), (2,), (3,))
    assert info.warnings == (
        "nobody gains: the pilot has, on held-out training examples, a loss of 0.625 alone and at least 2.5 in groups "
        "(alpha 1)",
    )


def test_trials_train_on_no_example_that_is_held_out(spy: Any, equal: Any) -> None:
    sent = []
    for held_out in ([3.0, 3.0], [-50.0, 80.0]):
        with spy() as messages:
            line_world([6.0, 2.0], held_out).play(HCCT(ONE, pilot=Pilot(SHARES, rounds=3)), 1)
        sent.append([m.params for m in messages if isinstance(m, TrialMessage)])
    assert len(sent[0]) > 2 * 3
    equal(sent[0], sent[1], atol=0.0)


@pytest.mark.parametrize(("method", "norm"), [(HCCT, False), (HCCT_P, True)])
def test_a_run_goes_as_with_the_chosen_alpha_from_its_first_round(
    method: Any, norm: bool, classes: Any, equal: Any
) -> None:
    clients = classes(n=[6, 7, 8, 11], norm=norm)
    ours = clients.play(method(local=SMALL, pilot=Pilot((0.5,), rounds=2)), 3)
    fixed = clients.play(method(local=SMALL, alpha=0.5 * 8), 3)
    assert ours.states[-1].share == 0.5
    for c in range(4):
        equal(ours.own(c), fixed.own(c), atol=0.0)
    assert all(memory is None or not memory.trials for c in range(4) for memory in [ours.sim.memory.get(c)])


# ---------------------------------------------------------------- the rule
def reply(right: int) -> ScoreReply:
    return ScoreReply(10, right, 1.0)


def test_a_gain_counts_from_a_standard_error_on() -> None:
    """Differences of 4 and -1 sum to 3, below sqrt(17); of 4 and 1 to 5, above it."""
    alone = {0: reply(3), 1: reply(5)}
    assert best_trial([alone, {0: reply(7), 1: reply(4)}]) == 0
    assert best_trial([alone, {0: reply(7), 1: reply(6)}]) == 1
    assert best_trial([alone, alone]) == 0
    assert best_trial([alone, {0: reply(7), 1: reply(6)}, {0: reply(8), 1: reply(6)}]) == 2
    assert best_trial([{0: ScoreReply(0, 0, 0.0)}]) is None


def test_grades_are_judged_by_their_losses() -> None:
    """Two logits are those of two classes, or the steps between three grades, of which the larger tells nothing."""
    batch: Any = Batch(None, torch.tensor([0, 1]), torch.ones(2), None, torch.zeros(2, 2), torch.ones(2), None)  # type: ignore[arg-type]
    assert [_add_held_out(1, classes, (0, 0, 0, 0.0), batch)[2] for classes in (2, 3)] == [1, None]
