import pytest

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
