import numpy as np
import pandas
import pytest

import unskew as us
from unskew.data import own
from unskew.data.inputs import Inputs, tokens, vocabulary, words
from unskew.data.preprocess import Preprocess
from unskew.errors import DataError, DataWarning


def test_words_are_lower_case_and_breaks_are_spaces():
    assert words("It's GREAT!<br />10/10") == ["it's", "great", "10", "10"]


def test_words_have_the_letters_of_any_language():
    """Written with one character or with a letter and its accent, a word is the same; an underline is none."""
    assert words("Größe, fiancé_e") == words("Gro\u0308ße, fiance\u0301_e") == ["größe", "fiancé", "e"]
    assert words("हिन्दी में नमस्ते, don\u2019t") == ["हिन्दी", "में", "नमस्ते", "don't"]


def test_a_text_without_a_known_word_is_answered_with_a_warning_and_no_text_is_refused():
    inputs = Inputs("texts", vocabulary=("fee", "visa"))
    with pytest.warns(DataWarning, match="no word was learnt of row 0, 2"):
        inputs.prepare(["", "a visa", "\u00a0zzz"])
    with pytest.raises(DataError, match="list or column of texts"):
        inputs.prepare(["visa", None])


def test_the_vocabulary_ranks_by_frequency_then_alphabet():
    """b 3 times, a and c twice each; room for 2 words beside padding and unknown."""
    assert vocabulary(["b b b a", "c a c"], size=4) == {"b": 2, "a": 3}


def test_texts_are_padded_and_cut_at_the_end():
    """Ids b=2, a=3: "a x" -> 3, unknown, padding; "b a b a" is cut after three."""
    assert tokens(["a x", "b a b a", ""], {"b": 2, "a": 3}, length=3).tolist() == [[3, 1, 0], [2, 3, 2], [0, 0, 0]]


def test_a_column_of_texts_beside_numbers_is_a_column_for_each_of_its_words() -> None:
    """Row 0 has the words fever, at, night, 0; a new row has one of them, one that was never seen, and no note."""
    notes = [f"{'fever' if i % 2 else 'cough'} at night {i}" for i in range(60)]
    table = pandas.DataFrame(
        {"age": np.resize([30.0, 41, 52, 47, 39], 60), "note": notes, "site": [*"ABC"] * 20, "y": np.arange(60) % 2}
    )
    data = own.dataset(table, target="y", client="site", preprocess=Preprocess(scale="none"))
    of_words = data.inputs.columns[1]
    assert (of_words.kind, of_words.values[:4]) == ("text", ("at", "night", "cough", "fever"))
    rows = data.inputs.prepare([{"age": 5, "note": "Fever, unheard"}, {"age": 6, "note": None}])
    assert [[*row[:5].tolist(), float(row[5:].sum())] for row in rows] == [[5, 0, 0, 0, 1, 0], [6, 0, 0, 0, 0, 0]]
    how = {"client": "site", "rounds": 8, "progress": False, "local": us.SgdConfig(lr=0.5, local_epochs=4)}
    history = us.simulate("fedavg", data=table, target="y", preprocess=True, model="logistic", **how)
    asked = [{"age": 40, "note": "fever since noon"}, {"age": 40, "note": "cough since noon"}]
    assert us.predict(history.model("fedavg"), asked) == [1, 0]
