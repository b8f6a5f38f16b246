"""The points of a [sweep] table, one process per core, and one comparison at the end."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unskew.cli.options import as_file, find_own_code, silent, tell
from unskew.cli.tables import comparability, of_several, print_results
from unskew.errors import shown
from unskew.words import counted

if TYPE_CHECKING:
    from unskew.decide.sweep import Point, PointResult

NO_CHOICE = (
    "These are results on test data, and the best of many points looks better than it is: do not choose settings by "
    "them. unskew tune chooses on validation rows, at equal budgets."
)
"""What the page of a sweep is not for."""


def run(
    path: Path,
    settings: list[str],
    out: Path | None,
    jobs: int | None,
    part: str | None,
    ray: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the points of a file, print them as one table, and write the page that compares them."""
    from unskew.decide import sweep
    from unskew.record.logs import why_diverged
    from unskew.run.folder import read_json

    find_own_code()
    name, points = sweep.expand(path, settings)
    folder = out or Path("runs") / f"{as_file(name)}-sweep"
    own = points if part is None else sweep.shard(points, part)
    say = silent if quiet else tell
    sweep.check(points)
    share = "" if part is None else f", {len(own)} of them in shard {part}"
    say(f"{name}: {counted(len(points), 'point')} in {folder}{share}")
    results = sweep.run(points, folder, jobs, say, part, ray)
    done = [r for r in results if r.status == "done"]
    summaries = {r.point: read_json(r.folder / "summary.json") for r in done}
    if as_json:
        print(json.dumps(_as_json(name, points, results, summaries)))
    elif done:
        from unskew.report import read, together

        records, reached = [read(r.folder) for r in done], [r.point for r in done]
        print_results(together.merge(records, reached))
    if len(done) > 1:
        from unskew.report import write_comparison

        labels = [r.point for r in done]
        page = write_comparison([r.folder for r in done], folder / "comparison.html", labels, NO_CHOICE)
        print(f"comparison: {page}", file=sys.stderr)
    failed = [r for r in results if r.status == "failed"]
    for result in failed:
        print(f"failed: {result.point}: {result.error}", file=sys.stderr)
    lost = {point: summary["diverged"] for point, summary in summaries.items() if summary.get("diverged")}
    for point, rows in lost.items():
        for row in rows:
            print(f"diverged: {shown(f'{point}: {why_diverged(row)}')}", file=sys.stderr)
    if missing := len(results) - len(done) - len(failed):
        say(f"{counted(missing, 'point')} of other shards not done yet; the last shard to end writes the page of all")
    if {*lost, *(r.point for r in failed)} & {p.name for p in own}:
        raise typer.Exit(1)


def _as_json(
    name: str, points: "Sequence[Point]", results: "Sequence[PointResult]", summaries: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    from unskew.report import read

    settings = {p.name: dict(p.settings) for p in points}
    done = [r for r in results if r.point in summaries]
    return {
        **of_several(name, summaries),
        **comparability({r.point: read(r.folder) for r in done}),
        "points": [
            {
                "point": r.point,
                "settings": settings[r.point],
                "status": r.status,
                "run": str(r.folder),
                "error": r.error,
                "diverged": summaries.get(r.point, {}).get("diverged", []),
            }
            for r in results
        ],
    }
