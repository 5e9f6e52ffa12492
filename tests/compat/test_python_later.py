"""A Python model with one response per request that answers through the sender after `execute` returned. Its instance
serves meanwhile."""

import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.serving import Serving, write_model

LIMIT = 60.0

_LATER = """import numpy as np
import triton_python_backend_utils as pb_utils

KEEP, ANSWER = 0, 1


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0] == KEEP:
            self.kept.append(request.get_response_sender())
            return None
        kept = len(self.kept)
        for sender in self.kept:
            sender.send(response(7), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.kept.clear()
        return response(kept)


def response(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value], np.int32))])
"""
KEEP, ANSWER = 0, 1


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """The model `later` keeps the sender of a request with KEEP. A request with ANSWER answers these with 7 and returns
    their number."""
    (write_model(tmp_path / "models", "later", "INT32", backend="python") / "model.py").write_text(_LATER)
    with Serving(tmp_path / "models", tmp_path / "server.log") as made:
        yield made.wait_until_live()
        assert made.stop() == 0


def infer(serving: Serving, value: int) -> int:
    document = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [value]}]}
    url = f"http://{serving.http_url}/v2/models/later/infer"
    with urllib.request.urlopen(url, json.dumps(document).encode(), LIMIT) as answer:
        return int(json.load(answer)["outputs"][0]["data"][0])


@pytest.mark.rows("P48")
def test_instance_serves_while_a_sender_waits(serving: Serving) -> None:
    until = time.monotonic() + LIMIT
    with ThreadPoolExecutor(2) as clients:
        kept = [clients.submit(infer, serving, KEEP) for _ in range(2)]
        answered = 0
        while answered < len(kept) and time.monotonic() < until:
            answered += infer(serving, ANSWER)
        assert [one.result(LIMIT) for one in kept] == [7, 7]
    assert answered == 2
