"""A published table of one number."""

from unskew.experiment import config
from unskew.papers import Draft
from unskew.papers.study import final


def blobs(draft: Draft) -> None:
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
    history = draft.complete(experiment, "run")
    draft.add("median", "", "global.accuracy", final(history, "median", "global.accuracy"), paper=0.5)
