"""Makes `by_hand`, which tests of this folder share, importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
