"""Models with a Python environment of their own, compared with the real server (P71): the variables of its script reach
the model, and faults reach the client that loads the model.

The real server runs every model with the Python of its stub, and takes only variables from an environment.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.case import Because, HttpCase, Instead, http, infer, one, post, refuses
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Result, compare
from tests.workers.host.environment_fakes import conda_like, packed

_FLAGS = ("--model-control-mode=explicit",)
_MODEL = """import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = ("OF_A_PACKAGE", "PYTHONNOUSERSITE", "VIRTUAL_ENV")


class TritonPythonModel:
    def execute(self, requests):
        prefix = os.environ.get("CONDA_PREFIX", "")
        found = {
            "activated": os.path.exists(prefix + "/bin/activate"),
            "path": os.environ["PATH"].split(":")[0] == prefix + "/bin",
            "libraries": "LD_LIBRARY_PATH=%s/lib" % prefix in open("/proc/self/environ").read(),
            "libraries of programs": os.environ.get("LD_LIBRARY_PATH", "").startswith(prefix + "/lib"),
            "variables": [os.environ.get(name) for name in NAMES],
        }
        tensor = pb_utils.Tensor("OUTPUT0", np.array([json.dumps(found)], object))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""
_CONFIG = """backend: "python"
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }}
instance_group {{ kind: KIND_CPU }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}
"""
_PATHS = {
    "missing": "/no/env.tar.gz",
    "relative": "no/env",
    "beside": "$$TRITON_MODEL_DIRECTORY/none.tar.gz",
    "bare": "{folder}/bare",
    "empty": "",
    "folder": "{folder}/env",
    "archive": "{folder}/env.tar.gz",
    "text": "{folder}/text.tar.gz",
}
"""By model. The last one comes after the others: the real server finds no relative path after it."""
_SERVED = ("empty", "folder", "archive")


def _load(model: str, instead: Instead | None = None) -> HttpCase:
    request = post(f"/v2/repository/models/{model}/load", b"")
    return http(f"load a model whose environment is {model}", "P71", request, instead=instead)


def _cases(folder: Path) -> Iterator[HttpCase]:
    for model in _PATHS:
        if model == "text":
            text = (
                "load failed for model 'text': version 1 is at UNAVAILABLE state: Internal: The Python environment "
                f"'{folder}/text.tar.gz' cannot be unpacked: it is no tar or zip archive, or its beginning is broken;\n"
            )
            why = "it names neither the file nor the reason"
            yield _load(model, Instead(Because.PURPOSE, why, refuses(400, text)))
        else:
            yield _load(model)
        if model in _SERVED:
            yield http(f"ask a model whose environment is {model}", "P71", infer(model, one("INT32", [1], [1])))


@pytest.mark.rows("P71")
def test_environments_as_with_the_real_server(oracle: None, tmp_path: Path, results: list[Result]) -> None:
    script = 'for it in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$it"; done\n'
    env = conda_like(tmp_path / "env", script)
    (env / "etc/conda/activate.d").mkdir(parents=True)
    (env / "etc/conda/activate.d/a.sh").write_text("export OF_A_PACKAGE='two words'\n")
    packed(env, tmp_path / "env.tar.gz")
    (tmp_path / "text.tar.gz").write_text("no archive")
    (tmp_path / "bare").mkdir()
    for model, path in _PATHS.items():
        version = tmp_path / "models" / model / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(_MODEL)
        (version.parent / "config.pbtxt").write_text(_CONFIG.format(path=path.format(folder=tmp_path)))
    with pair_of(tmp_path / "models", tmp_path, *_FLAGS) as both:
        for case in _cases(tmp_path):
            result = compare(case, both)
            results.append(result)
            assert result.ours == result.wanted, case.name
            assert not result.stale
