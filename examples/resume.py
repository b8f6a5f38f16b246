"""Stop by a budget, and go on after an interruption: the same bits either way.

python examples/resume.py [ROUNDS]
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import unskew as us
from unskew.run.cell import Cell


def power_cut(after: int) -> Callable[[Cell], None]:
    """Ends the program in the middle of the run, as Ctrl-C would."""

    def cut(cell: Cell) -> None:
        if cell.round == after:
            raise KeyboardInterrupt

    return cut


def main(rounds: int = 8) -> None:
    budget = us.simulate("fedavg", rounds=rounds, stop=us.Stop(megabytes=1.5))
    sent = budget.value("fedavg", "bytes.total") / 1e6
    print(f"budget: {budget.curve('fedavg')[-1][0]} rounds, {sent:.2f} MB ({budget.summary['stopped']['fedavg/0']})")

    straight = us.simulate("scaffold", rounds=rounds)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        try:
            us.simulate(
                "scaffold",
                rounds=rounds,
                out=folder,
                runtime=us.Runtime(checkpoint_every=2),
                callback=power_cut(after=rounds // 2 + 1),
            )
        except KeyboardInterrupt as stopped:
            print("interrupted:", str(stopped).replace(str(folder), "FOLDER"))
        resumed = us.resume(folder)
    print("same fingerprint:", resumed.summary["fingerprint"] == straight.summary["fingerprint"])
    print(resumed)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
