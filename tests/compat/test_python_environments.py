"""Models with a Python environment of their own, through the official client (P71): folders and archives, beside models
in the server's Python, whose variables must not reach them.

`make test-environments` tests the other Python versions of the machine.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests import interpreters
from tests.compat.serving import Serving
from tests.workers.host.environment_fakes import conda_like, packed, virtual, with_numpy

LIMIT = 60.0

_CONFIG = """
backend: "python"
input [ {{ name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU }} ]
{more}
"""
_ENVIRONMENT = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'

_MODEL = '''
import asyncio, gc, json, os, subprocess, sys, threading, time

import numpy as np
import triton_python_backend_utils as pb_utils


def ask(model, source):
    inputs = [pb_utils.Tensor("INPUT0", np.array([source], object))]
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUTPUT0"], inputs=inputs)


def told(response):
    if response.has_error():
        return response.error().message()
    return json.loads(response.output_tensors()[0].as_numpy()[0])


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if config.as_dict()["name"].startswith("completed"):
            config.add_output({"name": "V%d_%d" % sys.version_info[:2], "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        """Runs the source code of the request, and answers with what it calls `found`, as JSON."""
        names = {**globals(), "self": self, "request": request}
        exec(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0].decode(), names)
        text = json.dumps(names["found"])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], object))])
'''

_LATER = """
import asyncio, sys, threading

import numpy as np
import triton_python_backend_utils as pb_utils


def answer(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([str(number)], object))])


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for part in sys.version_info[:2]:
                await asyncio.sleep(0.001)
                sender.send(answer(part))
            threading.Thread(target=sender.send, kwargs={"flags": 1}).start()
"""

_TOUR = """
tensors = [pb_utils.Tensor("T", np.zeros([2, 3], kind)) for kind in (np.float16, np.float32, np.uint8, np.bool_)]
again = [pb_utils.Tensor.from_dlpack("T", tensor.to_dlpack()).as_numpy().dtype.name for tensor in tensors]
pb_utils.Logger.log_info("the tour of %d.%d" % sys.version_info[:2])
family = pb_utils.MetricFamily(name="tours", description="d", kind=pb_utils.MetricFamily.COUNTER)
count = family.Metric(labels={"of": sys.prefix})
count.increment(2.5)

async def both():
    first, second = await asyncio.gather(
        ask("own", "found = 1").async_exec(), ask("own", "found = 2").async_exec()
    )
    return [told(first), told(second)]

found = {
    "dlpack": again,
    "bytes": pb_utils.serialize_byte_tensor(np.array([b"abc"], object)).decode("latin-1"),
    "folder": pb_utils.get_model_dir(),
    "called": told(ask("own", "found = sys.version_info[:2]").exec()),
    "awaited": asyncio.run(both()),
    "refused": told(ask("own", "raise ValueError('no')").exec()).splitlines()[0],
    "ready": [pb_utils.is_model_ready(name) for name in ("own", "nobody")],
    "cancelled": request.is_cancelled(),
    "metric": count.value(),
    "parameters": json.loads(request.parameters()),
}
"""


def write(repository: Path, name: str, path: Path | str, more: str = "", code: str = _MODEL) -> Path:
    """Writes a model with the environment `path`, or with none. Returns its folder."""
    (repository / name / "1").mkdir(parents=True)
    text = _CONFIG.format(more=more + (_ENVIRONMENT.format(path=path) if path else ""))
    (repository / name / "config.pbtxt").write_text(text)
    (repository / name / "1" / "model.py").write_text(code)
    return repository / name


@dataclass(frozen=True, slots=True)
class Environments:
    """A server in explicit mode, whose models are written and loaded one by one. `temporary` is its TMPDIR."""

    serving: Serving
    repository: Path
    temporary: Path

    def client(self) -> httpclient.InferenceServerClient:
        return httpclient.InferenceServerClient(self.serving.http_url, network_timeout=60.0)

    def load(self, name: str, path: Path | str = "", more: str = "", code: str = _MODEL) -> None:
        write(self.repository, name, path, more, code)
        with self.client() as client:
            client.load_model(name)

    def refusal(self, name: str, path: Path | str) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.load(name, path)
        shown = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Internal: "
        text = str(caught.value.message())
        assert text.startswith(shown)
        return text.removeprefix(shown).removesuffix(";\n")

    def found(self, model: str, source: str, **parameters: Any) -> Any:
        given = httpclient.InferInput("INPUT0", [1], "BYTES")
        given.set_data_from_numpy(np.array([source], object))
        with self.client() as client:
            answer = client.infer(model, [given], parameters=parameters or None).as_numpy("OUTPUT0")
        assert answer is not None
        return json.loads(answer[0])

    def unpacked(self) -> list[Path]:
        return sorted(self.temporary.glob("halimede-environments-*/*"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    """The server, started as in an active virtual environment, with a PYTHONHOME that only fits its own version."""
    folder = tmp_path_factory.mktemp("environments")
    for name in ("models", "temporary"):
        (folder / name).mkdir()
    variables = {
        "TMPDIR": str(folder / "temporary"),
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "PYTHONHOME": sys.base_prefix,
    }
    flag = "--model-control-mode=explicit"
    with Serving(folder / "models", folder / "server.log", flag, environment=variables) as serving:
        it = Environments(serving.wait_until_live(), folder / "models", folder / "temporary")
        it.load("own")
        yield it
        assert serving.stop() == 0, serving.log_text()[-3000:]
        assert list(it.temporary.iterdir()) == []


def _versions() -> list[Any]:
    """`make test` covers the tests' own version and one other, `make test-environments` all others."""
    usual = (interpreters.OWN, interpreters.other())
    return [
        version if version in usual else pytest.param(version, marks=pytest.mark.environments)
        for version in interpreters.found()
    ]


@pytest.fixture(scope="module", params=_versions())
def python(request: pytest.FixtureRequest, served: Environments) -> str:
    """A version of Python. The model `py<version>` is loaded in an environment of it."""
    version = str(request.param)
    try:
        folder = interpreters.environment(version)
    except interpreters.NoNumpy as error:
        pytest.skip(f"Python {version} has no numpy here: {error}")
    served.load(f"py{version}", folder)
    return version


@pytest.mark.rows("P71")
def test_model_runs_in_the_python_that_it_names(served: Environments, python: str) -> None:
    folder = interpreters.environment(python)
    said = served.found(
        f"py{python}",
        "keys = ['VIRTUAL_ENV', 'PYTHONHOME', 'PATH', 'LD_LIBRARY_PATH']\n"
        "started = dict(line.split('=', 1) for line in open('/proc/self/environ').read().split('\\0') if '=' in line)\n"
        "libraries = started['LD_LIBRARY_PATH'].split(':')[0]\n"
        "found = ['%d.%d' % sys.version_info[:2], sys.prefix, *map(os.environ.get, keys), libraries]",
    )
    assert said[:4] == [python, str(folder), str(folder), None]
    path = said[4].split(":")
    assert path[0] == f"{folder}/bin"
    assert f"{sys.prefix}/bin" not in path
    assert said[5:] == [None, f"{folder}/lib"]


def test_interface_works_and_models_of_two_pythons_call_each_other(served: Environments, python: str) -> None:
    name = f"py{python}"
    said = served.found(name, _TOUR, mine=7)
    assert said == {
        "dlpack": ["float16", "float32", "uint8", "bool"],
        "bytes": "\x03\0\0\0abc",
        "folder": str(served.repository / name / "1"),
        "called": list(sys.version_info[:2]),
        "awaited": [1, 2],
        "refused": "Failed to process the request(s) for model 'own_0_0', message: ValueError: no",
        "ready": [True, False],
        "cancelled": False,
        "metric": 2.5,
        "parameters": {"mine": 7},
    }
    served.serving.until_logged(f"the tour of {python}")
    source = f"found = told(ask('{name}', 'found = sys.version_info[:2]').exec())"
    assert served.found("own", source) == [int(part) for part in python.split(".")]


def test_model_of_many_responses_that_come_later_works(served: Environments, python: str) -> None:
    decoupled = "model_transaction_policy { decoupled: true }\n"
    served.load(f"later{python}", interpreters.environment(python), decoupled, _LATER)
    source = f"found = [told(each) for each in ask('later{python}', '').exec(decoupled=True) if each.output_tensors()]"
    assert served.found("own", source) == [int(part) for part in python.split(".")]


def test_exception_names_the_models_own_file_and_line(served: Environments, python: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        served.found(f"py{python}", "raise KeyError('k')")
    lines = str(caught.value.message()).splitlines()
    assert lines[0].endswith("message: KeyError: 'k'")
    assert lines[3].startswith("  <string>(1): ")
    assert lines[4].startswith(f"  {served.repository}/py{python}/1/model.py(")


def test_configuration_is_completed_by_that_python(served: Environments, python: str) -> None:
    name = f"completed{python}"
    served.load(name, interpreters.environment(python))
    with served.client() as client:
        outputs = [output["name"] for output in client.get_model_config(name)["output"]]
    assert outputs == ["OUTPUT0", f"V{python.replace('.', '_')}"]


def test_worker_that_is_killed_comes_back_in_that_python(served: Environments, python: str) -> None:
    name, source = f"py{python}", "found = [os.getpid(), '%d.%d' % sys.version_info[:2]]"
    died, _ = served.found(name, source)
    os.kill(died, signal.SIGKILL)
    until = time.monotonic() + LIMIT
    said, refusals = [died, ""], []
    while said[0] == died and time.monotonic() < until:
        try:
            said = served.found(name, source)
        except InferenceServerException as error:
            refusals.append(str(error))
    assert said[0] != died
    assert said[1] == python
    assert all("is not healthy" in text for text in refusals)  # they were on their way to the one that died


@pytest.mark.rows("P71")
def test_archive_is_unpacked_once_and_serves_beside_the_model_and_elsewhere(
    served: Environments, tmp_path: Path
) -> None:
    """The archive is like those of conda-pack: no folder around it, an interpreter of its own, any place."""
    before = served.unpacked()
    archive = packed(with_numpy(virtual(tmp_path / "made", "--copies")), tmp_path / "env.tar.gz")
    shutil.rmtree(tmp_path / "made")
    beside = write(served.repository, "beside", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    shutil.copy(archive, beside / "env.tar.gz")
    with served.client() as client:
        client.load_model("beside")
    served.load("elsewhere", archive, "instance_group { count: 2 kind: KIND_CPU }\n")
    (folder,) = [path for path in served.unpacked() if path not in before]
    for name in ("beside", "elsewhere"):
        source = "found = [sys.prefix, sys.executable, os.environ['VIRTUAL_ENV'], os.environ['PATH'].split(':')[0]]"
        assert served.found(name, source) == [str(folder), f"{folder}/bin/python", str(folder), f"{folder}/bin"]


@pytest.mark.rows("P71")
def test_archive_with_a_script_of_condas_kind_is_activated(served: Environments, tmp_path: Path) -> None:
    script = 'for it in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$it"; done\n'
    made = conda_like(tmp_path / "made", script)
    (made / "etc/conda/activate.d").mkdir(parents=True)
    (made / "etc/conda/activate.d/library.sh").write_text('export LIBRARY_DATA="$CONDA_PREFIX/share"\n')
    served.load("condas", packed(made, tmp_path / "env.tar.gz"))
    said = served.found(
        "condas", "found = [os.environ.get(k) for k in ('CONDA_PREFIX', 'LIBRARY_DATA', 'VIRTUAL_ENV')]"
    )
    assert said[0] in map(str, served.unpacked())
    assert said[1:] == [f"{said[0]}/share", None]


def test_unusable_environment_fails_the_load_with_a_clear_text(served: Environments, tmp_path: Path) -> None:
    (tmp_path / "text.tar.gz").write_text("no archive")
    bare = virtual(tmp_path / "bare")
    paths = ("/no/env", str(tmp_path / "text.tar.gz"), str(bare))
    texts = [served.refusal(f"bad{n}", path) for n, path in enumerate(paths)]
    assert texts == [
        "Failed to get the canonical path for /no/env.",
        f"The Python environment '{tmp_path}/text.tar.gz' cannot be unpacked: "
        "it is no tar or zip archive, or its beginning is broken",
        f"Python models need numpy, which cannot be imported by {bare}/bin/python (Python {sys.version.split()[0]}): "
        f"No module named 'numpy'; it is installed there by: {bare}/bin/python -m pip install numpy",
    ]
    assert served.found("own", "found = 1") == 1


def test_next_server_removes_what_a_killed_one_unpacked(tmp_path: Path) -> None:
    for name in ("models", "temporary"):
        (tmp_path / name).mkdir()
    archive = packed(with_numpy(virtual(tmp_path / "made")), tmp_path / "env.tar.gz")
    variables = {"TMPDIR": str(tmp_path / "temporary")}
    write(tmp_path / "models", "m", archive)
    with Serving(tmp_path / "models", tmp_path / "log", environment=variables) as serving:
        it = Environments(serving.wait_until_live(), tmp_path / "models", tmp_path / "temporary")
        (left,) = it.unpacked()
        os.kill(serving.process.pid, signal.SIGKILL)
        serving.wait()
    assert it.unpacked() == [left]
    with Serving(it.repository, tmp_path / "log", environment=variables) as serving:
        serving.wait_until_live().until(lambda: not left.exists(), "did not remove what was left behind")
        (folder,) = it.unpacked()
        assert replace(it, serving=serving).found("m", "found = sys.prefix") == str(folder)
        assert serving.stop() == 0
    assert list(it.temporary.iterdir()) == []
