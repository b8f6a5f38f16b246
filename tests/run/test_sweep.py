"""A sweep: one file becomes many, all are checked before one is run, and each goes its own way."""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew import lock
from unskew.errors import ConfigError, DataError, RunError
from unskew.experiment import config
from unskew.run import sweep
from unskew.run.loop import Interrupted
from unskew.run.sweep import Point, SweepRunner, check, expand, write_points

BASE = """
name = "base"
rounds = 3
task = { data = "digits", model = "mlp", model_options = { hidden = [8] } }
split = { name = "dirichlet", num_clients = 4, alpha = 0.5 }
local = { lr = 0.1, batch_size = 128 }
[[methods]]
name = "fedprox"
mu = 0.1
"""

# A stand-in for `unskew`: begins the folder, then does what its experiment is called.
FAKE = """
import json, pathlib, signal, sys, time
order, *rest = sys.argv[1:]
folder = pathlib.Path(rest[-1])
text = pathlib.Path(rest[0]).read_text() if order == "run" else "resumed"
folder.mkdir(parents=True, exist_ok=True)
(folder / "order").write_text(order)
if "mu = 0.2" in text:
    print("some progress")
    sys.exit("ConfigError: mu is not to my liking")
if "mu = 0.3" in text:
    def stop(*_):
        (folder / "stopped").write_text("")
        sys.exit(130)
    signal.signal(signal.SIGINT, stop)
    (folder / "ready").write_text("")
    time.sleep(30)
(folder / "summary.json").write_text(json.dumps({"rows": [], "seconds": 12.5}))
(folder / "report.html").write_text("")
"""


def write(tmp_path: Path, table: str, base: str = BASE) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(f"{base}\n[sweep]\n{table}\n")
    return path


def points(tmp_path: Path, table: str) -> tuple[Point, ...]:
    return expand(write(tmp_path, table))[1]


def runner(made: Sequence[Point], out: Path, said: list[str] | None = None, jobs: int = 2) -> SweepRunner:
    said = [] if said is None else said
    return SweepRunner(made, out, jobs, said.append, (sys.executable, "-c", FAKE))


# ---------------------------------------------------------------- from one file to many
def test_a_grid_is_all_combinations_in_the_order_written(tmp_path: Path) -> None:
    name, made = expand(write(tmp_path, 'grid = { "methods.0.mu" = [0.01, 0.1], "split.alpha" = [0.1, 1.0] }'))
    assert name == "base"
    assert [p.name for p in made] == [
        "001-mu=0.01,alpha=0.1",
        "002-mu=0.01,alpha=1.0",
        "003-mu=0.1,alpha=0.1",
        "004-mu=0.1,alpha=1.0",
    ]
    assert [p.experiment.methods[0].options["mu"] for p in made] == [0.01, 0.01, 0.1, 0.1]
    assert made[1].experiment.name == "base mu=0.01,alpha=1.0"


def test_the_points_of_a_list_follow_those_of_a_grid(tmp_path: Path) -> None:
    made = points(tmp_path, 'grid = { "rounds" = [4, 5] }\nlist = [{ "local.lr" = 0.5, "rounds" = 9 }]')
    assert [p.experiment.rounds for p in made] == [4, 5, 9]
    assert made[2].settings == {"local.lr": 0.5, "rounds": 9}


def test_a_points_file_reads_back_to_the_point(tmp_path: Path) -> None:
    made = points(tmp_path, 'grid = { "seeds" = [[0, 1], [2]], "runtime" = [{ checkpoint_every = 3 }] }')
    files = write_points(made, tmp_path / "out")
    for point in made:
        assert config.load(files[point.name]) == point.experiment
    assert made[0].experiment.seeds == (0, 1)
    assert made[0].experiment.runtime.checkpoint_every == 3


def test_a_point_trains_alone_on_one_thread_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    (plain,) = points(tmp_path, 'grid = { "rounds" = [4] }')
    assert (plain.experiment.runtime.executor, plain.experiment.runtime.threads) == ("sequential", 1)
    (own,) = points(tmp_path, 'list = [{ "runtime.executor" = "workers", "runtime.threads" = 2 }]')
    assert (own.experiment.runtime.executor, own.experiment.runtime.threads) == ("workers", 2)


def test_paths_with_the_same_last_part_are_written_in_full(tmp_path: Path) -> None:
    (point,) = points(tmp_path, 'grid = { "local.lr" = [0.1], "methods.0.local.lr" = [0.2], "rounds" = [4] }')
    assert point.name == "001-local.lr=0.1,methods.0.local.lr=0.2,rounds=4"


def test_a_table_of_settings_goes_by_its_name_and_its_other_settings(tmp_path: Path) -> None:
    """Before, files were called 002-split=--name----shards-,--num_clients---4,..."""
    iid, shards = points(
        tmp_path,
        'grid = { "split" = [{ name = "iid", num_clients = 4 }, '
        '{ num_clients = 4, name = "shards", shards_per_client = 3 }], "local.lr_schedule" = [{ name = "constant" }] }',
    )
    assert iid.name == "001-split=iid,num_clients=4,lr_schedule=constant"
    assert shards.name == "002-split=shards,num_clients=4,shards_per_client=3,lr_schedule=constant"
    assert shards.experiment.name == "base split=shards,num_clients=4,shards_per_client=3,lr_schedule=constant"


def test_a_name_is_short_and_of_safe_characters_and_never_twice_there(tmp_path: Path) -> None:
    paths = ["a/b: *" * 30 + end for end in "xy"]
    splits = ", ".join(f'{{ name = "manifest", path = "{path}" }}' for path in paths)
    one, other = (p.name for p in points(tmp_path, f'grid = {{ "split" = [{splits}] }}'))
    assert one[:33] == "001-split=manifest,path=a-b---a-b"
    assert len(one) == len(other) == sweep.LONGEST_NAME
    assert one != other


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_every_value_of_a_sweep_arrives_as_it_was_written(value: object) -> None:
    assert config.override({}, [f"a.b={sweep._toml(value)}"]) == {"a": {"b": value}}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("", "is empty: give sweep.grid or sweep.list"),
        ("list = []", "is empty"),
        ("grid = {}", "sweep.grid must be a table"),
        ('grid = { "local.lr" = [] }', "local.lr must be a list of at least one value"),
        ('grid = { "local.lr" = 0.1 }', "local.lr must be a list"),
        ("grid = { local.lr = [0.1] }", 'write the path in quotes: "local.lr"'),
        ("list = [{}]", "tables of at least one setting"),
        ("list = 3", "sweep.list must be a list"),
        ("list = [{ rounds = 4 }]\nsteps = 3", "unknown key sweep.steps"),
        ('grid = { "rounds" = [4, 4] }', "001-rounds=4 and 002-rounds=4 .* are the same experiment"),
    ],
)
def test_a_sweep_without_points_or_with_nonsense_is_refused(tmp_path: Path, table: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        points(tmp_path, table)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(BASE)
    with pytest.raises(ConfigError, match=r"has no \[sweep\] table"):
        expand(path)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('grid = { "methods.0.mu" = [0.1, -1.0] }', r"^point 002-mu=-1.0: methods.0.mu must be >= 0, got -1.0"),
        ('grid = { "split.alhpa" = [0.1] }', r"^point 001-alhpa=0.1: unknown key split.alhpa; did you mean alpha"),
        ('grid = { "local.lr" = [1979-05-27] }', r"^point 001-lr=1979-05-27: local.lr must be .*, got 1979-05-27"),
        ('grid = { "methods.3.mu" = [0.1] }', r"^point 001-mu=0.1: .*'3' is not an entry of a list of 1"),
    ],
)
def test_one_impossible_point_refuses_the_sweep_and_is_named(tmp_path: Path, table: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        points(tmp_path, table)
    assert str(caught.value).endswith("; nothing was run")


def test_a_point_that_only_its_data_make_impossible_is_refused_before_any_is_run(tmp_path: Path) -> None:
    check(points(tmp_path, 'grid = { "split.num_clients" = [3, 4] }'))
    with pytest.raises(DataError, match=r"^point 002-num_clients=999: 999 clients x at least 2 examples = 1998"):
        check(points(tmp_path, 'grid = { "split.num_clients" = [3, 999] }'))


def test_methods_that_train_the_same_in_several_points_are_named(tmp_path: Path) -> None:
    """Of 2 x 3 points each trains FedAvg and FedProx; FedAvg differs with the split only: 4 of its 6 are repeats."""
    two = f'{BASE}\n[[methods]]\nname = "fedavg"\n'
    grid = 'grid = { "methods.0.mu" = [0.1, 0.2, 0.3], "split.alpha" = [0.1, 1.0] }'
    said = sweep.repeated(expand(write(tmp_path, grid, two))[1])
    assert said.startswith("4 of 12 trainings of a method repeat that of another point, ")
    assert "settings of other methods only (fedavg); to train these once, leave them out of the sweep" in said
    assert sweep.repeated(expand(write(tmp_path, 'grid = { "split.alpha" = [0.1, 1.0] }', two))[1]) == ""


# ---------------------------------------------------------------- running
def test_failures_are_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1, 0.2, 0.4] }')
    results = runner(made, tmp_path / "out", said).run()
    assert [(r.point, r.status) for r in results] == [
        ("001-mu=0.1", "done"),
        ("002-mu=0.2", "failed"),
        ("003-mu=0.4", "done"),
    ]
    assert results[1].error == "ConfigError: mu is not to my liking"
    assert (tmp_path / "out" / "logs" / "002-mu=0.2.txt").read_text().splitlines()[1] == "some progress"
    written = json.loads((tmp_path / "out" / "sweep.json").read_text())["points"]
    assert [p["status"] for p in written] == ["done", "failed", "done"]
    assert written[1]["settings"] == {"methods.0.mu": 0.2}
    assert len(said) == 3
    assert sum("FAILED" in line for line in said) == 1


def test_what_is_done_is_left_alone_what_was_stopped_is_resumed_what_failed_is_tried_again(tmp_path: Path) -> None:
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1, 0.2, 0.4] }')
    out = tmp_path / "out"
    runner(made, out).run()
    runs = [out / "runs" / p.name for p in made]
    (runs[0] / "order").write_text("untouched")
    (runs[2] / "summary.json").unlink()
    (runs[2] / "run.json").write_text(json.dumps({"config_sha256": config.fingerprint(made[2].experiment)}))
    said: list[str] = []
    results = runner(made, out, said).run()
    assert [r.status for r in results] == ["done", "failed", "done"]
    assert [(r / "order").read_text() for r in runs] == ["untouched", "run", "resume"]
    assert said[0] == "[1/3] 001-mu=0.1: was done already"
    written = json.loads((out / "sweep.json").read_text())["points"]
    # Of a run that is done its own seconds, however often it was stopped and asked for.
    assert [written[0]["seconds"], written[2]["seconds"]] == [12.5, 12.5]


def test_a_point_that_was_stopped_before_its_report_gets_one(tmp_path: Path) -> None:
    (point,) = made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1] }')
    out = tmp_path / "out"
    runner(made, out).run()
    folder = out / "runs" / point.name
    (folder / "run.json").write_text(json.dumps({"config_sha256": config.fingerprint(point.experiment)}))
    (folder / "report.html").unlink()
    runner(made, out).run()
    assert (folder / "order").read_text() == "resume"
    assert (folder / "report.html").exists()


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runner(points(tmp_path, 'grid = { "methods.0.mu" = [0.1] }'), out).run()
    with pytest.raises(RunError, match=r"001-mu=0.1.toml is not of this one\); choose another --out"):
        runner(points(tmp_path, 'grid = { "methods.0.mu" = [0.4] }'), out).run()
    same = write(tmp_path, 'grid = { "methods.0.mu" = [0.1] }', BASE.replace("rounds = 3", "rounds = 4"))
    with pytest.raises(RunError, match="holds another sweep"):
        runner(expand(same)[1], out).run()


def test_points_are_added_at_the_end_of_a_sweep_and_elsewhere_refused_with_the_way_to_do_it(tmp_path: Path) -> None:
    out, grid = tmp_path / "out", 'grid = {{ "methods.0.mu" = [{}] }}'
    runner(points(tmp_path, grid.format("0.1, 0.4")), out).run()
    runner(points(tmp_path, grid.format("0.1, 0.4, 0.5")), out).run()
    listed = grid.format("0.1, 0.4, 0.5") + '\nlist = [{ "rounds" = 4 }]'
    assert len(runner(points(tmp_path, listed), out).run()) == 4
    with pytest.raises(RunError, match=r"002-mu=0.4.toml is not of this one\); .* at the end of sweep.list"):
        runner(points(tmp_path, grid.format("0.1, 0.2, 0.4, 0.5")), out).run()


def test_a_run_of_another_experiment_in_a_points_place_is_refused(tmp_path: Path) -> None:
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1] }')
    folder = tmp_path / "out" / "runs" / made[0].name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"config_sha256": "other"}')
    (folder / "config.toml").write_text(config.to_toml(dataclasses.replace(made[0].experiment, rounds=99)))
    with pytest.raises(RunError, match="is the run of another experiment"):
        runner(made, tmp_path / "out").run()


def test_no_more_processes_run_at_once_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = [0]
    begin, end = SweepRunner._begin, SweepRunner._end
    now: list[str] = []

    def begun(self: SweepRunner, point: Point, file: Path) -> object:
        now.append(point.name)
        most[0] = max(most[0], len(now))
        return begin(self, point, file)

    def ended(self: SweepRunner, child: sweep._PointProcess) -> None:
        now.remove(child.point.name)
        end(self, child)

    monkeypatch.setattr(SweepRunner, "_begin", begun)
    monkeypatch.setattr(SweepRunner, "_end", ended)
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.5, 0.6, 0.7, 0.8, 0.9] }')
    assert {r.status for r in runner(made, tmp_path / "out", jobs=2).run()} == {"done"}
    assert most == [2]
    with pytest.raises(ConfigError, match="--jobs must be at least 1, got 0"):
        runner(made, tmp_path / "out", jobs=0)


def test_a_process_gets_its_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: 7)
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1] }')
    script = "import os, sys; sys.exit(' '.join(os.environ[n] for n in sys.argv[1:4]))"
    # The last line of what a failed process said is its error.
    command = (sys.executable, "-c", script, *sweep.THREAD_VARIABLES)
    (result,) = SweepRunner(made, tmp_path / "out", 2, lambda _: None, command).run()
    assert result.error == "3 3 3"


# ---------------------------------------------------------------- several sweeps in one folder
def test_two_sweeps_share_the_points_of_a_folder_and_both_have_the_results_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each called failed what the other one ran, and emptied its log."""
    monkeypatch.setattr(sweep, "ELSEWHERE_S", 0.05)
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.5, 0.6, 0.7, 0.8] }')
    out = tmp_path / "out"
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(runner(made, out, jobs=1).run) for _ in range(2)]
    for results in both:
        assert [r.status for r in results.result()] == ["done"] * 4
    assert [p["status"] for p in json.loads((out / "sweep.json").read_text())["points"]] == ["done"] * 4
    assert [log.read_text().count("== ") for log in (out / "logs").iterdir()] == [1] * 4


def made_elsewhere(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"rows": [], "seconds": 7.0}))
    (folder / "report.html").write_text("")


def failed_elsewhere(out: Path, point: Point) -> None:
    row = {"point": point.name, "status": "failed", "seconds": 3.0, "error": "DataError: no"}
    (out / "sweep.json").write_text(json.dumps({"points": [row]}))


@pytest.mark.parametrize("how", ["done", "failed", "given up", "by hand"])
def test_a_point_that_another_process_runs_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is begun only if that process ends without a result; a run by hand has only the lock of its own folder."""
    monkeypatch.setattr(sweep, "ELSEWHERE_S", 0.05)
    (point,) = made = points(tmp_path, 'grid = { "methods.0.mu" = [0.5] }')
    out, said = tmp_path / "out", list[str]()
    folder, log = out / "runs" / point.name, out / "logs" / f"{point.name}.txt"
    for place in (folder if how == "by hand" else out, log.parent):
        place.mkdir(parents=True)
    with ThreadPoolExecutor(1) as threads, lock.lockable(folder / ".lock" if how == "by hand" else log) as other:
        lock.lock(other)
        running = threads.submit(runner(made, out, said).run)
        until(lambda: said == [f"{point.name}: runs in another process, which is waited for"])
        assert not running.done()
        if how == "done":  # what outlives that run, as a tracker's process, may keep the lock
            made_elsewhere(folder)
            (result,) = running.result()
        elif how == "failed":
            failed_elsewhere(out, point)
        other.close()
        (result,) = running.result()
    assert (result.status, result.error) == (("failed", "DataError: no") if how == "failed" else ("done", None))
    assert result.seconds == {"done": 7.0, "failed": 3.0}.get(how, 12.5)
    assert (folder / "order").exists() == (how in ("given up", "by hand"))


def test_a_point_is_in_use_as_long_as_its_process_lives_whatever_became_of_the_sweep(tmp_path: Path) -> None:
    """Before, the same command given again after a SIGKILL called a point failed that was still training."""
    (point,) = made = points(tmp_path, 'grid = { "methods.0.mu" = [0.3] }')
    killed = runner(made, tmp_path / "out")
    files = write_points(made, killed.out)
    for part in ("runs", "logs"):
        (killed.out / part).mkdir()
    child = killed._begin(point, files[point.name])
    assert child is not None
    child.log.close()
    again = runner(made, tmp_path / "out")
    assert again._begin(point, files[point.name]) is None
    child.process.kill()
    child.process.wait()
    log = again._claimed(point)
    assert log is not None
    log.close()


def test_a_failed_point_that_another_process_tries_again_is_open(tmp_path: Path) -> None:
    (point,) = made = points(tmp_path, 'grid = { "methods.0.mu" = [0.3] }')
    out = tmp_path / "out"
    (out / "logs").mkdir(parents=True)
    failed_elsewhere(out, point)
    with lock.lockable(out / "logs" / f"{point.name}.txt") as other:
        lock.lock(other)
        assert [r.status for r in runner(made, out).collected()] == ["open"]
    assert [r.status for r in runner(made, out).collected()] == ["failed"]


def test_each_shard_runs_its_own_points_and_the_results_are_those_of_all(tmp_path: Path) -> None:
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1, 0.2, 0.4] }')
    out = tmp_path / "out"
    statuses = []
    for part in ("2/4", "1/2", "4/4"):
        own = sweep.shard(made, part)
        results = SweepRunner(made, out, 2, lambda _: None, (sys.executable, "-c", FAKE), own=own).run()
        assert [p["status"] for p in json.loads((out / "sweep.json").read_text())["points"]] == [
            r.status for r in results
        ]
        statuses.append([r.status for r in results])
    # The second point fails, in the first shard; the last has no point, and nothing is tried again.
    assert statuses == [["open", "failed", "open"], ["done", "failed", "done"], ["done", "failed", "done"]]
    assert (out / "logs" / f"{made[1].name}.txt").read_text().count("== ") == 1


@pytest.mark.parametrize("part", ["0/4", "5/4", "3", "3/", "a/b", "-1/4", "1/4/2"])
def test_a_shard_that_is_none_is_refused(part: str) -> None:
    with pytest.raises(ConfigError, match=f"--shard must be I/N with I from 1 to N, such as 3/16, got '{part}'"):
        sweep.shard((), part)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("print('DataError: no rows'); print('fedavg  round 3/9'); sys.exit(2)", "DataError: no rows"),
        (
            "print('fedavg  round 3/9', flush=True); os.kill(os.getpid(), 9)",
            "its process was ended by signal 9",
        ),
        ("print('fedavg  round 3/9', flush=True); {}['a']", "KeyError: 'a'"),
        ("sys.exit(3)", "exit code 3"),
    ],
)
def test_the_error_of_a_point_is_the_last_in_the_output_of_its_last_process(
    tmp_path: Path, script: str, error: str
) -> None:
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1] }')
    for first in (True, False):
        code = "import os, sys; " + ("sys.exit('OSError: of the first')" if first else script)
        (result,) = SweepRunner(made, tmp_path / "out", 1, lambda _: None, (sys.executable, "-c", code)).run()
    assert result.error is not None
    assert result.error.startswith(error)
    log = (tmp_path / "out" / "logs" / f"{made[0].name}.txt").read_text()
    assert log.count("== ") == 2
    assert "OSError: of the first" in log


def until(there: Callable[[], bool]) -> None:
    for _ in range(1200):
        if there():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 60 s")


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_is_handed_to_the_children_and_nothing_new_is_begun(tmp_path: Path, sign: signal.Signals) -> None:
    """So are a request to terminate, and a terminal that is closed, which the children do not hear of."""
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.1, 0.3, 0.4] }')
    out = tmp_path / "out"
    child = out / "runs" / made[1].name

    def press() -> None:
        until((child / "ready").exists)
        os.kill(os.getpid(), sign)

    thread = threading.Thread(target=press)
    thread.start()
    said: list[str] = []
    before = signal.getsignal(sign)
    with pytest.raises(Interrupted, match=r"stopped by request, 1 of 3 points done in .*; give the same command again"):
        runner(made, out, said, jobs=1).run()
    thread.join()
    assert signal.getsignal(sign) is before
    assert (child / "stopped").exists()
    assert not (out / "runs" / made[2].name).exists()
    assert [p["status"] for p in json.loads((out / "sweep.json").read_text())["points"]] == ["done", "open", "open"]
    assert "stopping after the rounds in progress; press Ctrl-C again to stop at once" in said


def test_a_child_that_was_being_begun_when_ctrl_c_came_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.3, 0.4] }')
    begin, ready = SweepRunner._begin, tmp_path / "out" / "runs" / made[0].name / "ready"

    def pressed(self: SweepRunner, point: Point, file: Path) -> object:
        child = begin(self, point, file)
        until(ready.exists)
        signal.raise_signal(signal.SIGINT)
        return child

    monkeypatch.setattr(SweepRunner, "_begin", pressed)
    with pytest.raises(Interrupted, match="0 of 2 points done"):
        runner(made, tmp_path / "out", jobs=1).run()
    assert (ready.parent / "stopped").exists()


@pytest.mark.parametrize("main", [True, False])
def test_no_child_outlives_a_sweep_that_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: bool) -> None:
    """In a thread too, where no signal is heard."""
    made = points(tmp_path, 'grid = { "methods.0.mu" = [0.3, 0.1] }')
    ready = tmp_path / "out" / "runs" / made[0].name / "ready"
    begun: list[sweep._PointProcess] = []
    begin = SweepRunner._begin

    def noted(self: SweepRunner, point: Point, file: Path) -> sweep._PointProcess:
        begun.append(begin(self, point, file))
        until(ready.exists)
        return begun[-1]

    def full(self: SweepRunner) -> None:
        raise RunError("no space left")

    monkeypatch.setattr(SweepRunner, "_begin", noted)
    monkeypatch.setattr(SweepRunner, "_write", full)

    def runs() -> None:
        with pytest.raises(RunError, match="no space left"):
            runner(made, tmp_path / "out").run()

    if main:
        runs()
    else:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(runs).result()
    assert all(child.process.poll() is not None for child in begun)
    assert all(child.log.closed for child in begun)
