"""The card of a model: the chosen method beside the bounds, what it is not for, and the same in Markdown."""

from pathlib import Path

import numpy as np
import polars
import pytest

import unskew as us
from unskew.report import card, page, read

N = 120


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = polars.DataFrame({"age": rng.normal(60, 9, N), "ill": ["no", "yes"] * (N // 2), "site": list("ABC") * 40})
    folder = tmp_path_factory.mktemp("runs") / "own"
    us.simulate(
        {"alone": us.Independent(), "fedavg": us.FedAvg(), "noised": us.wrap(us.FedAvg(), us.CentralDP())},
        data=rows, target="ill", client="site", task="binary", preprocess=True, rounds=2, seeds=(0, 1),
        clients_per_round=3, evaluate=("global", "personal"), local=us.SgdConfig(lr=0.01), progress=False, out=folder,
    )  # fmt: skip
    return folder


def test_a_card_has_its_method_beside_training_alone(run: Path) -> None:
    of = card.of_run(read(run), "noised")
    assert of.verdict.startswith("noised is ")
    assert "| clients\\_per\\_round |" in page.markdown(of)
    assert of.table is not None
    assert [entry.name for entry in of.table.entries] == ["alone", "noised"]
    by_client = next(s for s in of.sections if s.title == "Results by client").tables[0]
    assert [entry.name for entry in by_client.entries] == ["A", "B", "C"]
    titles = [title for title, _ in by_client.head]
    assert "noised" in titles
    assert "fedavg" not in titles
    assert all(len(entry.cells) == len(titles) - 1 for entry in by_client.entries)


def test_what_nobody_has_shown_is_a_limit(run: Path) -> None:
    private, plain = (page.markdown(card.of_run(read(run), method)) for method in ("noised", "fedavg"))
    assert "not differentially private" in plain
    assert "not differentially private" not in private
    assert "ε = " in private
    assert "ε = " not in plain
    assert "nothing is known of others" in private


def test_of_several_methods_the_best_has_to_be_clear(run: Path) -> None:
    with pytest.raises(us.ConfigError, match="give --method, one of fedavg, noised"):
        card.of_run(read(run))
