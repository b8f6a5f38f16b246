"""Pages of results, one over all and one a paper: its headline claims, and which claims hold.

They are made from `NAME/SCALE/result.json`, which `unskew reproduce NAME --keep` writes, and two files beside them.
`headlines.toml` has the headline claims of each paper, and the data of each result.  `reasons.toml` has reasons for
claims that do not hold, by reproduction and by the claim's text, in which `*` matches anything; the first match counts.
A reason that begins with "Proven" names the run that shows it.

A headline is decided by the result of the largest size, and of these by the one with most seeds.

    python -m unskew.papers.overview [FOLDER]
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from unskew import schema
from unskew.errors import RunError
from unskew.experiment import config
from unskew.files import write_atomically
from unskew.papers.claims import FAILS, HOLDS, OPEN, VERDICTS, Claim, counted
from unskew.run.progress import duration
from unskew.words import in_markdown

BEGIN = "<!-- made by unskew.papers.overview -->\n"
REASONS, HEADLINES = "reasons.toml", "headlines.toml"
LESS = "less than published"
FULL, REDUCED, OURS = SIZES = ("the paper's size", "reduced", "our own question")


# ---------------------------------------------------------------- what is kept
@dataclass(frozen=True)
class Headline:
    """A headline claim of a paper.

    Attributes:
        paper: Its method.
        says: The claim, and where the paper makes it.
        reproduction: The reproductions that have the claim.
        claim: The claim's text.
        amount: True if the published difference is claimed, not only its sign: if that is excluded, ours is less.
        ours: True if the claim is ours and not the paper's.
    """

    paper: str
    says: str
    reproduction: str
    claim: str
    amount: bool = False
    ours: bool = False


@dataclass(frozen=True)
class Notes:
    """The two files beside the results.

    Attributes:
        verdicts: A sentence for each paper.
        headlines: The papers' headline claims.
        full, reduced: The data of results at the paper's size and data set, and of all others, by NAME/SCALE.
        reasons: The file of reasons.
    """

    verdicts: dict[str, str] = field(default_factory=dict)
    headlines: list[Headline] = field(default_factory=list)
    full: dict[str, str] = field(default_factory=dict)
    reduced: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)

    def reason(self, name: str, claim: Claim) -> tuple[str, str]:
        """Why a claim does not hold, or the published amount does not, after its pattern; empty if there is none."""
        fits = (at for at in self.reasons.get(name, {}).items() if fnmatchcase(claim.text, at[0]))
        return next(fits, ("", "")) if claim.holds is False or is_less(claim) else ("", "")


def is_less(claim: Claim) -> bool:
    """True if the paper's difference lies above the interval."""
    return claim.interval is not None and claim.published is not None and claim.interval[1] < claim.published


@dataclass(frozen=True)
class Kept:
    """A result: its reproduction and scale, claims, seconds, data, and its size, one of `SIZES`."""

    name: str
    scale: str
    claims: tuple[Claim, ...]
    seconds: float
    data: str
    size: str

    @property
    def paper(self) -> str:
        """The folder of its paper."""
        return self.name.partition("/")[0]

    def link(self, title: str, page: str) -> str:
        """A link to its page from that of a paper's folder, or from that over all, ""."""
        return f"[{title}]({f'{self.name}/{self.scale}/README.md'.removeprefix(f'{page}/')})"


@dataclass(frozen=True)
class Answer:
    """A headline and the result that decides it: its size (one of `SIZES`), evidence, verdict, and why it is so."""

    headline: Headline
    result: Kept
    size: str
    evidence: str
    verdict: str
    reason: str

    def cells(self, page: str) -> tuple[str, str, str, str]:
        """What the paper says, what we found, the verdict, and what it was run on with a link from a page."""
        run_on = f"{self.result.link(self.result.data or self.result.name, page)}; {self.size}"
        return in_markdown(self.headline.says), in_markdown(self.evidence), self.verdict, run_on


def notes(root: Path) -> Notes:
    """The files beside the results; a file that is missing says nothing.

    Raises:
        ConfigError: If one cannot be read.
    """
    headlines, reasons = (config.read_toml(path) if (path := root / name).exists() else {}
                          for name in (HEADLINES, REASONS))  # fmt: skip
    read: Notes = schema.build(
        Notes, {**headlines, "reasons": reasons}, "", str(root / HEADLINES), owner="a list of headlines"
    )
    return read


def kept(root: Path, beside: Notes) -> tuple[Kept, ...]:
    """All results below a folder by their names, those of papers with headlines first.

    Raises:
        RunError: If a result cannot be read, or a reason matches no claim that does not hold.
    """
    results = []
    for path in root.glob("*/*/*/result.json"):
        try:
            card = json.loads(path.read_text("utf-8"))
            name, scale, seconds = card["name"], card["scale"], float(card["seconds"])
            claims, at = tuple(Claim(**claim) for claim in card["claims"]), f"{name}/{scale}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a kept result: {type(error).__name__}: {error}; keep it again") from None
        size, data = FULL if at in beside.full else REDUCED, {**beside.reduced, **beside.full}.get(at, "")
        results.append(Kept(name, scale, claims, seconds, data, size))
    used = {(r.name, beside.reason(r.name, claim)[0]) for r in results for claim in r.claims}
    for name, pattern in {(name, pattern) for name, reasons in beside.reasons.items() for pattern in reasons} - used:
        raise RunError(f"{root / REASONS}: {name} has no claim that does not hold and fits {pattern!r}; remove it")
    order = {h.reproduction.partition("/")[0]: i for i, h in enumerate(beside.headlines)}
    return tuple(sorted(results, key=lambda r: (order.get(r.paper, math.inf), r.name, r.scale)))


def answer(headline: Headline, results: Sequence[Kept], beside: Notes) -> Answer:
    """A headline claim, and what decides it.

    Raises:
        RunError: If no result has the claim.
    """
    own = (r for r in results if fnmatchcase(r.name, headline.reproduction))
    fits = [(r, claim) for r in own for claim in r.claims if fnmatchcase(claim.text, headline.claim)]
    if not fits:
        what = f"no result of {headline.reproduction} has a claim that fits {headline.claim!r}"
        raise RunError(f"{HEADLINES}: {what}; correct or remove it")
    r, claim = max(fits, key=lambda fit: (fit[0].size == FULL, fit[0].scale != "small", fit[1].seeds))
    verdict = LESS if headline.amount and is_less(claim) else claim.verdict
    size = OURS if headline.ours else r.size
    return Answer(headline, r, size, claim.evidence, verdict, beside.reason(r.name, claim)[1])


# ---------------------------------------------------------------- the pages
def pages(root: Path) -> dict[Path, str]:
    """The page over all papers, of which what stands before the generated part is kept, and the page of each paper.

    Raises:
        ConfigError, RunError: As `notes`, `kept` and `answer` do.
    """
    beside, path = notes(root), root / "README.md"
    results = kept(root, beside)
    answers = [answer(headline, results, beside) for headline in beside.headlines]
    before = path.read_text("utf-8").partition(BEGIN)[0] if path.exists() else "# Results that are kept\n\n"
    texts = {path: "\n".join((before + BEGIN, *_overview(results, answers)))}
    for folder in dict.fromkeys(r.paper for r in results):
        own = [r for r in results if r.paper == folder]
        claimed = [a for a in answers if a.result.paper == folder]
        texts[root / folder / "README.md"] = "\n".join(_of_paper(folder, own, claimed, beside))
    return texts


def _overview(results: Sequence[Kept], answers: Sequence[Answer]) -> Iterator[str]:
    """Write what the papers are known for, a line each, and how the claims of each stand, by page and size."""
    if answers:
        yield "## What the papers are known for\n"
        yield from _by_size(answers)
        rows = [(a.headline.paper, says, *rest) for a in answers for says, _, *rest in [a.cells("")]]
        yield from (*_table(("paper", "it says", "verdict", "run on"), rows), "")
    yield "## All claims\n"
    yield from (*_claims("page", ((f"[{r.paper}]({r.paper}/README.md)", r) for r in results)), "")


def _of_paper(folder: str, results: Sequence[Kept], answers: Sequence[Answer], beside: Notes) -> Iterator[str]:
    """Write what a paper is known for and what we found; folded, why not; and all its reproductions."""
    paper = answers[0].headline.paper if answers else folder
    yield f"# {paper}: what holds\n"
    if answers:
        yield f"{beside.verdicts.get(paper, '')}  How claims are decided: [claims](../claims.md).\n"
        yield from _by_size(answers)
        yield from _table(("the paper says", "we found", "verdict", "run on"), [a.cells(folder) for a in answers])
        if reasons := [f"* **{in_markdown(a.headline.says)}** {in_markdown(a.reason)}" for a in answers if a.reason]:
            title = '\n<details markdown="1"><summary>Why claims do not hold</summary>\n'
            yield from (title, *reasons, "\n</details>")
        yield "\n## All reproductions\n"
    yield from (*_claims("reproduction", ((r.link(r.name, folder), r) for r in results)), "")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> Iterator[str]:
    """Write a table whose last columns, so many, are of numbers."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * (len(head) - numbers)}{'---:|' * numbers}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def _by_size(answers: Sequence[Answer]) -> Iterator[str]:
    """Write how many headlines have each verdict, by size."""
    words = (HOLDS, LESS, FAILS, OPEN)
    each = [(size, counted(a.verdict for a in answers if a.size == size)) for size in SIZES]
    rows = [(size, *(n[word] for word in words)) for size, n in each if n]
    yield from (*_table(("headlines", *words), rows, len(words)), "")


def _claims(what: str, results: Iterable[tuple[str, Kept]]) -> Iterator[str]:
    """Write how many claims have each verdict, and their cost, by link and size."""
    by: dict[tuple[str, str], list[Kept]] = {}
    for link, r in results:
        by.setdefault((link, r.size), []).append(r)
    rows = []
    for at, own in by.items():
        n = counted(claim.verdict for r in own for claim in r.claims)
        rows.append((*at, n.total(), *(n[verdict] for verdict in VERDICTS), duration(sum(r.seconds for r in own))))
    yield from _table((what, "size", "claims", *VERDICTS, "cost"), rows, 2 + len(VERDICTS))


def write(root: Path) -> Path:
    """Write all pages; return the path of that over all papers."""
    for path, text in pages(root).items():
        write_atomically(path, text)
    return root / "README.md"


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results")))
