import math
import statistics

import pytest

from unskew.keys import Key
from unskew.world.pace import Devices, Errand

ERRAND = Errand(round=3, hop=0, client=4, examples=500, down=1_000_000, up=250_000)


def test_seconds_by_hand() -> None:
    """500 / 250 examples, 8 Mbit / 16 and 2 Mbit / 4: 2 + .5 + .5; client 9 has 500 / 100 + 8 / 8 + 2 / 1."""
    devices = Devices(250.0, 16.0, 4.0, clients={"9": (100.0, 8.0, 1.0)})
    assert devices.seconds(Key(0), ERRAND) == pytest.approx(3.0)
    assert devices.seconds(Key(0), ERRAND._replace(client=9)) == pytest.approx(8.0)


def test_a_device_is_drawn_once_and_an_errand_each_time() -> None:
    """Logarithms of 400 devices' seconds have mean log .5 and the deviation .7: 5 standard errors are .175 and .124."""
    drawn, again = Devices(spread=0.7), Errand(8, 2, 4, 500, 1_000_000, 250_000)
    assert drawn.seconds(Key(1), ERRAND) == drawn.seconds(Key(1), again) != drawn.seconds(Key(2), ERRAND)
    jitter = Devices(jitter=0.7)
    assert jitter.seconds(Key(1), ERRAND) != jitter.seconds(Key(1), again)
    logs = [math.log(drawn.seconds(Key(1), Errand(1, 0, c, 500, 0, 0))) for c in range(400)]
    assert statistics.fmean(logs) == pytest.approx(math.log(0.5), abs=0.175)
    assert statistics.stdev(logs) == pytest.approx(0.7, abs=0.124)


def test_a_client_from_the_table_is_not_drawn() -> None:
    devices = Devices(spread=2.0, clients={"4": (500.0, 8.0, 2.0)})
    assert devices.seconds(Key(0), ERRAND) == devices.seconds(Key(5), ERRAND) == pytest.approx(3.0)
