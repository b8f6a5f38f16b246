"""An experiment inside a federation of another system.

In one process first; then started here with Flower's and NVFlare's own tools, where both come to what the simulation
comes to, to the bit.  FedDif hands models from site to site, FedAvg does not.
"""

import functools
import logging
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loopback import Loopback

from unskew.bench import systems
from unskew.deploy import guest, trial
from unskew.deploy.settings import Site
from unskew.errors import ConfigError, QuorumError, RunError
from unskew.experiment.config import Experiment
from unskew.ledger import SERVER
from unskew.record.logs import rows
from unskew.runtime.membership import Requests
from unskew.runtime.message import REPLIES, TOO_LARGE, Envelope, Hello, Lost, decode, encode, read, reply_of, write

Small = Callable[..., Experiment]
BOTH = (
    "split={name='dirichlet',num_clients=2,alpha=0.3}",
    "local.local_steps=4",
    "rounds=1",
    "methods=['fedavg',{name='feddif',max_hops=1,epsilon=0.0}]",
)


def sites(offer: dict[str, Any], site: Site = Site()) -> Loopback:
    """A network on which all sites are, each of which opens its client anew for each message, as Flower does."""

    def of(client: int, message: Envelope) -> Envelope:
        data = b"".join(encode(message))
        return decode(guest.answer(lambda request: guest.opened(offer, client, site, request), data))

    return Loopback({client: functools.partial(of, client) for client in range(offer["num_clients"])})


def compared(experiment: Experiment, record: Path, folder: Path) -> None:
    assert list(rows(record, "failures")) == []
    assert any(SERVER not in (r["src"], r["dst"]) for r in rows(record, "transfers"))
    found = trial.compare(record, trial.simulate(experiment, folder / "simulated"))
    assert [(p.method, p.max_abs_diff, p.bytes_equal) for p in found] == [("fedavg", 0.0, True), ("feddif", 0.0, True)]


def test_an_offer_comes_to_what_the_simulation_comes_to_and_is_run_once(small: Small, tmp_path: Path) -> None:
    experiment = small(*BOTH)
    offer = guest.offered(experiment, 2, own_data=False)
    record = guest.run(sites(offer), offer, allow_code=False)
    compared(experiment, record, tmp_path)
    assert len(list(guest.folder_of(offer).glob("client-*/audit.jsonl"))) == 2
    assert guest.folder_of(dict(reversed(offer.items()))) == guest.folder_of(offer)  # as Flower hands it out
    nobody = Loopback({})
    assert guest.run(nobody, offer, allow_code=False) == record  # the same offer again is done already
    assert not nobody.pushed


def test_an_offer_with_other_settings_or_code_is_refused(small: Small) -> None:
    offer = guest.offered(small(), 2, min_clients=1, deadline_s=5.0)
    with pytest.raises(ConfigError, match=r"num_clients must be >= 1, got 0 \(the app or job\)"):
        guest.run(Loopback({}), {**offer, "num_clients": 0}, allow_code=False)
    foreign = {**offer, "experiment": offer["experiment"].replace('model = "logistic"', 'model = "evil:build"')}
    with pytest.raises(ConfigError, match="evil:build"):
        guest.run(Loopback({}), foreign, allow_code=False)


@pytest.mark.parametrize(
    ("own_data", "policy", "why"),
    [
        (True, "", "this site has named no data of its own"),
        (False, 'coordinator = "aa"', "nobody signs an app or a job"),
        (False, 'methods = ["feddif"]', "method fedavg may not run here"),
        (False, 'accept = "ask"', "somebody here has yet to accept it"),
    ],
)
def test_a_site_takes_part_only_as_it_says_itself_and_why_stays_there(
    own_data: bool, policy: str, why: str, small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "policy.toml").write_text(policy)
    offer, site = guest.offered(small(), 2, own_data=own_data, wait_s=0.5), Site(policy=str(tmp_path / "policy.toml"))
    with pytest.raises(QuorumError, match="it refuses: ConfigError; the site's own log has more"):
        guest.run(sites(offer, site), offer, allow_code=False)
    assert why in caplog.text
    if "ask" in policy:
        for client in range(2):
            (guest.folder_of(offer) / f"client-{client}" / "answer").write_text("accepted")
        assert guest.run(sites(offer, site), offer, allow_code=False).exists()


def test_what_is_no_message_is_refused_on_both_sides(small: Small) -> None:
    offer = guest.offered(small(), 2, own_data=False)
    for data in (None, b"", b"\0\0\0\2[]"):
        reply = read(decode(guest.answer(lambda request: guest.opened(offer, 0, Site(), request), data)), REPLIES)
        assert "the action of a message must be one of" in reply.reason
        lost = reply_of(data, 100)
        assert isinstance(lost, Lost)
        assert lost.reason.startswith("refused: ")
    hello = b"".join(encode(write("hello", Hello("a", "b"))))
    assert reply_of(hello, 9) == Lost(TOO_LARGE)
    assert getattr(reply_of(hello, 1000), "size", 0) == len(hello)


# ---------------------------------------------------------------- the systems themselves
def needs(system: str) -> pytest.MarkDecorator:
    extra = {"flwr": "flower"}.get(system, system)
    return pytest.mark.skipif(find_spec(system) is None, reason=f"needs the extra [{extra}]")


@needs("nvflare")
def test_a_task_that_fails_or_is_late_is_so_for_its_site_alone() -> None:
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.shareable import make_reply
    from nvflare.apis.signal import Signal

    from unskew.deploy.in_nvflare import ENVELOPE, TaskTransport

    class Controller:
        """Sends back, fails, gives a task up, and lets one be late."""

        cancelled = 0

        def send(self, task: Any, fl_ctx: Any, targets: list[str]) -> None:
            (site,) = targets
            result = task.data if site == "echo" else make_reply(ReturnCode.TASK_ABORTED)
            client_task = SimpleNamespace(task=task, result=result)
            if site in ("echo", "fails"):
                task.result_received_cb(client_task=client_task, fl_ctx=fl_ctx)
                assert client_task.result is None
            task.completion_status = "timeout"
            if site != "late":
                task.task_done_cb(task=task, fl_ctx=fl_ctx)

        def cancel_task(self, task: Any) -> None:
            assert ENVELOPE in task.data
            self.cancelled += 1

    envelope, abort = Envelope("ask", "{}", (b"abc",)), Signal()
    controller = Controller()
    transport = TaskTransport(controller, ["echo", "fails", "dies", "late"], None, abort)
    came: dict[int, Any] = Requests(transport).exchange(dict.fromkeys(range(4), envelope), 0.3, 1000)
    assert came[0].parts == (b"abc",)
    assert [came[node].reason.partition(":")[0] for node in (1, 2, 3)] == ["client error", "client lost", "late"]
    assert [came[node].late for node in (1, 2, 3)] == [False, False, True]
    assert controller.cancelled == 1
    abort.trigger(True)
    with pytest.raises(RunError, match="the job was aborted"):
        Requests(transport).exchange({3: envelope}, 5.0, 1000)
    assert controller.cancelled == 2


def one_record(folder: Path) -> Path:
    (record,) = folder.glob("state/unskew/guests/*/server/run")
    assert len(list(folder.glob("state/unskew/guests/*/client-*/audit.jsonl"))) == 2
    return record


@pytest.mark.network
@pytest.mark.timeout(500)
@needs("flwr")
def test_an_app_of_flower_comes_to_what_the_simulation_comes_to(small: Small, tmp_path: Path) -> None:
    from unskew.deploy.in_flower import write_app

    experiment = small(*BOTH)
    app = write_app(experiment, tmp_path / "app", 2, own_data=False)
    (file,) = app.iterdir()  # no code travels
    assert tomllib.loads(file.read_text())["project"]["dependencies"] == []
    with systems.flower(tmp_path, 2) as run:
        run(app, 450.0)
    compared(experiment, one_record(tmp_path), tmp_path)


@pytest.mark.network
@pytest.mark.timeout(500)
@needs("nvflare")
def test_a_job_of_nvflare_comes_to_what_the_simulation_comes_to(small: Small, tmp_path: Path) -> None:
    from unskew.deploy.in_nvflare import write_job

    experiment = small(*BOTH)
    job = write_job(experiment, tmp_path / "job", ["site-1", "site-2"], own_data=False)
    assert {path.suffix for path in job.rglob("*") if path.is_file()} == {".json"}  # no code travels
    with systems.nvflare(tmp_path, 2) as run:
        run(job, 450.0)
    compared(experiment, one_record(tmp_path), tmp_path)
