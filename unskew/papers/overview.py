"""The page over all kept results: paper by paper, table by table, each claim with our number, verdict, reason and cost.

It is made from what `unskew reproduce NAME --keep` wrote, `NAME/SCALE/result.json` below a folder, and from two files
beside them.  `reasons.toml` has reasons for claims that do not hold, by reproduction and by the claim's text, in which
`*` stands for anything.  The first pattern that fits a claim counts.  A reason that begins with "Proven" names the run
that shows it; "Proven in part" does not count as that.  `headlines.toml` has what each paper is known for, in its
order, and the claims that stand for it.

    python -m unskew.papers.overview [FOLDER]
"""

import json
import math
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scipy import special

from unskew import schema
from unskew.errors import ConfigError, RunError
from unskew.files import write_atomically
from unskew.papers.claims import LEVEL_WORDS, PUBLISHED
from unskew.run.progress import duration
from unskew.words import beginning

BEGIN, END = "<!-- made by unskew.papers.overview -->\n", "<!-- end -->\n"
REASONS, HEADLINES = "reasons.toml", "headlines.toml"
HOLDS, FAILS, OPEN = VERDICTS = ("holds", "does not hold", "undecided")
UNKNOWN = "not known yet"
MOST_SEEDS = 1000
_INTERVAL = re.compile(
    r"(?P<mean>[+-][\d.]+) .*95 % interval \[(?P<low>[+-][\d.]+), (?P<high>[+-][\d.]+)\].* over (?P<n>\d+) seeds"
)


class Decided(NamedTuple):
    """A claim of a kept result.

    Attributes:
        verdict: One of `VERDICTS`.
        level: It does not hold because the two are level.
        ours: The evidence.
        published: The paper's difference, and if our interval excludes it; empty if the paper has none.
        reason: Why it does not hold; how many seeds would decide it.
    """

    text: str
    verdict: str
    level: bool
    ours: str
    published: str
    reason: str

    @property
    def shown(self) -> str:
        """The verdict in words."""
        return f"{self.verdict}: {LEVEL_WORDS}" if self.level else self.verdict


@dataclass(frozen=True)
class PaperHeadline:
    """A claim that a paper is known for.

    Attributes:
        paper: Its method.
        says: What it says, and where.
        reproduction: The reproduction that has the claim.
        claim: The claim's text, `*` standing for anything; the first that fits.
        scale: The result's; by default the paper's if that is kept.
        amount: What it says is the published difference and not only its sign: it does not hold if that is excluded.
        reason: Why not, where that is about the amount.
        ours: The paper does not claim it; we asked.
    """

    paper: str
    says: str
    reproduction: str
    claim: str
    scale: Literal["", "small", "paper"] = ""
    amount: bool = False
    reason: str = ""
    ours: bool = False

    def verdict(self, claim: Decided | None) -> str:
        """The verdict in words."""
        if claim is None:
            return OPEN
        if not self.amount:
            return claim.shown
        if claim.published.endswith("excluded"):
            return f"{FAILS}: excluded"
        return OPEN if claim.verdict == FAILS else claim.verdict


@dataclass(frozen=True)
class Kept:
    """A kept result: its reproduction and scale, what it is about, its folder, its claims, seconds."""

    name: str
    scale: str
    title: str
    folder: Path
    claims: tuple[Decided, ...]
    seconds: float

    @property
    def paper(self) -> str:
        """The paper's name."""
        return self.name.partition("/")[0]

    @property
    def heading(self) -> str:
        """Its heading on the page."""
        return f"{self.name}, {self.scale}"

    @property
    def anchor(self) -> str:
        """The heading's anchor, as GitHub and MkDocs both make it."""
        return re.sub(r"[^\w\- ]", "", self.heading).replace(" ", "-").lower()


@dataclass(frozen=True)
class _Headlines:
    """The file of headlines."""

    headlines: list[PaperHeadline] = field(default_factory=list)


Answer = tuple[PaperHeadline, Kept | None, Decided | None]
"""A headline, with the result and the claim that stand for it; None where not kept."""


# ---------------------------------------------------------------- what is kept
def kept(root: Path) -> tuple[Kept, ...]:
    """All kept results below a folder, by paper in the order of the papers, then by reproduction.

    Raises:
        RunError: If a result or the file of reasons cannot be read, or a reason fits no claim that does not hold.
    """
    from unskew.papers import TABLE

    reasons = {(name, pattern): why for name, of in _toml(root / REASONS).items() for pattern, why in of.items()}
    used: set[tuple[str, str]] = set()
    results = []
    for path in root.glob("*/*/*/result.json"):
        try:
            result = json.loads(path.read_text("utf-8"))
            name, claims = result["name"], []
            for row in result["claims"]:
                fits = (at for at in reasons if at[0] == name and fnmatchcase(row["text"], at[1]))
                reason = next(fits, None) if row["holds"] is False else None
                used |= {reason} if reason else set()
                claims.append(_claim(row, reasons[reason] if reason else ""))
            title = TABLE[name].about if name in TABLE else "claims of a campaign"
            results.append(Kept(name, result["scale"], title, path.parent, tuple(claims), float(result["seconds"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a kept result: {type(error).__name__}: {error}; keep it again") from None
    for name, pattern in reasons.keys() - used:
        raise RunError(f"{root / REASONS}: {name} has no claim that does not hold and fits {pattern!r}; remove it")
    order = [*dict.fromkeys(name.partition("/")[0] for name in TABLE), *sorted(r.paper for r in results)]
    return tuple(sorted(results, key=lambda r: (order.index(r.paper), r.name, r.scale)))


def _toml(path: Path) -> dict[str, Any]:
    """A file beside the results; empty where there is none."""
    try:
        return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None


def _claim(row: Mapping[str, Any], given: str) -> Decided:
    """A kept claim, with the reason that the file of reasons gives, if any."""
    ours, _, published = str(row["evidence"]).partition(PUBLISHED)
    verdict = {True: HOLDS, False: FAILS, "undecided": OPEN}[row["holds"]]
    why = ""
    if row["text"].startswith("as published") and ": " in ours:  # the evidence of these says why
        ours, _, why = ours.partition(": ")
        why = f"differs from the paper's: {why}"
    reason = given or why or (seeds_needed(ours) if verdict == OPEN else UNKNOWN)
    return Decided(row["text"], verdict, bool(row.get("level")), ours, published, "" if verdict == HOLDS else reason)


def headlines(root: Path, results: Sequence[Kept]) -> tuple[Answer, ...]:
    """Read what the papers are known for, with the result and the claim that stand for it; None where not kept.

    Raises:
        RunError: If the file cannot be read, or names a claim that its kept reproduction does not have.
    """
    path = root / HEADLINES
    try:
        listed = schema.build(_Headlines, _toml(path), "", str(path), owner="a list of headlines").headlines
    except ConfigError as error:
        raise RunError(str(error)) from None
    answers: list[Answer] = []
    for h in listed:
        there = [r for r in results if r.name == h.reproduction and h.scale in ("", r.scale)]
        best = min(there, key=lambda r: r.scale != "paper", default=None)
        claims = best.claims if best else ()
        fit = next((c for c in claims if fnmatchcase(c.text, h.claim)), None)
        if best and fit is None:
            raise RunError(f"{path}: {h.reproduction} has no claim that fits {h.claim!r}; correct or remove it")
        answers.append((h, best, fit))
    return tuple(answers)


def seeds_needed(evidence: str) -> str:
    """The number of seeds that would decide a difference of this mean and spread, in words; empty if it has none.

    With mean m, half width h and n seeds the standard deviation is h sqrt(n) / t_n; the smallest k is sought for which
    t_k s / sqrt(k) is below the distance of m from zero, or from what is allowed.

    >>> seeds_needed("+0.35 points, 95 % interval [-0.10, +0.80] over 3 seeds")
    '3 seeds; a difference of this size would take 4'
    >>> seeds_needed("-6.20 points, 95 % interval [-8.32, -4.09] over 8 seeds, 5 allowed")
    '8 seeds; a difference of this size would take 20'
    """
    match = _INTERVAL.search(evidence)
    if match is None:
        return ""
    mean, low, high, n = (float(match[part]) for part in ("mean", "low", "high", "n"))
    allowed = re.search(r"seeds, ([\d.]+) allowed", evidence)
    distance = abs(abs(mean) - float(allowed[1])) if allowed else abs(mean)
    s = (high - low) / 2 * math.sqrt(n) / float(special.stdtrit(n - 1, 0.975))
    enough = (
        k
        for k in range(int(n) + 1, MOST_SEEDS + 1)
        if float(special.stdtrit(k - 1, 0.975)) * s / math.sqrt(k) < distance
    )
    return f"{n:.0f} seeds; a difference of this size would take {next(enough, f'over {MOST_SEEDS}')}"


# ---------------------------------------------------------------- the page
def page(root: Path) -> str:
    """The made part of the page, in Markdown.

    Raises:
        RunError: As `kept` and `headlines` do.
    """
    results = kept(root)
    return "\n".join((*_headline_lines(headlines(root, results)), *_lines(results, root)))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def _headline_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Write what the papers are known for, as one table."""
    if not answers:
        return
    yield "## What the papers are known for\n"
    yield f"Of {len(answers)} headline claims {_verdicts(answers)}."
    own = [one for one in answers if one[0].ours]
    yield f"The papers do not claim {len(own)} of them; of these {_verdicts(own)}.\n" if own else ""
    rows = []
    for headline, r, claim in answers:
        where = f"[{headline.reproduction}](#{r.anchor})" if r else headline.reproduction
        where += ", at the paper's size" if r and r.scale == "paper" else ""
        ours = "not kept yet"
        if claim is not None:
            ours = claim.ours + f"; published {claim.published}" * bool(claim.published)
        reason = headline.reason or (claim.reason if claim else "")
        says = _cell(headline.says) + " (not the paper's)" * headline.ours
        rows.append((headline.paper, says, f"{_cell(ours)} ({where})", headline.verdict(claim), _cell(reason)))
    yield from _table(("paper", "it says", "ours", "verdict", "reason"), rows)
    yield ""


def _verdicts(answers: Sequence[Answer]) -> str:
    """Count verdicts, in words."""
    n = Counter(headline.verdict(claim).partition(":")[0] for headline, _, claim in answers)
    words = {HOLDS: ("holds", "hold"), FAILS: ("does not", "do not"), OPEN: ("is undecided", "are undecided")}
    return ", ".join(f"{n[verdict]} {one if n[verdict] == 1 else many}" for verdict, (one, many) in words.items())


def _lines(results: Sequence[Kept], root: Path) -> Iterator[str]:
    claims = [claim for result in results for claim in result.claims]
    total, failed = Counter(claim.verdict for claim in claims), [claim for claim in claims if claim.verdict == FAILS]
    explained = sum(claim.reason != UNKNOWN for claim in failed)
    proven = sum(bool(re.match(r"Proven(?! in part)", claim.reason)) for claim in failed)
    printed = [c.published for c in claims if "," in c.published]
    out = sum(words.endswith("excluded") for words in printed)
    excluded = f"  Of {len(printed)} published differences our intervals exclude {out}." if printed else ""
    yield "## All claims by reproduction\n"
    yield (
        f"Of {len(claims)} claims **{total[HOLDS]} hold, {total[FAILS]} do not, {total[OPEN]} are undecided**.  Of "
        f"those that do not hold, {sum(claim.level for claim in failed)} are {LEVEL_WORDS}, a reason is named for "
        f"{explained}, and proven for {proven}.{excluded}  All of it took "
        f"{duration(sum(r.seconds for r in results))}.\n"
    )
    yield "| reproduction | scale | claims | hold | do not | undecided | cost |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for r in results:
        each = Counter(claim.verdict for claim in r.claims)
        counts = " | ".join(map(str, (len(r.claims), *(each[v] for v in VERDICTS))))
        yield f"| [{r.name}](#{r.anchor}) | {r.scale} | {counts} | {duration(r.seconds)} |"
    for before, r in zip((None, *results), results, strict=False):
        if before is None or r.paper != before.paper:
            yield f"\n## {r.paper}"
        yield f"\n### {r.heading}\n"
        numbers = (r.folder / "README.md").relative_to(root).as_posix()
        yield f"{beginning(r.title)}: [numbers, settings and seeds]({numbers}); {duration(r.seconds)}.\n"
        has = any(claim.published for claim in r.claims)
        rows = [(_cell(c.text), _cell(c.ours), *((c.published,) * has), c.shown, _cell(c.reason)) for c in r.claims]
        yield from _table(("claim", "ours", *(("published",) * has), "verdict", "reason"), rows)
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def written(text: str, root: Path) -> str:
    """The page with today's made part."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{page(root)}\n{END}{rest.partition(END)[2]}"


def write(root: Path) -> Path:
    """Write the page into README.md of the folder, keeping what stands around the made part; return its path."""
    path = root / "README.md"
    write_atomically(path, written(path.read_text("utf-8") if path.exists() else "# Results that are kept\n\n", root))
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results")))
