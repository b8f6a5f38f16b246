"""Every reproduction that trains gets as far as its first round, at both sizes: what was never begun is a guess."""

import os
from pathlib import Path
from typing import Any

import pytest

from unskew import papers
from unskew.errors import ConfigError, DataError
from unskew.run.cell import Observer

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("UNSKEW_DATA", SHARED))

ELSEWHERE = {
    "feddif/iterations", "feddif/subframes", "feddif/diffusion-rounds",
    "feddw/overhead",
    "feddw/gradient", "advise/situations", "advise/natural",
}  # fmt: skip
"""Reproductions that train nothing, or not in runs of their own."""


SHORTER: dict[str, dict[str, Any]] = {
    name: {"trials": 1, "experiment": {"rounds": 2}} for name in papers.TABLE if "/tuned" in name or "/all" in name
}
"""Changes where much is trained before the first run."""


class Begun(BaseException):
    """The first round is about to begin: everything that is checked before it was."""


class Stop(Observer):
    def start(self, *_: Any) -> None:
        raise Begun


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data of ../shared, or UNSKEW_DATA")
@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("name", sorted(set(papers.TABLE) - ELSEWHERE))
@pytest.mark.filterwarnings("ignore:.*training rows of one class only")  # as Switzerland in Fed-Heart-Disease
def test_it_begins(name: str, scale: str, tmp_path: Path) -> None:
    try:
        papers.reproduce(name, scale, tmp_path / "run", DATA, Stop(), SHORTER.get(name))
    except Begun:
        return
    except (ConfigError, DataError) as error:
        missing = (
            "--scale paper needs all of",
            "the package diffusers",
            "svhn was not found",
        )
        if scale == "paper" and any(text in str(error) for text in missing):
            pytest.skip(str(error))
        raise
    pytest.fail("it trained nothing")
