from hypothesis import given
from hypothesis import strategies as st

from unskew.ledger import SERVER, Transfer, node, totals
from unskew.units import Bytes

rows = st.lists(
    st.builds(
        Transfer,
        round=st.integers(1, 3),
        hop=st.integers(0, 3),
        src=st.integers(0, 5),
        dst=st.integers(0, 5),
        kind=st.sampled_from(["model", "control"]),
        bytes=st.integers(0, 10**6).map(Bytes),
    )
)


def test_the_server_is_node_0_and_clients_follow() -> None:
    assert [SERVER, node(0), node(9)] == [0, 1, 10]


def test_directions_and_sums_by_hand() -> None:
    sent = [
        Transfer(1, 0, SERVER, node(4), "model", Bytes(100)),
        Transfer(1, 0, node(4), node(2), "model", Bytes(30)),
        Transfer(1, 1, node(2), node(4), "control", Bytes(5)),
        Transfer(1, 1, node(2), SERVER, "model", Bytes(7)),
    ]
    assert [row.direction for row in sent] == ["down", "d2d", "d2d", "up"]
    assert totals(sent) == {"down": 100, "up": 7, "d2d": 35}


@given(rows)
def test_nothing_is_lost_or_counted_twice(sent: list[Transfer]) -> None:
    assert sum(totals(sent).values()) == sum(row.bytes for row in sent)
