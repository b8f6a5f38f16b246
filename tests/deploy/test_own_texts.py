"""Texts of each client's own are refused: words are numbered by a vocabulary, and no two clients have the same."""

import json
from pathlib import Path

import pytest

from unskew.deploy.client import own_setup
from unskew.deploy.settings import ClientConfig
from unskew.errors import DataError
from unskew.experiment import config


def test_texts_of_each_clients_own_have_no_common_vocabulary(tmp_path: Path) -> None:
    texts = {"x_train": ["good", "bad"], "y_train": [1, 0], "x_test": ["good"], "y_test": [1]}
    (tmp_path / "imdb.json").write_text(json.dumps(texts))
    experiment = config.parse(
        {"rounds": 1, "method": {"name": "fedavg"}, "task": {"data": "imdb", "model": "bag_of_words"}}
    )
    with pytest.raises(DataError, match=r"data = 'imdb' are texts, .* agree on one vocabulary, and give token ids"):
        own_setup(experiment, ClientConfig(0, 2, data="imdb", data_dir=str(tmp_path)), tmp_path)
