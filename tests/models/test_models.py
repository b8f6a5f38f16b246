import pytest
import torch
from torch import Tensor, nn

from unskew.data import inputs
from unskew.keys import Key
from unskew.models import TABLE, build, sequences
from unskew.models.network import Network

# The smallest image each network accepts; those not named here take 8x8x1.
SMALLEST = {
    "lenet": (3, 32, 32),
    "torch_cnn": (3, 32, 32),
    "cnn_w3": (3, 32, 32),
    "cnn_cifar10": (3, 32, 32),
    "cnn_mnist": (1, 28, 28),
    "pfl_cnn": (3, 32, 32),
    "digit_model": (3, 4, 4),
    "lstm_rows": (1, 2, 2),
}
# Networks that read token ids, and how many of them here.
TEXTS = {"bag_of_words": (12,), "bilstm": (12,), "char_lstm": (12,)}
# Those with a row of outputs for each token.
POSITIONS = {"char_lstm"}


def fresh(name: str, shape: tuple[int, ...], classes: int = 10, seed: int = 0, **options: object) -> Network:
    """A network drawn at one address."""
    with Key(seed).ambient():
        network = build(name, shape, classes, **options)
    assert isinstance(network, Network)
    return network


def shape_of(name: str) -> tuple[int, ...]:
    return (SMALLEST | TEXTS).get(name, (1, 8, 8))


def batch(shape: tuple[int, ...], n: int = 4, seed: int = 1) -> Tensor:
    """Images, or token ids for a single dimension."""
    if len(shape) == 1:
        return torch.randint(10, (n, *shape), generator=Key(seed).generator())
    return torch.randn(n, *shape, generator=Key(seed).generator())


def count(name: str, shape: tuple[int, ...], classes: int = 10, **options: object) -> int:
    """Trainable parameters; on the meta device, so that 14 million of them cost nothing."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, shape, classes, **options).parameters())


# ---- parameter counts ----------------------------------------------------------------------------------------------

PUBLISHED = [
    ("fcn", (1, 28, 28), 47, {}, 206_647),
    ("lenet", (3, 32, 32), 10, {}, 797_962),
    ("lenet", (3, 32, 32), 100, {}, 815_332),
    ("feddif_cnn", (3, 32, 32), 10, {}, 1_422_218),
    ("lstm_rows", (1, 32, 32), 10, {}, 216_330),
    ("cnn_4", (3, 32, 32), 10, {}, 1_126_950),
    ("hcct_mlp", (1, 28, 28), 10, {}, 50_890),
    ("digit_model", (3, 28, 28), 10, {}, 14_219_210),
    ("cnn_mnist", (1, 28, 28), 10, {}, 121_642),
    ("cnn_cifar10", (3, 32, 32), 10, {}, 139_714),
    ("bag_of_words", (200,), 2, {}, 320_066),
    ("bilstm", (200,), 2, {}, 1_593_858),
    ("pfl_cnn", (3, 32, 32), 10, {}, 1_626_442),
    ("torch_cnn", (3, 32, 32), 10, {}, 62_006),
    ("logistic", (1, 28, 28), 10, {}, 784 * 10 + 10),
    ("svm", (64,), 10, {}, 64 * 10 + 10),
    ("mlp", (1, 8, 8), 10, {}, 64 * 64 + 64 + 64 * 10 + 10),
    ("fcn", (1, 28, 28), 10, {}, 199_210),
    ("cnn_w3", (3, 32, 32), 10, {}, 2_432 + 51_264 + 819_712 + 5_130),
    ("cnn_w4", (3, 32, 32), 10, {}, 448 + 4_640 + 18_496 + 73_856 + 1_024_500 + 5_010),
    ("cnn_small", (1, 8, 8), 10, {}, 160 + 4_640 + 8_256 + 650),
    ("resnet18", (3, 32, 32), 10, {}, 11_173_962),
    ("shufflenet", (3, 32, 32), 10, {}, 879_572 + 205_056 + 34_186),
    ("mobilenet_v2", (3, 32, 32), 10, {}, 597_768 + 164_096 + 34_186),
    # Options of papers: FedDW's ResNet, the digit model of width 12, IFCA's perceptron.
    ("resnet18", (3, 32, 32), 10, {"neck": (256, 128), "conv_bias": True}, 11_339_146),
    ("digit_model", (3, 28, 28), 10, {"width": 12}, 502_702),
    ("mlp", (1, 28, 28), 10, {"hidden": (200,)}, 159_010),
    ("cnn_mnist", (1, 28, 28), 10, {"norm": "group"}, 121_642 + 60),
    ("bilstm", (200,), 10, {"length": 100}, 1_594_890),
    ("shufflenet", (3, 32, 32), 10, {"neck": ()}, 879_572 + 8_010),
    ("mobilenet_v2", (3, 32, 32), 10, {"shrink": 1, "neck": ()}, 2_296_922),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "parameters"), PUBLISHED)
def test_a_published_network_has_the_published_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, object], parameters: int
) -> None:
    """Spec A1.6 (FedDif), B1 (HCCT), D1 (FedDW); workloads A and E of the peers' page."""
    assert count(name, shape, classes, **options) == parameters


@pytest.mark.parametrize("name", TABLE)
def test_a_head_without_bias_saves_one_parameter_per_class(name: str) -> None:
    shape = shape_of(name)
    assert count(name, shape, 7) - count(name, shape, 7, head_bias=False) == 7


# ---- what every network keeps to ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_gradients_reach_every_parameter(name: str) -> None:
    """Of vectors only presence is asked: a batch norm takes the bias before it out again, so its gradient is zero."""
    network = fresh(name, shape_of(name))
    with Key(2).ambient():
        logits = network(batch(shape_of(name), 8))
        last = logits[:, -1] if name in POSITIONS else logits
        loss = nn.functional.cross_entropy(last, torch.arange(8) % 10)
    loss.backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        if parameter.dim() > 1:
            assert parameter.grad.abs().max() > 0, key


# ---- single networks ------------------------------------------------------------------------------------------------


def test_an_lstm_reads_rows_from_top_to_bottom():
    """The features are the last of the steps, and swapping the two rows changes them."""
    network = fresh("lstm_rows", (1, 2, 5)).eval()
    x = batch((1, 2, 5))
    rows, _ = network.body.lstm(x[:, 0])
    assert torch.equal(network.body(x), rows[:, -1])
    assert not torch.equal(network.body(x), network.body(x.flip(2)))


def test_feddif_cnn_starts_he_normal_with_zero_biases():
    """He-normal: standard deviation sqrt(2 / fan in); fc1 at 32x32 has fan in 4096, so .02210, over a million draws.

    The standard error of the deviation is sd / sqrt(2n): 1.5e-5, and a uniform law would have kurtosis 1.8, not 3.
    """
    network = fresh("feddif_cnn", (3, 32, 32))
    weight = network.body.fc1.weight.detach()
    assert weight.std().item() == pytest.approx((2 / 4096) ** 0.5, rel=5e-3)
    assert (weight / weight.std()).pow(4).mean().item() == pytest.approx(3.0, abs=0.1)
    assert all(not p.any() for key, p in network.named_parameters() if key.endswith("bias"))


def test_pfl_cnn_starts_glorot_uniform_with_zero_biases():
    """fc1: bound sqrt(6 / (12544 + 128)) = .02176; of 1.6 million draws the largest is within 1e-4 of it."""
    network = fresh("pfl_cnn", (3, 32, 32))
    bound = (6 / (12_544 + 128)) ** 0.5
    assert bound * 0.9999 < network.body.fc1.weight.abs().max().item() <= bound
    assert all(not p.any() for key, p in network.named_parameters() if key.endswith("bias"))


def test_a_shufflenet_unit_of_stride_two_puts_its_averaged_input_behind():
    """With a silent residual the first 176 maps are 0 and the last 24 the input's 3x3 means, which count the rim as 0.

    Of ones on 4x4, padded by one and taken at every second place, the corner covers 4 of 9, an edge 6, the middle 9.
    """
    unit = fresh("shufflenet", (3, 8, 8)).body.unit1_1
    nn.init.zeros_(unit.residual.norm3.weight)
    out = unit(torch.ones(2, 24, 4, 4))
    assert out.shape == (2, 200, 2, 2)
    assert not out[:, :176].any()
    torch.testing.assert_close(out[:, 176:], torch.tensor([[4.0, 6.0], [6.0, 9.0]]).div(9).expand(2, 24, 2, 2))


def test_bilstm_reads_both_ways_and_means_over_its_steps():
    """The features are fc2 of the mean of relu(fc1) over steps whose halves are the two directions' outputs."""
    network = fresh("bilstm", (5,)).eval()
    x = batch((5,))
    steps, _ = network.body.lstm.lstm(network.body.words.embedding(x))
    assert steps.shape == (4, 5, 256)
    torch.testing.assert_close(network.body(x), network.body.fc2(network.body.fc1(steps).relu().mean(1)))
    last = x.clone()
    last[:, -1] = 3  # the first step's backward half has read to the end
    changed, _ = network.body.lstm.lstm(network.body.words.embedding(last))
    assert torch.equal(changed[:, 0, :128], steps[:, 0, :128])
    assert not torch.equal(changed[:, 0, 128:], steps[:, 0, 128:])


def test_a_bag_of_words_is_the_mean_of_known_words_whatever_their_order():
    """Vectors 3, 4, 5 count; padding (0) and a word outside the vocabulary (1) do not."""
    assert sequences.FIRST_WORD == inputs.FIRST_WORD
    network = fresh("bag_of_words", (5,), classes=2, words=9)
    vectors = network.body.embedding.weight
    x = torch.tensor([[3, 4, 5, 0, 0], [5, 1, 3, 4, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    torch.testing.assert_close(network.body(x)[:2], vectors[[3, 4, 5]].mean(0).expand(2, -1))
    assert not network.body(x)[2:].any()
    torch.testing.assert_close(network(x)[2:], network.head.bias.expand(2, -1))


# ---- the table and its refusals -------------------------------------------------------------------------------------


# ---- networks of one's own -----------------------------------------------------------------------------------------
