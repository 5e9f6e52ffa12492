"""Python models that cannot be loaded, in both servers: what each raises and where, and the text in the index (P1, P2,
P5). All are in one repository at start."""

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.clients import same_of_both
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

PATIENCE = 60.0  # seconds until every model is loaded, or not

_INPUTS = (
    'input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
)
_ODD = "class Odd(Exception):\n            def __str__(self): raise ValueError('no text')\n        raise Odd"


def _class(signature: str, body: str) -> str:
    return (
        "import ctypes, os, sys\nclass TritonPythonModel:\n"
        f"    {signature}:\n        {body}\n"
        "    def execute(self, requests):\n        return []\n"
    )


def _initialize(body: str) -> str:
    return _class("def initialize(self, args)", body)


def _completion(body: str) -> str:
    return _class("@staticmethod\n    def auto_complete_config(config)", body)


LOADED = {
    "initialize_returns": _initialize("return 3"),
    "without_execute": "class TritonPythonModel:\n    pass\n",
}
BROKEN: dict[str, str | bytes] = {
    "initialize_raises": _initialize("raise ValueError('bad')"),
    "initialize_exits": _initialize("sys.exit(3)"),
    "initialize_raises_the_odd": _initialize(_ODD),
    "initialize_takes_nothing": _class("def initialize(self)", "pass"),
    "initialize_dies": _initialize("os._exit(3)"),
    "initialize_crashes": _initialize("ctypes.string_at(0)"),
    "constructor_raises": _class("def __init__(self)", "raise ValueError('bad')"),
    "import_raises": "raise ValueError('bad')\n",
    "import_exits": "import sys; sys.exit(3)\n",
    "import_of_nothing": "import nothing_there\n",
    "import_of_the_unreadable": "def f(:\n",
    "import_of_bad_indentation": "if 1:\n\tx\n        y\n",
    "import_of_no_utf_8": b"\xff\xfe\n",
    "import_of_a_nul": b"x = 1\0\n",
    "class_missing": "x = 1\n",
    "completion_raises": _completion("raise ValueError('bad')"),
    "completion_exits": _completion("sys.exit(2)"),
    "completion_raises_the_odd": _completion(_ODD),
    "completion_returns_nothing": _completion("return None"),
    "completion_returns_a_dict": _completion("return {}"),
    "completion_is_no_json": _completion("config.as_dict()['parameters'] = {1}; return config"),
    "file_of_another_kind": _initialize("pass"),
    "cpu_only_or_not": _initialize("pass"),
}
_MORE = {
    "file_of_another_kind": 'default_model_filename: "other"\n',
    "cpu_only_or_not": 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "maybe" } }\n',
}


@pytest.fixture(scope="module")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("failures")
    for name, source in {**LOADED, **BROKEN}.items():
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        file = version / ("other" if name == "file_of_another_kind" else "model.py")
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
        tensors = "" if name.startswith("completion") else _INPUTS
        (version.parent / "config.pbtxt").write_text(
            f'backend: "python"\n{tensors}instance_group [ {{ kind: KIND_CPU }} ]\n{_MORE.get(name, "")}'
        )
    with pair_of(folder / "models", folder) as both:
        yield both


def _index(server: Server) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http}/v2/repository/index"
    limit = time.monotonic() + PATIENCE
    while True:
        with urllib.request.urlopen(url, b"{}", timeout=30) as answer:
            found = {model["name"]: model for model in json.load(answer)}
        if not any(model["state"] == "LOADING" for model in found.values()) or time.monotonic() > limit:
            return found
        time.sleep(0.1)


@pytest.mark.rows("P1", "P2", "P5")
def test_reasons_are_those_of_the_real_server(pair: Pair) -> None:
    found = same_of_both(pair, _index)
    assert {name for name, model in found.items() if model["state"] == "READY"} == set(LOADED)
    assert {name for name, model in found.items() if model["state"] == "UNAVAILABLE"} == set(BROKEN)
    for name in BROKEN:
        how = ("is not healthy", "At:", "Error: ", "a valid pb.ModelConfig", "must end with '.py'", "Incorrect value")
        assert any(word in found[name]["reason"] for word in how), found[name]
