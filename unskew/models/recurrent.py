"""An LSTM over the rows of an image."""

from typing import final

from torch import Tensor, nn

from unskew.models.network import Count, Dropout, Network, image


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
    hidden: Count = 128,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """FedDif's first code base on Fashion-MNIST: two LSTM layers of 128 over the rows, last step -> C.

    216,330 parameters at the published 32x32x1 and C = 10.  `dropout`, between the two layers, is not in the paper.
    `torch.func.vmap` has no batching rule for an LSTM: it runs the clients one after the other and warns.
    """
    # with a single row the recurrent weights would never be used
    channels, _, width = image("lstm_rows", input_shape, at_least=2)
    return Network(RowReader(channels * width, hidden, 2, dropout), nn.Linear(hidden, num_classes, bias=head_bias))
