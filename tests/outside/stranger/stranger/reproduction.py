"""A published table of one number."""

from unskew.experiment import config
from unskew.history import load_run
from unskew.papers import ReproductionRequest, Result
from unskew.papers.result import over_seeds
from unskew.run import loop


def blobs(request: ReproductionRequest) -> Result:
    """A stranger's method on a stranger's data."""
    experiment = config.parse(
        {
            "name": "blobs",
            "rounds": 1,
            "task": {"data": "blobs", "model": "wide"},
            "split": {"name": "comb"},
            "methods": [{"name": "median"}],
        }
    )
    outcome = load_run(loop.start(experiment, request.folder, request.callback).folder)
    (row,) = [r for r in outcome.summary["rows"] if r["metric"] == "global.accuracy"]
    rows = (over_seeds("median", "", "global.accuracy", row["seeds"], paper=0.5),)
    return Result(request.name, request.scale, 0.0, rows, (), "A stranger's table.")
