"""Tells how numbers are written in columns of words: characters between thousands and before decimals.

`1,234` is a thousand to some and a little more than one to others, and nothing in a file says which.  What can be read
in two ways is refused until somebody says what is meant; a guess would be wrong by a factor of 1000, in silence.

Words are a series of Polars, whose regular expressions are those of Rust; here they mean the same as in Python.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from unskew.words import some

Thousands = Literal["", ".", ",", "'", " "]
Decimal = Literal[".", ","]

BETWEEN: dict[str, str] = {"": "", ".": r"\.", ",": ",", "'": "['\u2019]", " ": "[ \u00a0\u202f]"}
_SIGN, _POWER = r"^\s*[+-]?", r"([eE][+-]?[0-9]+)?\s*$"

ENOUGH = 20
"""Values of one site, all of three digits behind the separator, that are hardly decimals by chance."""


@dataclass(frozen=True)
class Notation:
    """A way to write numbers.

    Attributes:
        thousands: Between groups of three digits; "" if there is nothing.  A typographic apostrophe is as good as a
            plain one, and so is a space that does not break.
        decimal: Before the decimals.
    """

    thousands: str
    decimal: str

    @property
    def pattern(self) -> str:
        """Pattern of a number in this notation, spaces around it included."""
        point = BETWEEN[self.decimal]
        grouped = rf"[1-9][0-9]{{0,2}}({BETWEEN[self.thousands]}[0-9]{{3}})+|" if self.thousands else ""
        return rf"{_SIGN}(({grouped}[0-9]+)({point}[0-9]*)?|{point}[0-9]+){_POWER}"

    @property
    def settings(self) -> str:
        """The options of a table that declare it."""
        thousands = f"thousands = {self.thousands!r}" if self.thousands else ""
        decimal = f"decimal = {self.decimal!r}" if self != declared(self.thousands, None) else ""
        return " and ".join(part for part in (thousands, decimal) if part)

    def plain(self, word: str) -> str:
        """The number as most programs write it: a point before the decimals, nothing between thousands.

        >>> Notation(".", ",").plain("34.058,36")
        '34058.36'
        """
        if self.thousands:
            word = re.sub(BETWEEN[self.thousands], "", word)
        return word.replace(self.decimal, ".").strip()


PLAIN, COMMA, GROUPED = Notation("", "."), Notation("", ","), Notation(",", ".")
NOTATIONS = tuple(Notation(t, d) for t in ("", ".", ",", "'", " ") for d in (".", ",") if t != d)
ANY = "|".join(f"(?:{notation.pattern})" for notation in NOTATIONS)
"""What a number in any notation matches."""

LEADING_ZEROS = r"^\s*[+-]?0[0-9]+\s*$"

_ANY = re.compile(ANY)
_PLAIN = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?")


def declared(thousands: str | None, decimal: str | None) -> Notation:
    """The notation of a file by its options; a point between thousands leaves the comma for the decimals."""
    return Notation(thousands or "", decimal or ("," if thousands == "." else "."))


def is_number(word: str) -> bool:
    """True for a number in any notation.

    >>> is_number("34.058,36"), is_number("1'200"), is_number("1.2.3")
    (True, True, False)
    """
    return _ANY.match(word) is not None


def leading_zeros(word: str) -> bool:
    """True for digits that begin with a zero a number would lose.

    >>> leading_zeros("007"), leading_zeros("0"), leading_zeros("0.5")
    (True, False, False)
    """
    return re.match(LEADING_ZEROS, word) is not None


def lose_zeros(words: Collection[str]) -> bool:
    """True if one of these words begins with a zero that a number would lose, and no number is written in two ways.

    >>> lose_zeros({"007", "1"}), lose_zeros({"0", "1"}), lose_zeros({"0", "00", "1"})
    (True, False, False)
    """
    different = set(words)
    return any(map(leading_zeros, different)) and len({value_of(word) for word in different}) == len(different)


def value_of(word: str) -> float | None:
    """The number that a short word with a decimal point is; None for other words.

    >>> value_of("-99"), value_of("k.A.")
    (-99.0, None)
    """
    return float(word) if _PLAIN.fullmatch(word) else None


def refused(
    column: str, where: object, sites: Mapping[str, Any], thousands: Thousands | None, decimal: Decimal | None
) -> str:
    """A sentence on a column whose numbers are not, or not certainly, in the notation of the file; empty for others.

    Args:
        column: Its name.
        where: The file or folder, for the sentence.
        sites: The words of each site without gaps, where the file names sites; else all words under one name.
        thousands, decimal: What the user said of the file; None if nothing.
    """
    by_site = {site: words.filter(words.str.contains(ANY)) for site, words in sites.items()}
    numbers = _together(by_site)
    if thousands == "" or 2 * len(numbers) <= sum(map(len, sites.values())):
        return ""
    called, mine = f"column {column!r} of {where}", declared(thousands, decimal)
    if thousands is None and decimal is None and (reading := _two_readings(by_site, numbers)):
        return f"{called} holds numbers {reading}"
    if _all(numbers, mine):
        return ""
    fitting = [one for one in NOTATIONS if _all(numbers, one)]
    if decimal == "." and COMMA in fitting and GROUPED not in fitting:  # words, as the sentence below offers
        return ""
    odd = numbers.filter(~numbers.str.contains(mine.pattern))[0].strip()
    if decimal is None and thousands is None and COMMA in fitting:
        return (
            f"{called} holds numbers with a decimal comma, such as {odd!r}: set decimal = ',', or decimal = '.' if "
            "they are words"
        )
    one = next((f for f in fitting if thousands in (None, f.thousands) and decimal in (None, f.decimal)), None)
    if one is None:
        how = f"that are not written as {mine.settings} says" if thousands or decimal else "in several notations"
        return f"{called} holds numbers {how} ({_who(by_site, mine)}): write all of them alike"
    return (
        f"{called} holds numbers such as {odd!r}: set {one.settings} if it means {one.plain(odd)}, or thousands = '' "
        "if they are words"
    )


def decimal_of(words: Any) -> Decimal | None:
    """The decimal mark of a file, from all words in its columns of numbers; None if it has none, or none for certain.

    A point or a comma is certain where all numbers have no other mark, and in some of them it cannot stand between
    thousands.
    """
    marks: tuple[tuple[Notation, Decimal], ...] = ((PLAIN, "."), (COMMA, ","))
    for notation, decimal in marks:
        between = BETWEEN[decimal]
        thousands = rf"{_SIGN}[1-9][0-9]{{0,2}}{between}[0-9]{{3}}\s*$"
        if _all(words, notation) and (words.str.contains(between) & ~words.str.contains(thousands)).any():
            return decimal
    return None


def _all(words: Any, notation: Notation) -> bool:
    return bool(words.str.contains(notation.pattern).all())


def _together(by_site: Mapping[str, Any]) -> Any:
    first, *others = by_site.values()
    words = first.clone()
    for more in others:
        words = words.append(more)
    return words


def _two_readings(by_site: Mapping[str, Any], numbers: Any) -> str:
    """Both readings of the numbers of all sites or of one; empty if there is one only.

    There are two if a separator stands once in each word that has it, before three digits.  With a point some words
    must do without: where all have it, they have three decimals or are all a thousand times smaller.
    """
    for between in (",", "."):
        s = BETWEEN[between]
        for site, words in {"": numbers, **by_site}.items():
            has = words.str.contains(s)
            marked, plain = words.filter(has), words.filter(~has)
            if len(marked) < (ENOUGH if site else 1) or (between == "." and not len(plain)):
                continue
            if bool(marked.str.contains(rf"{_SIGN}[1-9][0-9]{{0,2}}{s}[0-9]{{3}}\s*$").all()):
                one = marked[0].strip()
                beside = f" beside {plain[0].strip()!r}" if len(plain) else ""
                whose = f" at {site}" if site and len(by_site) > 1 else ""
                return (
                    f"such as {one!r}{beside}{whose}, which can be read in two ways: set thousands = {between!r} if it "
                    f"means {one.replace(between, '')}, or decimal = {between!r} if it means {one.replace(',', '.')}"
                )
    return ""


def _who(by_site: Mapping[str, Any], mine: Notation) -> str:
    """Sentence part on who writes which, as in `A, B: '47.17'; C: '50,02'`; or two words that do not go together."""
    groups: dict[Notation | None, list[str]] = {}
    marked = {site: words.filter(words.str.contains(r"\d\D\d")) for site, words in by_site.items()}
    for site, words in marked.items():
        if len(words):
            fit = next((one for one in (mine, *NOTATIONS) if _all(words, one)), None)
            groups.setdefault(fit, []).append(site)
    if len(groups) > 1 and None not in groups:
        return "; ".join(f"{some(who)}: {marked[who[0]][0].strip()!r}" for who in groups.values())
    words = _together(marked if any(map(len, marked.values())) else by_site)
    fits = next(held for one in (mine, *NOTATIONS) if (held := words.str.contains(one.pattern)).any())
    pair = [words.filter(held)[0].strip() for held in (fits, ~fits) if held.any()]
    return " and ".join(map(repr, pair))
