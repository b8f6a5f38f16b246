"""`simulate` with texts: words in, words of new texts known again, and what does not go together refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew.errors import DataWarning
from unskew.run import loop

GOOD, BAD, OTHERS = ("gut", "schön", "great"), ("übel", "schlecht", "poor"), ("der", "patient", "was", "seen", "im")
RNG = np.random.default_rng(3)
LABELS = ["well" if i % 2 else "ill" for i in range(120)]
TEXTS = [
    " ".join(RNG.permutation([*RNG.choice(OTHERS, 6), *RNG.choice(GOOD if y == "well" else BAD, 2)])) for y in LABELS
]
SITES = {site: (TEXTS[k::3], LABELS[k::3]) for k, site in enumerate(("Basel", "Bern", "Chur"))}
METHOD = {"FedAvg": us.FedAvg(us.SgdConfig(lr=0.5, local_epochs=3, batch_size=16))}


def test_texts_of_each_site_are_learned_and_new_ones_told() -> None:
    history = us.simulate(METHOD, data=SITES, rounds=15, progress=False)
    assert history.value("FedAvg") == 1.0
    model = history.model("FedAvg")
    assert us.predict(model, ["Der Patient: GUT!", "schlecht, übel"]) == ["well", "ill"]
    with pytest.warns(DataWarning, match="no word was learnt of row 0, 1"):
        (nothing, unknown) = us.predict(model, ["", "Unbekanntes Wort"], probabilities=True)
    assert nothing == unknown
    assert set(model.unskew.inputs.vocabulary) == {*GOOD, *BAD, *OTHERS}


@pytest.mark.parametrize(
    "form",
    [list, tuple, np.array, pandas.Series, lambda x: np.array(x, object), lambda x: pandas.DataFrame({"note": x})],
)
def test_every_form_of_a_list_of_texts_is_the_same(form: Any) -> None:
    def curve(texts: Any) -> list[float]:
        history = us.simulate(METHOD, data=(texts, LABELS), split=us.IID(num_clients=3), rounds=2, progress=False)
        return [row["value"] for row in history.rows if row["name"] == "global.loss"]

    expected = curve(TEXTS)
    assert len(expected) == 3
    assert curve(form(TEXTS)) == expected


@pytest.mark.usefixtures("unreported")
def test_a_run_on_texts_is_kept_and_goes_on(tmp_path: Path) -> None:
    kept = us.simulate(METHOD, data=SITES, rounds=2, out=tmp_path / "r", progress=False)
    (tmp_path / "r" / "summary.json").unlink()
    assert loop.resume(tmp_path / "r").summary["fingerprint"] == kept.summary["fingerprint"]
    assert us.predict(us.load_model(tmp_path / "r"), TEXTS) == us.predict(kept.model("FedAvg"), TEXTS)


def test_a_vocabulary_is_of_training_texts_alone() -> None:
    test = (["gut onlyhere", "schlecht"], ["well", "ill"])
    history = us.simulate(METHOD, data=SITES, test=test, rounds=1, progress=False)
    assert "onlyhere" not in history.model("FedAvg").unskew.inputs.vocabulary


def test_words_of_unseen_clients_and_of_test_rows_alone_are_unknown() -> None:
    """Unseen clients are tested as they will be served, by the model, from texts; every row has a word of its own."""
    own = {
        site: ([f"{text} {site}{i} {site}" for i, text in enumerate(texts)], labels)
        for site, (texts, labels) in SITES.items()
    }
    history = us.simulate(METHOD, data=own, unseen=["Chur"], rounds=3, progress=False)
    model, test = history.model("FedAvg"), history.rows_of("test")
    known = set(model.unskew.inputs.vocabulary)
    assert len(known) == len(model.unskew.inputs.vocabulary)
    assert {*GOOD, *BAD, "basel", "bern"} <= known
    assert not any(word.startswith("chur") for word in known)
    for site in ("Basel", "Bern"):
        trained = {*history.rows_of("train")[site], *history.rows_of("val").get(site, ())}
        assert {i for i in range(40) if f"{site.lower()}{i}" in known} == trained
        assert len(test[site]) > 0
    texts, labels = own["Chur"]
    answers = us.predict(model, [texts[i] for i in test["Chur"]])
    right = np.mean([one == labels[i] for one, i in zip(answers, test["Chur"], strict=True)])
    assert history.client_values("FedAvg", "unseen.accuracy") == {"Chur": pytest.approx(right)}
