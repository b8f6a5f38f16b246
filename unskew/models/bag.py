"""A linear model of the words in a text: A. Joulin, E. Grave, P. Bojanowski, T. Mikolov, Bag of tricks for efficient
text classification, EACL 2017, without its n-grams."""

from typing import final

from torch import Tensor, nn

from unskew.models.network import AtLeastOne, Network, sequence, vectors_of

FIRST_WORD = 2
"""The first token id that is a word's, as in `unskew.data.inputs`: 0 is padding, 1 any word outside the vocabulary."""


@final
class MeanOfWords(nn.Module):
    """Token ids (B, L), int64, to the mean of their vectors (B, size).

    Padding and words outside the vocabulary are left out: with a vocabulary of all training words, other words' vector
    would never be trained.  Without a word the mean is 0.
    """

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, size)

    def forward(self, x: Tensor) -> Tensor:
        """Mean vectors (B, size).

        Raises:
            ConfigError: If these are not token ids, or (on a CPU) one of them has no vector.
        """
        vectors = vectors_of("bag_of_words", self.embedding, x)
        there = (x >= FIRST_WORD).to(vectors.dtype)[..., None]
        return (vectors * there).sum(1) / there.sum(1).clamp(min=1.0)


def bag_of_words(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    words: AtLeastOne = 10_000,
    embedding: AtLeastOne = 32,
    head_bias: bool = True,
) -> Network:
    """The mean of a text's word vectors of 32, then C: 320,000 + 33 C parameters at 10,000 words.

    Word order does not count, and a text without known words has only the head's bias.

    Raises:
        ConfigError: If the inputs are not sequences.
    """
    sequence("bag_of_words", input_shape)
    return Network(MeanOfWords(words, embedding), nn.Linear(embedding, num_classes, bias=head_bias))
