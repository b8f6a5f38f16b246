"""Every example is run as a reader would run it, and its output is read."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

import unskew as us
from unskew.experiment import config
from unskew.run import loop

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LINES = 60
PROGRESS = re.compile(r"(simulation|\w+): .*, seeds |model: |methods: |split of seed |.* \(seed \d+\)  round \d+/")


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


def run_in_a_fork(name: str, *args: str, at: Path) -> str:
    """The same in a copy of this process, which need not load PyTorch and unskew again."""
    with open(at / "stdout", "w+b") as out, open(at / "stderr", "w+b") as err:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.chdir(at)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                sys.argv = [name, *args]
                sys.path.insert(0, str(EXAMPLES))
                warnings.simplefilter("error")
                runpy.run_path(str(EXAMPLES / name), run_name="__main__")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed, errors = (f.seek(0) or f.read().decode() for f in (out, err))
    for left in ("stdout", "stderr"):
        (at / left).unlink()
    assert status == 0, errors
    assert [line for line in errors.splitlines() if not PROGRESS.match(line)] == []
    return printed


def column(printed: str, label: str, n: int) -> float:
    """The n-th number, counted from 0, of the line that begins with `label`."""
    line = next(line for line in printed.splitlines() if re.match(rf"{re.escape(label)}\s", line))
    return float(re.findall(r"\d+(?:\.\d+)?", line[len(label) :])[n])


def quickstart(printed: str) -> None:
    assert printed.startswith("method ")
    assert column(printed, "FedAvg", 0) > 20
    # Control variates travel beside the model, both ways.
    assert column(printed, "SCAFFOLD", 2) == pytest.approx(2 * column(printed, "FedAvg", 2), rel=0.01)
    curve = printed.splitlines()[-1].removeprefix("FedAvg by round: ").split()
    assert len(curve) == 3
    assert float(curve[-1]) > float(curve[0])


def write_your_own(printed: str) -> None:
    assert "mine equals unskew's to the last bit: True" in printed
    assert "mine differs from FedAvg: True" in printed


def own_data(printed: str) -> None:
    assert re.search(r"^independent\s+–\s", printed, re.M)
    assert column(printed, "fedavg", 0) > 80
    assert " ± " in printed


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


ALONE = "quickstart.py"
"""The example that `make test` starts as a process of its own; it forks for the others, `make test-slow` does not."""


def test_an_example_prints_what_it_promises_and_leaves_nothing_behind(tmp_path: Path) -> None:
    in_its_folder(ALONE, run, tmp_path)


@pytest.mark.parametrize("name", sorted({*EXPECTED} - {ALONE}))
def test_an_example_prints_what_it_promises_after_other_work(name: str, tmp_path: Path) -> None:
    in_its_folder(name, run_in_a_fork, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*EXPECTED} - {ALONE}))
def test_every_example_prints_what_it_promises_in_its_own_process(name: str, tmp_path: Path) -> None:
    in_its_folder(name, run, tmp_path)


def in_its_folder(name: str, runner: Callable[..., str], at: Path) -> None:
    """Run the example there; what it printed must be right, and it must leave nothing behind."""
    args, check = EXPECTED[name]
    check(runner(name, *args, at=at))
    assert list(at.iterdir()) == []


def test_a_run_can_be_read_without_unskew(tmp_path: Path) -> None:
    """Bytes of FedAvg, 3 clients, 2 rounds: the sums must be those of the run's own summary."""
    split = us.IID(num_clients=3)
    history = us.simulate(["fedavg"], model="logistic", split=split, rounds=2, seeds=(0, 1), out=tmp_path / "r")
    printed = run("read_a_run.py", str(tmp_path / "r"), at=tmp_path)
    assert printed.startswith("r, ")
    assert "650 parameters" in printed  # 64 x 10 weights, 10 biases
    # 1,438 training examples over three clients, a fifth of each kept for tests: 479.33 - 95.87.
    assert printed.count("3 clients of 383 to 384 training examples") == 2
    assert f"fedavg: accuracy {history.value('fedavg'):.3f} in the last round" in printed
    assert "6 evaluations" in printed
    both = {d: int(2 * history.value("fedavg", f"bytes.{d}")) for d in ("down", "up")}
    assert f"bytes: {both}" in printed
    assert "unskew" not in imports(EXAMPLES / "read_a_run.py")


def imports(path: Path) -> set[str]:
    """Top-level packages a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    return {name.partition(".")[0] for name in plain | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}}


def test_every_example_is_run() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == {*EXPECTED, "read_a_run.py"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_is_short_says_what_it_is_and_does_nothing_when_imported(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LINES
    tree = ast.parse(text)
    about = ast.get_docstring(tree) or ""
    assert f"python examples/{path.name}" in about
    *body, last = tree.body
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    kinds = (ast.Expr, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    assert all(isinstance(node, kinds) for node in body)


def test_a_strangers_fedprox_is_ten_lines_with_its_imports() -> None:
    """The two definitions and the imports they need work alone: they are all there is to it."""
    text = (EXAMPLES / "write_your_own.py").read_text("utf-8")
    whole = ast.parse(text)
    parts = [n for n in whole.body if getattr(n, "name", "") in ("Pull", "my_fedprox")]
    used = {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
    needed = [
        n
        for n in whole.body
        if isinstance(n, ast.Import | ast.ImportFrom) and {a.asname or a.name for a in n.names} & used
    ]
    first = {id(n): min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", []))]) for n in [*needed, *parts]}
    lines = [line for n in [*needed, *parts] for line in text.splitlines()[first[id(n)] - 1 : n.end_lineno]]
    code = [line for line in lines if line.strip()]
    assert len(code) <= 10
    namespace: dict[str, object] = {"__name__": "stranger"}
    exec("\n".join(code), namespace)
    made = namespace["my_fedprox"](0.5, us.SgdConfig())  # type: ignore[operator]
    assert isinstance(made, us.FedAvg)
    assert made.terms[0].mu == 0.5  # type: ignore[attr-defined]


# ---------------------------------------------------------------- three hospitals
def test_the_notebooks_code_runs_and_ends_with_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code cell in order, as Jupyter would; the patients of a hospital are better off than by guessing."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "hospitals.ipynb").read_text("utf-8"))
    module: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            code = ast.parse("".join(cell["source"]))
            shown = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, "hospitals.ipynb", "exec"), module)
            last = (
                None if shown is None else eval(compile(ast.Expression(shown.value), "hospitals.ipynb", "eval"), module)
            )
    assert isinstance(last, list)
    assert set(last) <= {"healthy", "sick"}
    by_hospital = module["by_hospital"]
    assert isinstance(by_hospital, pandas.DataFrame)
    assert by_hospital.index.tolist() == ["Basel", "Bern", "Chur"]
    assert by_hospital.mean().min() > 0.6
    assert {path.name for path in tmp_path.iterdir()} == {"examples"}


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
