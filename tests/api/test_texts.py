"""`simulate` with texts: words in, words of new texts known again, and what does not go together refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew.data.text import LENGTH
from unskew.errors import ConfigError, DataError, DataWarning
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


@pytest.mark.filterwarnings("ignore:9 of 120 test texts stand in training")
def test_texts_that_are_cut_are_said() -> None:
    long = [" ".join(["word"] * (LENGTH + 1)), *TEXTS[1:10]]
    cut = us.simulate(
        METHOD, data=(long, LABELS[:10]), test=(TEXTS, LABELS), split=us.IID(num_clients=2), rounds=1, progress=False
    )
    said = "10% of the training texts have 200 words or more, and only the first 200"
    assert any(said in note for note in cut.notes)
    assert not any(
        "words or more, and only" in note for note in us.simulate(METHOD, data=SITES, rounds=1, progress=False).notes
    )


@pytest.mark.parametrize(
    ("data", "settings", "sentence"),
    [
        (([*TEXTS[:5], None], LABELS[:6]), {}, "x holds texts, and None in row 5; give a text"),
        (([*TEXTS[:5], 7.0], LABELS[:6]), {}, "x holds texts, and 7.0 in row 5"),
        (([None, *TEXTS[:5]], LABELS[:6]), {}, "x holds texts, and None in row 0"),
        ({**SITES, "Bern": (np.eye(4), [0, 1, 0, 1])}, {}, "differ in the (kind of labels|shape)"),
        (
            {**SITES, "Bern": (np.arange(4.0), LABELS[:4])},
            {},
            "client Basel and client Bern differ in texts and numbers",
        ),
        (SITES, {"test": (np.arange(4.0), LABELS[:4])}, "arrays and test differ in texts and numbers"),
        (SITES, {"preprocess": True}, "preprocess is for columns of a table"),
        ((TEXTS, LABELS[:-1]), {}, "x has 120 examples, y has 119"),
    ],
)
def test_what_does_not_go_with_texts_is_refused(data: Any, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((DataError, ConfigError), match=sentence):
        us.simulate(METHOD, data=data, rounds=1, progress=False, **settings)
