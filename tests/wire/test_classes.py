"""What a request says of classes, over HTTP and gRPC (H80, H85): parsed, and remembered."""

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.requests import InferRequest
from halimede.wire.grpc.infer import InferDecoder
from halimede.wire.http.infer import ResponseForm, decode_infer

COUNTS = [(1, 1), (99, 99), (2**32 + 2, 2), (2**63 - 1, 2**32 - 1)]
"""Triton uses the lower 32 of 64 bits (observed)."""


def http_request(*outputs: dict[str, Any]) -> tuple[InferRequest, ResponseForm]:
    body = json.dumps({"inputs": [], "outputs": outputs}).encode()
    return decode_infer("m", -1, memoryview(body), None, 1 << 20)


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


def grpc_message(*outputs: tuple[str, int | None], id: str = "") -> bytes:
    message = pb.ModelInferRequest(model_name="m", id=id)
    message.inputs.add(name="I", datatype="INT32", shape=[1])
    message.raw_input_contents.append(b"1234")
    for name, classes in outputs:
        added = message.outputs.add(name=name)
        if classes is not None:
            added.parameters["classification"].int64_param = classes
    return bytes(message.SerializeToString())


def grpc_request(message: bytes, decoder: InferDecoder | None = None) -> InferRequest:
    decoder = decoder or InferDecoder()
    return decoder.request(decoder.parse(message), -1)


@pytest.mark.parametrize(("given", "taken"), COUNTS)
def test_classes_that_are_wanted(given: int, taken: int) -> None:
    request, form = http_request(output("A", classification=given, binary_data=True), output("B"))
    assert (request.outputs, request.classes) == (("A", "B"), {"A": taken})
    assert form.listed == {"A": True, "B": False}
    request = grpc_request(grpc_message(("A", given), ("B", None)))
    assert (request.outputs, request.classes) == (("A", "B"), {"A": taken})


def test_no_classes_are_wanted() -> None:
    request, _ = http_request(output("A", classification=0), output("B", classification=2**32), output("C"))
    assert request.classes is None
    assert grpc_request(grpc_message(("A", None))).classes is None


def test_none_of_the_classes_is_wanted() -> None:
    """Over gRPC 32 bits of nothing leave an output of no elements (observed)."""
    assert grpc_request(grpc_message(("A", 2**32))).classes == {"A": 0}


def test_classes_belong_to_their_request_when_remembered() -> None:
    decoder = InferDecoder()
    for name in "abcd":  # read, remembered, laid out, taken from the layout
        for classes in (3, 5, None):
            request = grpc_request(grpc_message(("A", classes), id=name), decoder)
            assert request.classes == (None if classes is None else {"A": classes})
            assert (request.id, request.in_regions, request.outputs) == (name, False, ("A",))
            assert bytes(request.inputs["I"].memory.host()) == b"1234"
    for _ in range(3):
        for classes in (3, 5):
            assert http_request(output("A", classification=classes))[0].classes == {"A": classes}
        assert http_request(output("A"))[0].classes is None
