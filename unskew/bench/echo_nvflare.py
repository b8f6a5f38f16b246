"""A plain job of NVFlare for `bench deploy`: sites send back the content of a task as it came."""

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable


class EchoController(Controller):  # type: ignore[misc]
    """Times exchanges."""

    def __init__(self, offer: dict[str, Any], sites: list[str]) -> None:
        super().__init__(task_check_period=0.1)
        self.sites = sites

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Time them."""
        from unskew.bench.echo import timed
        from unskew.deploy.in_nvflare import TaskTransport

        timed(TaskTransport(self, self.sites, fl_ctx, abort_signal))

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""


class EchoExecutor(Executor):  # type: ignore[misc]
    """Sends tasks back."""

    def __init__(self, offer: dict[str, Any], sites: list[str]) -> None:
        super().__init__()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Send it back."""
        return Shareable({name: value for name, value in shareable.items() if isinstance(value, bytes)})
