"""Writes the table of methods and kinds of task into docs/reference/tasks.md:  python docs/needs_table.py

It is made from what methods declare (`unskew.tasks.kind`); a test compares the page with it.
"""

from pathlib import Path

from unskew import algorithms
from unskew.tasks import TABLE, kind_of
from unskew.tasks.kind import NEEDS, given, needs_of

PAGE = Path(__file__).parent / "reference" / "tasks.md"
BEGIN, END = "<!-- made by docs/needs_table.py -->\n", "<!-- end -->\n"


def table() -> str:
    """A row for each set of needs, a column for each kind."""
    methods: dict[tuple[str, ...], list[str]] = {}
    for name, entry in algorithms.TABLE.items():
        methods.setdefault(needs_of(algorithms.resolve(name)()), []).append(entry.name)
    rows = [["needs", "methods", *(f"`{kind}`" for kind in TABLE)], ["---"] * (2 + len(TABLE))]
    for needs in sorted(methods, key=lambda needs: (len(needs), needs)):
        words = "; ".join(NEEDS[need] for need in needs) or "nothing"
        rows.append([words, ", ".join(methods[needs]), *(_goes(needs, kind) for kind in TABLE)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _goes(needs: tuple[str, ...], kind: str) -> str:
    if given(kind_of(kind)).issuperset(needs):
        return "yes"
    numbers = kind_of(kind).targets.name == "number"
    return "with `task.bins`" if numbers and given(kind_of(kind), binned=True).issuperset(needs) else "–"


def written(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
