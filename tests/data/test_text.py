import pytest

from unskew.data import own
from unskew.data.inputs import Inputs
from unskew.data.text import tokens, vocabulary, words
from unskew.errors import DataError, DataWarning


def test_words_are_lower_case_and_breaks_are_spaces():
    assert words("It's GREAT!<br />10/10") == ["it's", "great", "10", "10"]


def test_words_have_the_letters_of_any_language():
    """Written with one character or with a letter and its accent, a word is the same; an underline is none."""
    assert words("Größe, fiancé_e") == words("Gro\u0308ße, fiance\u0301_e") == ["größe", "fiancé", "e"]
    assert words("हिन्दी में नमस्ते, don\u2019t") == ["हिन्दी", "में", "नमस्ते", "don't"]


def test_what_is_not_seen_parts_no_word():
    """A soft hyphen, a space of no width, and a mark of the direction of writing."""
    assert words("vi\u00adsa fi\u200bnance \u200fcard") == ["visa", "finance", "card"]


def test_a_missing_label_among_words_is_named_by_its_client_s_row():
    texts, labels = ["visa fee", "house rate", "wire sent"] * 4, ["card", "loan", "wire"] * 4
    for gap in (None, float("nan")):
        with pytest.raises(DataError, match=r"client B.*: the label of row 1 is missing; leave the row out"):
            own.dataset({"A": (texts, labels), "B": (texts, [labels[0], gap, *labels[2:]])})


def test_a_text_without_a_known_word_is_answered_with_a_warning_and_no_text_is_refused():
    inputs = Inputs("texts", vocabulary=("fee", "visa"))
    with pytest.warns(DataWarning, match=r"^rows 0, 2 have no word that was learnt: any such text is answered alike$"):
        inputs.prepare(["", "a visa", "\u00a0zzz"])
    with pytest.raises(DataError, match=r"^inputs must be texts, got None in row 1; give a text, or leave"):
        inputs.prepare(["visa", None])


def test_the_vocabulary_ranks_by_frequency_then_alphabet():
    """b 3 times, a and c twice each; room for 2 words beside padding and unknown."""
    assert vocabulary(["b b b a", "c a c"], size=4) == {"b": 2, "a": 3}


def test_texts_are_padded_and_cut_at_the_end():
    """Ids b=2, a=3: "a x" -> 3, unknown, padding; "b a b a" is cut after three."""
    assert tokens(["a x", "b a b a", ""], {"b": 2, "a": 3}, length=3).tolist() == [[3, 1, 0], [2, 3, 2], [0, 0, 0]]
