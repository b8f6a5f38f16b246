"""Configuration: what is refused and in which words, what is spelled out, what reads back."""

import inspect
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types as at
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew import algorithms, schema
from unskew.data.split import TABLE as SPLITS
from unskew.data.split import FromManifest
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, Runtime, Stop
from unskew.protocol import SgdConfig
from unskew.world.pace import Outage

TEXT = """
rounds = 2
split = { name = "dirichlet", num_clients = 4, alpha = 0.1 }
[local]
lr = 0.1
[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
"""


def parsed(*overrides: str, text: str = TEXT) -> Experiment:
    return config.parse(config.override(tomllib.loads(text), overrides), "my.toml", allow_code=True)


def refusal(*overrides: str, text: str = TEXT) -> str:
    """The message, which is one line and names the file once, at its end."""
    with pytest.raises(ConfigError) as caught:
        parsed(*overrides, text=text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(" (my.toml)")
    assert message.count("my.toml") == 1
    return message.removesuffix(" (my.toml)")


# ---------------------------------------------------------------- unknown keys
@pytest.mark.parametrize(
    ("setting", "begin"),
    [
        ("roundz=3", "unknown key roundz; did you mean rounds? (an experiment has: "),
        ("methods.0.lr=1", "unknown key methods.0.lr; did you mean local.lr? (fedavg has: "),
        (
            'local.lr_schedule={name="exponential", dekay=1}',
            "unknown key local.lr_schedule.dekay; did you mean decay? (exponential has: decay, name)",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_known_one(setting: str, begin: str) -> None:
    assert refusal(setting).startswith(begin)


# ---------------------------------------------------------------- wrong types, wrong values
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('rounds="3"', 'rounds must be an integer, got "3"'),
        ("seeds=[]", "seeds must have a length of at least 1, got 0"),
        ("fraction=nan", "fraction must be a finite number, got nan"),
        ('local.lr="0.1"', 'local.lr must be a number, got "0.1"'),
        ("local.betas=[0.9, 1.0]", "local.betas.1 must be < 1, got 1.0"),
        ("local.nesterov=true", "local: nesterov needs momentum > 0, got 0; set momentum or leave nesterov out"),
        ("methods.1.sampling=big", "methods.1.sampling must be one of 'uniform' or 'size', got \"big\""),
        ("methods.0=3", "methods.0 must be a name or a table with one, got 3"),
        ("split=iid", None),
        (
            "task.augment=blur",
            "task.augment: unknown augmentation 'blur' (there are: none, crop, flip, crop+flip; or give "
            "module:attribute)",
        ),
    ],
)
def test_a_wrong_value_is_never_guessed_at(setting: str, message: str | None) -> None:
    if message is None:
        message = f'split.name must be one of {", ".join(SPLITS)}, got "iid"'
    assert refusal(setting) == message


def test_a_manifest_is_looked_for_beside_its_file_by_a_bare_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path that an experiment names is looked at elsewhere, and --set is of whoever sits at the terminal."""
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    for file in (here / "m.json", here / "sub" / "m.json", tmp_path / "m.json"):
        file.write_text("{}")
    monkeypatch.chdir(tmp_path)

    def path(written: str, *overrides: str) -> str:
        (here / "e.toml").write_text(
            f'rounds = 1\nsplit = {{ name = "manifest", path = "{written}" }}\nmethods = ["fedavg"]'
        )
        split = config.load(Path("here/e.toml"), overrides).split
        assert isinstance(split, FromManifest)
        return split.path

    assert path("m.json") == str(here / "m.json")
    for written in ("other.json", "sub/m.json", "../m.json", "..", "", "./m.json", "sub", "x" * 5000):
        assert path(written) == written
    assert path("m.json", "split.path=m.json") == "m.json"


def unannotated(mu=0.1): ...


def variadic(**fedavg: Any) -> None: ...


@pytest.mark.parametrize("name", ["unannotated", "variadic"])
def test_a_method_whose_settings_cannot_be_checked_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "resolve", lambda _name: globals()[name])
    assert "give every setting a name and a type, as in mu: float = 0.1" in refusal("methods.0.name=mine")


# ---------------------------------------------------------------- bounds, from the annotations themselves
def outside(hint: Any) -> Iterator[Any]:
    """Values just beyond each bound of an annotation."""
    if typing.get_origin(hint) is not typing.Annotated:
        for inner in typing.get_args(hint):
            yield from outside(inner)
        return
    base, *rules = typing.get_args(hint)
    step = 1 if base is int else 1e-9
    for rule in (part for r in rules for part in (r if isinstance(r, at.GroupedMetadata) else [r])):
        if isinstance(rule, at.Ge):
            yield base(rule.ge) - step
        elif isinstance(rule, at.Gt):
            yield base(rule.gt)
        elif isinstance(rule, at.Le):
            yield base(rule.le) + step
        elif isinstance(rule, at.Lt):
            yield base(rule.lt)


def bounded(target: Any, place: str) -> list[tuple[str, Any]]:
    return [
        (f"{place}{name}", value)
        for name, (hint, _) in schema.parameters(target).items()
        if name not in ("betas", "seeds")
        for value in outside(hint)
    ]


CASES = [
    *((name, "methods.0.", setting) for name in algorithms.TABLE for setting in bounded(algorithms.resolve(name), "")),
    *(("fedavg", "local.", setting) for setting in bounded(SgdConfig, "")),
    *(("fedavg", "", setting) for setting in bounded(Experiment, "")),
    *(("fedavg", "stop.", setting) for setting in bounded(Stop, "")),
    *(("fedavg", "runtime.", setting) for setting in bounded(Runtime, "")),
    *(("fedavg", "world.outage.", setting) for setting in bounded(Outage, "")),
]


@pytest.mark.parametrize(("method", "place", "setting"), CASES)
def test_a_value_just_outside_its_bound_is_refused_by_name(method: str, place: str, setting: tuple[str, Any]) -> None:
    key, value = setting
    message = refusal(f'methods=[{{name="{method}"}}]', f"{place}{key}={value!r}")
    assert message.startswith(f"{place}{key} must be ")
    assert message.endswith(f", got {value!r}")


@pytest.mark.parametrize(("name", "setting"), [(n, s) for n, kind in SPLITS.items() for s in bounded(kind, "")])
def test_a_split_just_outside_its_bound_is_refused_by_name(name: str, setting: tuple[str, Any]) -> None:
    key, value = setting
    path = ', path="p.json"' if name == "manifest" else ""
    message = refusal(f'split={{name="{name}", {key}={value!r}{path}}}')
    assert message.startswith(f"split.{key} must be ")
    assert message.endswith(f", got {value!r}")


# ---------------------------------------------------------------- --set
def test_a_setting_is_toml_or_else_text() -> None:
    raw = {"a": {"b": 1}, "list": [1, 2]}
    settings = ["a.b=[1, 2]", "a.c = true", "d=plain text", 'e="3"', "list.1=5", "new.deep=0.5", "f=1\ng=2", "h=a=b"]
    assert config.override(raw, settings) == {
        "a": {"b": [1, 2], "c": True},
        "list": [1, 5],
        "d": "plain text",
        "e": "3",
        "new": {"deep": 0.5},
        "f": "1\ng=2",
        "h": "a=b",
    }
    assert raw == {"a": {"b": 1}, "list": [1, 2]}


# ---------------------------------------------------------------- local, bounds, none
def test_none_is_written_as_a_word_where_nothing_is_allowed() -> None:
    """TOML has no null, and the default batch size is 32: `"none"` takes all of a client's data in every step."""
    found = parsed("local.batch_size=none", "fraction=none")
    assert found.methods[0].method.local.batch_size is None
    assert found.fraction is None
    assert config.parse(tomllib.loads(config.to_toml(found))) == found
    assert refusal("rounds=none") == 'rounds must be an integer, got "none"'
    assert parsed("task.data_dir=none").task.data_dir == "none"  # a folder may be called so


# ---------------------------------------------------------------- spelled out and back
TRAINED_LOCALLY = [n for n in algorithms.TABLE if "local" in inspect.signature(algorithms.resolve(n)).parameters]
floats = st.floats(1e-6, 0.999)
optimisations = st.fixed_dictionaries(
    {},
    optional={
        "lr": floats,
        "batch_size": st.one_of(st.integers(1, 500), st.just("none")),
        "momentum": floats,
        "weight_decay": floats,
        "buffers": st.sampled_from(["update", "freeze"]),
        "trainable": st.lists(st.sampled_from(["all", "head", "body"]), min_size=1, max_size=2),
        "lr_schedule": st.one_of(
            st.just({"name": "constant"}),
            st.fixed_dictionaries({"name": st.just("exponential"), "decay": floats}),
        ),
    },
)


@settings(max_examples=30)
@given(
    name=st.sampled_from(TRAINED_LOCALLY),
    local=optimisations,
    split=st.sampled_from(
        [{"name": "iid"}, {"name": "dirichlet", "by": "client"}, {"name": "group"}, {"name": "manifest", "path": "p"}]
    ),
    top=st.fixed_dictionaries(
        {"rounds": st.integers(1, 99)},
        optional={
            "seeds": st.lists(st.integers(0, 99), min_size=1, unique=True),
            "fraction": floats,
            "name": st.text(max_size=9).filter(lambda s: s.isprintable() and s.strip()),
            "stop": st.fixed_dictionaries({}, optional={"metric": floats, "seconds": floats}),
            "task": st.fixed_dictionaries({}, optional={"loss": st.just("multi_margin"), "data_dir": st.text()}),
            "runtime": st.fixed_dictionaries({}, optional={"threads": st.integers(1, 4)}),
            "world": st.just({"outage": {"late": 0.25}}),
        },
    ),
)
def test_what_is_spelled_out_reads_back_equal(
    name: str, local: dict[str, Any], split: dict[str, Any], top: dict[str, Any]
) -> None:
    fits = {"d2d_before_global": True} if name == "tthf" else {}  # or it wants two local epochs
    first = config.parse({**top, "split": split, "methods": [{"name": name, **fits, "local": local}]})
    again = config.parse(tomllib.loads(config.to_toml(first)))
    assert again == first
    assert config.fingerprint(again) == config.fingerprint(first)
    assert again.methods[0].method == first.methods[0].method


@pytest.mark.parametrize("dot", [".", " . ", '."!".'])
@pytest.mark.parametrize("around", ["{} = 1", "a = {{ {} = 1 }}", "[{}]"])
def test_a_key_of_thousands_of_parts_is_refused_before_minutes_are_spent_on_it(
    dot: str, around: str, tmp_path: Path
) -> None:
    """Python's reader takes time by the square of the parts: more than two minutes for 40 kB."""
    (tmp_path / "x.toml").write_text(around.format(dot.join("a" * 20_000)))
    with pytest.raises(ConfigError, match="is nested too deeply"):
        config.load(tmp_path / "x.toml")


@pytest.mark.parametrize(
    "setting",
    ["name=x", "runtime.checkpoint_every=3", "runtime.codec=true", "task.data_dir=/x"],
)
def test_the_fingerprint_does_not_depend_on_what_changes_no_number(setting: str) -> None:
    assert config.fingerprint(parsed(setting)) == config.fingerprint(parsed())


@pytest.mark.parametrize(
    "setting",
    [
        "rounds=3",
        "seeds=[1]",
        "split.alpha=0.2",
        "local.lr=0.2",
        "local.batch_size=none",
        "methods.1.mu=0.2",
        "methods.1.label=x",
        "clients_per_round=2",
        "val_fraction=0.1",
        "task.augment=flip",
        "task.model_options.hidden=[9]",
        "world.outage.late=0.1",
        "stop.megabytes=1",
        "runtime.device=cpu",
    ],
)
def test_the_fingerprint_depends_on_what_changes_numbers(setting: str) -> None:
    assert config.fingerprint(parsed(setting)) != config.fingerprint(parsed())
