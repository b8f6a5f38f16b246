"""Texts of each client's own are refused: words are numbered by a vocabulary, and no two clients have the same."""

import json
from pathlib import Path

import pytest

from unskew.deploy.client import own_setup
from unskew.deploy.settings import Site
from unskew.errors import DataError
from unskew.experiment import config


def test_texts_of_each_clients_own_have_no_common_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"x_train": ["good", "bad"], "y_train": [1, 0], "x_test": ["good"], "y_test": [1]}
    (tmp_path / "imdb.json").write_text(json.dumps(texts))
    experiment = config.parse(
        {"rounds": 1, "method": {"name": "fedavg"}, "task": {"data": "imdb", "model": "bag_of_words"}}
    )
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"imdb are texts, .* agree on one vocabulary, and give token ids"):
        own_setup(experiment, Site("imdb"))
