"""The rules by which unskew is set beside its peers; the peers themselves are not started."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import unskew

FOLDER = Path(unskew.__file__).parents[1] / "bench" / "peers"
OF_ITS_OWN = ("run", "job", "contenders", "watched", "make_data", "network", "unskew_task", "judge")


@pytest.fixture(scope="module")
def peers() -> Iterator[ModuleType]:
    if not FOLDER.exists():
        pytest.skip(f"{FOLDER} is not here: this is an installed package")
    sys.path.insert(0, str(FOLDER))
    before = {name: sys.modules.pop(name, None) for name in OF_ITS_OWN}
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@pytest.fixture
def job(peers: ModuleType) -> Any:
    return peers.Job("mlp", 100, 500, 10, 3, 50, 0.05, 4, 4, 4, "", "")


def test_unskew_does_the_work_that_it_is_asked_for(peers: ModuleType, job: Any, tmp_path: Path) -> None:
    """Its script is no part of the package, so nothing else would notice that it went out of date.

    Two rounds of 2 clients with 20 examples in batches of 10: 8 steps.
    """
    importlib.import_module("make_data").make(tmp_path, clients=4, samples=20)
    small = {"clients": 4, "samples": 20, "cohort": 2, "rounds": 2, "batch": 10, "cores": 1}
    job = dataclasses.replace(job, **small, data=str(tmp_path), out=str(tmp_path / "journal.jsonl"))
    before = torch.get_num_threads()
    importlib.import_module("unskew_task").main(job, importlib.import_module("job").Journal(job.out))
    torch.set_num_threads(before)
    lines = [json.loads(line) for line in Path(job.out).read_text().splitlines()]
    assert [line["what"] for line in lines] == ["loaded", "round", "round", "end"]
    assert lines[-1]["steps"] == job.steps == 8


def ended(peers: ModuleType, seconds: float, accuracy: float = 0.95, total: float = 10.0) -> Any:
    return peers.Run(None, 1.0, 0.5, 0.4, (seconds, seconds), total_s=total, steps=300, accuracy=accuracy, pss_mb=100.0)


def row(peers: ModuleType, job: Any, theirs: Any, ours: Any) -> dict[str, Any]:
    found: dict[str, Any] = peers.row("peer", [theirs] * 3, [ours] * 3, job)
    return found


def test_a_ratio_is_of_later_rounds(peers: ModuleType, job: Any) -> None:
    """3 s a round against 2 s: 1.5 times unskew's."""
    found = row(peers, job, ended(peers, 3.0), ended(peers, 2.0))
    assert found["times_unskew"] == {"of_minima": 1.5, "of_medians": 1.5}


def test_bars_are_judged_and_written_into_the_page(peers: ModuleType, job: Any) -> None:
    found = peers.row("unskew", [ended(peers, 2.0)] * 3, [ended(peers, 2.0)] * 3, job)
    assert peers.started([found]) == 0.5
    document = {
        "rows": [found], "machine": peers.machine(), "date": "2026-01-01", "repeats": 2,
        "pss_unskew_over_pfl": {"mlp, 10/round": 1.6}, "unskew_start_s": {"mlp, 10/round": 0.5},
    }  # fmt: skip
    text = peers.page(document)
    assert "| mlp, 10/round | 1.60 (bar 1.5: not met) | 0.50 (bar 1.0: met) |" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1
