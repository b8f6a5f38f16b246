"""Units that a type can carry and the few conversions between them."""

import math
from typing import NewType

Bytes = NewType("Bytes", int)
Bits = NewType("Bits", float)

MB = 1_000_000


def bits(n: Bytes) -> Bits:
    """Bits in `n` bytes."""
    return Bits(8.0 * n)


def watt(dbm: float) -> float:
    """Power in watt of a level in dBm.

    >>> watt(30.0)
    1.0
    """
    return float(10.0 ** ((dbm - 30.0) / 10.0))


def dbm(power_w: float) -> float:
    """Level in dBm of a positive power in watt."""
    return 10.0 * math.log10(power_w) + 30.0


def ratio(db: float) -> float:
    """Power ratio of a level in dB.

    >>> ratio(20.0)
    100.0
    """
    return float(10.0 ** (db / 10.0))


def human_bytes(n: float) -> str:
    """A count of bytes as people write it, decimal prefixes.

    >>> human_bytes(1_234_567)
    '1.23 MB'
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= 0.9995 * size:  # three digits round up to the next unit
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"
