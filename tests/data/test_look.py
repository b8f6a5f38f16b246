"""A first look at data: numbers with a known answer, and sentences that name site and column."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from typer.testing import CliRunner

import unskew as us
from unskew.cli.app import app
from unskew.data.columns import column as read_column
from unskew.data.differs import holm
from unskew.data.look import Look
from unskew.errors import ConfigError, DataError
from unskew.report import data_page

RNG = np.random.default_rng(4)
N = 200
SITE = np.array(["Basel"] * 150 + ["Bern"] * 50)


def table(**columns: Any) -> polars.DataFrame:
    rows = {"site": SITE, "age": RNG.normal(size=N), "sick": np.where(np.arange(N) % 2 == 0, "yes", "no"), **columns}
    return polars.DataFrame({name: list(values) for name, values in rows.items()}, strict=False)


def seen(frame: polars.DataFrame, **more: Any) -> Look:
    return us.describe(frame, **{"target": "sick", "client": "site", **more})


def number(look: Look, name: str) -> Any:
    return next(one for one in look.disagreement if one.name == name)


def test_a_site_that_measures_in_another_unit_is_named() -> None:
    glucose = np.random.default_rng(1).normal(5.5, 1.0, N)
    assert not [note for note in seen(table(glucose=glucose)).notes if "unit" in note]
    (note,) = [n for n in seen(table(glucose=glucose * np.where(SITE == "Bern", 18.0, 1.0))).notes if "unit" in n]
    assert note.startswith("column 'glucose' has the mean 98.")
    assert note.endswith(": is it in the same unit there?")


def test_sizes_count_as_so_many_equal_clients() -> None:
    """Shares .75 and .25: 1 / (.5625 + .0625) = 1.6."""
    sizes = number(seen(table()), "sizes")
    assert (sizes.value, sizes.chance) == (pytest.approx(1.6), 2)
    assert (
        sizes.meaning
        == "by number of rows, the 2 sites are equivalent to 1.6 of equal size; the largest, Basel, has 75% of the rows"
    )


def test_sites_without_a_class_in_common_differ_as_much_as_two_can() -> None:
    """All 150 of Basel yes, all 50 of Bern no: X2 = 200, over 200 rows 1; of alike sites 1 / 199 on average."""
    labels = number(seen(table(sick=np.where(SITE == "Basel", "yes", "no"))), "labels")
    assert (labels.value, labels.chance) == (pytest.approx(1), pytest.approx(1 / 199))
    assert labels.p < 1e-40
    assert labels.meaning == (
        "the target differs between sites by more than chance (p < 0.001): no 100% at Bern, 0% at Basel"
    )


def test_labels_that_are_shuffled_differ_no_more_than_chance() -> None:
    labels = number(seen(table(sick=RNG.permutation(["yes", "no"] * 100))), "labels")
    assert labels.p > 0.05
    assert labels.meaning.startswith("the target is not shown to differ between sites (p = ")


def test_a_column_that_gives_the_site_away_lies_between_sites_wholly() -> None:
    """Values 0 and 1 by site have no variance within sites, noise has (2 - 1) / (200 - 1) between them on average."""
    look = seen(table(unit=np.where(SITE == "Bern", 1.0, 0.0), ward=np.where(SITE == "Bern", "north", "south")))
    between = {column.name: column.between.share for column in look.columns if column.between}
    assert (between["unit"], between["ward"]) == (pytest.approx(1), pytest.approx(1))
    assert between["age"] < 0.05
    assert number(look, "columns").meaning.startswith("2 of 3 columns differ by more than chance: ")
    assert "unit 1 at Bern, 0 at Basel" in number(look, "columns").meaning
    assert number(look, "columns").chance == pytest.approx(1 / 199)


def test_the_share_of_a_numbers_variance_between_sites() -> None:
    """Basel 0 and 2 by turns, Bern 4 and 6: means 1 and 5 about 2; between 150 + 450 = 600, within 200."""
    stay = np.where(np.arange(N) % 2 == 0, 0.5, 2.5) + 4 * (SITE == "Bern")
    look = seen(table(sick=stay))
    assert look.classes == ()
    assert number(look, "labels").value == pytest.approx(0.75)
    assert (look.sites[1].mean, look.sites[1].sd) == (pytest.approx(5.5), pytest.approx(1))


def test_gaps_are_counted_by_column_and_site() -> None:
    look = seen(table(dose=[None if i % 10 == 0 or i >= 150 else float(i % 7) for i in range(N)]))
    dose = next(column for column in look.columns if column.name == "dose")
    assert (dose.missing, dose.missing_by_site) == (65 / 200, (0.1, 1.0))
    assert look.sites[1].missing == pytest.approx(0.5)
    assert "column 'dose' has no value at Bern" in look.notes


def test_what_a_preprocessing_does_to_columns_is_not_advised() -> None:
    frame = table(pay=np.arange(N) * 997.5, dose=[None, *[1.0, 2.0] * (N // 2 - 1), 1.0])
    advised, done = (set(seen(frame, preprocess=rules).notes) for rules in (None, True))
    assert sorted(note[:23] for note in advised - done) == ["column 'pay' has a root", "column dose has gaps: f"]


def test_the_command_takes_gaps_and_columns_to_leave_out(tmp_path: Path) -> None:
    table(pay=["-99" if i % 2 else "none" if i % 4 else "1" for i in range(N)], id=range(N)).write_csv(
        tmp_path / "h.csv"
    )
    words = ["data", str(tmp_path / "h.csv"), "--target", "sick", "--client", "site", "--json"]
    result = CliRunner().invoke(app, [*words, "--gaps", "-99", "--gaps", "none", "--leave-out", "id"])
    columns = {column["name"]: column for column in json.loads(result.stdout)["columns"]}
    assert columns.keys() == {"age", "pay"}
    assert columns["pay"]["missing"] == 0.75
    sums = [
        "--test",
        str(tmp_path / "h.csv"),
        "--leave-out",
        "id",
        "--gaps",
        "none",
        "--sums",
        str(tmp_path / "s.json"),
    ]
    assert CliRunner().invoke(app, [*words[:6], *sums]).exit_code == 0
    assert json.loads((tmp_path / "s.json").read_text()).keys() == {"age", "pay"}
    twin = json.loads((tmp_path / "s.json").read_text())
    twin["age"]["n"] += 1
    (tmp_path / "t.json").write_text(json.dumps(twin))
    both = ["data", str(tmp_path / "s.json"), str(tmp_path / "t.json")]
    as_toml, as_json = (CliRunner().invoke(app, [*both, *more]).stdout for more in ([], ["--json"]))
    assert tomllib.loads(as_toml) == json.loads(as_json)
    assert json.loads(as_json)["task"]["preprocess"]["columns"].keys() == {"age", "pay"}


def test_the_command_takes_a_character_between_thousands(tmp_path: Path) -> None:
    table(pay=[f"{i:,}" for i in range(N * 20, N * 40, 20)]).write_csv(tmp_path / "h.csv")
    words = ["data", str(tmp_path / "h.csv"), "--target", "sick", "--client", "site", "--json"]
    columns = json.loads(CliRunner().invoke(app, [*words, "--thousands", ","]).stdout)["columns"]
    assert [column["summary"] for column in columns if column["name"] == "pay"] == ["5990 ± 1155"]


def test_a_site_without_test_rows_is_named() -> None:
    look = seen(table(part=["train"] * 150 + ["train", "test"] * 25), test="part")
    assert any(note.startswith("Basel has no test rows: a result there cannot be measured") for note in look.notes)


@pytest.mark.parametrize("labels", [np.arange(40) % 2, np.arange(40) % 2 > 0, ["no", "yes"] * 20, RNG.normal(size=40)])
def test_arrays_of_sites_are_looked_at_as_they_are(labels: Any) -> None:
    """No row is set aside to be nobody's, and a common test part is no lack of test rows."""
    x = RNG.normal(size=(80, 5))
    look = us.describe({"a": (x[:40], labels), "b": (x[40:], labels)})
    assert [(site.name, site.train, site.test) for site in look.sites] == [("a", 40, 0), ("b", 40, 0)]
    assert look.notes == ()


def test_a_test_part_of_all_sites_is_no_lack_of_test_rows() -> None:
    x, y = RNG.normal(size=(84, 5)), np.arange(84) % 2
    look = us.describe({"a": (x[:40], y[:40]), "b": (x[40:80], y[40:80])}, test=(x[80:], y[80:]))
    assert not any("no site" in note or "no test rows" in note for note in look.notes)


def test_rows_that_stand_in_both_parts_are_named() -> None:
    frame = table(part=["train"] * 100 + ["test"] * 100)
    again = polars.concat([frame, frame[:3].with_columns(part=polars.lit("test"))])
    for one, doubted in ((frame, False), (again, True)):
        notes = seen(one, test="part").notes
        assert any(note.startswith("3 of 103 test rows stand in training, too") for note in notes) == doubted


def test_numbers_are_looked_at_alike_in_whatever_form_they_are_kept() -> None:
    drawn = np.random.default_rng(6)
    frame = pandas.DataFrame(
        {
            "age": np.where(drawn.random(N) < 0.1, np.nan, drawn.normal(size=N)),
            "stage": drawn.integers(0, 4, N),
            "smokes": drawn.random(N) < 0.5,
            "zero": np.zeros(N, np.float32),
        }
    )
    frame = pandas.concat([frame, frame[-7:]], ignore_index=True)
    labels = {"sick": ["yes", "no"] * 103 + ["no"], "site": [*SITE[:-7], *["Basel"] * 14]}
    one = us.describe(frame.assign(**labels), target="sick", client="site")
    for other in (frame.astype(object), frame.astype({"stage": "Int64", "smokes": "boolean"})):
        look = us.describe(other.assign(**labels), target="sick", client="site")
        assert (str(look), look.columns) == (str(one), one.columns)


def test_a_number_among_words_is_the_word_that_it_is_in_a_run() -> None:
    frame = pandas.DataFrame({"stage": [2.0, "2", 1.5, "x"] * 5, "sick": ["yes", "no"] * 10})
    (column,) = us.describe(frame, target="sick").columns
    assert dict(column.commonest) == {"2": 10, "1.5": 5, "x": 5}
    assert set(read_column(frame["stage"])) == {"2", "1.5", "x"}


def test_ten_thousand_clients_with_a_row_each_are_looked_at_in_a_moment() -> None:
    look = us.describe(
        polars.DataFrame({"site": [f"p{i}" for i in range(10_000)], "a": [0.0, 1.0] * 5000}), client="site"
    )
    assert len(look.sites) == 10_000
    assert any("p0, p1, p10, p100, p1000 and 9,995 more have fewer than 5" in note for note in look.notes)


def test_other_forms_are_looked_at_too(tmp_path: Path) -> None:
    heart = us.describe("heart")
    assert (heart.rows, heart.test_rows, len(heart.sites)) == (740, 254, 4)
    assert heart.sites[2].labels == (45, 1)
    assert "column 'chol' has one value only at Switzerland (0): not measured there?" in heart.notes
    images = us.describe((RNG.integers(0, 255, (40, 5, 5), np.uint8), np.arange(40) % 2))
    assert [column.name for column in images.columns] == ["brightness", "contrast"]
    assert images.sites == ()
    table().write_csv(tmp_path / "h.csv")
    assert us.describe(str(tmp_path / "h.csv"), target="sick", client="site").rows == N
    with pytest.raises(DataError, match="client: there is no column 'sit'; did you mean site"):
        us.describe(str(tmp_path / "h.csv"), client="sit")
    with pytest.raises(ConfigError, match=r"target: for what is in a table, and 'heart' names none"):
        us.describe("heart", target="y")


def test_patients_are_counted_at_each_site_and_named_where_they_are_in_both_parts(tmp_path: Path) -> None:
    """Eight rows a patient: numbers 0 to 18 in Basel's 150 rows, 18 to 24 in Bern's 50, and the two 18s are two."""
    frame = table(who=[i // 8 for i in range(N)], part=[int(i == 0) for i in range(N)])
    look = seen(frame, patient="who", patient_ids="site", test="part")
    assert (look.patients, [site.patients for site in look.sites]) == (26, [19, 7])
    assert "who" not in {column.name for column in look.columns}
    (said,) = (note for note in look.notes if "patient" in note)
    assert said == (
        "column 'who': patient 0 is for training in row 1 and for testing in row 0 (1 such patient in all): put all "
        "rows of a patient into one part, or leave test out, and it is drawn by patient"
    )
    frame = frame.drop("part")
    assert not any("patient" in note for note in seen(frame, patient="who", patient_ids="site").notes)
    assert seen(frame, patient="who", patient_ids="network").patients == 25
    with pytest.raises(DataError, match=r"1 patient id occurs at several sites, such as 18 at Basel and Bern: one"):
        seen(frame, patient="who")
    frame.write_csv(tmp_path / "h.csv")
    columns = ("--target", "sick", "--client", "site", "--patient", "who", "--patient-ids", "site")
    printed = CliRunner().invoke(app, ["data", str(tmp_path / "h.csv"), *columns], catch_exceptions=False).stdout
    assert "200 rows, 26 patients, " in " ".join(printed.split())
    assert re.search("Basel +│? *19 ", printed)


def test_a_column_that_seems_to_say_who_is_in_a_row_is_named_as_a_run_does() -> None:
    frame = table(patient_id=[float(i // 2) for i in range(N)])
    said = "column 'patient_id' is an input and seems to say who is in a row"
    assert any(note.startswith(said) for note in seen(frame).notes)
    assert not any("who is in a row" in note for note in seen(frame, patient="patient_id").notes)
    assert not any("who is in a row" in note for note in seen(frame[::2]).notes)


def test_sites_whose_patients_have_many_rows_differ_as_much_by_chance() -> None:
    """Of 20 patients with ten rows of one class each, 20 rows say as much as 200: sites are alike, and look uneven."""
    sick = ["yes" if i % 3 else "no" for i in range(20) for _ in range(10)]
    frame = table(who=[i for i in range(20) for _ in range(10)], sick=sick, age=[float(i // 10) for i in range(N)])
    frame = frame.with_columns(site=polars.Series([f"{i // 40}" for i in range(N)]))
    by_row, by_patient = (seen(frame, patient=who) for who in (None, "who"))
    assert number(by_row, "labels").value == pytest.approx(number(by_patient, "labels").value)
    assert number(by_row, "labels").p < 0.05 < number(by_patient, "labels").p
    assert number(by_patient, "columns").chance == pytest.approx(4 / 19)


def test_patients_beside_arrays_are_counted() -> None:
    """Basel's 7, 8 and 9 and Bern's 7; of 30 people with two images each six are set aside, and counted."""
    sites = {"Basel": (np.eye(6), [0, 1] * 3, [7, 7, 7, 8, 8, 9]), "Bern": (np.eye(6), [0, 1] * 3, [7] * 6)}
    look = us.describe(sites, patient_ids="site")
    assert (look.patients, [site.patients for site in look.sites]) == (4, [3, 1])
    assert us.describe({site: arrays[:2] for site, arrays in sites.items()}).patients is None
    assert us.describe((np.eye(60), [0, 1] * 30, list(range(30)) * 2)).patients == 30


# ---------------------------------------------------------------- several targets
def of_three() -> polars.DataFrame:
    """A number that another column tells, a class of which Bern has one, and words that are spelt in two ways."""
    days = RNG.uniform(1, 9, N).round(3)
    fever = np.where(SITE == "Bern", 0, np.arange(N) % 3 == 0).astype(int)
    mood = np.where(np.arange(N) % 7 == 0, "Low", np.where(np.arange(N) % 2 == 0, "low", "high"))
    return table(days=days, hours=days * 24, fever=fever, mood=mood).drop("sick")


@pytest.mark.parametrize("in_file", [False, True], ids=["a DataFrame", "a file"])
def test_each_of_several_targets_is_described_as_it_is_alone(in_file: bool, tmp_path: Path) -> None:
    frame, names = of_three(), ("days", "fever", "mood")
    frame.write_csv(tmp_path / "t.csv")
    data: Any = tmp_path / "t.csv" if in_file else frame
    look = us.describe(data, target=list(names), client="site")
    assert (look.classes, [column.name for column in look.columns]) == ((), ["age", "hours"])
    assert [target.name for target in look.targets] == list(names)
    p_alone = {}
    for target in look.targets:
        alone = seen(frame.drop([name for name in names if name != target.name]), target=target.name)
        assert (target.classes, target.sites) == (alone.classes, alone.sites)
        of_it = number(look, f"labels of {target.name}")
        of_alone = number(alone, "labels")
        assert (of_it.value, of_it.chance) == (of_alone.value, of_alone.chance)
        p_alone[f"labels of {target.name}"] = of_alone.p
        told = f"target {target.name!r}: "
        assert {n.removeprefix(told) for n in look.notes if n.startswith(told)} <= set(alone.notes)
    assert {one.name: one.p for one in look.disagreement if one.name in p_alone} == holm(p_alone)
    notes = [note for note in look.notes if "target " in note]
    assert any(note.startswith("column 'hours' tells target 'days' by itself") for note in notes)
    assert any(note.startswith("target 'fever': Bern has training rows of one class only") for note in notes)
    assert any(note.startswith("target 'mood': ") and "'Low'" in note for note in notes)
    assert number(look, "sizes").value == pytest.approx(1.6)
    said = "of 3 targets, days has numbers, fever has 2 classes (0, 1) and mood has 3 classes (Low, high, low)"
    assert said in str(look)


def test_several_targets_of_tables_of_clients_and_one_in_a_list() -> None:
    frame = of_three()
    tables = {site: frame.filter(polars.col("site") == site).drop("site") for site in ("Basel", "Bern")}
    assert (
        us.describe(tables, target=("days", "fever")).targets
        == us.describe(frame, target=("days", "fever"), client="site").targets
    )
    assert str(seen(frame, target=["fever"])) == str(seen(frame, target="fever"))


def test_the_command_takes_several_targets(tmp_path: Path) -> None:
    """By its options, and from the file of an experiment."""
    of_three().write_csv(tmp_path / "t.csv")
    (tmp_path / "e.toml").write_text(
        f'rounds = 1\nmethod = {{ name = "fedavg" }}\n[task]\nkind = "survival"\ndata = "csv:{tmp_path / "t.csv"}"\n'
        'data_options = { target = ["days", "fever"], client = "site", leave_out = ["mood"] }\n'
    )
    named = ["data", str(tmp_path / "t.csv"), "--target", "days", "--target", "fever", "--client", "site"]
    page = tmp_path / "data.html"
    ways = [[*named, "--leave-out", "mood"], ["data", str(tmp_path / "e.toml")]]
    for way in ways:
        CliRunner().invoke(app, [*way, "--out", str(page)], catch_exceptions=False)
        text = page.read_text("utf-8")
        for words in ("Target days at each site", "Target fever at each site", "Rows and classes of fever by site"):
            assert words in text
    first, second = (
        json.loads(CliRunner().invoke(app, [*way, "--json"], catch_exceptions=False).stdout) for way in ways
    )
    assert first["targets"] == second["targets"]
    assert [target["name"] for target in first["targets"]] == ["days", "fever"]
    assert first["targets"][1]["sites"][1]["labels"] == [50, 0]


def test_json_has_numbers_for_numbers(tmp_path: Path) -> None:
    """Ages 0 to 4 in turn: mean 2, variance 2."""
    table(age=np.arange(N) % 5, sick=np.arange(N) % 2, ward=["a"] * 150 + ["b"] * 50).write_csv(tmp_path / "t.csv")
    command = ["data", str(tmp_path / "t.csv"), "--target", "sick", "--client", "site", "--json"]
    look = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert look["classes"] == [0, 1]
    age, ward = look["columns"]
    assert (age["mean"], age["sd"], age["lowest"]) == (2, pytest.approx(2**0.5), 0)
    assert (ward["commonest"], ward["mean"]) == ([["a", 150], ["b", 50]], None)


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([False, True] * 100, (False, True)),
        ([0.0, 1.0] * 100, (0, 1)),
        (["0", "1"] * 100, ("0", "1")),
    ],
)
def test_classes_are_of_the_type_of_the_labels(values: list[Any], classes: tuple[Any, ...]) -> None:
    for look in (seen(table(sick=values)), us.describe((RNG.normal(size=(N, 2)), values))):
        assert [(type(one), one) for one in look.classes] == [(type(one), one) for one in classes]


# ---------------------------------------------------------------- the command
@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_tables_and_writes_a_page(tmp_path: Path) -> None:
    table(dose=[None if i % 10 == 0 else float(i) for i in range(N)]).write_csv(tmp_path / "h.csv")
    (tmp_path / "e.toml").write_text(
        f'rounds = 1\nmethod = {{ name = "fedavg" }}\n[task]\ndata = "csv:{tmp_path / "h.csv"}"\n'
        'data_options = { target = "sick", client = "site" }\n'
    )
    page = tmp_path / "data.html"
    result = CliRunner().invoke(app, ["data", str(tmp_path / "e.toml"), "--out", str(page)], catch_exceptions=False)
    printed = " ".join(result.stdout.split())
    assert "h: 200 rows, 2 columns, 2 sites; the target has 2 classes (no, yes)." in printed
    assert "- column dose has gaps: fill with preprocess" in printed
    text = page.read_text("utf-8")
    for words in (
        "Rows and classes by site",
        "Where sites’ means lie",
        "Gaps by column and site",
        "Basel",
        "alike sites",
    ):
        assert words in text
    assert not re.search(r"(src|href)=.?http", text)  # self-contained
    as_json = CliRunner().invoke(
        app, ["data", str(tmp_path / "h.csv"), "--target", "sick", "--client", "site", "--json"], catch_exceptions=False
    )
    assert json.loads(as_json.stdout)["sites"][0]["name"] == "Basel"


def test_a_page_is_drawn(tmp_path: Path) -> None:
    from unskew.report.data_page import write_look

    frame = table(dose=[None if i % 10 == 0 else float(i) for i in range(N)])
    text = write_look(seen(frame), tmp_path / "data.html").read_text("utf-8")
    assert text.count("<svg role=") == 3


def test_a_cell_of_spaces_is_a_gap_in_a_file_and_in_a_frame(tmp_path: Path) -> None:
    """In words, among numbers, in the target and in the column of sites, as None is; a run refuses such a label."""
    blank = np.arange(N) % 50 == 0
    given = {
        "ward": [" " if b else "ab"[i % 2] for i, b in enumerate(blank)],
        "dose": ["  " if b else f"{i % 9}" for i, b in enumerate(blank)],
        "sick": ["   " if b else ("yes", "no")[i // 3 % 2] for i, b in enumerate(blank)],
    }
    frame = table(**given)
    none = table(**{name: [one.strip() or None for one in of] for name, of in given.items()})
    none = none.with_columns(polars.col("dose").cast(polars.Int64), age=frame["age"])
    frame.write_csv(tmp_path / "t.csv")
    mixed = pandas.DataFrame(
        {**frame.to_dict(as_series=False), "dose": [int(d) if d.strip() else d for d in given["dose"]]}
    )
    wanted = us.describe(none, target="sick", client="site", leave_out="age")
    assert wanted.classes == ("no", "yes", "(none)")
    for data in (tmp_path / "t.csv", mixed):
        look = us.describe(data, target="sick", client="site", leave_out="age")
        assert (look.classes, look.columns) == (wanted.classes, wanted.columns)
        assert any(note.startswith("the target has no value in 4 rows, the first ") for note in look.notes)
        with pytest.raises(DataError, match=r"in 4 rows, the first (line 2|row 0) \(the label is missing\)"):
            us.simulate(
                "fedavg",
                data=str(data) if isinstance(data, Path) else data,
                target="sick",
                client="site",
                preprocess=True,
            )


def test_a_look_is_printed_in_sentences() -> None:
    look = seen(table(dose=[None if i % 10 == 0 else float(i) for i in range(N)]))
    first, *warnings = str(look).splitlines()
    assert first.startswith("dataframe: 200 rows, 2 columns, 2 sites; the target has 2 classes (no, yes). By number of")
    assert "- Column dose has gaps: fill with preprocess." in warnings
    assert repr(look).startswith("<Look at dataframe: 200 rows")


def test_decimals_of_a_database_are_numbers() -> None:
    doses = [i / 4 for i in range(N)]
    exact = table(dose=doses).with_columns(polars.col("dose").cast(polars.Decimal(9, 2)))
    assert str(seen(exact, leave_out=["age"])) == str(seen(table(dose=doses), leave_out=["age"]))
    assert next(column.kind for column in seen(exact).columns if column.name == "dose") == "number"


@pytest.mark.parametrize("measured", ["number", "several"])
def test_a_target_that_is_a_number_stays_one_where_rows_have_none(measured: str) -> None:
    """Of Basel's rows every second is 1.5 and the rest have no value; Bern's are 2.5, and one is infinite."""
    values = np.where(SITE == "Basel", np.where(np.arange(N) % 2 == 0, 1.5, np.nan), 2.5)
    values[199] = np.inf
    frame = table(score=values)
    look = seen(frame, target="score" if measured == "number" else ["score", "sick"])
    part = look if measured == "number" else look.targets[0]
    assert part.classes == ()
    assert [(site.mean, site.sd) for site in part.sites] == [(1.5, 0.0), (2.5, 0.0)]
    differ = number(look, "labels" if measured == "number" else "labels of score")
    assert differ.value == pytest.approx(1.0)  # what lies between sites is all there is
    notes = " ".join(look.notes)
    called = "the target" if measured == "number" else "target 'score'"
    assert f"{called} has no value in 75 rows, the first row 1 (the label is missing): leave such rows out" in notes
    assert f"{called} is infinite in row 199: correct it" in notes


def test_whole_numbers_without_a_value_are_one_class_more() -> None:
    look = seen(table(grade=[None, 1, 2, 3] * 50), target="grade")
    assert look.classes == (1, 2, 3, "(none)")
    assert [sum(site.labels) for site in look.sites] == [150, 50]
    assert look.sites[0].labels[3] == 38  # rows 0, 4, ..., 148
    assert (
        "the target has no value in 50 rows, the first row 0 (the label is missing): leave such rows out" in look.notes
    )


def test_one_column_to_leave_out_may_be_named_without_a_list() -> None:
    looks = (seen(table(x=np.arange(N)), leave_out=leave_out) for leave_out in ("x", ["x"]))
    assert [[column.name for column in look.columns] for look in looks] == [["age"], ["age"]]


def test_settings_of_a_file_may_be_data_options(tmp_path: Path) -> None:
    frame = table(pay=["-9" if i % 3 else "1" for i in range(N)])
    frame.write_csv(tmp_path / "h.csv", separator=";")
    settings: dict[str, Any] = {
        "target": "sick",
        "client": "site",
        "gaps": ["-9"],
        "leave_out": ["age"],
        "separator": ";",
    }
    one = us.describe(tmp_path / "h.csv", **settings)
    other = us.describe(f"csv:{tmp_path / 'h.csv'}", target="sick", data_options=dict(list(settings.items())[1:]))
    assert str(one) == str(other)
    assert [column.missing for column in one.columns] == [133 / N]
    frame[:20].write_csv(tmp_path / "t.csv", separator=";")
    assert us.describe(tmp_path / "h.csv", test=tmp_path / "t.csv", separator=";").test_rows == 20


def test_a_terminal_has_25_lines_with_the_small_sites_as_one() -> None:
    """30 sites of 1 to 30 rows: the five largest have 30 + ... + 26 = 140 of 465 rows, the 25 others 325."""
    site = np.repeat([f"s{i}" for i in range(1, 31)], np.arange(1, 31))
    rng = np.random.default_rng(0)
    frame = polars.DataFrame({"site": site, "age": rng.normal(size=465), "sick": rng.choice(["yes", "no"], 465)})
    look = us.describe(frame, target="sick", client="site")
    notes = [f"note {i} " + "of many words " * 30 + f"remedy {i}" for i in range(9)]
    lines = data_page.screen(look, notes, 80, page=False).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.startswith((" s", " 25 smaller"))]
    assert [row[:2] for row in rows[1:6]] == [[f"s{i}", str(i)] for i in (30, 29, 28, 27, 26)]
    assert rows[6][:3] == ["25", "smaller", "325"]
    assert "remedy 4" in "\n".join(lines)
    assert lines[-1].startswith("4 more notes")


def test_the_command_names_its_options_and_knows_what_an_experiment_does(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    table(pid=np.repeat(np.arange(N // 2), 2), pay=np.arange(N) * 997.5).write_csv(file)
    run = CliRunner().invoke(app, ["data", str(file), "--target", "sick", "--client", "site"])
    assert "name it with --patient 'pid'" in " ".join(run.stdout.split())
    assert "root mean square" in run.stdout
    options = '{ target = "sick", client = "site", patient = "pid" }'
    (tmp_path / "own.toml").write_text(
        f'rounds = 1\n[task]\ndata = "csv:{file}"\ndata_options = {options}\npreprocess = {{ scale = "agreed" }}\n'
        '[split]\nname = "natural"\n[[methods]]\nname = "fedavg"\n'
    )
    run = CliRunner().invoke(app, ["data", str(tmp_path / "own.toml")])
    assert run.exit_code == 0, run.output
    assert "root mean square" not in run.stdout
