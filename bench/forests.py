"""Compares a forest of `backend: "fil"` here with a model.py that uses XGBoost in the real server, by tools/versus.py.

    .venv/bin/python -m bench.forests [--rounds 3] [--seconds 0.8] [--json FILE]

Both servers have the same forest: 100 trees of depth 6, 30 features, dynamic batching. A request has one row or a
thousand, from one client or eight. XGBoost uses one thread, which is better for it than one per core if other
programs run too. Needs what `make test-trees` installs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xgboost

from tools import versus
from tools.versus import ORACLE, WORK, Work

FEATURES = 30
TREES = 100
PACKAGES = Path(".cache/forests")
"""XGBoost for the real server, which has its own numpy."""

_CONFIG = """name: "forest"
backend: "{backend}"
max_batch_size: 1024
input {{ name: "input__0" data_type: TYPE_FP32 dims: [ 30 ] }}
output {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }}
parameters {{ key: "model_type" value {{ string_value: "xgboost_json" }} }}
parameters {{ key: "is_classifier" value {{ string_value: "true" }} }}
parameters {{ key: "predict_proba" value {{ string_value: "true" }} }}
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{ }}
"""
_PYTHON = """import numpy as np
import triton_python_backend_utils as pb_utils
import xgboost


class TritonPythonModel:
    def initialize(self, args):
        self.booster = xgboost.Booster()
        self.booster.set_param({"nthread": 1})
        self.booster.load_model(f"{args['model_repository']}/{args['model_version']}/xgboost.json")

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "input__0").as_numpy() for each in requests]
        found = self.booster.inplace_predict(np.concatenate(inputs)).reshape(-1, 1)
        ends = np.cumsum([len(each) for each in inputs])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output__0", each)]) for each in np.split(found, ends)]
"""

ROWS = {
    f"forest-{rows}-{clients}": Work("forest", "grpc", clients, ["-b", str(rows)])
    for rows in (1, 1000)
    for clients in (1, 8)
}


def write(root: Path) -> None:
    """The repositories `fil` and `python`, with the same forest."""
    random = np.random.default_rng(0)
    given = random.standard_normal((4000, FEATURES)).astype(np.float32)
    target = (given[:, 0] * given[:, 1] + np.sin(given[:, 2]) > 0).astype(int)
    options = {"objective": "binary:logistic", "max_depth": 6}
    booster = xgboost.train(options, xgboost.DMatrix(given, target), TREES)
    for backend in ("fil", "python"):
        version = root / backend / "forest" / "1"
        version.mkdir(parents=True)
        booster.save_model(version / "xgboost.json")
        (version.parent / "config.pbtxt").write_text(_CONFIG.format(backend=backend))
    (root / "python" / "forest" / "1" / "model.py").write_text(_PYTHON)


def install() -> None:
    if not PACKAGES.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(PACKAGES)]
        try:
            subprocess.run([*pip, "xgboost-cpu", "scipy"], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(PACKAGES, ignore_errors=True)
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    install()
    os.environ["TRITON_ORACLE_PYTHONPATH"] = str(PACKAGES.resolve())
    subprocess.run([str(ORACLE), "install"], check=True, stdout=subprocess.DEVNULL)
    WORK.update(ROWS)
    versus.UNCHECKED.add("forest")  # it is no echo
    ours = f"{sys.executable} -m halimede serve --model-repository={{repo}}/fil --http-address=127.0.0.1"
    ports = "--grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "forests"
        write(root)
        options = argparse.Namespace(
            a=f"{ours} {ports}",
            b=f"{ORACLE} serve {{repo}}/python {{http}} {{grpc}} {{metrics}} --exit-on-error=false",
            repo=str(root),
            work=list(ROWS),
            rounds=asked.rounds,
            seconds=asked.seconds,
            served=False,
            gate="",
        )
        result = versus.compare(options, [])
    if asked.json:
        Path(asked.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
