"""Networks that are not a plain stack of layers train as they do in PyTorch."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.errors import ConfigError
from unskew.keys import Key

DRAW = Key(0).generator()
X, TOKENS = torch.randn(120, 6, generator=DRAW), torch.randint(0, 9, (120, 5), generator=DRAW)
Y = (X.sum(1) > 0).long()


def final(model: Any, x: Tensor = X, **local: Any) -> list[tuple[int, float]]:
    method = us.FedAvg(local=us.SgdConfig(lr=0.1, batch_size=16, **local))
    history = us.simulate(method, data=(x, Y), model=model, split=us.IID(num_clients=3), rounds=2, progress=False)
    return history.curve("fedavg", "global.loss")


def normed() -> nn.Module:
    """Old weight normalisation keeps a weight that its last pass made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 2))


class Bag(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x).mean(1))
        return out


def test_a_module_that_made_weights_is_copied_as_it_is() -> None:
    with Key(1).ambient():
        module = normed()
    module(X[:3])
    start = {n: t.clone() for n, t in module.state_dict().items()}

    def again() -> nn.Module:
        other = normed()
        other.load_state_dict(start)
        return other

    assert final(module) == final(again)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sparse_gradients_are_those_of_a_dense_layer(optimizer: Any) -> None:
    sparse, dense = (final(functools.partial(Bag, of), TOKENS, optimizer=optimizer) for of in (True, False))
    assert sparse == dense


def test_what_torchscript_compiled_is_refused(recwarn: pytest.WarningsRecorder) -> None:
    script: Callable[..., Any] = torch.jit.script
    with pytest.raises(ConfigError, match="TorchScript; give the module"):
        final(script(nn.Sequential(nn.Linear(6, 2))))


def test_a_hugging_face_classifier_runs_as_it_comes() -> None:
    bert = pytest.importorskip("transformers", reason="the extra diffusion has it")
    config = bert.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    losses = final(lambda input_shape, num_classes: bert.BertForSequenceClassification(config), TOKENS)
    assert losses[-1][1] < losses[0][1]
