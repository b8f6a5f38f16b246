"""Refusals that a user would meet: what is typed, and the key, the value and the way out that the message names."""

import atexit
import contextlib
import functools
import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401

import unskew as us

from . import adaptors
from .inputs import SITES, TINY, Case, base, images, rows, table  # noqa: F401

ONE = """
name = "one"
rounds = 1
task = {{ data = "npz:{}", model = "logistic" }}
split = {{ name = "iid", num_clients = 3 }}
runtime = {{ executor = "sequential" }}
[[methods]]
name = "fedavg"
"""


def simulate(methods: object = "fedavg", **more: Any) -> us.History:
    """A tiny run of what is given, the rest as everywhere in the corpus."""
    split = (
        {} if "split" in more else {"split": us.IID(3)} if isinstance(more.get("data", ()), tuple) else {"split": None}
    )
    return us.simulate(**{**base(), "methods": methods, **split, **more}, progress=False)


def frame(**columns: Any) -> us.History:
    """A run on the table with these columns changed."""
    own = table()[["age", "smoker", "ill", "site"]].assign(**columns)
    return simulate(data=own, target="ill", client="site")


def csv(text: str, **options: Any) -> us.History:
    """A run on a file of this text, `{i}` the number of a row."""
    body = "\n".join(text.format(i=i, site=SITES[i % 3], ill=i // 3 % 2) for i in range(60))
    Path("t.csv").write_text(f"age;ill;site\n{body}\n")
    columns = {"target": "ill", "client": "site", "separator": ";", **options}
    return simulate(data=..., model=None, task=us.TaskConfig(data="csv:t.csv", model="logistic", data_options=columns))


def unskew(words: str) -> None:
    """A command that refuses what it is given; the class of its error is the first word that it prints."""
    code, _, said = adaptors.command(*shlex.split(words))
    if code:
        name, _, message = said.strip().splitlines()[-1].partition(": ")
        raise type(name, (Exception,), {})(message)


@functools.cache
def made(what: str) -> Path:
    """A folder that refusals begin with, made once: a run, one stopped after a round of three, a federation."""
    place = Path(tempfile.mkdtemp(prefix="unskew-corpus-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    if what == "run":
        x, y = rows()
        np.savez(place / "a.npz", x_train=x, y_train=y)
        (place / "a.toml").write_text(ONE.format(place / "a.npz"))
        code, _, said = adaptors.command("run", str(place / "a.toml"), "--out", str(place / "run"), "--no-report", "-q")
        assert code == 0, said
    elif what == "stopped":
        with contextlib.suppress(KeyboardInterrupt):
            simulate(out=place / "stopped", rounds=3, callback=adaptors.stops_after(1))
    else:
        code, _, said = adaptors.command("fed", "init", str(place / "federation"))
        assert code == 0, said
    return place / what


def ran() -> Path:
    return Path(shutil.copytree(made("run"), "run"))


def stopped() -> Path:
    return Path(shutil.copytree(made("stopped"), "run"))


def federation() -> Path:
    return Path(shutil.copytree(made("federation"), "federation"))


def token() -> str:
    """That of a site which is invited."""
    code, out, said = adaptors.command("fed", "invite", "basel", "--folder", str(federation()))
    assert code == 0, said
    return out.strip().rpartition(" ")[2]


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    text = (folder / file).read_text()
    assert old in text, text
    (folder / file).write_text(text.replace(old, new))
    return folder


def cut(file: Path, name: str) -> Path:
    """The first half of a file."""
    content = file.read_bytes()
    Path(name).write_bytes(content[: len(content) // 2])
    return Path(name)


class Endless:
    def __iter__(self) -> Any:
        return iter(int, 1)


@functools.cache
def cases() -> dict[str, dict[str, str]]:
    """What is typed: Python, which runs in this module, and the words that its message is to have.

    The words are the key or place, the value, and one of the way out; empty where a message has none.
    """
    entries = json.loads((Path(__file__).parent / "refusals.json").read_text())
    return {name: entry for name, entry in entries.items() if name != "machine"}


def entry(name: str, here: Path) -> Case:
    """Class of the error, and each word that its message names; of one that it does not, the message."""
    (here / "tiny.toml").write_text(TINY)
    (here / "broken.toml").write_text("rounds = = 3\n")
    (here / "policy.toml").write_text("max_epsilom = 1.0\n")
    kind, message = adaptors.ends_with(lambda: eval(name, globals()))
    words = {part: cases()[name][part] for part in ("key", "value", "remedy")}
    return {"class": kind, **{part: word if word in message else f"not in: {message}" for part, word in words.items()}}
