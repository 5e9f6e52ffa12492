"""Responses that cannot be written: the client gets an error, whatever failed."""

import pytest

from halimede.front.http.handling import JSON
from halimede.front.http.service import MAX_KNOWN_TARGET_BYTES
from halimede.requests import InferResponse
from halimede.tensors import FP32, HostMemory, Tensor
from tests.fakes import FakeMemory
from tests.front.http_fakes import Rig

REQUEST = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1]}]}'


def test_response_that_cannot_be_written_is_answered_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    exchange = rig.ask("POST", "/v2/models/m/infer", REQUEST)
    broken = Tensor("OUTPUT0", FP32, (1,), FakeMemory(bytes(4), error=RuntimeError("no such memory")))
    rig.port.inferences[0].reply.send(InferResponse("", "m", 1, [broken]), True)
    assert exchange.answer == (500, JSON, b'{"error":"the server failed to write the response"}')
    assert "no such memory" in caplog.text


def test_response_of_a_wrong_size_is_answered_all_the_same() -> None:
    """The outputs of Python models are not checked (P77)."""
    rig = Rig()
    exchange = rig.ask("POST", "/v2/models/m/infer", REQUEST)
    short = Tensor("OUTPUT0", FP32, (3,), HostMemory(bytes(5)))
    rig.port.inferences[0].reply.send(InferResponse("", "m", 1, [short]), True)
    text = b"output tensor shape does not match size of output for 'OUTPUT0'"
    assert exchange.answers == [(500, JSON, b'{"error":"%s"}' % text)]


def test_long_targets_are_served_and_not_remembered() -> None:
    rig = Rig()
    name = "m" * MAX_KNOWN_TARGET_BYTES
    for _ in range(2):
        rig.ask("POST", f"/v2/models/{name}/infer", REQUEST)
    assert [one.request.model_name for one in rig.port.inferences] == [name, name]
    assert not rig.front._targets
