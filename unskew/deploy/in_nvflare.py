"""Runs an experiment as a job of NVFlare.

    write_job(experiment, Path("job"), ["site-1", "site-2"])            then:  nvflare job submit -j job
    "class_allow_list": [..., "unskew.deploy.in_nvflare"]               in resources.json of server and sites, once
    data = "csv:/srv/own.csv"                                           in unskew.toml beside it, at a site

The job has settings and no code: unskew is installed at server and sites, whose operators allow this module.  The list
of sites numbers them.  `unskew.toml` has the keys of `Site`; at the server only `allow_code` counts.  Requests are
tasks with an envelope as bytes, so that filters and audit see them.  The size of a reply is checked once it is in
memory.  NVFlare starts a job's process at each site once (JobRunner._start_run): a restarted site takes part in the
next job only.
"""

import functools
import json
import math
import queue
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from unskew.deploy import guest
from unskew.deploy.settings import Site, read_settings
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.protocol import ClientId
from unskew.runtime.client import ClientRuntime
from unskew.runtime.message import Envelope, Lost, encode, reply_of

TASK, ENVELOPE, MOST, SETTINGS = "unskew", "envelope", "most", "unskew.toml"
LOOK_S = 0.1
"""Pause between two looks of a site for a task, and of the server at its tasks, seconds."""


def write_job(experiment: Experiment, folder: Path, sites: Sequence[str], **settings: Any) -> Path:
    """Write the folder of a job that runs an experiment on these sites; `settings` are those of an offer."""
    offer = guest.offered(experiment, len(sites), **settings)
    given = {"offer": offer, "sites": list(sites)}
    server = {"id": TASK, "path": f"{__name__}.PlanController", "args": given}
    client = {"tasks": [TASK], "executor": {"path": f"{__name__}.ClientExecutor", "args": given}}
    meta = {"name": experiment.name, "min_clients": offer["min_clients"], "resource_spec": {}}
    both = {"format_version": 2, "components": []}
    files = {
        "meta.json": {**meta, "deploy_map": {"app": ["server", *sites]}},
        "app/config/config_fed_server.json": {
            **both,
            "server": {"task_request_interval": LOOK_S},
            "workflows": [server],
        },
        "app/config/config_fed_client.json": {**both, "default_task_fetch_interval": LOOK_S, "executors": [client]},
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1), "utf-8")
    return folder


def site_of(fl_ctx: Any) -> Site:
    """The settings in unskew.toml beside this machine's resources.json."""
    path = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / SETTINGS
    return read_settings(path, Site) if path.exists() else Site()


# ---------------------------------------------------------------- the server's side
class TaskTransport:
    """A transport whose requests are a controller's tasks, one for each site."""

    def __init__(self, controller: Any, sites: Sequence[str], fl_ctx: Any, abort: Any) -> None:
        self.controller, self.sites, self.fl_ctx, self.abort = controller, sites, fl_ctx, abort
        self._tasks: dict[ClientId, Any] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def clients(self) -> set[ClientId]:
        """Indices of the sites whose process for this job is alive, according to NVFlare."""
        self._check()
        here = {c.name for c in self.fl_ctx.get_engine().get_clients()}
        gone = self.controller.get_client_disconnect_time
        return {client for client, name in enumerate(self.sites) if name in here and gone(name) is None}

    def send(self, client: ClientId, envelope: Envelope, deadline_s: float, most: int) -> bool:
        """Give a site a task."""
        self._tasks[client] = Task(
            TASK,
            Shareable({ENVELOPE: b"".join(encode(envelope))}),
            props={MOST: most},
            timeout=math.ceil(deadline_s),
            result_received_cb=functools.partial(self._received, client),
            task_done_cb=functools.partial(self._ended, client),
        )
        self.controller.send(self._tasks[client], self.fl_ctx, targets=[self.sites[client]])
        return True

    def receive(self, seconds: float) -> Iterator[tuple[ClientId, Envelope | Lost]]:
        """Results that have come, and tasks that have ended without one."""
        self._check()
        with suppress(queue.Empty):
            client, task, result = self._done.get(timeout=min(seconds, LOOK_S))
            if client in self._tasks and self._tasks[client] is task:  # the end of a task that was answered comes, too
                del self._tasks[client]
                yield client, _reply(result, task.props[MOST])

    def forget(self, client: ClientId, late: str = "") -> None:
        """Cancel a site's task."""
        if (task := self._tasks.pop(client, None)) is not None:
            self.controller.cancel_task(task)

    def _received(self, client: ClientId, client_task: Any, fl_ctx: Any) -> None:
        self._done.put((client, client_task.task, client_task.result))
        client_task.result = None  # else NVFlare keeps it until its task is taken away

    def _ended(self, client: ClientId, task: Any, fl_ctx: Any) -> None:
        self._done.put((client, task, task.completion_status))

    def _check(self) -> None:
        if self.abort.triggered:
            raise RunError("the job was aborted; submit it again to go on with its run")


def _reply(result: Any, most: int) -> Envelope | Lost:
    if not isinstance(result, Shareable):
        return Lost(f"client lost: NVFlare has ended its task ({result})")
    if (code := result.get_return_code(ReturnCode.OK)) != ReturnCode.OK:
        return Lost(f"client error: NVFlare returns {code}; the site's own log has more")
    return reply_of(result.get(ENVELOPE), most)


class PlanController(Controller):  # type: ignore[misc]
    """Runs the job's experiment at the server."""

    def __init__(self, offer: dict[str, Any], sites: list[str]) -> None:
        super().__init__(task_check_period=LOOK_S)
        self.offer, self.sites = offer, sites

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing before the run."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the experiment to its end."""
        transport = TaskTransport(self, self.sites, fl_ctx, abort_signal)
        guest.run(transport, self.offer, site_of(fl_ctx).allow_code)

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing after the run."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """Drop a reply that came too late."""


# ---------------------------------------------------------------- a site's side
class ClientExecutor(Executor):  # type: ignore[misc]
    """Answers the job's tasks as this site's client."""

    def __init__(self, offer: dict[str, Any], sites: list[str]) -> None:
        super().__init__()
        self.offer, self.sites = offer, sites

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Answer one request."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)

        def opened(request: Envelope) -> ClientRuntime:
            number = self.sites.index(fl_ctx.get_identity_name())
            return guest.opened(self.offer, number, site_of(fl_ctx), request)

        return Shareable({ENVELOPE: guest.answer(opened, shareable.get(ENVELOPE))})
