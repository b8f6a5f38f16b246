"""Pages of results, one over all and one a paper: its headline claims, and which claims hold.

They are made from `NAME/SCALE/result.json`, which `unskew reproduce NAME --keep` writes, and two files beside them.
`headlines.toml` has the headline claims of each paper, and the data and size of each result.  `reasons.toml` has
reasons for claims that do not hold, by reproduction and by the claim's text, in which `*` matches anything; the first
match counts.  A reason that begins with "Proven" names the run that shows it.

A headline is decided by the result of the largest size, and of these by the one with most seeds.

    python -m unskew.papers.overview [FOLDER]
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from unskew import schema
from unskew.errors import RunError
from unskew.experiment import config
from unskew.files import write_atomically
from unskew.papers.claims import Claim
from unskew.run.progress import duration

BEGIN, END = "<!-- made by unskew.papers.overview -->\n", "<!-- end -->\n"
REASONS, HEADLINES = "reasons.toml", "headlines.toml"
HOLDS, FAILS, OPEN = VERDICTS = ("holds", "does not hold", "undecided")
LESS = "less than published"
WORDS = (HOLDS, LESS, FAILS, OPEN)
FULL, REDUCED, OURS = SIZES = ("the paper's size", "reduced", "our own question")


@dataclass(frozen=True)
class KeptClaim(Claim):
    """A claim of a result; `reason` says why it does not hold, and is empty if that is unknown."""

    reason: str = ""

    @property
    def kind(self) -> str:
        """One of `VERDICTS`."""
        return self.verdict.partition(":")[0]


@dataclass(frozen=True)
class ResultSize:
    """Data and size of a result, NAME/SCALE; `full` if they are the paper's data set and size."""

    result: str
    data: str
    full: bool = False


@dataclass(frozen=True)
class Kept:
    """A result: its reproduction and scale, the folder of its page, claims, seconds, data and size."""

    name: str
    scale: str
    folder: Path
    claims: tuple[KeptClaim, ...]
    seconds: float
    run_on: ResultSize

    @property
    def paper(self) -> str:
        """The folder of its paper."""
        return self.name.partition("/")[0]

    @property
    def size(self) -> str:
        """Its size: the paper's, or reduced."""
        return FULL if self.run_on.full else REDUCED

    def link(self, root: Path, title: str) -> str:
        """A link to its page."""
        return f"[{title}]({(self.folder / 'README.md').relative_to(root).as_posix()})"


@dataclass(frozen=True)
class PaperHeadline:
    """A headline claim of a paper.

    Attributes:
        paper: Its method.
        says: The claim, and where the paper makes it.
        reproduction: The reproductions that have the claim.
        claim: The claim's text; in each result the first match counts.
        amount: True if the published difference is claimed, not only its sign: if that is excluded, ours is less.
        reason: Why the amount does not hold.
        ours: True if the claim is ours and not the paper's.
    """

    paper: str
    says: str
    reproduction: str
    claim: str
    amount: bool = False
    reason: str = ""
    ours: bool = False


@dataclass(frozen=True)
class Answer:
    """A headline with the result and the claim that decide it; None if there is none."""

    headline: PaperHeadline
    result: Kept | None = None
    claim: KeptClaim | None = None

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if (claim := self.claim) is None:
            return OPEN
        if not self.headline.amount:
            return claim.verdict
        return LESS if claim.less else HOLDS if claim.holds else OPEN

    @property
    def size(self) -> str:
        """One of `SIZES`."""
        return OURS if self.headline.ours else self.result.size if self.result else REDUCED

    def run_on(self, root: Path) -> str:
        """The data set and size of its result, and a link to its page."""
        if self.result is None:
            return f"{self.headline.reproduction}, not kept yet"
        return f"{self.result.link(root, self.result.run_on.data or self.result.name)}; {self.size}"


@dataclass(frozen=True)
class _Headlines:
    """The file of headlines; `verdicts` has a sentence for each paper."""

    verdicts: dict[str, str] = field(default_factory=dict)
    headlines: list[PaperHeadline] = field(default_factory=list)
    sizes: list[ResultSize] = field(default_factory=list)


# ---------------------------------------------------------------- what is kept
def kept(root: Path) -> tuple[Kept, ...]:
    """All results below a folder, in the order of the papers, then by reproduction.

    Raises:
        ConfigError: If the file of reasons or of headlines cannot be read.
        RunError: If a result cannot be read, or a reason matches no claim that does not hold.
    """
    from unskew.papers import TABLE

    sizes = {size.result: size for size in _listed(root).sizes}
    reasons = {(name, pattern): why for name, of in _toml(root / REASONS).items() for pattern, why in of.items()}
    used: set[tuple[str, str]] = set()
    results = []
    for path in root.glob("*/*/*/result.json"):
        try:
            result = json.loads(path.read_text("utf-8"))
            name, scale, claims = result["name"], result["scale"], list[KeptClaim]()
            for claim in map(KeptClaim.of_json, result["claims"]):
                fits = [at for at in reasons if at[0] == name and fnmatchcase(claim.text, at[1])]
                if fits and claim.holds is False:
                    used.add(fits[0])
                    claim = replace(claim, reason=reasons[fits[0]])
                claims.append(claim)
            size = sizes.get(f"{name}/{scale}", ResultSize(f"{name}/{scale}", ""))
            results.append(Kept(name, scale, path.parent, tuple(claims), float(result["seconds"]), size))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a kept result: {type(error).__name__}: {error}; keep it again") from None
    for name, pattern in reasons.keys() - used:
        raise RunError(f"{root / REASONS}: {name} has no claim that does not hold and fits {pattern!r}; remove it")
    order = [*dict.fromkeys(name.partition("/")[0] for name in TABLE), *sorted(r.paper for r in results)]
    return tuple(sorted(results, key=lambda r: (order.index(r.paper), r.name, r.scale)))


def _toml(path: Path) -> dict[str, Any]:
    """A file beside the results; empty where there is none."""
    return config.read_toml(path) if path.exists() else {}


def _listed(root: Path) -> _Headlines:
    """The file of headlines."""
    read: _Headlines = schema.build(
        _Headlines, _toml(root / HEADLINES), "", str(root / HEADLINES), owner="a list of headlines"
    )
    return read


def headlines(root: Path, results: Sequence[Kept]) -> list[Answer]:
    """The headline claims of the papers, each with the claim that decides it.

    Raises:
        ConfigError: If the file cannot be read.
        RunError: If it names a claim that its reproduction does not have.
    """
    answers = []
    for h in _listed(root).headlines:
        there = [r for r in results if fnmatchcase(r.name, h.reproduction)]
        fits = [(r, c) for r in there if (c := next((c for c in r.claims if fnmatchcase(c.text, h.claim)), None))]
        if there and not fits:
            text = f"{h.reproduction} has no claim that fits {h.claim!r}; correct or remove it"
            raise RunError(f"{root / HEADLINES}: {text}")
        largest = max(fits, key=lambda fit: (fit[0].run_on.full, fit[0].scale != "small", fit[1].seeds), default=())
        answers.append(Answer(h, *largest))
    return answers


# ---------------------------------------------------------------- the pages
def pages(root: Path) -> dict[str, str]:
    """The generated part of the page over all papers, under "", and the page of each paper, by its folder.

    Raises:
        ConfigError, RunError: As `kept` and `headlines` do.
    """
    results = kept(root)
    answers, verdicts = headlines(root, results), _listed(root).verdicts
    texts = {"": "\n".join(_overview(root, results, answers))}
    for folder in dict.fromkeys(r.paper for r in results):
        own = [r for r in results if r.paper == folder]
        claimed = [answer for answer in answers if answer.headline.reproduction.startswith(f"{folder}/")]
        verdict = verdicts.get(claimed[0].headline.paper, "") if claimed else ""
        texts[folder] = "\n".join(_of_paper(folder, root / folder, own, claimed, verdict))
    return texts


def _overview(root: Path, results: Sequence[Kept], answers: Sequence[Answer]) -> Iterator[str]:
    """Write what the papers are known for, a line each, and how the claims of each stand, by page and size."""
    if answers:
        yield "## What the papers are known for\n"
        yield from _counted(answers)
        known = [(a.headline.paper, _cell(a.headline.says), a.verdict, a.run_on(root)) for a in answers]
        yield from (*_table(("paper", "it says", "verdict", "run on"), 0, known), "")
    about = {answer.headline.reproduction.partition("/")[0] for answer in answers}
    for title, ours in (("The four papers", False), ("Other questions", True)):
        own = [r for r in results if (r.paper not in about) == ours]
        if not own:
            continue
        yield f"## {title}\n"
        failed = [claim for r in own for claim in r.claims if claim.kind == FAILS]
        proven = sum(bool(re.match(r"Proven(?! in part)", claim.reason)) for claim in failed)
        yield (
            f"Of {len(failed)} claims that do not hold a reason is named for {sum(bool(c.reason) for c in failed)} "
            f"and proven for {proven}.\n"
        )
        sizes = dict.fromkeys((r.paper, r.size) for r in own)
        rows = [(f"[{p}]({p}/README.md)", size, *_counts(r for r in own if (r.paper, r.size) == (p, size)))
                for p, size in sizes]  # fmt: skip
        yield from _table(("page", "size", *COUNTED), 5, rows)
        yield ""


def _of_paper(name: str, root: Path, results: Sequence[Kept], answers: Sequence[Answer], verdict: str) -> Iterator[str]:
    """A paper's page: what it is known for and what was found; folded, why not, and all reproductions."""
    yield f"# {answers[0].headline.paper if answers else name}: what holds\n"
    reasons, rows = [], []
    for a in answers:
        says, claim = _cell(a.headline.says), a.claim
        rows.append((says, _cell(claim.evidence if claim else "not kept yet"), a.verdict, a.run_on(root)))
        if reason := a.headline.reason or (claim.reason if claim else ""):
            reasons.append(f"* **{says}** {_cell(reason)}")
    if answers:
        yield f"{verdict}  How claims are decided: [claims](../claims.md).\n"
        yield from _counted(answers)
        yield from _table(("the paper says", "we found", "verdict", "run on"), 0, rows)
    if reasons:
        yield from ("", *_folded("Why claims do not hold", reasons))
    every = [(r.link(root, r.name), r.size, *_counts([r])) for r in results]
    table = [*_table(("reproduction", "size", *COUNTED), 5, every)]
    yield from ("", *(_folded("All reproductions", table) if answers else table), "")


def _table(head: Sequence[str], numbers: int, rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table whose last columns, so many, are of numbers."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * (len(head) - numbers)}{'---:|' * numbers}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def _folded(title: str, lines: Sequence[str]) -> tuple[str, ...]:
    return (f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>")


def _counted(answers: Sequence[Answer]) -> Iterator[str]:
    """A table of how many claims have each verdict, by size."""
    by = {size: Counter(a.verdict.partition(":")[0] for a in answers if a.size == size) for size in SIZES}
    verdicts = sorted({verdict for counts in by.values() for verdict in counts}, key=WORDS.index)
    rows = [(size, *(n[v] for v in verdicts)) for size, n in by.items() if n]
    yield from (*_table(("headlines", *verdicts), len(verdicts), rows), "")


COUNTED = ("claims", *VERDICTS, "cost")


def _counts(results: Iterable[Kept]) -> tuple[object, ...]:
    """The cells that count claims by verdict, and their cost."""
    own = tuple(results)
    each = Counter(claim.kind for r in own for claim in r.claims)
    return each.total(), *(each[v] for v in VERDICTS), duration(sum(r.seconds for r in own))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def written(text: str, made: str) -> str:
    """The page over all papers with a new generated part."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def write(root: Path) -> Path:
    """Write each paper's page and the generated part of the folder's README.md; return the path of the latter."""
    made, path = pages(root), root / "README.md"
    for folder, text in made.items():
        if folder:
            write_atomically(root / folder / "README.md", text)
    before = path.read_text("utf-8") if path.exists() else "# Results that are kept\n\n"
    write_atomically(path, written(before, made[""]))
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results")))
