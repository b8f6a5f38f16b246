"""The table of algorithms, and how a name is found."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import unskew as us
from unskew import algorithms
from unskew.algorithms import TABLE, WRAPPERS, resolve
from unskew.algorithms.presets import tables_of
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.protocol import SgdConfig

FOLDER = Path(algorithms.__file__).parent
FAST = SgdConfig(local_epochs=2)


def listed() -> dict[str, str]:
    """The public names that come from a method's file, and that file."""
    stub = (FOLDER.parent / "__init__.pyi").read_text("utf-8")
    found = re.findall(r"^from \.algorithms\.(\w+) import (\w+) as \2$", stub, re.M)
    wrappers = {target.partition(":")[2] for target in WRAPPERS.ours.values()}
    return {name: module for module, name in found if name not in wrappers}


def test_table_stub_and_folder_agree() -> None:
    """No file without a method, no method without a file; what a user writes is listed in the stub alone."""
    assert sorted(entry.name for entry in TABLE.values()) == sorted(listed())
    assert set(listed().values()) == {p.stem for p in FOLDER.glob("*.py")} - {"__init__", "parts", "presets"}


@pytest.mark.parametrize("name", TABLE)
def test_every_method_is_found_by_the_name_its_paper_gives_it(name: str) -> None:
    """A file's name is the paper's in lower case; FedDistill+ has a word for the sign."""
    spelled = TABLE[name].name
    method = getattr(us, spelled)
    assert spelled in us.__all__
    assert method.__name__ == spelled
    assert method.__doc__
    assert name in (spelled.lower(), "feddistill_plus")
    assert resolve(name) is method
    assert getattr(importlib.import_module(f"unskew.algorithms.{listed()[spelled]}"), spelled) is method


def test_a_preset_is_an_option_like_any_other() -> None:
    """Methods with published settings take them by one word, which is written down together with what it stands for."""
    with_presets = {name for name in TABLE if "preset" in inspect.signature(resolve(name)).parameters}
    assert with_presets == {name for name in TABLE if tables_of(resolve(name))}
    assert with_presets == {"feddif", "feddw", "fedfa", "hcct", "hcct_e", "hcct_p"}
    for name in with_presets:
        make = resolve(name)
        for preset, settings in tables_of(make).items():
            assert make(preset=preset) == make(**settings) == make(**{**settings, "preset": preset})
            method = config.method(name, {"preset": preset})
            assert method.options["preset"] == preset
            assert method.options.items() >= {k: config.plain(v) for k, v in settings.items()}.items()
            assert config.method(name, method.options) == method
            added = config.method(f"{name}+dw", {"preset": preset}) if name != "feddw" else None
            assert added is None or added.method.of == method.method
        with pytest.raises(ConfigError, match=r"no preset is called 'papr'; did you mean paper\? \(there are: paper, "):
            make(preset="papr")


def test_a_variant_differs_in_its_defaults_alone() -> None:
    ours, plain = (inspect.signature(make).parameters for make in (us.HCCT_E, us.HCCT))
    assert {n for n in plain if ours[n].default != plain[n].default} == {"layer"}
    assert list(ours) == list(plain)
    assert us.HCCT_E() == us.HCCT(layer="telling")
    assert us.HCCT_E(layer="all") == us.HCCT()
    assert us.FedPer(FAST) == us.FedAvg(FAST, personal=("head",))


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown method 'FedPorx'; did you mean fedprox\? \(there are: indep"):
        resolve("FedPorx")
    with pytest.raises(ConfigError) as error:
        resolve("zzzzzz")
    assert "did you mean" not in str(error.value)
