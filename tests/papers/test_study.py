"""Settings are laid over each other, tables are read as printed, runs are resumed and outlive a method."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew.errors import DataError
from unskew.papers.study import Draft, drawn, load, published
from unskew.run.cell import Observer


def draft_of(name: str, scale: str, folder: Path, data_dir: Path | None = None, **changes: Any) -> Draft:
    return Draft(name, scale, folder, data_dir, Observer(), changes)


# ---------------------------------------------------------------- settings and published tables
def test_a_reproductions_own_size_counts_most_and_a_request_more(tmp_path: Path) -> None:
    """FedDW: ten rounds at `small`, fifteen of them in `consistency`, fifty at `paper`."""

    def rounds(name: str, scale: str, **changes: Any) -> int:
        return int(draft_of(name, scale, tmp_path, **changes)["experiment"]["rounds"])

    assert rounds("feddw/mu", "small") == 10
    assert rounds("feddw/consistency", "small") == 15
    assert rounds("feddw/consistency", "paper") == 50
    assert rounds("feddw/consistency", "small", experiment={"rounds": 2}) == 2


def test_a_published_number_is_found_by_row_and_column_and_a_missing_one_is_missing() -> None:
    table = published("feddw-table1")
    assert table["fedavg"]["mnist, practical"] == 99.31
    assert "cifar10, pathological" not in table["perfedavg"]


# ---------------------------------------------------------------- data
def usps(folder: Path, train: int, test: int = 2_007) -> Path:
    """A file of so many images of one pixel."""
    folder.mkdir()
    arrays = {f"{what}_{part}": n for part, n in (("train", train), ("test", test)) for what in "xy"}
    np.savez(
        folder / "usps.npz",
        **{k: np.arange(n, dtype=np.uint8).reshape(n, *(1, 1) * k.startswith("x")) % 10 for k, n in arrays.items()},
    )
    return folder


def test_the_papers_size_needs_the_papers_data(tmp_path: Path) -> None:
    """1 % of 7,291 is 72.9: with 7,219 examples the page says what is missing, with 7,218 nothing is run."""
    part, most, whole = usps(tmp_path / "a", 7_218), usps(tmp_path / "b", 7_219), usps(tmp_path / "c", 7_291)
    load(draft_of("x/y", "small", tmp_path, part), "usps")
    with pytest.raises(DataError, match=r"needs all of usps, 7,291 training .* got 7,218 training and 2,007 test"):
        drawn(draft_of("x/y", "paper", tmp_path, part), "usps", None)
    asked = draft_of("x/y", "paper", tmp_path, most)
    drawn(asked, "usps", None)
    drawn(asked, "usps", {"train": 10})
    note = "usps has 7,219 training and 2,007 test examples here, of 7,291 training and 2,007 test examples."
    assert {*asked.notes} == {note}
    exact = draft_of("x/y", "paper", tmp_path, whole)
    load(exact, "usps")
    assert not exact.notes


@pytest.mark.parametrize(
    ("name", "missing"), [("feddw/table1", "imdb"), ("feddistr/tradeoff", "usps"), ("advise/natural", "parkinsons")]
)
def test_a_column_whose_data_are_missing_is_said_and_the_others_are_run(
    name: str, missing: str, tmp_path: Path
) -> None:
    """Nothing but digits is there; Table I has IMDB whole at both sizes."""
    digits, on = {"task": {"data": "digits", "model": "mlp"}}, ["here", missing]
    draft = draft_of(name, "small", tmp_path, tmp_path, grounds={"here": digits}, on=on)
    runs = draft.on(on).keys()
    assert list(runs) == ["here"]
    (note,) = draft.notes
    assert note.startswith(f"Not run on {missing}: {missing} was not found")
    with pytest.raises(DataError, match="was not found"):
        draft.on([missing])


def test_a_draft_counts_the_seeds_and_seconds_of_its_runs_and_fills_its_page(tmp_path: Path) -> None:
    quick = {"rounds": 1, "seeds": [4, 2], "methods": {"fedprox": {"mu": 0.25}}, "bounds": False}
    draft = draft_of("noniid/digits", "small", tmp_path, experiment=quick, what="two seeds")
    history = draft.run("run", draft["experiment"], methods=["fedavg"])
    result = draft.result()
    assert (result.seeds, result.seconds) == ((2, 4), history.summary["seconds"])
    assert result.about.startswith("digits, Dirichlet alpha 0.1 by class, two seeds, 1 rounds. Accuracy is")
    assert draft["experiment"]["methods"]["fedprox"] == {"mu": 0.25}
