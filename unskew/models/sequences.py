"""Networks that read sequences: the words of a text, in a bag or by an LSTM, and the rows of an image."""

from typing import final

from torch import Tensor, nn

from unskew.errors import ConfigError
from unskew.models.network import AtLeastOne, Dropout, Network, dropout_layer, image, stack

FIRST_WORD = 2
"""The first token id that is a word's, as in `unskew.data.inputs`: 0 is padding, 1 any word outside the vocabulary."""


@final
class RowReader(nn.Module):
    """Reads an image (B, C, H, W) as H steps of C*W numbers; the last step's output of the last layer, (B, hidden)."""

    def __init__(self, row: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(row, hidden, layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, hidden)."""
        steps, _ = self.lstm(x.transpose(1, 2).flatten(2))
        last: Tensor = steps[:, -1]
        return last


def lstm_rows(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: AtLeastOne = 128,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """FedDif's first code base on Fashion-MNIST: two LSTM layers of 128 over the rows, last step -> C.

    216,330 parameters at the published 32x32x1 and C = 10.  `dropout`, between the two layers, is not in the paper.
    `torch.func.vmap` has no batching rule for an LSTM: it runs clients one by one and warns.
    """
    # with a single row the recurrent weights would never be used
    channels, _, width = image("lstm_rows", input_shape, at_least=2)
    return Network(RowReader(channels * width, hidden, 2, dropout), nn.Linear(hidden, num_classes, bias=head_bias))


def vectors_of(model: str, embedding: nn.Embedding, x: Tensor) -> Tensor:
    """The vectors (..., size) of token ids (...), int64.

    Raises:
        ConfigError: If these are not token ids, or (on a CPU) one of them has no vector; names the model.
    """
    if x.is_floating_point():
        raise ConfigError(
            f"model {model} reads token ids, int64, but the data are {x.dtype}; give texts, or a text data set such as "
            "imdb, or take mlp, which accepts any input"
        )
    try:
        vectors: Tensor = embedding(x)
    except IndexError:
        raise ConfigError(
            f"model {model} has vectors for {embedding.num_embeddings} words, and the data hold token id "
            f"{int(x.max())}; raise option words"
        ) from None
    return vectors


def sequence(model: str, shape: tuple[int, ...]) -> None:
    """Refuse examples that are not sequences of token ids.

    Raises:
        ConfigError: If so.
    """
    if len(shape) != 1:
        raise ConfigError(f"model {model} reads token ids of shape (length,), got {shape}; take another model")


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

    A. Joulin, E. Grave, P. Bojanowski, T. Mikolov, "Bag of tricks for efficient text classification", EACL 2017,
    without its n-grams.  Word order does not count, and a text without known words has only the head's bias.

    Raises:
        ConfigError: If the inputs are not sequences.
    """
    sequence("bag_of_words", input_shape)
    return Network(MeanOfWords(words, embedding), nn.Linear(embedding, num_classes, bias=head_bias))


@final
class Words(nn.Module):
    """Token ids (B, L), int64, to vectors (B, L, size); a text is cut after `length` tokens."""

    def __init__(self, words: int, size: int, length: int | None) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(words, size)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, L, size).

        Raises:
            ConfigError: If these are not token ids, or (on a CPU) one of them has no vector.
        """
        x = x if self.length is None else x[:, : self.length]
        return vectors_of("bilstm", self.embedding, x)


@final
class Reader(nn.Module):
    """LSTM layers that read a sequence (B, L, size): every step's output, (B, L, hidden); twice that if both ways."""

    def __init__(self, size: int, hidden: int, layers: int = 1, both_ways: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(size, hidden, layers, batch_first=True, bidirectional=both_ways)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the top layer."""
        out: Tensor = self.lstm(x)[0]
        return out


@final
class MeanOverSteps(nn.Module):
    """(B, L, d) to (B, d): the mean over the steps, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean."""
        return x.mean(1)


def bilstm(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    words: AtLeastOne = 10_000,
    length: AtLeastOne | None = None,
    embedding: AtLeastOne = 128,
    hidden: AtLeastOne = 128,
    dropout: Dropout = 0.2,
    head_bias: bool = True,
) -> Network:
    """FedDW on IMDB: vectors of 128, dropout, LSTM of 128 both ways, dropout, 256 -> 128 ReLU per step, mean, 128 -> C.

    The linear layer 128 -> 128 between the mean and the head has no activation.  1,593,858 parameters at 10,000 words
    and C = 2.  The mean is over all steps: padding counts, as in the published code.  `length` limits the tokens read
    of a text; None reads them all.  As with `lstm_rows`, `torch.func.vmap` has no rule for it.

    Raises:
        ConfigError: If the inputs are not sequences.
    """
    sequence("bilstm", input_shape)
    body = stack(
        words=Words(words, embedding, length),
        dropout1=dropout_layer(dropout),
        lstm=Reader(embedding, hidden, both_ways=True),
        dropout2=dropout_layer(dropout),
        fc1=nn.Linear(2 * hidden, hidden),
        relu1=nn.ReLU(),
        mean=MeanOverSteps(),
        fc2=nn.Linear(hidden, hidden),
    )
    return Network(body, nn.Linear(hidden, num_classes, bias=head_bias))


def char_lstm(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    embedding: AtLeastOne = 8,
    hidden: AtLeastOne = 64,
    layers: AtLeastOne = 1,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """Predict the token after each position: vectors of 8, an LSTM of 64, dropout, a linear layer.

    Logits are (B, L, vocabulary).  With `hidden` of 256 and two `layers` it is LEAF's network (S. Caldas et al., 2018)
    for Shakespeare.  As with `lstm_rows`, `torch.func.vmap` has no rule for it.

    Raises:
        ConfigError: If the inputs are not sequences.
    """
    sequence("char_lstm", input_shape)
    body = stack(
        words=Words(num_classes, embedding, None),
        lstm=Reader(embedding, hidden, layers),
        dropout=dropout_layer(dropout),
    )
    return Network(body, nn.Linear(hidden, num_classes, bias=head_bias))
