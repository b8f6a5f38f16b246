"""The plan that a run keeps: its expected cost, written into its folder as it starts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unskew.data.federated import FederatedData
    from unskew.experiment.config import Experiment
    from unskew.run.callbacks import Callback, Progress
    from unskew.run.setup import Setup


class Planning:
    """A callback that writes plan.json when a run begins, and passes everything on to another callback.

    A run is never refused because of its plan: too little memory is a line of warning, and so is a plan that fails.
    """

    def __init__(self, callback: "Callback", folder: Path) -> None:
        self._watcher, self._folder = callback, folder
        self.note = callback.note

    def start(self, experiment: "Experiment", setup: "Setup", feds: "dict[int, FederatedData]") -> None:
        """Plan, then begin.  Warnings come first: a live display would be torn by them."""
        from unskew.decide.forecast.plan import forecast
        from unskew.files import write_atomically
        from unskew.run.folder import explained

        try:
            costs = forecast(experiment, setup, feds)
        except Exception as error:  # a failed forecast must not stop the run
            print(f"warning: no plan.json: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            if costs.too_large:
                print(f"warning: {costs.too_large}", file=sys.stderr)
            path = self._folder / "plan.json"
            with explained(path, self._folder):
                write_atomically(path, json.dumps(costs.to_json(), indent=1))
        self._watcher.start(experiment, setup, feds)

    def progress(self, progress: "Progress") -> None:
        """Pass on."""
        self._watcher.progress(progress)
