import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from unskew.data import text
from unskew.data.text import LENGTH, VOCABULARY
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.models import ABOUT, LOSS, TABLE, bag, build, options_of
from unskew.models.network import Network

ROOT = Path(__file__).resolve().parents[2]

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
NORMALISED = [name for name in TABLE if "norm" in options_of(name)]


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
    ("fcn", (1, 28, 28), 47, 206_647),
    ("lenet", (3, 32, 32), 10, 797_962),
    ("lenet", (3, 32, 32), 100, 815_332),
    ("feddif_cnn", (3, 32, 32), 10, 1_422_218),
    ("lstm_rows", (1, 32, 32), 10, 216_330),
    ("cnn_4", (3, 32, 32), 10, 1_126_950),
    ("hcct_mlp", (1, 28, 28), 10, 50_890),
    ("digit_model", (3, 28, 28), 10, 14_219_210),
    ("cnn_mnist", (1, 28, 28), 10, 121_642),
    ("cnn_cifar10", (3, 32, 32), 10, 139_714),
    ("bag_of_words", (200,), 2, 320_066),
    ("bilstm", (200,), 2, 1_593_858),
    ("pfl_cnn", (3, 32, 32), 10, 1_626_442),
    ("torch_cnn", (3, 32, 32), 10, 62_006),
]


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), PUBLISHED)
def test_a_published_network_has_the_published_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    """Spec A1.6 (FedDif), B1 (HCCT), D1 (FedDW); workloads A and E of the peers' page."""
    assert count(name, shape, classes) == parameters


def test_linear_models_have_one_weight_per_input_and_class_and_one_bias_per_class():
    """784*10 + 10 = 7,850; FedDif's linear 'FCN' on 32x32: 1024*10 + 10 = 10,250; on 8x8 digits: 64*10 + 10 = 650."""
    assert count("logistic", (1, 28, 28)) == 7_850
    assert count("feddif_fcn_linear", (1, 32, 32)) == 10_250
    assert count("svm", (64,)) == 650


def test_mlp_has_the_parameters_of_its_layers():
    """64*64+64 = 4,160 and 64*10+10 = 650: 4,810.  IFCA's 784-200-10: 784*200+200 = 157,000 and 2,010: 159,010.

    W2 is 784-200-200-10: 157,000 + 200*200+200 = 40,200 + 2,010 = 199,210.
    """
    assert count("mlp", (1, 8, 8)) == 4_810
    assert count("mlp", (1, 28, 28), hidden=(200,)) == 159_010
    assert count("fcn", (1, 28, 28)) == 199_210


def test_feddw_cnns_have_the_parameters_of_their_layers():
    """MNIST: conv 25*10+10 = 260, 10*25*20+20 = 5,020; 28 -> 24 -> 12 -> 8 -> 4, so 20*16 = 320 features.

    320*256+256 = 82,176; 256*128+128 = 32,896; 128*10+10 = 1,290.  Sum 121,642.
    CIFAR-10: conv 3*25*6+6 = 456, 6*25*16+16 = 2,416; 16*25 = 400 features, 400*256+256 = 102,656.  Sum 139,714.
    A norm adds two numbers a map: 2*(10 + 20) and 2*(6 + 16).
    """
    assert count("cnn_mnist", (1, 28, 28)) == 260 + 5_020 + 82_176 + 32_896 + 1_290 == 121_642
    assert count("cnn_cifar10", (3, 32, 32)) == 456 + 2_416 + 102_656 + 32_896 + 1_290 == 139_714
    assert count("cnn_mnist", (1, 28, 28), norm="group") == 121_642 + 60
    assert count("cnn_cifar10", (3, 32, 32), norm="group") == 139_714 + 44


def test_bilstm_has_the_parameters_of_its_layers():
    """Vectors 10,000*128; per direction 4 gates of 128*128 + 128*128 weights and two biases of 128: 132,096.

    256*128+128 = 32,896; 128*128+128 = 16,512; 128*2+2 = 258.  Sum 1,593,858, as published, however long the texts.
    """
    lstm = 2 * 4 * (128 * 128 + 128 * 128 + 2 * 128)
    assert count("bilstm", (LENGTH,), 2) == VOCABULARY * 128 + lstm + 32_896 + 16_512 + 258 == 1_593_858
    assert count("bilstm", (LENGTH,), 2, length=100) == 1_593_858
    assert count("bilstm", (200,), 2, words=500, embedding=16) == 500 * 16 + lstm - 2 * 4 * 128 * 112 + 49_666


def test_workload_w3_has_the_parameters_of_its_layers():
    """conv 3*25*32+32 = 2,432; conv 32*25*64+64 = 51,264; 1600*512+512 = 819,712; 512*10+10 = 5,130.

    Sum 878,538, the engine page's '0.88 M'.  Unpadded: a padded stack would have 4096 features, not 64*5*5 = 1600.
    """
    assert count("cnn_w3", (3, 32, 32)) == 878_538


def test_workload_w4_has_the_parameters_of_cnn_4():
    """conv 448 + 4,640 + 18,496 + 73,856; 2048*500+500 = 1,024,500; 5,010.  Sum 1,126,950: dropout has none."""
    assert count("cnn_w4", (3, 32, 32)) == 448 + 4_640 + 18_496 + 73_856 + 1_024_500 + 5_010


def test_cnn_small_has_the_parameters_of_its_layers():
    """Convolutions 9*16+16 = 160 and 16*9*32+32 = 4,640; head 64*10+10 = 650: 5,450 without the hidden layer.

    Hidden: 8x8 leaves 2x2 of 32, 128*64+64 = 8,256: 13,706.  28x28 leaves 7x7, 1568*64+64 = 100,416: 105,866.
    A norm adds 2*16 + 2*32 = 96.
    """
    assert count("cnn_small", (1, 8, 8)) == 13_706
    assert count("cnn_small", (1, 28, 28)) == 105_866
    assert count("cnn_small", (1, 8, 8), norm="batch") == count("cnn_small", (1, 8, 8), norm="group") == 13_802


def test_the_small_digit_model_has_the_parameters_of_its_layers():
    """w = 12: conv 3*25*12+12 = 912, 12*25*12+12 = 3,612, 12*25*24+24 = 7,224; 24*49*384+384 = 451,968;

    384*96+96 = 36,960; 96*10+10 = 970; norms 2*(12+12+24+384+96) = 1,056.  Sum 502,702.
    """
    parts = (912, 3_612, 7_224, 451_968, 36_960, 970, 1_056)
    assert count("digit_model", (3, 28, 28), width=12) == sum(parts) == 502_702
    assert count("digit_model", (3, 28, 28), width=12, norm="group") == 502_702


def resnet18_parameters(classes: int) -> int:
    """Stem 3*9*64 + norm 128 = 1,856.

    A stage of c maps: 4 convolutions of 9*c*c (the first from c/2 after stage 1), 4 norms of 2c, and after stage 1 a
    shortcut of c*c/2 + 2c.  Head 512*C + C.
    """
    total = 3 * 9 * 64 + 2 * 64 + 512 * classes + classes
    for c in (64, 128, 256, 512):
        inside = c if c == 64 else c // 2
        total += 9 * inside * c + 3 * 9 * c * c + 4 * 2 * c
        if inside != c:
            total += inside * c + 2 * c
    return total


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet18_has_the_parameters_of_its_layers(norm: str) -> None:
    """See resnet18_parameters; C = 10: 11,173,962 .

    Spec DI-B10 says 11.18M for ten outputs: with ImageNet's 7x7 stem, 3*64*(49 - 9) = 7,680 more, 11,181,642.
    """
    assert count("resnet18", (3, 32, 32), norm=norm) == resnet18_parameters(10) == 11_173_962
    assert count("resnet18", (3, 32, 32), 100, norm=norm) == resnet18_parameters(100)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_feddw_resnet18_has_biased_convolutions_and_a_neck(norm: str) -> None:
    """Biases: stem 64, per stage 4c, shortcuts 128+256+512: 64 + 4*960 + 896 = 4,800.

    Neck 512*256+256 = 131,328 and 256*128+128 = 32,896; the head has 128*10+10 = 1,290 in place of 5,130.  Sum
    11,339,146; with 100 classes 90*129 = 11,610 more.
    """
    options = {"neck": (256, 128), "conv_bias": True, "norm": norm}
    expected = 11_173_962 + 4_800 + 131_328 + 32_896 + 1_290 - 5_130
    assert count("resnet18", (3, 32, 32), **options) == expected == 11_339_146
    assert count("resnet18", (3, 32, 32), 100, **options) == 11_339_146 + 11_610


NECK = 256 * 128 + 128 + 128 * 10 + 10  # what follows the first layer of FedDW's neck, at C = 10


def shufflenet_body() -> int:
    """Stem 3*24 + 48.  A unit from i to m new maps, q = m/4 between: 1x1 of i*q/2 (the first of all is not split),

    depthwise 9*q, 1x1 of q*m/2, norms 2*(2q + m).  The first unit of a stage makes m = out - in maps and puts its input
    behind them.
    """
    total, inside = 3 * 24 + 48, 24
    for outside, units in ((200, 4), (400, 8), (800, 4)):
        for i in range(units):
            m = outside - inside if i == 0 else outside
            q = m // 4
            total += inside * q // (1 if inside == 24 else 2) + 9 * q + q * m // 2 + 2 * (2 * q + m)
            inside = outside
    return total


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_shufflenet_has_the_parameters_of_its_layers(norm: str) -> None:
    """See shufflenet_body: 879,572.  800*256+256 = 205,056 and NECK 34,186: 1,118,814; without a neck 800*10+10."""
    assert shufflenet_body() == 879_572
    assert count("shufflenet", (3, 32, 32), norm=norm) == 879_572 + 205_056 + NECK == 1_118_814
    assert count("shufflenet", (3, 32, 32), norm=norm, neck=()) == 879_572 + 8_010


def mobilenet_body(shrink: int) -> int:
    """Stem 27*32 + 64.  A block from i to o maps, w = expansion * i: i*w + 9*w + w*o, norms 2*(2w + o); where stride is

    1 and i != o a shortcut of i*o + 2o.  Last convolution i*l + 2l.
    """
    total, inside = 27 * 32 + 64, 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, full, blocks, stride in stages:
        for i in range(blocks):
            o, w = full // shrink, expansion * inside
            total += inside * w + 9 * w + w * o + 2 * (2 * w + o)
            if inside != o and (stride == 1 or i > 0):
                total += inside * o + 2 * o
            inside = o
    return total + (inside + 2) * (1280 // shrink)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_mobilenet_has_the_parameters_of_its_layers(norm: str) -> None:
    """See mobilenet_body: 597,768 at half width.  640*256+256 = 164,096 and NECK 34,186: 796,050.

    At full width and without a neck, 1280*10+10 = 12,810 more than the body: 2,296,922.
    """
    assert mobilenet_body(2) == 597_768
    assert count("mobilenet_v2", (3, 32, 32), norm=norm) == 597_768 + 164_096 + NECK == 796_050
    assert count("mobilenet_v2", (3, 32, 32), norm=norm, shrink=1, neck=()) == mobilenet_body(1) + 12_810 == 2_296_922


@pytest.mark.parametrize("name", TABLE)
def test_a_head_without_bias_saves_one_parameter_per_class(name: str) -> None:
    shape = shape_of(name)
    assert count(name, shape, 7) - count(name, shape, 7, head_bias=False) == 7


# ---- what every network keeps to ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_a_network_is_its_head_after_its_body(name: str) -> None:
    network = fresh(name, shape_of(name)).eval()
    x = batch(shape_of(name))
    features = network.body(x)
    positions = (12,) if name in POSITIONS else ()
    assert features.shape == (4, *positions, network.head.in_features)
    assert isinstance(network.head, nn.Linear)
    assert torch.equal(network(x), network.head(features))
    assert network(x).shape == (4, *positions, 10)
    assert {key.split(".")[0] for key in network.state_dict()} <= {"body", "head"}


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


@pytest.mark.parametrize("name", TABLE)
def test_a_functional_call_uses_the_parameters_it_is_given(name: str) -> None:
    """Executors never load parameters into a module: a module with a hidden copy of its weights would ignore them."""
    shape = shape_of(name)
    mine, other = fresh(name, shape).eval(), fresh(name, shape, seed=5).eval()
    x = batch(shape)
    given_parameters = dict(other.named_parameters()) | dict(other.named_buffers())
    assert torch.equal(functional_call(mine, given_parameters, (x,)), other(x))
    assert not torch.equal(mine(x), other(x))


@pytest.mark.parametrize("name", TABLE)
def test_the_initial_weights_depend_on_the_key_alone(name: str) -> None:
    shape = shape_of(name)
    torch.rand(3)  # what was drawn before must not matter
    first, second = fresh(name, shape).state_dict(), fresh(name, shape).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", TABLE)
def test_building_draws_from_the_ambient_generator_without_reseeding_it(name: str) -> None:
    with Key(3).ambient():
        build(name, shape_of(name), 10)
        after_one = torch.get_rng_state()
        build(name, shape_of(name), 10)
        assert not torch.equal(after_one, torch.get_rng_state())


@pytest.mark.parametrize("name", [name for name in TABLE if "dropout" in options_of(name)])
def test_dropout_acts_in_training_only(name: str) -> None:
    options = {"dropout": 0.5} | ({"norm": "none"} if name in NORMALISED else {})
    network = fresh(name, shape_of(name), **options)
    x = batch(shape_of(name), 8)
    with Key(4).ambient():
        assert not torch.equal(network(x), network(x))
        network.eval()
        assert torch.equal(network(x), network(x))


@pytest.mark.parametrize("name", NORMALISED)
def test_group_norm_keeps_no_buffers_and_batch_norm_does(name: str) -> None:
    grouped = fresh(name, shape_of(name), norm="group")
    assert any(isinstance(m, nn.GroupNorm) for m in grouped.modules())
    assert not list(grouped.buffers())
    batched = fresh(name, shape_of(name), norm="batch")
    assert any("running_var" in key for key, _ in batched.named_buffers())


@pytest.mark.parametrize("name", NORMALISED)
def test_with_group_norm_an_image_does_not_depend_on_the_others_in_its_batch(name: str) -> None:
    options: dict[str, object] = {"norm": "group"} | ({"dropout": 0.0} if "dropout" in options_of(name) else {})
    network = fresh(name, shape_of(name), **options)
    x = batch(shape_of(name), 3)
    with torch.no_grad():
        torch.testing.assert_close(network(x)[:1], network(x[:1]), rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["logistic", "svm", "mlp", "cnn_small", "lstm_rows"]),
    channels=st.integers(1, 3),
    height=st.integers(8, 33),
    width=st.integers(8, 33),
    classes=st.integers(2, 12),
)
def test_the_small_networks_take_any_image_from_8x8_up(
    name: str, channels: int, height: int, width: int, classes: int
) -> None:
    shape = (channels, height, width)
    assert fresh(name, shape, classes)(batch(shape, 2)).shape == (2, classes)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in TEXTS])
def test_an_image_need_not_be_square(name: str) -> None:
    channels, height, width = shape_of(name)
    shape = (channels, height + 1, width + 6)
    assert fresh(name, shape)(batch(shape)).shape == (4, 10)


# Spec A1.6, B1 and D1, letter by letter: Conv, Norm, Relu, max Pool, Dropout, Flatten, Linear.
ORDER = {
    "logistic": "F",
    "fcn": "F LR LR",
    "hcct_mlp": "F LDR",
    "lenet": "CRP CRP F LR LR",
    "feddif_cnn": "CRP CRP CRP F LR",
    "cnn_4": "CR CRP CRP CRP F LRD",
    "digit_model": "CNRP CNRP CNR F LNR LNR",
    "cnn_mnist": "CPR CDPR F LR L",
    "cnn_cifar10": "CRP CRP F LR L",
    "pfl_cnn": "CR CRP D F LRD",
    "torch_cnn": "CRP CRP F LR LR",
    "cnn_w3": "CRP CRP F LR",
    "cnn_w4": "CR CRP CRP CRP F LR",
    "cnn_small": "CRP CRP F LR",
}
LETTER = {
    nn.Conv2d: "C",
    nn.BatchNorm1d: "N",
    nn.BatchNorm2d: "N",
    nn.ReLU: "R",
    nn.MaxPool2d: "P",
    nn.Dropout: "D",
    nn.Flatten: "F",
    nn.Linear: "L",
}


@pytest.mark.parametrize("name", ORDER)
def test_a_body_has_its_layers_in_the_published_order(name: str) -> None:
    body = fresh(name, shape_of(name)).body
    layers = body if isinstance(body, nn.Sequential) else [body]
    assert "".join(LETTER[type(layer)] for layer in layers) == ORDER[name].replace(" ", "")


@pytest.mark.parametrize(
    ("name", "shape", "rates"),
    [
        ("hcct_mlp", (1, 28, 28), [0.5]),
        ("cnn_4", (3, 32, 32), [0.25]),
        ("cnn_mnist", (1, 28, 28), [0.5]),
        ("pfl_cnn", (3, 32, 32), [0.25, 0.5]),
        ("bilstm", (200,), [0.2, 0.2]),
    ],
)
def test_dropout_rates_are_the_published_ones(name: str, shape: tuple[int, ...], rates: list[float]) -> None:
    assert [m.p for m in fresh(name, shape).modules() if isinstance(m, nn.Dropout)] == rates


# ---- single networks ------------------------------------------------------------------------------------------------


def test_an_lstm_reads_rows_from_top_to_bottom():
    """The features are the last of the steps, and swapping the two rows changes them."""
    network = fresh("lstm_rows", (1, 2, 5)).eval()
    x = batch((1, 2, 5))
    rows, _ = network.body.lstm(x[:, 0])
    assert torch.equal(network.body(x), rows[:, -1])
    assert not torch.equal(network.body(x), network.body(x.flip(2)))


def test_double_softmax_returns_probabilities_of_the_same_logits():
    plain = fresh("hcct_mlp", (1, 8, 8)).eval()
    doubled = fresh("hcct_mlp", (1, 8, 8), double_softmax=True).eval()
    x = batch((1, 8, 8))
    assert torch.equal(doubled(x), doubled.head(doubled.body(x)).softmax(1))
    assert torch.equal(doubled(x), plain(x).softmax(1))


@pytest.mark.parametrize("name", [name for name in TABLE if name != "hcct_mlp"])
def test_no_other_network_ends_in_a_softmax(name: str) -> None:
    network = fresh(name, shape_of(name))
    assert not network.softmax
    assert not any(isinstance(m, nn.Softmax | nn.LogSoftmax) for m in network.modules())


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


def test_feddw_features_reach_the_head_without_an_activation():
    """Half of the features of a random input are negative; after a ReLU none would be."""
    for name in ("cnn_mnist", "cnn_cifar10", "shufflenet", "mobilenet_v2", "bilstm"):
        assert (fresh(name, shape_of(name)).body(batch(shape_of(name))) < 0).any()
    assert (fresh("resnet18", (3, 8, 8), neck=(16, 12)).body(batch((3, 8, 8))) < 0).any()


def test_a_residual_block_with_a_silent_residual_is_the_relu_of_its_input():
    """Scale and shift of the second norm at zero: relu(0 + x); with stride 1 and equal widths the shortcut is x."""
    block = fresh("resnet18", (3, 8, 8)).body.block1a
    nn.init.zeros_(block.residual.norm2.weight)
    x = batch((64, 4, 4))
    assert torch.equal(block(x), x.relu())


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


def test_shufflenet_mixes_its_groups():
    """Of 4 maps in 2 groups the order becomes 0, 2, 1, 3, so that each group of the next layer sees both."""
    shuffle = fresh("shufflenet", (3, 8, 8)).body.unit1_2.residual.shuffle
    assert shuffle(torch.arange(4.0).view(1, 4, 1, 1)).flatten().tolist() == [0, 2, 1, 3]
    assert not hasattr(fresh("shufflenet", (3, 8, 8)).body.unit1_1.residual, "shuffle")


def test_a_mobilenet_block_with_a_silent_residual_is_its_shortcut_or_nothing():
    """Scale of the last norm at zero: stride 1 and equal widths give the input itself, stride 2 gives 0; no ReLU."""
    body = fresh("mobilenet_v2", (3, 8, 8)).body
    for block in (body.block3_2, body.block3_1):
        nn.init.zeros_(block.residual.norm3.weight)
    assert torch.equal(body.block3_2(batch((16, 4, 4))), batch((16, 4, 4)))
    assert not body.block3_1(batch((12, 4, 4))).any()


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
    assert bag.FIRST_WORD == text.FIRST_WORD
    network = fresh("bag_of_words", (5,), classes=2, words=9)
    vectors = network.body.embedding.weight
    x = torch.tensor([[3, 4, 5, 0, 0], [5, 1, 3, 4, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    torch.testing.assert_close(network.body(x)[:2], vectors[[3, 4, 5]].mean(0).expand(2, -1))
    assert not network.body(x)[2:].any()
    torch.testing.assert_close(network(x)[2:], network.head.bias.expand(2, -1))


def test_a_bag_of_words_names_what_it_cannot_read():
    with pytest.raises(ConfigError, match=r"model bag_of_words reads texts, .*got \(1, 28, 28\); use mlp"):
        build("bag_of_words", (1, 28, 28), 2)
    with pytest.raises(ConfigError, match=r"reads token ids, int64, but the data are torch.float32"):
        fresh("bag_of_words", (4,))(torch.rand(2, 4))
    with pytest.raises(ConfigError, match=r"has vectors for 20 words, and the data hold token id 20"):
        fresh("bag_of_words", (4,), words=20)(torch.tensor([[0, 19, 20, 1]]))


def test_bilstm_of_a_length_is_bilstm_on_texts_that_were_cut_there():
    long, short = fresh("bilstm", (9,), length=4).eval(), fresh("bilstm", (4,)).eval()
    x = batch((9,))
    assert torch.equal(long(x), short(x[:, :4]))
    assert not torch.equal(fresh("bilstm", (9,)).eval()(x), long(x))


def test_bilstm_names_what_it_cannot_read():
    with pytest.raises(ConfigError, match=r"model bilstm reads texts, .*got \(1, 28, 28\); use mlp"):
        build("bilstm", (1, 28, 28), 2)
    with pytest.raises(ConfigError, match=r"reads token ids, int64, but the data are torch.float32"):
        fresh("bilstm", (4,))(torch.rand(2, 4))
    with pytest.raises(
        ConfigError, match=r"has vectors for 20 words, and the data hold token id 20; raise option words"
    ):
        fresh("bilstm", (4,), words=20)(torch.tensor([[0, 19, 20, 1]]))


def test_a_dropout_of_zero_leaves_no_layer_behind():
    assert not any(isinstance(m, nn.Dropout) for m in fresh("cnn_4", (3, 8, 8), dropout=0.0).modules())
    assert not any(isinstance(m, nn.Dropout) for m in fresh("cnn_w4", (3, 8, 8)).modules())
    assert any(isinstance(m, nn.Dropout) for m in fresh("cnn_4", (3, 8, 8)).modules())


# ---- the table and its refusals -------------------------------------------------------------------------------------


def test_every_network_has_one_line_of_description_and_known_losses():
    assert list(ABOUT) == list(TABLE)
    assert all(line and "\n" not in line for line in ABOUT.values())
    assert LOSS["svm"] == "multi_margin"
    assert set(LOSS) <= set(TABLE)


def test_listing_the_networks_imports_neither_pytorch_nor_pydantic():
    code = (
        "import sys, unskew;"
        "before = set(sys.modules);"
        "import unskew.models;"
        "heavy = {'torch', 'pydantic', 'numpy'} & (set(sys.modules) - before);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_options_of_gives_names_and_defaults():
    assert options_of("mlp") == {"hidden": (64,), "dropout": 0.0, "head_bias": True}
    assert options_of("logistic") == {"head_bias": True}


def test_a_list_is_taken_for_a_tuple_because_toml_has_no_tuples():
    assert count("mlp", (1, 8, 8), hidden=[32, 16]) == count("mlp", (1, 8, 8), hidden=(32, 16))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "lenet",
            (1, 28, 28),
            "model lenet needs images .* of at least 32x32 pixels, got \\(1, 28, 28\\); use cnn_sm",
        ),
        ("lenet", (3, 32, 31), "of at least 32x32 pixels, got \\(3, 32, 31\\)"),
        ("cnn_mnist", (1, 27, 28), "at least 28x28"),
        ("cnn_small", (1, 7, 8), "model cnn_small needs .* at least 8x8 pixels, got \\(1, 7, 8\\); use mlp"),
        ("digit_model", (3, 3, 3), "at least 4x4"),
        ("shufflenet", (1, 7, 8), "model shufflenet needs .* at least 8x8"),
        ("mobilenet_v2", (1, 8, 7), "model mobilenet_v2 needs .* at least 8x8"),
        ("lstm_rows", (64,), "needs images \\(channels, height, width\\).*got \\(64,\\)"),
        ("mlp", (), "input_shape of model mlp must be positive integers"),
        ("mlp", (1, 0), "input_shape of model mlp must be positive integers"),
    ],
)
def test_a_shape_a_network_cannot_take_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, shape, 10)


@pytest.mark.parametrize("name", SMALLEST)
def test_one_pixel_less_than_the_smallest_image_is_refused(name: str) -> None:
    channels, height, width = SMALLEST[name]
    with pytest.raises(ConfigError, match=f"at least {height}x{width}"):
        build(name, (channels, height - 1, width), 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lennet", {}, "unknown model 'lennet'; did you mean lenet\\?"),
        (
            "mlp",
            {"hiden": (3,)},
            "model mlp has no option hiden; did you mean hidden\\? \\(mlp has: hidden, dropout, hea",
        ),
        ("logistic", {"dropout": 0.1}, "model logistic has no option dropout \\(logistic has: head_bias\\)"),
        ("mlp", {"dropout": 1.0}, "option dropout of model mlp should be less than 1, got 1.0"),
        ("mlp", {"dropout": -0.1}, "greater than or equal to 0, got -0.1"),
        ("mlp", {"hidden": (64, 0)}, "option hidden of model mlp .*got \\(64, 0\\)"),
        ("mlp", {"hidden": 64}, "option hidden of model mlp .*tuple, got 64"),
        ("mlp", {"head_bias": "false"}, "option head_bias of model mlp .*boolean, got 'false'"),
        ("cnn_small", {"norm": "layer"}, "option norm of model cnn_small .*'batch', 'group' or 'none', got 'layer'"),
        ("resnet18", {"norm": "none"}, "'batch' or 'group', got 'none'"),
        ("cnn_small", {"groups": 4}, "option groups of model cnn_small means something only with norm = 'group'"),
        ("cnn_small", {"norm": "group", "groups": 5}, "must divide the channels .* got 5 for 16 channels"),
        ("digit_model", {"norm": "group", "width": 8, "groups": 3}, "got 3 for 8 channels"),
    ],
)
def test_unknown_names_and_bad_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, (3, 8, 8), 10, **options)


@pytest.mark.parametrize("classes", [0, True, 10.0])
def test_a_network_without_outputs_is_refused(classes: int) -> None:
    with pytest.raises(ConfigError, match="num_classes of model mlp must be an integer of at least 1"):
        build("mlp", (64,), classes)


def test_a_network_may_have_one_output() -> None:
    assert fresh("mlp", (4,), 1)(torch.zeros(3, 4)).shape == (3, 1)


def test_a_network_of_ones_own_is_named_by_module_and_factory() -> None:
    network = build("unskew.models.mlp:mlp", (1, 8, 8), 10, hidden=[5])
    assert sum(p.numel() for p in network.parameters()) == 64 * 5 + 5 + 5 * 10 + 10
    with pytest.raises(ConfigError, match="cannot be imported from nowhere:net: No module named 'nowhere'"):
        build("nowhere:net", (1, 8, 8), 10)


# ---- networks of one's own -----------------------------------------------------------------------------------------


class Fixed(nn.Module):
    """A network as a newcomer writes it: sizes of its own, an option without a type."""

    def __init__(self, hidden=32):  # type: ignore[no-untyped-def]
        super().__init__()
        self.stack = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x)  # type: ignore[no-any-return]


def by_position(shape, classes, width=8, layers=(4,)) -> nn.Module:  # type: ignore[no-untyped-def]
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], width), nn.Linear(width, classes))


def later(input_shape: "tuple[int, ...]", num_classes: "int", *, width: "int" = 8, of: "Undefined" = None) -> nn.Module:  # type: ignore[name-defined]
    return nn.Linear(width, num_classes)


def raising(input_shape: tuple[int, ...], num_classes: int, *, width: int = 8) -> nn.Module:
    raise RuntimeError("no such\nwidth")


def listing(input_shape, num_classes):  # type: ignore[no-untyped-def]
    return [num_classes]


def one_size(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(input_shape[0], 10)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of this very module, under which a factory in it can be found."""
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    return "mine"


def test_an_option_without_a_type_is_taken_as_it_is(mine: str) -> None:
    assert build("mine:Fixed", (1, 8, 8), 10, hidden=5).stack[1].out_features == 5  # type: ignore[union-attr,index]
    assert build("mine:by_position", (1, 8, 8), 3, width=6, layers=[1])[1].out_features == 6  # type: ignore[index]
    assert options_of("mine:Fixed") == {"hidden": 32}
    assert options_of("mine:by_position") == {"width": 8, "layers": (4,)}


def test_types_that_cannot_be_read_are_not_checked(mine: str) -> None:
    assert build("mine:later", (1, 8, 8), 3, width=6).in_features == 6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mine:Fixed", {"hiden": 5}, "model mine:Fixed has no option hiden; did you mean hidden\\?"),
        ("mine:Fixed", {"hidden": "x"}, "model mine:Fixed cannot be built .*\\(1, 8, 8\\) and 10 classes: TypeError: "),
        ("mine:raising", {"width": "8"}, "option width of model mine:raising should be a valid integer, got '8'"),
        ("mine:raising", {}, "cannot be built for .*: RuntimeError: no such width"),
        ("mine:listing", {}, "model mine:listing must make a torch.nn.Module, got list"),
        ("mine:one_size", {}, "must take \\(input_shape, num_classes\\) or nothing, .*its parameters are \\(input_sha"),
        (
            "mine:ROOT",
            {},
            "model 'mine:ROOT' must be a torch.nn.Module class, .*; mine:ROOT is a value of type PosixPath",
        ),
    ],
)
def test_what_is_wrong_with_a_network_of_ones_own_is_one_sentence(
    mine: str, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(name, (1, 8, 8), 10, **options)
    assert "\n" not in str(caught.value)
