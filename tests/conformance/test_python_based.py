"""Python-based backends and explicit runtimes, compared with the real server: R42, R43, R83.

Both servers share one backend directory: the real server's own backends, and some that are a `model.py`.
"""

import io
import json
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.case import encoded, one
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import ORACLE, Server

_FACTS = """
import json, os, sys
import numpy as np
import triton_python_backend_utils as pb_utils
import beside

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        config = json.loads(args.pop("model_config"))
        args.pop("model_instance_name")  # which of two instances answers is chance
        inside = [entry for entry in sys.path if entry.startswith(beside.ROOT) and not entry.endswith("/python")]
        self.facts = [beside.WHO, __name__, __file__, pb_utils.get_model_dir(), args, inside]
        self.facts.append(os.environ.get("FROM_ENVIRONMENT"))
        self.facts += [config[key] for key in ("backend", "platform", "runtime", "default_model_filename")]

    def execute(self, requests):
        texts = np.array([json.dumps(self.facts).encode()], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", texts)]) for _ in requests]
"""
_FAILS = {
    "import": "raise ValueError('no framework')\n",
    "classless": "x = 1\n",
    "incomplete": "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): return None\n",
    "completes": "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config): return 1 / 0\n",
    "initialize": "class TritonPythonModel:\n    def initialize(self, args): raise KeyError('k')\n",
    "empty": "",
}
_TENSORS = (
    'input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }'
)

_SERVING: Mapping[str, str] = {
    "plain": 'backend: "fw"',
    "with_runtime": 'backend: "fw" runtime: "model.py"',
    "filename": 'backend: "fw" default_model_filename: "weights.bin"',
    "two": 'backend: "fw" instance_group { count: 2 kind: KIND_CPU }',
    "own_code": 'backend: "fw"',
    "code_above": 'backend: "fw"',
    "named.fw": "",
    "environment": 'backend: "fw_env"',
    "environment_own": 'backend: "fw_env" '
    'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/own.tar.gz" } }',
}
"""The models of the backends `fw` and `fw_env`, which has an environment."""
_OTHERS: Mapping[str, str] = {
    "nowhere": f'backend: "nowhere" {_TENSORS}',
    "nowhere_code": f'backend: "nowhere" {_TENSORS}',
    "nowhere_above": f'backend: "nowhere" {_TENSORS}',
    "nowhere_python": f'backend: "nowhere" runtime: "model.py" {_TENSORS}',
    "no_library": f'backend: "fw" runtime: "libtriton_fw.so" {_TENSORS}',
    "other_library": f'backend: "identity" runtime: "other.so" {_TENSORS}',
    "python_python": 'backend: "python" runtime: "model.py"',
    "library": f'backend: "identity" runtime: "libtriton_identity.so" {_TENSORS}',
    "library_of_python": 'backend: "python" runtime: "libtriton_python.so"',
    "fails_import": 'backend: "import"',
    "fails_classless": 'backend: "classless"',
    "fails_incomplete": 'backend: "incomplete"',
    "fails_completes": 'backend: "completes"',
    "fails_initialize": f'backend: "initialize" {_TENSORS}',
    "no_execute": f'backend: "no_execute" {_TENSORS}',
}


def _write(root: Path) -> tuple[Path, Path]:
    """Writes the repository and the backend directory."""
    backends, models = root / "backends", root / "models"
    for name, source in {
        "fw": _FACTS,
        "fw_env": _FACTS,
        **_FAILS,
        "no_execute": "class TritonPythonModel: pass\n",
    }.items():
        (backends / name).mkdir(parents=True)
        (backends / name / "model.py").write_text(source)
    for name in ("fw", "fw_env"):
        (backends / name / "beside.py").write_text(f"ROOT = {str(root)!r}\nWHO = 'backend'\n")
    for name, config in {**_SERVING, **_OTHERS}.items():
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text(config)
    for name in ("own_code/1", "nowhere_code/1", "library_of_python/1", "code_above", "nowhere_above"):
        (models / name / "model.py").write_text(_FACTS)
        (models / name / "beside.py").write_text(f"ROOT = {str(root)!r}\nWHO = 'model'\n")
    (models / "named.fw" / "1" / "model.fw").touch()
    _write_environment(backends / "fw_env" / "pb_exec_env_model.py.tar.gz", "backend")
    _write_environment(models / "environment_own" / "own.tar.gz", "own")
    return models, backends


def _write_environment(path: Path, who: str) -> None:
    """Writes an archive in the layout of conda-pack. Its interpreter is this one."""
    files = {
        "bin/activate": f"export FROM_ENVIRONMENT={who}\n",
        "bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def served(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("based")
    models, backends = _write(root)
    theirs = subprocess.run([str(ORACLE), "backends"], capture_output=True, text=True, timeout=600, check=True)
    for name in ("python", "identity"):
        (backends / name).symlink_to(Path(theirs.stdout.strip()) / name)
    flag = f"--backend-directory={backends}"
    with pair_of(models, root, flag) as both:
        yield both


def _ask(server: Server, path: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http}/v2/{path}", body)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _both(pair: Pair, path: str, body: bytes | None = None) -> tuple[Any, Any]:
    return _ask(pair.ours, path, body), _ask(pair.real, path, body)


def _without_import_system(index: Any) -> Any:
    """Removes frames of the import system: the two servers may run different versions of Python."""
    return json.loads(re.sub(r"  <frozen importlib[^>]*>\(\d+\): \w+\\n", "", json.dumps(index)))


@pytest.mark.rows("R42", "R43", "R83")
def test_same_models_load_and_the_others_fail_with_the_same_texts(served: Pair) -> None:
    ours, real = (_without_import_system(index) for index in _both(served, "repository/index", b""))
    assert ours == real
    assert {entry["name"] for entry in ours if entry["state"] == "READY"} == {
        *_SERVING,
        *("library", "library_of_python", "no_execute"),
    }


@pytest.mark.rows("R43", "R83")
@pytest.mark.parametrize("model", [*_SERVING, "library", "library_of_python", "no_execute"])
def test_model_gets_and_reports_the_same(served: Pair, model: str) -> None:
    for path, body in (
        (f"models/{model}/config", None),
        (f"models/{model}", None),
        (f"models/{model}/infer", encoded(one("INT32", [1], [1]))),
    ):
        ours, real = _both(served, path, body)
        assert ours == real
    if model in _SERVING:
        facts = json.loads(ours["outputs"][0]["data"][0])
        assert facts[0] == "backend"
        assert {"environment": "backend", "environment_own": "own"}.get(model) in facts[6:7]
