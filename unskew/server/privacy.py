"""Privacy of uploads with Gaussian noise, by Google's accountant `dp-accounting` (extra [dp]).

Notation   z        noise multiplier: standard deviation of the noise over the L2 sensitivity of an upload
           T        number of uploads
           epsilon, delta   what all T together tell: of two neighbouring data sets no outcome is more probable under
                    one than e^epsilon times as under the other, but for delta
Sum        T Gaussian mechanisms of multiplier z are together one of multiplier z / sqrt(T), exactly, also if each is
           chosen in view of what those before it gave, as long as its sensitivity is bounded whatever was chosen (1)
Departures There is no amplification by sampling: which clients take part is not secret here.
"""

import functools
import importlib
import math
from typing import Any

from unskew.errors import ConfigError


def require() -> Any:
    """Import the accountant.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise ConfigError(
            "differential privacy is accounted for by the package dp-accounting, which is not installed; "
            "pip install 'unskew[dp]', or leave dp out"
        ) from None


@functools.cache
def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Compute the epsilon of `releases` uploads together under noise of this multiplier (eq. 1); 0 for none.

    Args:
        noise_multiplier: z; positive.
        releases: T, at least 0.
        delta: Between 0 and 1.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    if not releases:
        return 0.0
    return float(require().get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


@functools.cache
def noise_multiplier(epsilon: float, releases: int, delta: float) -> float:
    """Compute the least noise multiplier under which `releases` uploads cost at most `epsilon` (eq. 1).

    Args:
        epsilon: Budget, positive.
        releases: T, at least 1.
        delta: Between 0 and 1.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    return float(require().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)
