"""Configuration: what is refused and in which words, what is spelled out, what reads back."""

import dataclasses
import inspect
import math
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
from unskew.algorithms.fedavg import FedAvg
from unskew.data.split import TABLE as SPLITS
from unskew.data.split import FromManifest
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, Runtime, Stop
from unskew.protocol import Cosine, Exponential, Milestones, SgdConfig
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
        ("join_ratio=0.1", "unknown key join_ratio; did you mean fraction? "),
        ("comm_round=3", "unknown key comm_round; did you mean rounds? "),
        ("dataset=mnist", "unknown key dataset; did you mean task.data? "),
        ("epochs=3", "unknown key epochs; did you mean local.local_epochs? "),
        ("num_clients=3", "unknown key num_clients; did you mean split.num_clients? "),
        ("zzz=3", "unknown key zzz (an experiment has: "),
        ("split.alfa=1", "unknown key split.alfa; did you mean alpha? (dirichlet has: alpha, by, num_clients, "),
        (
            "split.beta=1",
            "unknown key split.beta; did you mean alpha? (dirichlet has: alpha, by, num_clients, min_sampl",
        ),
        (
            "split.xi=0.1",
            'unknown key split.xi; split.name = "entangled" has it (dirichlet has: alpha, by, num_clients',
        ),
        ("split.n_clients=1", "unknown key split.n_clients; did you mean num_clients? "),
        ("local.epochs=1", "unknown key local.epochs; did you mean local_epochs? (local has: lr, "),
        ("methods.1.smapling=1", "unknown key methods.1.smapling; did you mean sampling? (fedprox has: mu, local, "),
        ("methods.0.local.learning_rate=1", "unknown key methods.0.local.learning_rate; did you mean lr? "),
        ("methods.0.lr=1", "unknown key methods.0.lr; did you mean methods.0.local.lr? (fedavg has: "),
        ("methods.0.terms=[1]", "unknown key methods.0.terms ("),
        (
            "world.outage.latte=1",
            "unknown key world.outage.latte; did you mean late? (world.outage has: unreachable, ",
        ),
        ("runtime.thread=1", "unknown key runtime.thread; did you mean threads? "),
        ("stop.metrics=1", "unknown key stop.metrics; did you mean metric? "),
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


def test_a_split_that_has_a_setting_is_named_beside_one_that_has_not() -> None:
    told = refusal(text=TEXT.replace('"dirichlet"', '"iid"'))
    assert (
        told
        == 'unknown key split.alpha; split.name = "dirichlet" or "quantity" has it (iid has: num_clients, min_samples)'
    )


# ---------------------------------------------------------------- wrong types, wrong values
OF_METHODS = 'a list of at least one name or table, as in ["fedavg", { name = "fedprox", mu = 0.1 }]'


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('rounds="3"', 'rounds must be an integer, got "3"'),
        ("rounds=true", "rounds must be an integer, got true"),
        ("rounds=1.5", "rounds must be an integer, got 1.5"),
        ("rounds=2.0", "rounds must be an integer, got 2.0"),
        ("rounds=0", "rounds must be >= 1, got 0"),
        ("rounds=1979-05-27", "rounds must be text, a number, true or false, a list or a table, got 1979-05-27"),
        ("name=3", "name must be a string, got 3"),
        ("seed=x", 'seeds.0 must be an integer, got "x"'),
        ("seeds=3", "seeds must be a list, as in [0, 1, 2] for three, got 3"),
        ("seeds=[]", "seeds must have a length of at least 1, got 0"),
        ("seeds=[1, 1]", "seeds must differ, got [1, 1]"),
        ("seeds=[true]", "seeds.0 must be an integer, got true"),
        ("fraction=1.5", "fraction must be <= 1, got 1.5"),
        ("fraction=0", "fraction must be > 0, got 0"),
        ("fraction=nan", "fraction must be a finite number, got nan"),
        ("evaluate=global", 'evaluate must be a list, got "global"'),
        (
            'evaluate=["globl"]',
            "evaluate: classification has no 'globl'; did you mean global? (it has global, personal, "
            "personal_on_global, accuracy, balanced_accuracy, macro_f1, auroc, lowest_recall)",
        ),
        ("bounds=1", "bounds must be true or false, got 1"),
        ("local=3", "local must be a table, got 3"),
        ('local.lr="0.1"', 'local.lr must be a number, got "0.1"'),
        ("local.lr=true", "local.lr must be a number, got true"),
        ("local.lr=-1", "local.lr must be > 0, got -1"),
        ("local.lr=inf", "local.lr must be a finite number, got inf"),
        ("local.lr=1e400", "local.lr must be a finite number, got inf"),
        ("local.weight_decay=nan", "local.weight_decay must be a finite number, got nan"),
        ("local.batch_size=1.5", "local.batch_size must be an integer, got 1.5"),
        ("local.nesterov=1", "local.nesterov must be true or false, got 1"),
        ("local.betas=[0.9]", "local.betas.1 is required"),
        ("local.betas=[0.9, 0.9, 0.9]", "local.betas must have a length of at most 2, got 3"),
        ("local.betas=[0.9, 1.0]", "local.betas.1 must be < 1, got 1.0"),
        ("local.trainable=head", 'local.trainable must be a list, got "head"'),
        ("local.nesterov=true", "local: nesterov needs momentum > 0, got 0; set momentum or leave nesterov out"),
        (
            "methods.1.local.nesterov=true",
            "methods.1.local: nesterov needs momentum > 0, got 0; set momentum or leave nesterov out",
        ),
        ("methods.1.mu=-0.1", "methods.1.mu must be >= 0, got -0.1"),
        ("methods.1.mu=inf", "methods.1.mu must be a finite number, got inf"),
        ("methods.1.sampling=big", "methods.1.sampling must be one of 'uniform' or 'size', got \"big\""),
        ("methods.0.label=3", "methods.0.label must be a line of at most 60 characters, got 3"),
        (f"methods.0.label={'x' * 61}", f'methods.0.label must be a line of at most 60 characters, got "{"x" * 56}...'),
        ("methods.0=3", "methods.0 must be a name or a table with one, got 3"),
        ("methods=[]", f"methods must be {OF_METHODS}, got []"),
        ("methods=fedavg", f'methods must be {OF_METHODS}, got "fedavg"'),
        ("split=iid", None),
        ("split.alpha=0", "split.alpha must be > 0, got 0"),
        ("split.alpha=-0.2", "split.alpha must be > 0, got -0.2"),
        ("split.alpha=nan", "split.alpha must be a finite number, got nan"),
        (
            "task.augment=blur",
            "task.augment: unknown augmentation 'blur' (there are: none, crop, flip, crop+flip; or give "
            "module:attribute)",
        ),
        ("task.model_options=3", "task.model_options must be a table, got 3"),
        ("task.model_options.hidden=[nan]", "task.model_options.hidden.0 must be a finite number, got nan"),
        ("stop.megabytes=0", "stop.megabytes must be > 0, got 0"),
        (
            "stop.metric=1.01",
            "stop.metric must be a value of accuracy in (0, 1], got 1.01",
        ),
        ("world=3", "world must be a table, got 3"),
        ("world.outage=3", "world.outage must be a table, got 3"),
        ("world.outage.late=2", "world.outage.late must be <= 1, got 2"),
        ("runtime.deterministic=yes", 'runtime.deterministic must be true or false, got "yes"'),
    ],
)
def test_a_wrong_value_is_never_guessed_at(setting: str, message: str | None) -> None:
    if message is None:
        message = f'split.name must be one of {", ".join(SPLITS)}, got "iid"'
    assert refusal(setting) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"cosine"', 'local.lr_schedule must be a table, got "cosine"'),
        ("{ rounds = 3 }", "local.lr_schedule.name must be one of constant, exponential, cosine, milestones, got none"),
        (
            '{ name = "exp" }',
            'local.lr_schedule.name must be one of constant, exponential, cosine, milestones, got "exp"',
        ),
        ('{ name = "exponential" }', "local.lr_schedule.decay is required"),
        ('{ name = "exponential", decay = 2.0 }', "local.lr_schedule.decay must be <= 1, got 2.0"),
        ('{ name = "milestones", at = [3, "a"] }', 'local.lr_schedule.at.1 must be an integer, got "a"'),
    ],
)
def test_a_schedule_is_what_its_name_says(value: str, message: str) -> None:
    assert refusal(f"local.lr_schedule={value}") == message


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


@pytest.mark.parametrize("value", ['["iid"]', "{ a = 1 }", "3"])
def test_a_name_that_is_no_word_is_refused_as_any_other(value: str) -> None:
    assert f"split.name must be one of {', '.join(SPLITS)}, got " in refusal(f"split.name={value}")
    assert "local.lr_schedule.name must be one of constant, " in refusal(f"local.lr_schedule={{ name = {value} }}")


def test_every_schedule_can_be_written() -> None:
    def schedule(value: str) -> object:
        return parsed(f"local.lr_schedule={value}").methods[0].method.local.lr_schedule

    assert schedule('{ name = "exponential", decay = 0.9 }') == Exponential(0.9)
    assert schedule('{ name = "cosine", rounds = 3 }') == Cosine(3)
    assert schedule('{ name = "milestones", at = [2, 3], factor = 0.5 }') == Milestones((2, 3), 0.5)


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


def test_an_unknown_executor_is_refused_with_those_there_are() -> None:
    message = refusal("runtime.executor=gpu")
    assert message.startswith("runtime: unknown executor 'gpu' (there are: sequential, ")
    assert message.endswith("sequential, workers, stacked, ray; or give module:attribute)")


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


def test_there_are_bounds_to_test() -> None:
    """A change of the annotations' form must not leave the two tests above without cases."""
    assert len(CASES) > 40
    assert sum(len(bounded(kind, "")) for kind in SPLITS.values()) > 15


# ---------------------------------------------------------------- files
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "windows.toml").write_text('name = "é"\r\nrounds = 3\r\n', "utf-8-sig")
    assert config.read_toml(tmp_path / "windows.toml") == {"name": "é", "rounds": 3}


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML: Invalid value \(at line 1, column 10\)"):
        config.load(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml is not UTF-8 text"):
        config.load(tmp_path / "bytes.toml")


def test_a_file_is_read_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(TEXT)
    found = config.load(tmp_path / "e.toml", ["rounds=7", "methods.1.mu=0.5", "name=other name", "seeds=[3, 4]"])
    assert (found.rounds, found.methods[1].options["mu"], found.name, found.seeds) == (7, 0.5, "other name", (3, 4))


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
def test_a_fraction_is_taken_as_written() -> None:
    """floor(0.29 * 100): the product is 28.999999999999996 in binary, 29 clients are meant."""
    base = parsed()
    for fraction, clients, cohort in [(0.29, 100, 29), (0.57, 100, 57), (0.1, 4, 1), (0.5, 5, 2), (1.0, 7, 7)]:
        assert dataclasses.replace(base, fraction=fraction).cohort(clients) == cohort
    assert base.cohort(9) == 9


@given(st.integers(1, 100), st.integers(1, 2000))
def test_a_fraction_in_hundredths_is_exact(percent: int, clients: int) -> None:
    cohort = Experiment(methods=(config.method("fedavg", {}),), rounds=1, fraction=percent / 100).cohort(clients)
    assert cohort == max(percent * clients // 100, 1)


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients_per_round must be at most the 4 clients, got 5"):
        parsed("clients_per_round=5").cohort(4)


def test_accuracy_as_a_reason_to_stop_brings_validation_data() -> None:
    assert parsed("stop.metric=0.9").val_fraction == 0.1
    assert parsed("stop.metric=0.9", "val_fraction=0.3").val_fraction == 0.3
    assert parsed().val_fraction == 0.0


def test_an_experiment_without_methods_is_refused() -> None:
    with pytest.raises(ConfigError, match="methods must name at least one method"):
        Experiment(methods=(), rounds=1)


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
            st.fixed_dictionaries({"name": st.just("milestones"), "at": st.lists(st.integers(1, 9), max_size=3)}),
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


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seeds must be >= 0, got -1"):
        parsed("seeds=[3, -1]")


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


def test_a_whole_number_for_a_fraction_is_the_same_experiment() -> None:
    assert config.fingerprint(parsed("methods.1.mu=1")) == config.fingerprint(parsed("methods.1.mu=1.0"))


def test_a_default_spelled_out_is_the_same_experiment() -> None:
    assert parsed("methods.1.mu=0.1", "eval_every=1", "local.momentum=0") == parsed()


@pytest.mark.parametrize(
    "setting",
    ["name=x", "runtime.checkpoint_every=3", "runtime.codec=true", "task.data_dir=/x"],
)
def test_the_fingerprint_does_not_depend_on_what_changes_no_number(setting: str) -> None:
    assert config.fingerprint(parsed(setting)) == config.fingerprint(parsed())


def test_the_portable_fingerprint_does_not_depend_on_where_the_data_lie() -> None:
    """The one with the path does, so that a sweep over files has as many points as files."""
    here, there, other = (parsed(f"task.data={data}") for data in ("npz:/a/b.npz", "npz:c.npz", "folder:/a"))
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


def test_what_may_be_a_word_or_a_number_is_told_as_both() -> None:
    with pytest.raises(ConfigError, match=r"m must be an integer or 'auto', 'silhouette' or 'oracle', got \"many\"$"):
        config.method("feddistr", {"m": "many"})


def test_a_method_is_made_from_its_name() -> None:
    made = config.method("fedavg", {"personal": ["head"]}, "FedPer")
    assert (made.label, made.kind, made.is_fedavg) == ("FedPer", "global", False)
    assert made.method == FedAvg(personal=("head",))
    assert math.isclose(made.options["local"]["lr"], 0.1)
    assert config.method("centralised", {}).kind == "bound"


# ---------------------------------------------------------------- numbers that are none
@pytest.mark.parametrize("digits", [20, 400, 4301])
@pytest.mark.parametrize(
    "key",
    [
        "rounds",
        "seeds.0",
        "local.lr",
        "stop.megabytes",
        "split.num_clients",
        "methods.1.mu",
        "task.model_options.hidden.0",
    ],
)
def test_an_integer_of_hundreds_of_digits_is_one_sentence(key: str, digits: int) -> None:
    number = 10 ** (digits - 1)
    table, (first, *rest) = tomllib.loads(TEXT), key.split(".")
    value: Any = number
    for part in reversed(rest):
        value = [*([{"name": "fedavg"}] * int(part)), value] if part.isdecimal() else {part: value}
    if first == "methods":
        value[1]["name"] = "fedprox"
    table[first] = {**table[first], **value} if isinstance(table.get(first), dict) else value
    with pytest.raises(ConfigError) as caught:
        config.parse(table, "my.toml")
    assert str(caught.value) == f"{key} must fit into 64 bits, got an integer of {number.bit_length()} bits (my.toml)"
