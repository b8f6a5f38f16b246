"""Words for sentences: lists, counts, articles."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence


def composed(name: str) -> str:
    """A name in one form of Unicode: macOS writes an umlaut as two characters, Windows and Linux as one.

    >>> len("Zu\u0308rich"), len(composed("Zu\u0308rich"))
    (7, 6)
    """
    return unicodedata.normalize("NFC", name)


def listed(parts: Sequence[str]) -> str:
    """Names as a sentence lists them; "none" if there are none.

    >>> listed(["A", "B", "C"])
    'A, B and C'
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "none"


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "client"), counted(1200, "client")
    ('1 client', '1,200 clients')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def with_article(noun: str) -> str:
    """A noun after its article.

    >>> with_article("date"), with_article("Interval"), with_article("ndarray"), with_article("UInt8")
    ('a date', 'an Interval', 'an ndarray', 'a UInt8')
    """
    return f"an {noun}" if noun[:1].lower() in tuple("aeio") or noun.startswith("nd") else f"a {noun}"


def beginning(text: str) -> str:
    """Write a text as the beginning of a sentence or a heading; the rest stays as it is.

    >>> beginning("AUROC"), beginning("sensitivity for DLBCL")
    ('AUROC', 'Sensitivity for DLBCL')
    """
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A text as a sentence, which begins with a capital and ends with one full stop.

    >>> sentence("two sites")
    'Two sites.'
    """
    return beginning(text).removesuffix(".") + "."


def some(names: Sequence[str]) -> str:
    """The first five names, and how many more there are.

    >>> some(["A", "B", "C", "D", "E", "F"])
    'A, B, C, D, E and 1 more'
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def letters(name: str) -> str:
    """A name without its case, accents and spaces.

    >>> letters("Bern "), letters("b ern"), letters("Gen\u00e8ve")
    ('bern', 'bern', 'geneve')
    """
    plain = re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", name))  # other scripts' marks make letters
    return "".join(plain.casefold().split())


def spelling_variants(names: Iterable[str]) -> str:
    """Names that are one but for case, accents and spaces; empty if there are none, and three such groups at most.

    >>> spelling_variants(["Bern", "Chur", "bern "])
    "'Bern', 'bern '"
    """
    by_letters: dict[str, list[str]] = {}
    for name in names:
        by_letters.setdefault(letters(name), []).append(name)
    groups = [group for group in by_letters.values() if len(group) > 1]
    shown = [", ".join(map(repr, group)) for group in groups[:3]]
    return "; ".join(shown) + (f" and {len(groups) - 3:,} more such" if len(groups) > 3 else "")


def of_seeds(defined: int, undefined: int) -> str:
    """Say under how many seeds a result is defined; empty if it is under all.

    >>> of_seeds(4, 1), of_seeds(5, 0)
    (' (4 of 5 seeds)', '')
    """
    return f" ({defined} of {defined + undefined} seeds)" if undefined else ""


def of_clients(counts: Collection[Sequence[int]]) -> str:
    """Say how many clients a mean covers, from (these, all) of each mean that does not cover all.

    >>> of_clients([(2, 4), (2, 4)]), of_clients([(2, 4), (3, 4)]), of_clients([])
    (' (2 of 4 clients)', ' (2 to 3 of 4 clients)', '')
    """
    over, every = ({count[i] for count in counts} for i in (0, 1))
    return f" ({_span(over)} of {_span(every)} clients)" if over else ""


def _span(numbers: Collection[int]) -> str:
    return " to ".join(f"{n:,}" for n in sorted({min(numbers), max(numbers)}))


_FORMULA = re.compile(r"[=@\t\r\n\uff1d\uff20\uff0b\uff0d]|[+-](?!$|[0-9][0-9.,]*(e[+-]?[0-9]+)?$)", re.IGNORECASE)


def in_a_cell(text: str) -> str:
    """Somebody's name for a cell of a CSV file: with an apostrophe before what a spreadsheet would compute.

    >>> in_a_cell("=1+1"), in_a_cell("-1.5"), in_a_cell("+"), in_a_cell("FedAvg")
    ("'=1+1", '-1.5', '+', 'FedAvg')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def in_markdown(text: str) -> str:
    """Somebody's text for a page or a table in Markdown, where it is neither markup, nor a link or an image.

    >>> print(in_markdown("a_b|c <img> ![x](https://x.org) +1 [0, 2]"))
    a\\_b\\|c \\<img> \\![x\\](https://x.org) +1 [0, 2]
    """
    return re.sub(r"([\\|*_`<]|!(?=\[)|\](?=[(\[]))", r"\\\1", text)


def with_names(text: str, names: Sequence[str]) -> str:
    """A sentence with the clients' names behind their numbers.

    >>> with_names("round 4, client 1, step 2: the loss became nan", ["Bern", "Chur"])
    'round 4, client 1 (Chur), step 2: the loss became nan'
    """

    def named(client: re.Match[str]) -> str:
        number = int(client[1])
        return f"{client[0]} ({names[number]})" if number < len(names) and names[number] != client[1] else client[0]

    return re.sub(r"\bclient (\d+)\b", named, text)
