"""Turns texts into token ids, with a vocabulary from the training texts only."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

VOCABULARY = 10_000
"""Token ids are 0 .. VOCABULARY - 1; an embedding needs this many rows."""
LENGTH = 200
"""Tokens per text, shorter texts padded and longer ones cut at the end."""
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
OF_COLUMN = 500
"""Words that a column of texts beside others has, the commonest."""


class _BetweenWords(dict[int, int | str]):
    """A table for `str.translate`: all but letters with their marks, digits and apostrophes become spaces.

    Characters without a visible form, such as a soft hyphen, are left out: they stand within words.
    """

    def __missing__(self, code: int) -> int | str:
        char, category = chr(code), unicodedata.category(chr(code))
        kept = char == "'" or char.isalnum() or category[0] == "M"
        self[code] = code if kept else "" if category == "Cf" else " "
        return self[code]


_BETWEEN = _BetweenWords({ord("\u2019"): "'"})


def words(text: str) -> list[str]:
    """Lower-cased words (letters of any language, digits, apostrophes); HTML line breaks are spaces.

    >>> words("It's a Größe_2")
    ["it's", 'a', 'größe', '2']
    """
    plain = text.replace("<br />", " ").lower()
    return (plain if plain.isascii() else unicodedata.normalize("NFC", plain)).translate(_BETWEEN).split()


def vocabulary(texts: Sequence[str], size: int = VOCABULARY) -> dict[str, int]:
    """Ids from 2 on for the `size - 2` commonest words, commonest first, equally common ones in alphabetical order."""
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda w: (-counts[w], w))[: size - 2]
    return {word: i for i, word in enumerate(ranked, start=FIRST_WORD)}


def tokens(texts: Sequence[str], ids: Mapping[str, int], length: int = LENGTH) -> Tensor:
    """Token ids, int64 (N, length); 0 is padding, 1 a word outside the vocabulary.

    >>> tokens(["Good, good film!"], {"good": 2}, length=4)
    tensor([[2, 2, 1, 0]])
    """
    rows = [[ids.get(word, UNKNOWN) for word in words(text)[:length]] for text in texts]
    return torch.tensor([row + [PADDING] * (length - len(row)) for row in rows], dtype=torch.int64).reshape(-1, length)
