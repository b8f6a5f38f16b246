"""A table whose rows belong to clients: name the columns, and each client holds its own rows.

Here they are 569 breast tumours of 29 measurements (scikit-learn's `load_breast_cancer`).  That data set does not say
where a tumour was measured, so the hospitals are made up: they see tumours of different sizes, as specialists would.

python examples/dataframe_by_client.py [ROUNDS]
"""

import sys

import pandas
from sklearn.datasets import load_breast_cancer

import unskew as us


def table() -> pandas.DataFrame:
    frame = load_breast_cancer(as_frame=True).frame
    frame["diagnosis"] = frame.pop("target").map({0: "malignant", 1: "benign"})
    measured = frame.columns.drop(["diagnosis", "mean radius"])
    frame["hospital"] = pandas.qcut(frame.pop("mean radius"), 4, labels=["Basel", "Bern", "Chur", "Genf"]).astype(str)
    # Columns are taken as they are.  This scales by all rows; where test rows must not be seen, give them with test=.
    frame[measured] = (frame[measured] - frame[measured].mean()) / frame[measured].std()
    return frame


def main(rounds: int = 10) -> None:
    history = us.simulate(
        {"alone": us.Independent(), "FedAvg": us.FedAvg()},
        data=table(),
        target="diagnosis",
        client="hospital",
        model="logistic",
        rounds=rounds,
    )
    print(history)
    last = history.to_frame().query("name == 'personal.accuracy' and round == @rounds")
    print(last.pivot_table("value", "client_name", "method").round(3))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
