"""Read a run folder with nothing but the standard library: its files are JSON, one object a line in the logs.

python examples/read_a_run.py FOLDER
"""

import json
import sys
from collections import Counter
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


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

    curve = [row for row in lines(folder / "metrics.jsonl") if row["name"] == "global.accuracy"]
    print(f"{len(curve)} evaluations; the first {curve[0]['value']:.3f} in round {curve[0]['round']}")

    sent: Counter[str] = Counter()
    for row in lines(folder / "ledger.jsonl"):  # node 0 is the server, client c is node c + 1
        sent["down" if row["src"] == 0 else "up" if row["dst"] == 0 else "d2d"] += row["bytes"]
    print("bytes:", dict(sent))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/read_a_run.py FOLDER, a folder that unskew run has made")
    main(Path(sys.argv[1]))
