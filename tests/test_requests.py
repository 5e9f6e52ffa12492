import pickle

import numpy as np
import pytest

from halimede.requests import STAMP_COUNT, InferRequest, InferResponse, Stamp
from halimede.tensors import BF16, BYTES, HostMemory, Tensor, array_of, tensor_of


@pytest.mark.parametrize(("given", "prefix"), [("", "[request id: <id_unknown>] "), ("q 1", "[request id: q 1] ")])
def test_log_prefix_of_a_request(given: str, prefix: str) -> None:
    """The id, or a placeholder (H49)."""
    request = InferRequest("m")
    request.id = given
    assert request.log_prefix == prefix


def test_fields_that_are_not_set_have_their_defaults() -> None:
    request = InferRequest("m")
    assert (request.model_name, request.version, request.id) == ("m", -1, "")
    assert (request.inputs, request.outputs, request.raw, request.destinations) == ({}, (), None, None)
    assert (request.correlation_id, request.priority, request.timeout_us, request.decoupled_ok) == (0, 0, 0, False)


def test_stamps_are_indexes_in_the_order_of_time() -> None:
    stamps = [number for name, number in vars(Stamp).items() if name.isupper()]
    assert stamps == list(range(STAMP_COUNT))


def test_request_crosses_processes_as_plain_data() -> None:
    request = InferRequest("m", 3)
    request.id, request.outputs, request.parameters = "q", ("y",), {"b": True, "i": 1, "s": "x", "f": 0.5}
    request.correlation_id, request.sequence_start, request.timeout_us = "seq", True, 5
    strings = np.array([b"a", b"\0b\0"], dtype=object)
    request.inputs = {
        "x": tensor_of("x", BYTES, strings),
        "v": Tensor("v", BF16, (2,), HostMemory(memoryview(b"..\x80\x3f\x00\x40")[2:])),
    }
    there = pickle.loads(pickle.dumps(request))
    for field in set(InferRequest.__annotations__):
        assert getattr(there, field) == getattr(request, field), field
    assert (there.model_name, there.version) == ("m", 3)
    assert list(there.inputs) == ["x", "v"]
    assert array_of(there.inputs["x"]).tolist() == strings.tolist()
    assert there.inputs["v"].datatype is BF16
    assert array_of(there.inputs["v"]).tolist() == [0x3F80, 0x4000]


def test_response_crosses_processes_as_plain_data() -> None:
    response = InferResponse("q", "m", 2, [tensor_of("y", BYTES, np.array([[b"z"]], dtype=object))], {"p": 1})
    there = pickle.loads(pickle.dumps(response))
    assert (there.id, there.model_name, there.model_version, there.parameters) == ("q", "m", 2, {"p": 1})
    [tensor] = there.outputs
    assert (tensor.name, tensor.shape, array_of(tensor).tolist()) == ("y", (1, 1), [[b"z"]])
