"""Measures what computes a forest: microseconds for a batch, by the number of rows and trees, in process.

`.venv/bin/python bench/micro_trees.py [THREADS]` trains forests of XGBoost and LightGBM on random data, and prints a
table of the predictors that docs/decisions/forests.md compares. Needs `make test-trees` to have installed the
libraries; tl2cgen is left out if it is not there. The best of a few short rounds counts.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import lightgbm
import numpy as np
import treelite
import xgboost

from halimede.backends.fil.forest import Forest, read_forest
from halimede.backends.fil.graph import graph_of
from halimede.backends.fil.predictor import GraphForest, Gtil

FEATURES = 30
TREES = (10, 500, 5000)
ROWS = (1, 32, 1000)
ROUNDS = 5
SECONDS = 0.05  # of a round
COMPILED_UP_TO = 500
"""Trees that tl2cgen gets: gcc needs a minute for these."""

Predict = Callable[[Any], object]


def microseconds(run: Callable[[], object]) -> float:
    run()
    began = perf_counter()
    run()
    times = max(1, int(SECONDS / max(perf_counter() - began, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        for _ in range(times):
            run()
        best = min(best, (perf_counter() - began) / times)
    return best * 1e6


def of_xgboost(rows: Any, target: Any, trees: int, threads: int, folder: Path) -> tuple[Forest, Predict]:
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 6}, xgboost.DMatrix(rows, target), trees)
    booster.set_param({"nthread": threads})
    path = folder / f"{trees}.json"
    booster.save_model(path)
    return read_forest(path, "xgboost_json"), booster.inplace_predict


def of_lightgbm(rows: Any, target: Any, trees: int, threads: int, folder: Path) -> tuple[Forest, Predict]:
    options = {"objective": "binary", "num_leaves": 31, "verbose": -1}
    booster = lightgbm.train(options, lightgbm.Dataset(rows.astype(float), target), trees)
    path = folder / f"{trees}.txt"
    booster.save_model(path)
    forest = read_forest(path, "lightgbm")
    return forest, lambda given: booster.predict(given.astype(float), num_threads=threads)


def compiled(forest: Forest, threads: int, folder: Path) -> Predict | None:
    if forest.model.num_tree > COMPILED_UP_TO or not find_spec("tl2cgen"):
        return None
    import tl2cgen

    path = folder / f"{forest.model.num_tree}-{forest.dtype}.so"
    tl2cgen.export_lib(forest.model, toolchain="gcc", libpath=path, params={"parallel_comp": 8}, verbose=False)
    predictor = tl2cgen.Predictor(path, nthread=threads)
    return lambda given: predictor.predict(tl2cgen.DMatrix(given.astype(forest.dtype, copy=False)))


def candidates(forest: Forest, own: Predict, threads: int, folder: Path) -> Iterator[tuple[str, Predict]]:
    graph = graph_of(forest)
    assert graph is not None
    yield "onnxruntime", GraphForest(graph, threads).predict
    yield "GTIL", Gtil(forest, threads).predict
    yield (
        "treelite.gtil",
        lambda given: treelite.gtil.predict(forest.model, given.astype(forest.dtype), nthread=threads),
    )
    yield "its library", own
    fast = compiled(forest, threads, folder)
    if fast is not None:
        yield "tl2cgen", fast


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    random = np.random.default_rng(0)
    rows = random.standard_normal((4000, FEATURES)).astype(np.float32)
    target = (rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2]) + random.standard_normal(4000) * 0.3 > 0).astype(int)
    print("| forest | rows | onnxruntime | GTIL | treelite.gtil | its library | tl2cgen |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        for label, train in (("XGBoost", of_xgboost), ("LightGBM", of_lightgbm)):
            for trees in TREES:
                forest, own = train(rows, target, trees, threads, Path(name))
                predictors = dict(candidates(forest, own, threads, Path(name)))
                for count in ROWS:
                    given = np.ascontiguousarray(rows[:count])
                    found = {each: microseconds(partial(run, given)) for each, run in predictors.items()}
                    cells = [
                        f"{found[each]:,.0f}" if each in found else "-"
                        for each in ("onnxruntime", "GTIL", "treelite.gtil", "its library", "tl2cgen")
                    ]
                    print(f"| {label}, {trees} trees | {count} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
