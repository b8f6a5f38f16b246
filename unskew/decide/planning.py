"""Writes a run's expected cost into its folder as it starts."""

import json
import sys

from unskew.run.cell import Cell, Observer


class Planning(Observer):
    """Writes plan.json when a run begins.

    A run is never refused because of its plan: too little memory is a note, and so is a plan that fails.
    """

    def start(self, cell: Cell) -> None:
        """Write the plan, before the first round of all."""
        from unskew.decide.forecast.plan import forecast
        from unskew.files import write_atomically
        from unskew.run.folder import explained

        if cell.index or cell.round:
            return
        try:
            costs = forecast(cell.run)
        except Exception as error:  # a failed forecast must not stop the run
            print(f"warning: no plan.json: {type(error).__name__}: {error}", file=sys.stderr)
            return
        if costs.too_large:
            print(f"warning: {costs.too_large}", file=sys.stderr)
        path = cell.run.folder / "plan.json"
        with explained(path, cell.run.folder):
            write_atomically(path, json.dumps(costs.to_json(), indent=1))
