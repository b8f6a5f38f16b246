"""Configuration: what is refused and in which words, what is spelled out, what reads back."""

import inspect
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import annotated_types as at
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from unskew import algorithms, schema
from unskew.data.split import TABLE as SPLITS
from unskew.data.split import FromManifest
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, Runtime, Stop
from unskew.protocol import SgdConfig
from unskew.world.outage import Outage

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
        ("epochs=3", "unknown key epochs; did you mean local.local_epochs? "),
        ("num_clients=3", "unknown key num_clients; did you mean split.num_clients? "),
        ("split.alfa=1", "unknown key split.alfa; did you mean alpha? (dirichlet has: alpha, by, num_clients, "),
        ("methods.1.smapling=1", "unknown key methods.1.smapling; did you mean sampling? (fedprox has: mu, local, "),
        ("methods.0.lr=1", "unknown key methods.0.lr; did you mean local.lr? (fedavg has: "),
        (
            "world.outage.latte=1",
            "unknown key world.outage.latte; did you mean late? (world.outage has: unreachable, ",
        ),
        (
            'local.lr_schedule={name="exponential", dekay=1}',
            "unknown key local.lr_schedule.dekay; did you mean decay? (exponential has: decay, name)",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_known_one(setting: str, begin: str) -> None:
    assert refusal(setting).startswith(begin)


@pytest.mark.parametrize(
    ("table", "path", "key"),
    [
        ("[[methods]]\nname = 'fedavg'", "methods.2", "eval_every = 2"),
        ("[[methods]]\nname = 'fedavg'", "methods.2", "seed = 3"),
        ("[methods.local]\nlr = 0.1", "methods.1.local", "eval_every = 2"),
        ("[task]\nmodel = 'mlp'", "task", "fraction = 0.1"),
        ("[world.outage]\nlate = 0.1", "world.outage", "bounds = true"),
    ],
)
def test_a_setting_of_the_experiment_below_a_table_is_told_where_it_belongs(table: str, path: str, key: str) -> None:
    word = key.split()[0]
    setting = {"seed": "seeds"}.get(word, word)
    begin = f"unknown key {path}.{word}; {setting} is a setting of the experiment: write it above the first [table] of "
    assert refusal(text=f"{TEXT}{table}\n{key}\n").startswith(begin)


# ---------------------------------------------------------------- wrong types, wrong values
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('rounds="3"', 'rounds must be an integer, got "3"'),
        ("rounds=1.5", "rounds must be an integer, got 1.5"),
        ("rounds=0", "rounds must be >= 1, got 0"),
        ("seeds=3", "seeds must be a list, got 3"),
        ("seeds=[]", "seeds must have a length of at least 1, got 0"),
        ("seeds=[1, 1]", "seeds must differ, got [1, 1]"),
        ("fraction=1.5", "fraction must be <= 1, got 1.5"),
        ("fraction=nan", "fraction must be a finite number, got nan"),
        (
            'evaluate=["globl"]',
            "evaluate: classification has no 'globl'; did you mean global? (it has global, personal, "
            "personal_on_global, accuracy, balanced_accuracy, macro_f1, auroc, lowest_recall)",
        ),
        ('local.lr="0.1"', 'local.lr must be a number, got "0.1"'),
        ("local.betas=[0.9, 1.0]", "local.betas.1 must be < 1, got 1.0"),
        ("local.nesterov=true", "local: nesterov needs momentum > 0, got 0; set momentum or leave nesterov out"),
        ("methods.1.mu=-0.1", "methods.1.mu must be >= 0, got -0.1"),
        ("methods.1.sampling=big", "methods.1.sampling must be one of 'uniform' or 'size', got \"big\""),
        (f"methods.0.label={'x' * 61}", f'methods.0.label must be a line of at most 60 characters, got "{"x" * 56}...'),
        ("methods.0=3", "methods.0 must be a name or a table with one, got 3"),
        ("methods=[]", "methods must be a list of at least one name or table, got []"),
        ("split=iid", None),
        ("split.alpha=0", "split.alpha must be > 0, got 0"),
        (
            "task.augment=blur",
            "task.augment: unknown augmentation 'blur' (there are: none, crop, flip, crop+flip; or give "
            "module:attribute)",
        ),
        (
            "stop.metric=1.01",
            "stop.metric must be a value of accuracy in (0, 1], got 1.01",
        ),
        ("world.outage.late=2", "world.outage.late must be <= 1, got 2"),
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
            f'rounds = 1\nsplit = {{ name = "manifest", path = "{written}" }}\nmethod = {{ name = "fedavg" }}'
        )
        split = config.load(Path("here/e.toml"), overrides).split
        assert isinstance(split, FromManifest)
        return split.path

    assert path("m.json") == str(here / "m.json")
    for written in ("other.json", "sub/m.json", "../m.json", "..", "", "./m.json", "sub", "x" * 5000):
        assert path(written) == written
    assert path("m.json", "split.path=m.json") == "m.json"


def test_contradictions_are_refused() -> None:
    assert refusal("fraction=0.5", "clients_per_round=2") == (
        "fraction and clients_per_round exclude each other, got 0.5 and 2; leave one out"
    )
    assert refusal("local.local_epochs=1", "local.local_steps=2") == (
        "local: local_epochs and local_steps exclude each other, got 1 and 2; leave one out"
    )
    assert refusal("method.name=fedavg") == "give either [method] or [[methods]]"
    assert refusal(text="rounds = 2") == "give either [method] or [[methods]]"
    assert refusal("seed=1", "seeds=[1]") == "seed and seeds exclude each other; leave one out"
    assert refusal("methods.1.label=fedavg") == "two methods are called 'fedavg'; give one of them another label"
    assert refusal(text='method = { name = "fedavg" }') == "rounds is required"


def test_a_method_at_its_defaults_is_its_name() -> None:
    by_name = 'rounds = 1\nmethods = ["fedavg", "fedprox+dw"]\n'
    in_tables = 'rounds = 1\nmethods = [{ name = "fedavg" }, { name = "fedprox+dw" }]\n'
    assert config.parse(tomllib.loads(by_name)) == config.parse(tomllib.loads(in_tables))
    changed = config.override(tomllib.loads(by_name), ["methods.1.mu=0.5"])
    assert changed["methods"] == [{"name": "fedavg"}, {"name": "fedprox+dw", "mu": 0.5}]
    assert config.parse(config.override(changed, ['methods=["moon"]'])).methods[0].name == "moon"
    assert config.parse(tomllib.loads('rounds = 1\nmethod = "fedavg"')).methods[0].label == "fedavg"


@pytest.mark.parametrize("text", ['method = "os:getcwd"', 'methods = ["os:getcwd"]', 'methods = ["fedavg+os:getcwd"]'])
def test_a_name_alone_imports_no_code_that_a_table_would_not(text: str) -> None:
    with pytest.raises(ConfigError, match="os:getcwd"):
        config.parse(tomllib.loads(f"rounds = 1\n{text}"))


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    message = refusal("methods.0.name=fedavgg")
    assert message.startswith("methods.0.name: unknown method 'fedavgg'; did you mean fedavg? (there are: ")
    assert refusal("methods.0.name=no.such:thing").startswith("methods.0.name: method 'no.such:thing' cannot be ")
    assert refusal("methods.0.name=builtins:dict").endswith("; builtins:dict is part of Python itself")
    assert refusal("methods.0.name=unskew.data.split:IID").endswith(
        "; unskew.data.split:IID is inside unskew and not in its table"
    )


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


# ---------------------------------------------------------------- files


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML: Invalid value \(at line 1, column 10\)"):
        config.load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml is not UTF-8 text"):
        config.load(tmp_path / "bytes.toml")


# ---------------------------------------------------------------- --set
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds", "--set takes key.path=value, got 'rounds'"),
        ("=3", "--set takes key.path=value, got '=3'"),
        ("a..b=3", "--set takes key.path=value, got 'a..b=3'"),
        ("rounds.x=3", "--set rounds.x: rounds is a value, not a table"),
        ("methods.2.mu=1", "--set methods.2.mu: '2' is not an entry of a list of 2; say which one, counting from 0"),
        ("methods.mu=1", "--set methods.mu: 'mu' is not an entry of a list of 2; say which one, counting from 0"),
        ("methods.-1.mu=1", "--set methods.-1.mu: '-1' is not an entry of a list of 2; say which one, counting from 0"),
        ("methods.².mu=1", "--set methods.².mu: '²' is not an entry of a list of 2; say which one, counting from 0"),
    ],
)
def test_a_setting_that_leads_nowhere_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.override(tomllib.loads(TEXT), [setting])
    assert str(caught.value) == message


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
def test_local_is_shared_unless_a_method_says_otherwise() -> None:
    found = parsed("local.local_epochs=3", "methods.1.local.lr=0.5")
    assert found.methods[0].options["local"]["lr"] == 0.1
    options = found.methods[1].options["local"]
    assert (options["lr"], options["local_epochs"]) == (0.5, 3)


def test_steps_of_a_method_put_the_shared_epochs_aside() -> None:
    local = parsed("local.local_epochs=3", "methods.0.local.local_steps=5").methods[0].method.local
    assert (local.local_epochs, local.local_steps) == (None, 5)


def test_none_is_written_as_a_word_where_nothing_is_allowed() -> None:
    """TOML has no null, and the default batch size is 32: `"none"` takes all of a client's data in every step."""
    found = parsed("local.batch_size=none", "fraction=none")
    assert found.methods[0].method.local.batch_size is None
    assert found.fraction is None
    assert config.parse(tomllib.loads(config.to_toml(found))) == found
    assert refusal("rounds=none") == 'rounds must be an integer, got "none"'
    assert parsed("task.data_dir=none").task.data_dir == "none"  # a folder may be called so


def test_bounds_are_added_unless_they_are_there() -> None:
    assert [m.label for m in parsed("bounds=true").methods] == ["fedavg", "fedprox", "independent", "centralised"]
    assert all(m.options["local"]["lr"] == 0.1 for m in parsed("bounds=true").methods)


def test_a_personal_relative_of_fedavg_is_not_the_bound() -> None:
    found = parsed('methods=[{name="fedavg", label="fedper", personal=["head"]}]', "bounds=true")
    assert [m.label for m in found.methods] == ["fedper", "independent", "fedavg", "centralised"]
    assert [m.is_fedavg for m in found.methods] == [False, False, True, False]


# ---------------------------------------------------------------- cohort


@given(st.integers(1, 100), st.integers(1, 2000))
@example(29, 100)  # the product is 28.999999999999996 in binary
def test_a_fraction_in_hundredths_is_exact(percent: int, clients: int) -> None:
    cohort = Experiment(methods=(config.method("fedavg", {}),), rounds=1, fraction=percent / 100).cohort(clients)
    assert cohort == max(percent * clients // 100, 1)


def test_accuracy_as_a_reason_to_stop_brings_validation_data() -> None:
    assert parsed("stop.metric=0.9").val_fraction == 0.1
    assert parsed("stop.metric=0.9", "val_fraction=0.3").val_fraction == 0.3
    assert parsed().val_fraction == 0.0


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
    first = config.parse({**top, "split": split, "method": {"name": name, **fits, "local": local}})
    again = config.parse(tomllib.loads(config.to_toml(first)))
    assert again == first
    assert config.fingerprint(again) == config.fingerprint(first)
    assert again.methods[0].method == first.methods[0].method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"rounds = {'9' * 5000}", "is not TOML: Exceeds the limit"),
        (f"a = {'[' * 5000}{']' * 5000}", "is nested too deeply"),
        (f"{'a.' * 60}b = {{ {'a.' * 60}b = 1 }}", "is nested too deeply"),
    ],
)
def test_a_file_that_no_reader_can_take_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        config.load(tmp_path / "x.toml")
    with pytest.raises(ConfigError):
        parsed(text.replace("a = ", "rounds="))


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


def test_the_portable_fingerprint_does_not_depend_on_where_the_data_lie() -> None:
    """The one with the path does, so that a sweep over files has as many points as files."""
    here, there, other = (parsed(f"task.data={data}") for data in ("npz:/a/b.npz", "npz:c.npz", "csv:/a"))
    assert config.fingerprint(here) != config.fingerprint(there)
    assert config.fingerprint(here, portable=True) == config.fingerprint(there, portable=True)
    assert config.fingerprint(here, portable=True) != config.fingerprint(other, portable=True)
    assert config.fingerprint(parsed(), portable=True) == config.fingerprint(parsed())  # digits have no path
    assert config.fingerprint(parsed("task.data=digit_domains")) != config.fingerprint(parsed(), portable=True)


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


# ---------------------------------------------------------------- numbers that are none
