"""The pages over kept results, one over all and one a paper: what it is known for, and which claims hold.

They are made from what `unskew reproduce NAME --keep` wrote, `NAME/SCALE/result.json` below a folder, and two files
beside them.  `headlines.toml` has what each paper is known for, in its order, and the claims that stand for it.
`reasons.toml` has reasons for claims that do not hold, by reproduction and by the claim's text, in which `*` stands for
anything; the first pattern that fits counts.  A reason that begins with "Proven" names the run that shows it.

    python -m unskew.papers.overview [FOLDER]
"""

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unskew import schema
from unskew.errors import ConfigError, RunError
from unskew.files import write_atomically
from unskew.papers.claims import LEVEL_WORDS, PUBLISHED
from unskew.run.progress import duration

BEGIN, END = "<!-- made by unskew.papers.overview -->\n", "<!-- end -->\n"
REASONS, HEADLINES = "reasons.toml", "headlines.toml"
HOLDS, FAILS, OPEN = VERDICTS = ("holds", "does not hold", "undecided")


class KeptClaim(NamedTuple):
    """A claim of a kept result.

    Attributes:
        verdict: One of `VERDICTS`.
        level: It does not hold because the two are level.
        ours: The evidence.
        published: The paper's difference, and if our interval excludes it; empty if the paper has none.
        reason: Why it does not hold; empty if that is not known.
    """

    text: str
    verdict: str
    level: bool
    ours: str
    published: str
    reason: str


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

    def verdict(self, claim: KeptClaim | None) -> str:
        """The verdict in words."""
        if claim is None:
            return OPEN
        if not self.amount:
            return f"{claim.verdict}: {LEVEL_WORDS}" if claim.level else claim.verdict
        if claim.published.endswith("excluded"):
            return f"{FAILS}: excluded"
        return OPEN if claim.verdict == FAILS else claim.verdict


@dataclass(frozen=True)
class Kept:
    """A kept result: its reproduction and scale, its folder, its claims, seconds."""

    name: str
    scale: str
    folder: Path
    claims: tuple[KeptClaim, ...]
    seconds: float

    def link(self, root: Path, title: str) -> str:
        """A link to its page."""
        return f"[{title}]({(self.folder / 'README.md').relative_to(root).as_posix()})"


Answer = tuple[PaperHeadline, Kept | None, KeptClaim | None]


@dataclass(frozen=True)
class _Headlines:
    """The file of headlines."""

    headlines: list[PaperHeadline] = field(default_factory=list)


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
            results.append(Kept(name, result["scale"], path.parent, tuple(claims), float(result["seconds"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a kept result: {type(error).__name__}: {error}; keep it again") from None
    for name, pattern in reasons.keys() - used:
        raise RunError(f"{root / REASONS}: {name} has no claim that does not hold and fits {pattern!r}; remove it")
    order = [
        *dict.fromkeys(name.partition("/")[0] for name in TABLE),
        *sorted(r.name.partition("/")[0] for r in results),
    ]
    return tuple(sorted(results, key=lambda r: (order.index(r.name.partition("/")[0]), r.name, r.scale)))


def _toml(path: Path) -> dict[str, Any]:
    """A file beside the results; empty where there is none."""
    try:
        return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None


def _claim(row: Mapping[str, Any], reason: str) -> KeptClaim:
    """A kept claim, with the reason that the file of reasons gives, if any."""
    ours, _, published = str(row["evidence"]).partition(PUBLISHED)
    verdict = {True: HOLDS, False: FAILS, "undecided": OPEN}[row["holds"]]
    if not reason and verdict == FAILS and row["text"].startswith("as published"):
        _, _, reason = ours.partition(": ")  # the evidence of these says why
    return KeptClaim(row["text"], verdict, bool(row.get("level")), ours, published, reason)


def headlines(root: Path, results: Sequence[Kept]) -> list[Answer]:
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
        fit = next((c for c in best.claims if fnmatchcase(c.text, h.claim)), None) if best else None
        if best and fit is None:
            raise RunError(f"{path}: {h.reproduction} has no claim that fits {h.claim!r}; correct or remove it")
        answers.append((h, best, fit))
    return answers


# ---------------------------------------------------------------- the pages
def pages(root: Path) -> dict[str, str]:
    """The made part of the page over all papers, under "", and the page of each, by its folder.

    Raises:
        RunError: As `kept` and `headlines` do.
    """
    results = kept(root)
    answers = headlines(root, results)
    folders = list(dict.fromkeys(r.name.partition("/")[0] for r in results))
    texts = {"": "\n".join(_overview(root, results, answers))}
    for folder in folders:
        own = [r for r in results if r.name.startswith(f"{folder}/")]
        claimed = [answer for answer in answers if answer[0].reproduction.startswith(f"{folder}/")]
        texts[folder] = "\n".join(_of_paper(folder, root / folder, own, claimed))
    return texts


def _overview(root: Path, results: Sequence[Kept], answers: Sequence[Answer]) -> Iterator[str]:
    """Write what the papers are known for, a line each, and how the claims of each stand."""
    if answers:
        yield f"## What the papers are known for\n\n{_counted(answers)}\n"
        yield "| paper | it says | verdict | size |"
        yield "|---|---|---|---|"
        for headline, r, claim in answers:
            size = r.link(root, r.scale) if r else "not kept yet"
            yield f"| {headline.paper} | {_says(headline)} | {headline.verdict(claim)} | {size} |"
        yield ""
    claims = [claim for result in results for claim in result.claims]
    total, failed = Counter(claim.verdict for claim in claims), [claim for claim in claims if claim.verdict == FAILS]
    proven = sum(bool(re.match(r"Proven(?! in part)", claim.reason)) for claim in failed)
    printed = [c.published for c in claims if "," in c.published]
    out = sum(words.endswith("excluded") for words in printed)
    yield "## All reproductions\n"
    yield (
        f"Of {len(claims)} claims **{total[HOLDS]} hold, {total[FAILS]} do not, {total[OPEN]} are undecided**.  Of "
        f"those that do not hold, {sum(claim.level for claim in failed)} are {LEVEL_WORDS}, a reason is named for "
        f"{sum(bool(claim.reason) for claim in failed)}, and proven for {proven}.  Of {len(printed)} published "
        f"differences our intervals exclude {out}.  All of it took {duration(sum(r.seconds for r in results))}.\n"
    )
    yield "| page | claims | hold | do not | undecided | cost |"
    yield "|---|---:|---:|---:|---:|---:|"
    by_paper: dict[str, list[Kept]] = {}
    for r in results:
        by_paper.setdefault(r.name.partition("/")[0], []).append(r)
    for folder, own in by_paper.items():
        yield f"| [{folder}]({folder}/README.md) | {_counts(own)} |"
    yield ""


def _of_paper(name: str, root: Path, results: Sequence[Kept], answers: Sequence[Answer]) -> Iterator[str]:
    """A paper's page: what it is known for and what was found; folded, why not, and all reproductions."""
    yield f"# {answers[0][0].paper if answers else name}: what holds\n"
    if answers:
        yield f"{_counted(answers)}  How they are decided: [claims](../claims.md).\n"
        yield "| it says | verdict | ours | size |"
        yield "|---|---|---|---|"
    reasons = []
    for headline, r, claim in answers:
        ours = "not kept yet"
        if claim is not None:
            ours = claim.ours + f"; published {claim.published}" * bool(claim.published)
        size = r.link(root, r.scale) if r else headline.reproduction
        yield f"| {_says(headline)} | {headline.verdict(claim)} | {_cell(ours)} | {size} |"
        if reason := headline.reason or (claim.reason if claim else ""):
            reasons.append(f"* **{_says(headline)}** {_cell(reason)}")
    if reasons:
        yield from ("", *_folded("Why claims do not hold", reasons))
    table = [
        "| reproduction | scale | claims | hold | do not | undecided | cost |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    table += [f"| {r.link(root, r.name)} | {r.scale} | {_counts([r])} |" for r in results]
    yield from ("", *(_folded("All reproductions", table) if answers else table))
    yield ""


def _folded(title: str, lines: Sequence[str]) -> tuple[str, ...]:
    return (f'<details markdown="1"><summary>{title}</summary>', "", *lines, "", "</details>")


def _counted(answers: Sequence[Answer]) -> str:
    n = Counter(headline.verdict(claim).partition(":")[0] for headline, _, claim in answers)
    return f"Of {len(answers)} headline claims {n[HOLDS]} hold, {n[FAILS]} do not, {n[OPEN]} are undecided."


def _counts(results: Sequence[Kept]) -> str:
    """The cells that count claims by verdict, and their cost."""
    claims = [claim.verdict for r in results for claim in r.claims]
    each = Counter(claims)
    cells = (len(claims), *(each[v] for v in VERDICTS), duration(sum(r.seconds for r in results)))
    return " | ".join(map(str, cells))


def _says(headline: PaperHeadline) -> str:
    return _cell(headline.says) + " (not the paper's)" * headline.ours


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def written(text: str, made: str) -> str:
    """The page over all papers with today's made part."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def write(root: Path) -> Path:
    """Write each paper's page, and the made part of the folder's README.md; return the latter's path."""
    made, path = pages(root), root / "README.md"
    for folder, text in made.items():
        if folder:
            write_atomically(root / folder / "README.md", text)
    write_atomically(
        path, written(path.read_text("utf-8") if path.exists() else "# Results that are kept\n\n", made[""])
    )
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results")))
