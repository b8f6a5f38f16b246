"""Prints how many lines each room of the house has, and fails where one is above its ceiling:  make size

A target is the size that a room is to have.  A ceiling is what it may have now; each move lowers it, and raising one is
a commit of its own that says why.  Lines are those of .py files, docstrings and blanks included.
"""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Room, the packages and modules in it (the longest name decides), target, ceiling.  Vocabulary is any other module.
DECIDE = "decide run/again run/decide run/more_seeds"
ROOMS = [
    ("vocabulary", "", 4_500, 5_216),
    ("algorithms", "algorithms", 11_000, 10_930),
    ("wrappers, server", "wrappers server", 4_800, 5_606),
    ("engine", "engine local runtime/round runtime/in_process runtime/memory runtime/values", 5_200, 6_091),
    ("data", "data", 5_500, 8_282),
    ("tasks, models", "tasks models", 3_000, 3_504),
    ("run", "run experiment record", 5_500, 7_759),
    ("results", "results report history", 4_000, 5_942),
    ("decide", DECIDE, 3_600, 5_017),
    ("deploy", "deploy runtime", 5_000, 6_278),
    ("priors, world, pricing", "priors world pricing", 2_600, 3_038),
    ("papers", "papers", 3_200, 3_199),
    ("face", "api conformance cli __init__ __main__ version", 2_600, 3_737),
    ("bench", "bench", 1_500, 1_650),
    ("all of unskew/", "", 62_000, 76_249),
    ("tests/", "", 45_000, 44_934),
]
PLACES = {place: room for room, places, *_ in ROOMS for place in places.split()}


def room(path: Path) -> str:
    """The room of a module of unskew; a package that is in no room is one of its own, with a ceiling of 0."""
    parts = path.relative_to(ROOT / "unskew").with_suffix("").parts
    fits = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((PLACES[name] for name in fits if name in PLACES), parts[0] if len(parts) > 1 else "vocabulary")


def main() -> int:
    """Print the table; 1 where a room is above its ceiling."""
    lines: Counter[str] = Counter()
    for path in (*ROOT.glob("unskew/**/*.py"), *ROOT.glob("tests/**/*.py")):
        n = len(path.read_text("utf-8").splitlines())
        for name in (room(path), "all of unskew/") if path.is_relative_to(ROOT / "unskew") else ("tests/",):
            lines[name] += n
    limits = {name: (target, ceiling) for name, _, target, ceiling in ROOMS}
    print(f"{'room':24}{'lines':>8}{'target':>8}{'ceiling':>9}")
    for name in [*limits, *sorted(lines.keys() - limits)]:
        target, ceiling = limits.get(name, (0, 0))
        fits = "" if lines[name] <= target else "above its target" if lines[name] <= ceiling else "ABOVE ITS CEILING"
        print(f"{name:24}{lines[name]:8,}{target:8,}{ceiling:9,}  {fits}".rstrip())
    return int(any(n > limits.get(name, (0, 0))[1] for name, n in lines.items()))


if __name__ == "__main__":
    sys.exit(main())
