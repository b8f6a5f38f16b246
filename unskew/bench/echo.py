"""The contenders of `bench deploy`: a server that times exchanges with sites, which send back what they get.

Plan and results lie in the contender's folder.  Those of others are in `echo_flower` and `echo_nvflare`, where sites
load neither PyTorch nor modules of unskew.
"""

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from unskew.bench.systems import PLACE, processes_of

PLAN, TIMED = "plan.json", "timed.json"
LIMIT_S, LOOK_S = 240.0, 0.5


def timed(transport: Any) -> None:
    """Time exchanges of the sizes that the plan names with all sites; seconds, CPU and memory go into a file."""
    from unskew.files import write_atomically
    from unskew.runtime.membership import Requests
    from unskew.runtime.message import Envelope

    place = Path(os.environ[PLACE])
    plan = json.loads((place / PLAN).read_text())
    end = time.monotonic() + LIMIT_S
    while len(nodes := transport.clients()) < plan["sites"]:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(nodes)} of {plan['sites']} sites are there")
        time.sleep(LOOK_S)
    results, requests = [], Requests(transport)
    for size in plan["bytes"]:
        body, seconds, busy = os.urandom(size), [], 0.0
        envelopes = dict.fromkeys(nodes, Envelope("echo", "{}", (body,)))
        memory = _Peak(place)
        for turn in range(plan["turns"] + 1):
            if turn == 1:  # the first is to warm up
                busy = sum(map(_cpu_s, processes_of(place)))
            began = time.perf_counter()
            came = requests.exchange(envelopes, LIMIT_S, 2 * size)
            seconds.append(time.perf_counter() - began)
            if any(getattr(reply, "parts", ()) != (body,) for reply in came.values()):
                raise AssertionError(f"not every site has sent back what it got: {came}")
        busy = sum(map(_cpu_s, processes_of(place))) - busy
        results.append({"seconds": seconds[1:], "cpu": busy / plan["turns"], "memory": memory.end()})
    write_atomically(place / TIMED, json.dumps(results))


# ---------------------------------------------------------------- what a contender's processes take
def _cpu_s(process: Path) -> float:
    """CPU of a process and of those of its children that have ended, seconds."""
    with suppress(OSError):
        of_all = (process / "stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, of_all)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _memory(process: Path) -> int:
    """Memory of a process, its share of what it shares, bytes."""
    with suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


class _Peak:
    """The largest memory that all processes of a contender had together, as far as looks at intervals show."""

    def __init__(self, place: Path) -> None:
        self._place, self._most, self._over = place, 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while True:
            self._most = max(self._most, sum(map(_memory, processes_of(self._place))))
            if self._over.wait(LOOK_S):
                return

    def end(self) -> int:
        """Stop looking; bytes."""
        self._over.set()
        self._thread.join()
        return self._most


# ---------------------------------------------------------------- ours
def serve() -> None:
    """Time exchanges over our own channel."""
    from unskew.deploy.certificates import public_key
    from unskew.deploy.channel import GrpcServer, credentials

    place = Path(os.environ[PLACE])
    plan = json.loads((place / PLAN).read_text())
    known = {public_key((place / f"{site}.crt").read_bytes()): site for site in range(plan["sites"])}
    listen, own = f"127.0.0.1:{plan['port']}", credentials(place, "server")
    with GrpcServer(listen, lambda: own, known.get, lambda *_: b"") as transport:
        timed(transport)


def site(number: int) -> None:
    """Send back what comes over our own channel, until killed."""
    from unskew.deploy.channel import Connection, credentials, ends

    place = Path(os.environ[PLACE])
    plan = json.loads((place / PLAN).read_text())
    own = credentials(place, f"{number}")
    connection = Connection(f"127.0.0.1:{plan['port']}", lambda: own, lambda request: request)
    list(ends(connection.serve))
