"""What tests of local training share."""

import pytest

from unskew.local import optim


@pytest.fixture(params=[True, False], ids=["at once", "public"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether optimisers update by the private operators, where this PyTorch has them, or by the public ones."""
    wanted: bool = request.param
    if wanted and not optim.one_pass():
        pytest.skip("this PyTorch has no private one-pass updates")
    monkeypatch.setattr(optim, "one_pass", lambda: wanted)
    return wanted
