"""The report's part about differential privacy, from runs of two rounds."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unskew as us
from unskew.decide.forecast.plan import plan
from unskew.experiment import config
from unskew.info import ExampleBudget, Privacy, PrivacyBudget, ReleaseNoise
from unskew.record.reader import info_of
from unskew.report import charts, read
from unskew.report.section import Chart
from unskew.report.sections import privacy
from unskew.run import loop
from unskew.server.privacy import cohort_epsilon, composed_epsilon, epsilon

Rows = Callable[[Chart], list[dict[str, Any]]]
METHODS = {
    "open": us.wrap(us.FedAvg(), us.CentralDP(noise_multiplier=0.0)),
    "central": us.wrap(us.FedAvg(), us.CentralDP(noise_multiplier=5.0, max_epsilon=50.0)),
    "local": us.wrap(us.FedAvg(), us.LocalDP(noise_multiplier=50.0)),
    "examples": us.wrap(us.FedAvg(), us.DPSGD(noise_multiplier=5.0, share=0.5)),
}


TWO_BY_TWO: dict[str, Any] = {
    "rounds": 2,
    "seeds": [0, 1],
    "task": {"data": "digits", "model": "logistic"},
    "split": {"name": "iid", "num_clients": 4},
}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"scale": "agreed"}, "counts, means and deviations, words of categories, and gaps of its columns"),
        ({"scale": "site"}, "words of categories, and gaps of its columns"),
        (None, ""),
    ],
)
def test_a_guarantee_leaves_out_what_clients_agreed_on_before_training(
    rules: dict[str, str] | None, told: str, tmp_path: Path
) -> None:
    rows = [f"{'ab'[i % 2]},{i % 7},{'uvw'[i % 3] if rules else i % 5},{i // 2 % 2}" for i in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["site,age,ward,sick", *rows]))
    task = {"data": f"csv:{tmp_path / 'own.csv'}", "model": "logistic"}
    options = {"target": "sick", "client": "site"}
    preprocessing = {"preprocess": rules} if rules else {}
    experiment = config.parse(
        {
            "rounds": 1,
            "task": {**task, "data_options": options, **preprocessing},
            "split": {"name": "natural"},
            "methods": [
                {"name": "fedavg", "label": c, "with": [c]}
                for c in ("central_dp", "local_dp", "dp_sgd")
                if c != "dp_sgd" or rules != {"scale": "site"}  # which its noise does not cover
            ],
        }
    )
    record = read(loop.start(experiment, tmp_path / "run").folder)
    section = privacy.draw(record, record.methods, charts.colours(record.methods))
    assert section is not None
    for row in section.tables[0].entries:
        *_, guarantee, server, clients = row.cells
        assert guarantee.endswith(f", but not what was agreed on before training: {told}.") == bool(told), guarantee
        assert server.endswith(f"; and before training, from each client, exactly: {told}.") == bool(told), server
        assert ("before training" in clients or "came to" in clients) == bool(told), clients


def test_trainings_with_the_clients_own_noise_add_up_in_plan_and_report(tmp_path: Path) -> None:
    """Two seeds of two rounds are four uploads of multiplier 60 / 2, or 8 steps of multiplier 5 on half of the rows.

    The local training of one epoch has 1 / 0.5 = 2 steps.
    """
    table = TWO_BY_TWO | {
        "methods": [
            {"name": "fedavg", "label": "local", "with": [{"name": "local_dp", "noise_multiplier": 60.0}]},
            {
                "name": "fedavg",
                "label": "examples",
                "local": {"local_epochs": 1},
                "with": [{"name": "dp_sgd", "noise_multiplier": 5.0, "share": 0.5}],
            },
        ],
    }
    experiment = config.parse(table)
    texts = [
        f"ll 2 trainings with noise of the clients' own together: epsilon {spent:.4g} at delta 1e-05 for {of}"
        for spent, of in (
            (epsilon(30.0, 4, 1e-5), "one client's data"),
            (composed_epsilon((((5.0, 0.5), 8),), 1e-5), "one example of a client"),
        )
    ]
    notes = plan(experiment).notes
    assert all(any(text in note for note in notes) for text in texts), notes
    record = read(loop.start(experiment, tmp_path / "run").folder)
    section = privacy.draw(record, record.methods, charts.colours(record.methods))
    assert section is not None
    assert all(text in section.lead for text in texts), section.lead
    assert re.fullmatch(r"What each client has spent: examples, seed [01]", section.tables[1].caption)


def test_a_run_reports_what_each_round_has_spent(rows: Rows) -> None:
    history = us.simulate(METHODS, split=us.Dirichlet(num_clients=4), rounds=2, progress=False)
    record = read(history.folder)
    spent = [i.info.privacy.epsilon for i in info_of(record, "central", PrivacyBudget)]
    assert spent == pytest.approx([cohort_epsilon(5.0, 4, 4, t, 1e-5) for t in (1, 2)], abs=1e-6)
    section = privacy.draw(record, list(METHODS), charts.colours(list(METHODS)))
    assert section is not None
    assert re.fullmatch(
        r"open spent no privacy, as there is no noise; central spent ε = [\d.]+; local spent ε = [\d.]+; "
        r"examples spent ε = [\d.]+\.",
        section.lead,
    ), section.lead
    (of_clients, of_examples), (table, clients) = section.charts, section.tables
    assert {r["method"] for r in rows(of_clients)} == {"central", "local"}
    assert {r["method"] for r in rows(of_examples)} == {"examples"}
    assert [row.cells[:3] for row in table.entries] == [
        ("1", "0", "–"),
        ("1", "5", "50"),
        ("1", "50", "–"),
        ("1", "5", "–"),
    ]
    assert [(row.name, *row.cells) for row in clients.entries] == [
        (str(c), clients.entries[0].cells[0]) for c in range(4)
    ]


def test_epsilons_are_drawn_beside_like_ones_and_of_seeds_the_largest(rows: Rows) -> None:
    def budget(epsilon: float, covers: str, delta: float, **more: Any) -> Any:
        kind = ExampleBudget if more else PrivacyBudget
        cost: dict[str, Any] = {"privacy": Privacy(epsilon, "", "", delta=delta, covers=covers), "releases": 1}
        return kind(**cost, clip=1.0, noise=1.0, each=ReleaseNoise(multiplier=1.0, sample=1.0), **more)

    client, example = "all data of one client", "one example of a client, if it is replaced"
    spent = {
        "a": {0: {1: budget(1.5, client, 1e-3)}, 1: {1: budget(2.5, client, 1e-3)}},
        "b": {0: {1: budget(3.5, client, 1e-5)}},
        "c": {0: {1: budget(4.5, example, 1e-5, spent={0: 4.5})}},
        "d": {0: {1: budget(5.5, client, 1e-3)}},
    }
    drawn = privacy.figures(spent, charts.colours("abcd"))
    assert [(c.title, sorted({r["method"] for r in rows(c)})) for c in drawn] == [
        ("Epsilon by round, for one client's data, at delta 0.001", ["a", "d"]),
        ("Epsilon by round, for one client's data, at delta 1e-05", ["b"]),
        ("Epsilon by round, for one example of a client, at delta 1e-05", ["c"]),
    ]
    assert "a from 2.5 to 2.5; d from 5.5 to 5.5" in drawn[0].described
