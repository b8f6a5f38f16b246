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
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from scipy import special

from unskew.errors import RunError
from unskew.files import write_atomically
from unskew.papers.claims import LEVEL, LEVEL_WORDS, POINTS, PUBLISHED
from unskew.papers.toolkit import SCALES
from unskew.run.progress import duration
from unskew.words import beginning

BEGIN, END = "<!-- made by unskew.papers.overview -->\n", "<!-- end -->\n"
REASONS, HEADLINES = "reasons.toml", "headlines.toml"
VERDICTS = {True: "holds", False: "does not hold", "undecided": "undecided"}
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
    scale: str = ""
    amount: bool = False
    reason: str = ""
    ours: bool = False

    def __post_init__(self) -> None:
        if self.scale not in ("", *SCALES):
            raise ValueError(f"scale is one of {', '.join(SCALES)}, got {self.scale!r}")

    def verdict(self, claim: Decided | None) -> str:
        """The verdict in words."""
        if claim is None:
            return VERDICTS["undecided"]
        if not self.amount:
            return claim.shown
        if claim.published.endswith("excluded"):
            return f"{VERDICTS[False]}: excluded"
        return VERDICTS["undecided"] if claim.verdict == VERDICTS[False] else claim.verdict


@dataclass(frozen=True)
class Kept:
    """A kept result: its reproduction and scale, its folder, its claims, seconds."""

    name: str
    scale: str
    title: str
    folder: Path
    claims: tuple[Decided, ...]
    seconds: float

    def count(self, verdict: str) -> int:
        """The number of claims with this verdict."""
        return sum(claim.verdict == verdict for claim in self.claims)


def kept(root: Path) -> tuple[Kept, ...]:
    """All kept results below a folder, by paper in the order of the papers, then by reproduction.

    Raises:
        RunError: If a result or the file of reasons cannot be read, or a reason fits no claim that does not hold.
    """
    from unskew.papers import TABLE

    reasons, results = _reasons(root / REASONS), []
    used: set[tuple[str, str]] = set()
    for path in sorted(root.glob("*/*/*/result.json")):
        try:
            result = json.loads(path.read_text("utf-8"))
            name, rows = result["name"], result["claims"]
            claims = tuple(_claim(row, name, reasons, used) for row in rows)
            title = TABLE[name].about if name in TABLE else ""
            results.append(Kept(name, result["scale"], title, path.parent, claims, float(result["seconds"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a kept result: {type(error).__name__}: {error}; keep it again") from None
    for name, patterns in reasons.items():
        for pattern in patterns:
            if (name, pattern) not in used:
                raise RunError(
                    f"{root / REASONS}: {name} has no claim that does not hold and fits {pattern!r}; remove it"
                )
    order = list(dict.fromkeys(name.partition("/")[0] for name in TABLE))
    return tuple(sorted(results, key=lambda r: (_place(order, r.name.partition("/")[0]), r.name, r.scale)))


def _place(order: Sequence[str], paper: str) -> int:
    return order.index(paper) if paper in order else len(order)


def _reasons(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    return {name: {str(pattern): str(reason) for pattern, reason in of.items()} for name, of in table.items()}


def _claim(
    row: Mapping[str, Any], name: str, reasons: Mapping[str, Mapping[str, str]], used: set[tuple[str, str]]
) -> Decided:
    text = row["text"]
    ours, _, published = str(row["evidence"]).partition(PUBLISHED)
    # A result that was kept before anything could be level is read by today's rule.
    level = bool(row.get("level")) or (row["holds"] == "undecided" and is_level(ours))
    verdict = VERDICTS[False if level else row["holds"]]
    if text.startswith("as published") and ": " in ours:  # the evidence of these says why
        ours, _, reason = ours.partition(": ")
        reason = "" if verdict == "holds" else f"differs from the paper's: {reason}"
    else:
        reason = "" if verdict == "holds" else seeds_needed(ours) if verdict == "undecided" else UNKNOWN
    if verdict == "does not hold":
        for pattern, given in reasons.get(name, {}).items():
            if fnmatchcase(text, pattern):
                used.add((name, pattern))
                reason = given
                break
    return Decided(text, verdict, level, ours, published, reason)


def is_level(evidence: str) -> bool:
    """True if the evidence has one interval in points, and that lies within LEVEL of zero, or no difference at all.

    >>> is_level("+0.03 points, 95 % interval [-0.35, +0.41] over 3 seeds")
    True
    >>> is_level("+0.03 points, 95 % interval [-0.35, +0.50] over 3 seeds")
    False
    """
    if re.fullmatch(r"\+0\.00 points in each of \d+ seeds, no interval", evidence):
        return True
    match = re.fullmatch(rf"[+-][\d.]+ {POINTS}, 95 % interval \[([+-][\d.]+), ([+-][\d.]+)\] over \d+ seeds", evidence)
    return match is not None and all(abs(float(bound)) < 100 * LEVEL for bound in match.groups())


def headlines(root: Path, results: Sequence[Kept]) -> tuple[tuple[PaperHeadline, Kept | None, Decided | None], ...]:
    """Read what the papers are known for, with the result and the claim that stand for it; None where not kept.

    Raises:
        RunError: If the file cannot be read, or names a claim that its kept reproduction does not have.
    """
    path = root / HEADLINES
    if not path.exists():
        return ()
    try:
        listed = [PaperHeadline(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["headlines"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a list of headlines: {type(error).__name__}: {error}") from None
    out = []
    for h in listed:
        there = sorted(
            (r for r in results if r.name == h.reproduction and h.scale in ("", r.scale)),
            key=lambda r: r.scale != "paper",
        )
        fit = [c for r in there[:1] for c in r.claims if fnmatchcase(c.text, h.claim)]
        if there and not fit:
            raise RunError(f"{path}: {h.reproduction} has no claim that fits {h.claim!r}; correct or remove it")
        out.append((h, there[0] if there else None, fit[0] if fit else None))
    return tuple(out)


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
    for k in range(int(n) + 1, MOST_SEEDS + 1):
        if float(special.stdtrit(k - 1, 0.975)) * s / math.sqrt(k) < distance:
            return f"{n:.0f} seeds; a difference of this size would take {k}"
    return f"{n:.0f} seeds; a difference of this size would take over {MOST_SEEDS}"


def page(root: Path) -> str:
    """The made part of the page, in Markdown.

    Raises:
        RunError: As `kept` and `headlines` do.
    """
    results = kept(root)
    return "\n".join((*_headline_lines(headlines(root, results)), *_lines(results, root)))


def _headline_lines(found: Sequence[tuple[PaperHeadline, Kept | None, Decided | None]]) -> Iterator[str]:
    """Write what the papers are known for, as one table."""
    if not found:
        return
    yield "## What the papers are known for\n"
    yield f"Of {len(found)} headline claims {_verdicts(found)}."
    own = [one for one in found if one[0].ours]
    yield f"The papers do not claim {len(own)} of them; of these {_verdicts(own)}.\n" if own else ""
    yield "| paper | it says | ours | verdict | reason |"
    yield "|---|---|---|---|---|"
    for headline, r, claim in found:
        where = f"[{headline.reproduction}](#{_anchor(r)})" if r else headline.reproduction
        where += ", at the paper's size" if r and r.scale == "paper" else ""
        ours = (
            "not kept yet" if claim is None else claim.ours + (f"; published {claim.published}" * bool(claim.published))
        )
        reason = headline.reason or (claim.reason if claim else "")
        says = _cell(headline.says) + " (not the paper's)" * headline.ours
        cells = (says, f"{_cell(ours)} ({where})", headline.verdict(claim), _cell(reason))
        yield f"| {headline.paper} | {' | '.join(cells)} |"
    yield ""


def _verdicts(found: Sequence[tuple[PaperHeadline, Kept | None, Decided | None]]) -> str:
    """Count verdicts, in words."""
    n = Counter(headline.verdict(claim).partition(":")[0] for headline, _, claim in found)
    holds, fails, open_ = (n[verdict] for verdict in VERDICTS.values())
    return (
        f"{holds} {'holds' if holds == 1 else 'hold'}, {fails} {'does' if fails == 1 else 'do'} not, {open_} "
        f"{'is' if open_ == 1 else 'are'} undecided"
    )


def _lines(results: Sequence[Kept], root: Path) -> Iterator[str]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(claim.verdict for claim in result.claims)
    failed = [claim for result in results for claim in result.claims if claim.verdict == "does not hold"]
    explained = sum(claim.reason != UNKNOWN for claim in failed)
    proven = sum(
        claim.reason.startswith("Proven") and not claim.reason.startswith("Proven in part") for claim in failed
    )
    level = sum(claim.level for claim in failed)
    yield "## All claims by reproduction\n"
    yield (
        f"Of {total.total()} claims **{total['holds']} hold, {total['does not hold']} do not, {total['undecided']} are "
        f"undecided**.  Of those that do not hold, {level} are {LEVEL_WORDS}, a reason is named for {explained}, and "
        f"proven for {proven}.{_excluded(results)}  All of it took "
        f"{duration(sum(r.seconds for r in results))}.\n"
    )
    yield "| reproduction | scale | claims | hold | do not | undecided | cost |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for r in results:
        counts = (len(r.claims), *(r.count(v) for v in VERDICTS.values()))
        yield f"| [{r.name}](#{_anchor(r)}) | {r.scale} | {' | '.join(map(str, counts))} | {duration(r.seconds)} |"
    paper = ""
    for r in results:
        if r.name.partition("/")[0] != paper:
            paper = r.name.partition("/")[0]
            yield f"\n## {paper}"
        yield f"\n### {_heading(r)}\n"
        numbers = (r.folder / "README.md").relative_to(root).as_posix()
        title = r.title or "claims of a campaign"
        yield f"{beginning(title)}: [numbers, settings and seeds]({numbers}); {duration(r.seconds)}.\n"
        printed = any(claim.published for claim in r.claims)
        heads = ("claim", "ours", *(("published",) * printed), "verdict", "reason")
        yield f"| {' | '.join(heads)} |"
        yield "|---" * len(heads) + "|"
        for c in r.claims:
            cells = (_cell(c.text), _cell(c.ours), *((c.published,) * printed), c.shown, _cell(c.reason))
            yield f"| {' | '.join(cells)} |"
    yield ""


def _excluded(results: Sequence[Kept]) -> str:
    """A sentence on published differences."""
    printed = [c.published for r in results for c in r.claims if "," in c.published]
    if not printed:
        return ""
    out = sum(words.endswith("excluded") for words in printed)
    return f"  Of {len(printed)} published differences our intervals exclude {out}."


def _heading(r: Kept) -> str:
    return f"{r.name}, {r.scale}"


def _anchor(r: Kept) -> str:
    """The heading's anchor, as GitHub and MkDocs both make it."""
    return re.sub(r"[^\w\- ]", "", _heading(r)).replace(" ", "-").lower()


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
