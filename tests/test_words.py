import pytest

from unskew.words import counted, listed, some


@pytest.mark.parametrize(
    ("parts", "text"), [([], "none"), (["A"], "A"), (["A", "B"], "A and B"), (["A", "B", "C"], "A, B and C")]
)
def test_names_are_listed_as_a_sentence_has_them(parts: list[str], text: str) -> None:
    assert listed(parts) == text


def test_one_thing_and_several_are_counted() -> None:
    assert [counted(n, "client") for n in (0, 1, 1200)] == ["0 clients", "1 client", "1,200 clients"]


def test_five_names_are_enough() -> None:
    assert some("ABCDE") == "A, B, C, D, E"
    assert some("ABCDEFG") == "A, B, C, D, E and 2 more"
