"""Copies of rows are told from rows that are alike by chance."""

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from unskew.data import copies as copies_of
from unskew.data import own
from unskew.data.copies import MOST_COLUMNS, Copies, copies, repeated
from unskew.errors import DataWarning


def divided(columns: list[np.ndarray], labels: np.ndarray, seed: int) -> Copies:
    """A quarter of the rows is for testing, drawn at random."""
    test = np.random.default_rng(seed).permutation(len(labels)) < len(labels) // 4
    return copies([c[~test] for c in columns], [c[test] for c in columns], labels[~test], labels[test])


@pytest.mark.parametrize("copied", [20, 100, 300])
@pytest.mark.parametrize("seed", range(5))
def test_copies_of_measurements_are_found_whatever_their_share(copied: int, seed: int) -> None:
    """A copy is in the other part with probability 2 (1/4) (3/4): 7.5 of 20, whatever repeats within training."""
    rng = np.random.default_rng(seed)
    rows = np.r_[np.arange(600), np.arange(copied)]
    columns = [rng.normal(size=600)[rows], rng.normal(size=600)[rows]]
    found = divided(columns, rng.integers(0, 2, 600)[rows], seed)
    assert found.beyond_chance
    assert found.expected < 0.01
    assert found.seen == pytest.approx(0.375 * copied, abs=4 * np.sqrt(copied / 4))


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_coarse_columns_are_alike_by_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    years, tenths, y = rng.normal(60, 10, 600).round(), rng.normal(size=600).round(1), rng.integers(0, 2, 600)
    assert not divided([years, tenths], y, seed).beyond_chance
    assert not divided([years], y, seed).beyond_chance
    codes = (rng.pareto(1, 600) * 300).round()  # many that occur once, and as many that occur twice
    sex = np.array(["f", "m", None], object)[rng.integers(0, 3, 600)]
    assert not divided([codes, sex], y, seed).beyond_chance
    assert not divided([np.arange(600) % 2.0], np.arange(600) % 2, seed).beyond_chance
    severity = rng.normal(size=600)
    answers = [(severity + rng.normal(size=600) / 2).round().clip(-2, 2) for _ in range(8)]
    assert not divided(answers, y, seed).beyond_chance


def test_gaps_are_equal_and_labels_tell_copies_apart() -> None:
    column = np.array([np.nan, 0.5, 1.5, 2.5] + [10.0 + i for i in range(200)])
    y = np.zeros(204)
    assert copies([column], [column[:4]], y, y[:4]).seen == 4
    assert not copies([column], [column[:4]], y, y[:4] + 1).beyond_chance


@pytest.mark.parametrize("shape", [(8, 8), (3, 8, 8), (MOST_COLUMNS + 1,)])
def test_images_are_equal_by_copying_alone(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (300, *shape), np.uint8), rng.integers(0, 3, 300)
    x[250:] = 7  # blank ones
    assert not repeated(x[:200], x[200:], y[:200], y[200:])[0].beyond_chance
    found, contradictions = repeated(x[:200], x[150:], y[:200], y[150:])
    assert contradictions == ()
    assert found == Copies(50, 0.0, ((0, 150), (1, 151), (2, 152)))
    assert found.doubt("image", 150).startswith(
        "50 of 150 test images stand in training, too, where chance makes hardly"
    )
    assert repeated(x[:200], x[150:], y[:200], y[150:] + 1) == (
        Copies(0, 0.0),
        tuple((200 + i, 150 + i) for i in range(50)),
    )


def test_an_image_of_three_labels_contradicts_the_first_and_is_a_copy_of_its_own() -> None:
    rng = np.random.default_rng(0)
    x, twin = rng.normal(size=(6, 2, 2)), [0, 0, 0, 0, 4, 5]
    train, y = x[twin], np.array([1, 2, 2, 1, 0, 0])
    found, contradictions = repeated(train, x[[0, 0, 0, 4]], y, np.array([2, 3, 1, 1]))
    assert found == Copies(2, 0.0, ((0, 1), (2, 0)))
    assert contradictions == ((1, 0), (2, 0), (6, 0), (7, 0), (9, 4))


def test_each_image_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(octets: Any, digest_size: int) -> Any:
        sizes.append(octets.nbytes)
        return blake2b(octets, digest_size=digest_size)

    monkeypatch.setattr(copies_of, "blake2b", counted)
    x, y = np.random.default_rng(0).normal(size=(12, 4, 4)), np.arange(12) % 2
    own.dataset({"Basel": (x[:6], y[:6]), "Bern": (x[6:], y[6:])})
    assert sizes == [128] * 12


def test_short_rows_without_names_are_taken_for_a_coarse_table() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (400, 3)).astype(np.float32), rng.integers(0, 2, 400)
    assert not repeated(x[:300], x[300:], y[:300], y[300:])[0].beyond_chance
    x += rng.normal(size=x.shape).astype(np.float32)
    assert repeated(x[:300], x[200:], y[:300], y[200:])[0].seen == 100


# ---------------------------------------------------------------- texts and token ids
def _sentences(n: int, of: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(f"word{i}" for i in rng.integers(0, 90, of)) for _ in range(n)]


@pytest.mark.parametrize("kind", ["text", "row"])
def test_texts_and_token_ids_that_train_and_test_are_doubted(kind: str) -> None:
    """Three sites hold the same 60 of 12 words, in one order, and each sets 12 aside."""
    labels = np.arange(60) // 3 % 3
    texts: Any = _sentences(60, of=12)
    if kind == "row":
        texts = np.array([[int(word[4:]) + 1 for word in text.split()] for text in texts])
    doubt = rf"^\d+ of 36 test {kind}s stand in training, too, .*; give every {kind} to one part$"
    with pytest.warns(DataWarning, match=doubt):
        own.dataset({site: (texts, labels) for site in "ABC"})
    assert own.dataset({site: (texts[i::3], labels[i::3]) for i, site in enumerate("ABC")}).doubts == ()


def test_short_texts_are_alike_and_no_copies() -> None:
    texts = [f"thank you {name}" for name in "ab" * 30]
    assert own.dataset({site: (texts, np.arange(60) % 3) for site in "ABC"}).doubts == ()


def test_a_text_under_two_labels_is_a_question() -> None:
    texts = _sentences(60, of=12)
    texts[1] = texts[0]
    with pytest.warns(DataWarning, match=r"^1 text stands again under another label: which is right\?"):
        own.dataset({"A": (texts[:30], np.arange(30) % 2), "B": (texts[30:], np.arange(30) % 2)})
