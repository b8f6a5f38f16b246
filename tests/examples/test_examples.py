"""Every example is run as a reader would run it, and its output is read."""

import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import altair
import pandas
import pytest

from unskew.experiment import config
from unskew.run import loop

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRESS = re.compile(r"(simulation|\w+): .*, seeds |model: |methods: |clients: |.* \(seed \d+\)  round \d+/")


def run(name: str, *args: str, at: Path) -> str:
    """What an example prints; a warning is an error, and it must find unskew as an installed package would be found."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *args],
        cwd=at,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not PROGRESS.match(line)] == []
    return done.stdout


def column(printed: str, label: str, n: int) -> float:
    """The n-th number, counted from 0, of the line that begins with `label`."""
    line = next(line for line in printed.splitlines() if re.match(rf"\s*{re.escape(label)}\s", line))
    return float(re.findall(r"\d+(?:\.\d+)?", line.strip()[len(label) :])[n])


def quickstart(printed: str) -> None:
    assert column(printed, "FedAvg", 0) > 20
    assert column(printed, "SCAFFOLD", 0) > 20
    curve = printed.splitlines()[-1].removeprefix("FedAvg by round: ").split()
    assert len(curve) == 3
    assert float(curve[-1]) > float(curve[0])


def write_your_own(printed: str) -> None:
    assert "mine equals unskew's to the last bit: True" in printed
    assert "mine differs from FedAvg: True" in printed


def own_data(printed: str) -> None:
    assert re.search(r"^ independent \(training alone\)\s+–\s", printed, re.M)
    assert column(printed, "fedavg", 0) > 80
    assert "±" in printed


def own_arrays_own_module(printed: str) -> None:
    assert column(printed, "fedavg", 0) > 40


def dataframe_by_client(printed: str) -> None:
    assert column(printed, "FedAvg", 0) > 80
    assert [line.split()[0] for line in printed.splitlines()[-4:]] == ["Basel", "Bern", "Chur", "Genf"]


def finetune_pretrained(printed: str) -> None:
    before, after = map(float, re.findall(r"(\d+\.\d) %", printed.splitlines()[-1]))
    assert before < after
    assert "loaded without unskew: the same" in printed


def own_model(printed: str) -> None:
    assert column(printed, "fedavg", 0) > 30


def personal(printed: str) -> None:
    alone, averaged, own_head = (column(printed, label, 2) for label in ("alone", "FedAvg", "own head"))
    assert 0 == alone < own_head < averaged
    assert column(printed, "alone", 0) > column(printed, "FedAvg", 0)


def resume(printed: str) -> None:
    # 20 clients, 19,680 bytes down and a little more up: 0.79 MB a round, and the second reaches the budget.
    assert re.search(r"budget: 2 rounds, 1\.5\d MB .*>= 1\.5 after round 2", printed)
    assert "interrupted: stopped in the middle of a round; continue with: unskew.resume('FOLDER')" in printed
    assert "same fingerprint: True" in printed


def new_server_rule(printed: str) -> None:
    ratio = float(re.search(r"up: ([\d.]+) of FedAvg's bytes", printed)[1])  # type: ignore[index]
    assert 0.25 < ratio < 0.35
    assert column(printed, "signs", 0) > 20


EXPECTED: dict[str, tuple[tuple[str, ...], Callable[[str], None]]] = {
    "quickstart.py": (("2",), quickstart),
    "write_your_own.py": (("2",), write_your_own),
    "own_data.py": (("3",), own_data),
    "own_model.py": (("5",), own_model),
    "own_arrays_own_module.py": (("5",), own_arrays_own_module),
    "dataframe_by_client.py": (("3",), dataframe_by_client),
    "finetune_pretrained.py": (("3",), finetune_pretrained),
    "personal.py": (("2",), personal),
    "resume.py": (("4",), resume),
    "new_server_rule.py": (("3",), new_server_rule),
}


def test_an_example_is_run_as_a_reader_would_start_it(tmp_path: Path) -> None:
    args, check = EXPECTED["quickstart.py"]
    check(run("quickstart.py", *args, at=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted({*EXPECTED} - {"quickstart.py"}))
def test_an_example_prints_what_it_promises_and_leaves_nothing_behind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has loaded PyTorch already."""
    args, check = EXPECTED[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *args])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # notes about data, too
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed, errors = capsys.readouterr()
    assert [line for line in errors.splitlines() if not PROGRESS.match(line)] == []
    check(printed)
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_run() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == {*EXPECTED, "read_a_run.py"}


# ---------------------------------------------------------------- three hospitals
@pytest.fixture(scope="session")
def cells() -> Callable[[Path, dict[str, Any]], Iterator[tuple[str, str, Any]]]:
    """How the documentation runs a notebook."""
    return runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["cells"]


def test_the_notebooks_code_runs_and_ends_with_predictions(cells: Any, tmp_path: Path) -> None:
    """Every code cell in order, as Jupyter would; the patients of a hospital are better off than by guessing."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    module: dict[str, object] = {}
    *_, (_, _, last) = cells(tmp_path / "examples" / "hospitals.ipynb", module)
    assert isinstance(last, list)
    assert set(last) <= {"healthy", "sick"}
    by_hospital = module["by_hospital"]
    assert isinstance(by_hospital, pandas.DataFrame)
    assert by_hospital.index.tolist() == ["Basel", "Bern", "Chur"]
    assert by_hospital.mean().min() > 0.6
    assert {path.name for path in tmp_path.iterdir()} == {"examples"}


@pytest.mark.usefixtures("two_rounds")
def test_every_cell_of_the_gallery_ends_with_a_chart(cells: Any, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    shown = [value for kind, _, value in cells(tmp_path / "examples" / "gallery.ipynb", {}) if kind == "code"]
    assert [type(value).__name__ for value in shown if not isinstance(value, altair.TopLevelMixin)] == ["list"]
    assert len(shown) > 20


def test_the_experiment_of_three_hospitals_runs_from_the_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    experiment = config.load(
        Path("examples/hospitals.toml"), ["rounds=1", "seeds=[0]", 'runtime.executor="sequential"']
    )
    loop.start(experiment, tmp_path / "r")
    partition = json.loads((tmp_path / "r" / "partition.json").read_text("utf-8"))["seeds"]["0"]
    assert partition["client_names"] == ["Basel", "Bern", "Chur"]
    assert partition["preprocessing"]["columns"][0]["name"] == "age"
