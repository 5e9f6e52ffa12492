"""Implicit states, compared with the real server: which configurations load, the texts about the others, and what a
model reads when a sequence starts (S67 to S70).

The real server gives states to the Python models of this test as inputs, and does not take them back. So only the first
request of a sequence is compared.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.conformance import servers
from tests.conformance.pairs import pair_of

PATIENCE, TRIES = 10.0, 10
_T = TypeVar("_T")
_FLAGS = ("--model-control-mode=explicit", "--disable-auto-complete-config")
_SPEC = 'input_name: "S" output_name: "S2" data_type: TYPE_INT32'
_STATE = f"{_SPEC} dims: 2"
_HEAD = """backend: "python"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_STRING dims: 1 }
instance_group { kind: KIND_CPU }
"""
_FILES: Mapping[str, bytes] = {
    "eight": b"\5\0\0\0\7\0\0\0",
    "four": b"\5\0\0\0",
    "twelve": b"\1\0\0\0\2\0\0\0\3\0\0\0",
    "sub/eight": b"\x0a\0\0\0\x0b\0\0\0",
    "../outside": bytes(8),
}
_MODEL = """import json
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        seen = {}
        for tensor in request.inputs():
            values = [v.decode() if isinstance(v, bytes) else int(v) for v in tensor.as_numpy().reshape(-1)]
            seen[tensor.name()] = [list(tensor.shape()), values]
        return pb.InferenceResponse([pb.Tensor("OUTPUT0", np.array([[json.dumps(seen)]], object))])
"""


def _with(text: str) -> str:
    return f"{_STATE} initial_state {{ {text} }}"


_NAMED = 'name: "i" data_type: TYPE_INT32'


def _begins(text: str) -> str:
    """The text about a state that begins with this configuration."""
    return f"data_type: TYPE_INT32 dims: 2 initial_state {{ {_NAMED} dims: 2 {text} }}"


REFUSED = {
    "two_initial_states": f"{_with(_NAMED)} initial_state {{ }}",
    "other_data_type": _with('name: "i" data_type: TYPE_FP32 dims: 2 zero_data: true'),
    "no_name": _with("data_type: TYPE_INT32 dims: 2 zero_data: true"),
    "no_dims": _with(f"{_NAMED} zero_data: true"),
    "other_rank": _with(f"{_NAMED} dims: [ 1, 2 ] zero_data: true"),
    "wild": _with(f"{_NAMED} dims: -1 zero_data: true"),
    "other_size": _with(f"{_NAMED} dims: 3 zero_data: true"),
    "negative_size": _with(f"{_NAMED} dims: -2 zero_data: true"),
    "no_data": _with(f"{_NAMED} dims: 2"),
    "file_too_short": _with(f'{_NAMED} dims: 2 data_file: "four"'),
    "file_missing": _with(f'{_NAMED} dims: 2 data_file: "none"'),
}
"""By model, its state. The real server refuses all of them, and ours does with the same texts. They are few, and one
after the other: each takes the real server more than a second, and several at once crash it."""


@dataclass(frozen=True, slots=True)
class Otherwise:
    """A state that the real server loads and ours does not: our text, and why."""

    state: str
    words: str
    why: str


OTHERWISE = {
    "no_input_name": Otherwise(
        'output_name: "S2" data_type: TYPE_INT32 dims: 2',
        "sequence batching state must specify 'input_name' for no_input_name",
        "its first request ends the real server",
    ),
    "no_type": Otherwise(
        'input_name: "S" output_name: "S2" dims: 2',
        "sequence batching state 'S' must specify 'data_type' for no_type",
        "its first request ends the model's process",
    ),
    "negative": Otherwise(
        f"{_SPEC} dims: -2",
        "sequence batching state 'S' dimension must be integer >= 0, or -1 to indicate a variable-size dimension for "
        "negative",
        "its first request ends the model's process",
    ),
    "an_input_too": Otherwise(
        'input_name: "INPUT0" output_name: "S2" data_type: TYPE_INT32 dims: 2',
        "sequence batching state input 'INPUT0' is also an input of an_input_too",
        "the model reads memory of the server in the place of the client's input",
    ),
    "outside": Otherwise(
        _with(f'{_NAMED} dims: 2 data_file: "../outside"'),
        "'data_file' must stay within the folder 'initial_state' for outside, got '../outside'",
        "a configuration may come from a client, and would read any file",
    ),
}

BEGUN = {
    "zeros": (_begins("zero_data: true"), [[1, 2], [0, 0]]),
    "zeros_by_false": (_begins("zero_data: false"), [[1, 2], [0, 0]]),
    "of_file": (_begins('data_file: "eight"'), [[1, 2], [5, 7]]),
    "of_file_with_slash": (_begins('data_file: "/eight"'), [[1, 2], [5, 7]]),
    "of_file_in_folder": (_begins('data_file: "sub/eight"'), [[1, 2], [10, 11]]),
    "of_longer_file": (_begins('data_file: "twelve"'), [[1, 2], [1, 2]]),
    "strings_of_nothing": ("data_type: TYPE_STRING dims: 1", [[1, 1], [""]]),
    "same_buffer": (f"{_begins('zero_data: true')} use_same_buffer_for_input_output: true", [[1, 2], [0, 0]]),
    "wild_with_sizes": (
        f"data_type: TYPE_INT32 dims: [ -1, 1 ] initial_state {{ {_NAMED} dims: [ 3, 1 ] zero_data: true }}",
        [[1, 3, 1], [0, 0, 0]],
    ),
}
"""By the name of a state of one model: its configuration, and what the model reads when a sequence starts (shape and
values)."""
_ALL = "begun"
_GROWABLE = "growable_without_one_buffer"
_WARNING = (
    "Failed to initialize sequence state: In order to 'use_growable_memory', you must also enable 'use_single_buffer' "
    "for state input name 'S'."
)
_REAL_SIZE = [[1, 1, 1], [0]]
"""The real server's result for `wild_with_sizes`: it reads the sizes of an initial state, and does not use them."""


def _write(repository: Path) -> None:
    states = dict(REFUSED) | {name: each.state for name, each in OTHERWISE.items()}
    states[_ALL] = " }, { ".join(
        f'input_name: "{name}" output_name: "{name} next" {text}' for name, (text, _) in BEGUN.items()
    )
    states[_GROWABLE] = f"{_STATE} use_growable_memory: true"
    for name, state in states.items():
        _write_model(repository / name, state)


def _write_model(folder: Path, state: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(_MODEL)
    (folder / "config.pbtxt").write_text(f"{_HEAD}sequence_batching {{ state [ {{ {state} }} ] }}\n")
    for file, data in _FILES.items():
        (folder / "initial_state" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "initial_state" / file).write_bytes(data)


@dataclass(frozen=True, slots=True)
class Seen:
    """The error of each load (empty for none), what the two serving models read of a request that starts a sequence (by
    the name of the input), and whether the log has the text about the growable state."""

    loads: dict[str, str]
    begun: dict[str, object]
    growable: dict[str, object]
    warned: bool


def _ask(server: servers.Server, path: str, body: object) -> object:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")
    except urllib.error.HTTPError as error:
        return error.read().decode()


def _surviving(server: servers.Server, question: Callable[[], _T]) -> _T:
    """The answer. The real server may crash when it refuses a model with a sequence batcher, or soon afterwards. Then
    it is started again, and asked again."""
    for _ in range(TRIES):
        try:
            return question()
        except (OSError, http.client.HTTPException):
            server.stop()
            server.start()
            server.wait()
    raise AssertionError(f"{server.name} ends whenever it is asked: {question}")


def _load(server: servers.Server, model: str) -> str:
    """The error of a load, empty for none."""
    answer = _ask(server, f"/v2/repository/models/{model}/load", {})
    return str(json.loads(str(answer))["error"]) if answer is not None else ""


def _read(server: servers.Server, model: str) -> dict[str, object]:
    """What the model reads of a request that starts a sequence. Loads the model first, since the server may be a new
    one."""
    asked = {
        "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [3]}],
        "parameters": {"sequence_id": 7, "sequence_start": True},
    }
    assert _load(server, model) == ""
    answer = _ask(server, f"/v2/models/{model}/infer", asked)
    assert isinstance(answer, dict), answer
    found: dict[str, object] = json.loads(answer["outputs"][0]["data"][0])
    return found


def _see(server: servers.Server) -> Seen:
    loads = {name: _surviving(server, partial(_load, server, name)) for name in (*REFUSED, *OTHERWISE)}
    read = {name: _surviving(server, partial(_read, server, name)) for name in (_ALL, _GROWABLE)}
    return Seen(loads, read[_ALL], read[_GROWABLE], _warns(server.log))


def _warns(log: Path) -> bool:
    """Whether the log has the warning. A thread writes our log."""
    limit = time.monotonic() + PATIENCE
    while not (found := _WARNING in log.read_text(errors="replace")) and time.monotonic() < limit:
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def seen(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """Our results and the real server's."""
    folder = tmp_path_factory.mktemp("states")
    repository = folder / "models"
    _write(repository)
    with pair_of(repository, folder, *_FLAGS) as both, ThreadPoolExecutor(2) as pool:
        ours, real = pool.map(_see, (both.ours, both.real))
        return ours, real


@pytest.mark.rows("S67", "S69")
@pytest.mark.parametrize("name", REFUSED)
def test_state_that_is_refused_as_by_the_real_server(name: str, seen: tuple[Seen, Seen]) -> None:
    ours, real = seen
    assert ours.loads[name] == real.loads[name]
    assert ours.loads[name].startswith(f"load failed for model '{name}': version 1 is at UNAVAILABLE state: ")


@pytest.mark.parametrize("name", OTHERWISE)
def test_state_that_the_real_server_accepts_and_ours_does_not(name: str, seen: tuple[Seen, Seen]) -> None:
    ours, real = seen
    words = f"Invalid argument: {OTHERWISE[name].words}"
    assert ours.loads[name] == f"load failed for model '{name}': version 1 is at UNAVAILABLE state: {words};\n"
    assert real.loads[name] == "", OTHERWISE[name].why


@pytest.mark.rows("S68", "S69")
@pytest.mark.parametrize("name", BEGUN)
def test_state_that_a_sequence_starts_with(name: str, seen: tuple[Seen, Seen]) -> None:
    ours, real = seen
    assert ours.begun[name] == BEGUN[name][1]
    assert real.begun[name] == (_REAL_SIZE if name == "wild_with_sizes" else ours.begun[name])


@pytest.mark.rows("S70")
def test_growable_memory_without_one_buffer_is_logged_and_not_used(seen: tuple[Seen, Seen]) -> None:
    for each in seen:
        assert each.warned
        assert list(each.growable) == ["INPUT0"]
