import sys
from pathlib import Path

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("unskew", deadline=None, derandomize=True, max_examples=60, print_blob=True)
settings.load_profile("unskew")

# pytest's importlib mode puts no test folder on the path; the conformance suite shares one recipe with a child process.
sys.path.insert(0, str(Path(__file__).parent / "conformance"))
