"""Read a run folder with nothing but the standard library: its documents are JSON, its rows a database of SQLite's.

python examples/read_a_run.py FOLDER
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

CURVE = "SELECT round, value FROM metrics WHERE name = 'global.accuracy' ORDER BY id"
SENT = """
SELECT CASE WHEN src = 0 THEN 'down' WHEN dst = 0 THEN 'up' ELSE 'd2d' END, sum(bytes) FROM transfers GROUP BY 1
"""  # node 0 is the server, client c is node c + 1


def main(folder: Path) -> None:
    card = json.loads((folder / "run.json").read_text("utf-8"))
    print(f"{card['run']}, {card['created']}, {card['parameters']} parameters, torch {card['environment']['torch']}")

    for seed, split in json.loads((folder / "partition.json").read_text("utf-8"))["seeds"].items():
        sizes = split["stats"]["sizes"]
        print(
            f"seed {seed}: {split['dataset']}, {len(sizes)} clients of {min(sizes)} to {max(sizes)} training examples"
        )

    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    for row in summary["rows"]:
        if row["metric"] == "global.accuracy":
            print(f"{row['method']}: accuracy {row['mean']:.3f} in the last round, by seed {row['seeds']}")

    with closing(sqlite3.connect(folder / "run.sqlite")) as record:
        curve = record.execute(CURVE).fetchall()
        print(f"{len(curve)} evaluations; the first {curve[0][1]:.3f} in round {curve[0][0]}")
        print("bytes:", dict(record.execute(SENT)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/read_a_run.py FOLDER, a folder that unskew run has made")
    main(Path(sys.argv[1]))
