"""Disagreement of the sites in the directions that their training takes.

Directions  g_i is what local training changes of a common model at site i, and c_ij the cosine of g_i and g_j; the
            model is FedAvg's, and c_ij the mean over its first rounds.  It is HCCT's matrix (Y. Sun et al., "How to
            Collaborate", IEEE TMC 2024, eq. 5), taken with one group of all.
Groups      Average linkage on 1 - c_ij, cut into two to four groups (R. R. Sokal, C. D. Michener, 1958), and the site
            that agrees least with the others by itself.  These are proposals: validation rows decide.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from unskew.algorithms.hcct import HCCTState
from unskew.decide.cells import Outcome, Plan, QueuedCell
from unskew.decide.forecast.measure import threads
from unskew.decide.sites import Sites
from unskew.decide.training import Groups, Impossible, Training, TrainingWork
from unskew.experiment import config
from unskew.report.worth import Floats
from unskew.server import cluster

ROUNDS = 5
MOST_SITES = 100
"""Sites up to which directions are compared."""

MOST_GROUPS = 4


def proposed(sites: Sites, local: dict[str, Any]) -> Plan[tuple[Groups, ...]]:
    """Plan: compare the directions of the sites' training with settings `local`, and propose groups."""
    if sites.fed.num_clients > MOST_SITES:
        return ()
    cell = QueuedCell({"do": "directions", "local": local})
    ((cosines, sites.clock.counted[cell.key]),) = yield [cell]
    return () if cosines is None else proposals(np.array(cosines))


class AdviceWork(TrainingWork):
    """The work of a cell: compare directions, or train."""

    def train(self, asked: Mapping[str, Any]) -> Outcome:
        """Compare directions, or train as `TrainingWork` does."""
        if asked["do"] != "directions":
            return super().train(asked)
        training: Training | None = None
        try:
            with threads(self.threads):
                training = _for_directions(self.sites, asked["local"])
                cosines = _cosines(training)
        except Impossible:  # methods that need no directions race all the same
            return None, 0 if training is None else training.begun
        return None if cosines is None else cosines.tolist(), training.begun


def _for_directions(sites: Sites, local: Mapping[str, Any]) -> Training:
    everyone = replace(sites.experiment, fraction=None, clients_per_round=None)
    method = config.method("hcct", {"groups": 1, "warmup": "global", "local": local}, "directions")
    return Training(method, replace(sites, experiment=everyone), ROUNDS, everyone.seeds[0], sites.folds[0])


def _cosines(training: Training) -> Floats | None:
    by_round: list[Floats] = []
    while training.at < ROUNDS:
        training.go_on(training.at + 1)
        state = training.state
        assert isinstance(state, HCCTState)
        if state.evidence is not None and len(state.evidence.clients) == training.fed.num_clients:
            by_round.append(cluster.cosines(state.evidence.gram).numpy())
    if not by_round:
        return None
    mean = np.nan_to_num(np.mean(by_round, axis=0))
    np.fill_diagonal(mean, 1.0)
    return np.asarray((mean + mean.T) / 2)


def proposals(cosines: Floats) -> tuple[Groups, ...]:
    """Divisions into two to four groups, and the site that agrees least with the others alone.

    >>> proposals(np.array([[1.0, 0.9, -0.9], [0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]]))
    (((0, 1), (2,)),)
    """
    n = len(cosines)
    if n < 3:
        return ()
    tree = linkage(squareform(np.clip(1.0 - cosines, 0.0, None), checks=False), "average")
    divisions = [_groups(fcluster(tree, k, "maxclust").tolist()) for k in range(2, min(MOST_GROUPS, n - 1) + 1)]
    least = int(((cosines.sum(1) - 1.0) / (n - 1)).argmin())
    divisions.append(_groups([int(c == least) for c in range(n)]))
    return tuple(dict.fromkeys(d for d in divisions if len(d) > 1))


def _groups(numbers: list[int]) -> Groups:
    members: dict[int, list[int]] = {}
    for client, number in enumerate(numbers):
        members.setdefault(number, []).append(client)
    return tuple(sorted(tuple(m) for m in members.values()))
