"""A Python model from its load to its end on both servers: what it logs (P56) and when (P8), its instances (P74), the
requests of its batches (P11), the headers that it sees (P80)."""

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.conformance.clients import over_grpc, over_http, over_stream, same_of_both
from tests.conformance.pairs import pair_of
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

PATIENCE = 30.0  # seconds for a log to be written, or a model to end
FLAGS = (
    *("--model-control-mode=explicit", "--log-verbose=1"),
    *("--http-header-forward-pattern=^x-", "--grpc-header-forward-pattern=^x-"),
)
INSTANCES = 3

_HEAD = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils
"""

_TELLS = """

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("made " + args["model_instance_name"] + " of " + args["model_version"])

    def execute(self, requests):
        logger = pb_utils.Logger
        logger.log("plain")
        logger.log("a level", logger.WARNING)
        logger.log("a named level", level=logger.LogLevel.ERROR)
        for say in (logger.log_info, logger.log_warn, logger.log_error, logger.log_verbose):
            say("by its name")
        logger.log_error('two\\nlines, "quoted" \\\\ % {} é')
        logger.log_info("")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.int32([1]))]) for _ in requests]

    def finalize(self):
        pb_utils.Logger.log_info("and over")
"""

_COUNTS = """

class TritonPythonModel:
    def initialize(self, args):
        self.initialized = [args[key] for key in ("model_instance_kind", "model_instance_device_id", "model_version")]
        pb_utils.Logger.log_info("made " + args["model_instance_name"])

    def execute(self, requests):
        time.sleep(0.3)
        text = json.dumps([os.getpid(), self.initialized])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))]) for _ in requests]
"""

_TOGETHER = """

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request, together):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        seen = np.array([[together, *given.shape()]] * given.shape()[0], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", seen)])
"""

_SEES = """

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([request.parameters()], object))])
"""

# The real server is not asked to fork: a child of its process, which has many threads, hangs once in 135 times.
# tests/backends/python/test_odd_processes.py asks ours.
_SPAWNS = """
import multiprocessing


def tells(number):
    return [2 * number, __name__, pb_utils.triton_string_to_numpy("TYPE_FP32").__name__]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def answer(self, numbers):
        found = []
        for method in ("spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                found.append(pool.map_async(tells, numbers.tolist()).get(30))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(found)], object))])
"""

_ONE = np.array([1], np.int32)


def _write(repository: Path, name: str, source: str, out: str = "INT32", more: str = "", batch: int = 0) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(_HEAD + source)
    (repository / name / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n'
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
        f'output [ {{ name: "OUT" data_type: TYPE_{out} dims: [ -1 ] }} ]\n'
        f"instance_group [ {{ kind: KIND_CPU count: {INSTANCES if source is _COUNTS else 1} }} ]\n{more}"
    )


@pytest.fixture(scope="module")
def pair(oracle: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("life")
    repository = folder / "models"
    _write(repository, "tells", _TELLS)
    _write(repository, "counts", _COUNTS, "STRING")
    waits = "dynamic_batching { preferred_batch_size: [ 6 ] max_queue_delay_microseconds: 20000000 }\n"
    _write(repository, "together", _TOGETHER, more=waits, batch=8)
    _write(repository, "sees", _SEES, "STRING")
    _write(repository, "spawns", _SPAWNS, "STRING")
    flags = (*FLAGS, *(f"--load-model={name}" for name in ("counts", "together", "sees", "spawns")))
    with pair_of(repository, folder, *flags) as both:
        yield both


def _said(server: Server, last: str) -> list[tuple[str, ...]]:
    """The log lines of models: level, place, text. Waits until `last` is among them."""
    limit = time.monotonic() + PATIENCE
    while True:
        written = server.log.read_text(errors="replace")
        said = re.findall(r"^([A-Z])\S+ \S+ \d+ (\S*model\.py:\d+)\] (.*)$", written, re.MULTILINE)
        if any(text == json.dumps(last) for _, _, text in said) or time.monotonic() > limit:
            return said
        time.sleep(0.02)


@pytest.mark.rows("P8", "P56")
def test_model_logs_from_initialize_to_finalize(pair: Pair) -> None:
    def life(server: Server) -> list[tuple[str, ...]]:
        with httpclient.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
            client.load_model("tells")
            assert over_http(server, "tells", {"IN": _ONE}) == {"OUT": ["int32", [1]]}
            client.unload_model("tells")
            return [line for line in _said(server, "and over") if "counts" not in line[2]]

    said = same_of_both(pair, life)
    assert [text for _, _, text in said][:1] == ['"made tells_0_0 of 1"']
    assert "".join(level for level, _, _ in said) == "IIWEIWEIEII"
    assert said[-1][2] == '"and over"'


@pytest.mark.rows("P74")
def test_each_instance_is_an_initialized_process(pair: Pair) -> None:
    def asked(server: Server) -> list[Any]:
        limit = time.monotonic() + PATIENCE
        found: dict[int, Any] = {}
        with ThreadPoolExecutor(INSTANCES) as clients:
            while len(found) < INSTANCES and time.monotonic() < limit:
                answers = clients.map(lambda _: over_grpc(server, "counts", {"IN": _ONE}), range(INSTANCES))
                found.update(json.loads(answer["OUT"][1][0]) for answer in answers if isinstance(answer, dict))
        for pid in found:
            os.kill(pid, 0)  # a process of this machine, and none is the server's
        made = sorted(text for _, _, text in _said(server, "made counts_0_2") if "counts" in text)
        return [made, *found.values()]

    made, *initialized = same_of_both(pair, asked)
    assert made == [f'"made counts_0_{i}"' for i in range(INSTANCES)]
    assert initialized == [["CPU", "0", "1"]] * INSTANCES


@pytest.mark.rows("P11")
def test_requests_of_a_batch_keep_their_own_dimensions(pair: Pair) -> None:
    requests = [{"IN": np.zeros((rows, 4), np.int32)} for rows in (1, 3, 2)]
    answers = same_of_both(pair, lambda server: over_stream(server, "together", *requests))
    assert [answer["OUT"][1] for _, answer in answers if answer is not None] == [[[3, n, 4]] * n for n in (1, 3, 2)]


@pytest.mark.rows("P13")
def test_spawned_processes_import_the_model_and_the_interface(pair: Pair) -> None:
    found = same_of_both(pair, lambda server: _seen(over_grpc(server, "spawns", {"IN": _ONE})))
    assert found == [[[2, "1.model", "float32"]]] * 2


@pytest.mark.rows("P80")
@pytest.mark.parametrize("ask", [over_http, over_grpc])
def test_forwarded_headers_are_parameters(pair: Pair, ask: Any) -> None:
    headers = {"x-a": "1", "x-b": "two, words", "y": "no"}
    parameters = {"mine": "x", "number": 7}
    answer = same_of_both(
        pair, lambda server: _seen(ask(server, "sees", {"IN": _ONE}, headers=headers, parameters=parameters))
    )
    assert answer == {"x-a": "1", "x-b": "two, words", "mine": "x", "number": 7}


def _seen(answer: Any) -> Any:
    return json.loads(answer["OUT"][1][0])
