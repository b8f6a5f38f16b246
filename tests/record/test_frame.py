"""A run's numbers as one frame."""

from unskew.record.frame import Numbers

AT = {"method": "A", "seed": 0, "round": 1}
ROWS = [
    {**AT, "name": "global.accuracy", "value": 0.5, "weight": 4.0},
    {**AT, "name": "personal.accuracy", "value": 0.1, "weight": 2.0, "client": 7},
    {**AT, "round": 3, "name": "global.loss", "value": 1.0, "weight": 4.0, "clients": [2, 3]},
    {**AT, "round": 2, "name": "personal.accuracy", "value": 0.3, "weight": 2.0, "client": 4},
    {**AT, "round": 2, "name": "personal.accuracy", "value": 0.2, "weight": 5.0, "client": 1},
]


def test_rows_come_back_as_they_were_written() -> None:
    assert Numbers.of(ROWS).rows() == ROWS
    assert Numbers.of(ROWS).rows(0) == [row for row in ROWS if "client" not in row]


def test_single_clients_have_the_numbers_of_their_last_round() -> None:
    frame = Numbers.of(ROWS)
    assert list(frame.clients("A", 0, "personal.accuracy").items()) == [(1, 0.2), (4, 0.3)]
    assert frame.clients("A", 0, "personal.accuracy", "weight") == {1: 5.0, 4: 2.0}
    assert frame.clients("B", 0, "personal.accuracy") == {}


def test_curves_rounds_and_names_are_of_numbers_of_all_clients() -> None:
    frame = Numbers.of(ROWS)
    assert (frame.names(), frame.reached("A", 0)) == (("global.accuracy", "global.loss"), 3)
    assert (frame.curve("A", 0, "global.accuracy"), frame.evaluated("A", 0, "global.accuracy")) == ({1: 0.5}, {1, 3})
    assert (frame.few("global.loss"), frame.few("global.loss", "B")) == ([(2, 3)], [])
    assert frame.prefixed("run/").names("run/A") == frame.names("A")
