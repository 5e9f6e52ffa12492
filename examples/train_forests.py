"""Trains three forests on data that scikit-learn brings, in seconds, and writes them as models of a repository.

    python examples/train_forests.py forests

| model | data | trained by | returns |
|---|---|---|---|
| `tumours` | breast cancer | XGBoost, JSON | the probability of a benign tumour, and SHAP values |
| `progression` | diabetes | LightGBM, text | a number: how far the disease goes within a year |
| `digits` | pictures of digits | scikit-learn, a checkpoint of treelite | the probability of each digit |

`digits` has no configuration: the server finds everything in the file.
"""

import argparse
from pathlib import Path
from typing import Any

import lightgbm
import treelite
import xgboost
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

TUMOURS = """backend: "fil"
max_batch_size: 1024
input { name: "input__0" data_type: TYPE_FP32 dims: [ 30 ] }
output { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 31 ] }
parameters { key: "model_type" value { string_value: "xgboost_json" } }
parameters { key: "is_classifier" value { string_value: "true" } }
parameters { key: "predict_proba" value { string_value: "true" } }
dynamic_batching { }
"""
PROGRESSION = """backend: "fil"
max_batch_size: 1024
input { name: "input__0" data_type: TYPE_FP32 dims: [ 10 ] }
output { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }
parameters { key: "model_type" value { string_value: "lightgbm" } }
parameters { key: "is_classifier" value { string_value: "false" } }
dynamic_batching { }
"""


def held_out(data: Any) -> tuple[Any, Any, Any, Any]:
    """Rows and targets to learn from, then a fifth that the forest never sees: rows, targets."""
    rows, rest, targets, other = train_test_split(data.data, data.target, test_size=0.2, random_state=0)
    return rows, targets, rest, other


def version(repository: Path, model: str, config: str = "") -> Path:
    """The folder of version 1 of a model, with its configuration beside it."""
    folder = repository / model / "1"
    folder.mkdir(parents=True)
    if config:
        (folder.parent / "config.pbtxt").write_text(config)
    return folder


def write_tumours(repository: Path) -> None:
    rows, targets, _, _ = held_out(load_breast_cancer())
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 4}, xgboost.DMatrix(rows, targets), 60)
    booster.save_model(version(repository, "tumours", TUMOURS) / "xgboost.json")


def write_progression(repository: Path) -> None:
    rows, targets, _, _ = held_out(load_diabetes())
    options = {"objective": "regression", "num_leaves": 8, "learning_rate": 0.05, "verbose": -1}
    booster = lightgbm.train(options, lightgbm.Dataset(rows, targets), 120)
    booster.save_model(version(repository, "progression", PROGRESSION) / "model.txt")


def write_digits(repository: Path) -> None:
    rows, targets, _, _ = held_out(load_digits())
    forest = RandomForestClassifier(100, random_state=0).fit(rows, targets)
    treelite.sklearn.import_model(forest).serialize(version(repository, "digits") / "checkpoint.tl")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains three forests and writes them as a model repository.")
    parser.add_argument("repository", type=Path, help="the directory to write; it must not exist")
    repository = parser.parse_args().repository
    for write in (write_tumours, write_progression, write_digits):
        write(repository)
    print(f"halimede serve --model-repository={repository}")


if __name__ == "__main__":
    main()
