"""Restricted RPCs and forwarded metadata (G13, G14)."""

import re

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.engine_port import ServerLive
from halimede.front.access import Access, Category
from halimede.front.grpc.access import _CATEGORIES
from halimede.front.grpc.service import UNLIMITED_POOL, GrpcService
from halimede.transport.grpc.calls import Bidirectional, Metadata, Unary
from tests.front.fakes import FakePort
from tests.front.grpc.test_service import PATH, FakeCall, request

REFUSED = (14, "This protocol is restricted, expecting header 'triton-grpc-protocol-key'")
KEY = (("triton-grpc-protocol-key", "v"),)


class Guarded:
    """A service with restrictions or forwarding over a fake port."""

    def __init__(self, access: Access) -> None:
        self.port = FakePort()
        self.port.answers = {ServerLive(): True}
        self.service = GrpcService(self.port, UNLIMITED_POOL, access)

    def unary(self, path: str, message: bytes, metadata: Metadata = ()) -> FakeCall:
        rpc = self.service.rpcs[path]
        assert isinstance(rpc, Unary)
        call = FakeCall(metadata)
        rpc.handler(message, call)
        return call

    def stream(self, metadata: Metadata, *messages: bytes) -> FakeCall:
        rpc = self.service.rpcs[PATH + "ModelStreamInfer"]
        assert isinstance(rpc, Bidirectional)
        call = FakeCall(metadata)
        stream = rpc.open(call)
        for message in messages:
            stream.message(message)
        stream.half_closed()
        return call


def restricted(*categories: Category) -> Guarded:
    return Guarded(Access({category.value: ("Key", "v") for category in categories}))


def test_every_rpc_has_a_category() -> None:
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(_CATEGORIES) == {*(PATH + name for name in methods), "/grpc.health.v1.Health/Check"}


@pytest.mark.parametrize("path", [PATH + "ServerLive", PATH + "ModelReady", "/grpc.health.v1.Health/Check"])
def test_restricted_rpc_wants_its_metadata(path: str) -> None:
    guarded = restricted(Category.HEALTH)
    assert guarded.unary(path, b"").status == REFUSED
    assert guarded.unary(path, b"", (("triton-grpc-protocol-key", "V"), ("key", "v"))).status == REFUSED
    assert guarded.unary(PATH + "ServerLive", b"", KEY).status == (0, "")


def test_restricted_stream_is_over_at_once() -> None:
    guarded = restricted(Category.INFERENCE)
    assert guarded.stream((), request("a")).status == REFUSED
    assert guarded.port.inferences == []
    guarded.stream(KEY, request("a"))
    assert [one.request.id for one in guarded.port.inferences] == ["a"]


def test_other_rpcs_stay_open() -> None:
    assert restricted(Category.INFERENCE).unary(PATH + "ServerLive", b"").status == (0, "")


def test_inference_takes_the_metadata_that_match() -> None:
    forwarding = Guarded(Access(forward=re.compile("x-").search))
    forwarding.unary(PATH + "ModelInfer", request(k=True), (("x-a", "1"), ("y", "2"), ("x-bin", b"\xc3\xbc")))
    forwarding.unary(PATH + "ModelInfer", request())
    assert [one.request.parameters for one in forwarding.port.inferences] == [
        {"k": True, "x-a": "1", "x-bin": "ü"},
        None,
    ]


def test_every_request_of_a_stream_takes_the_metadata_of_the_call() -> None:
    forwarding = Guarded(Access(forward=re.compile("x-").search))
    forwarding.stream((("x-a", "1"),), request("a"), request("b"))
    assert [one.request.parameters for one in forwarding.port.inferences] == [{"x-a": "1"}] * 2


def test_inference_with_reserved_metadata_is_refused() -> None:
    forwarding = Guarded(Access(forward=re.compile("priority").search))
    text = "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    assert forwarding.unary(PATH + "ModelInfer", request(), (("priority", "1"),)).status == (3, text)
    call = forwarding.stream((("priority", "1"),), request())
    assert pb.ModelStreamInferResponse.FromString(call.sent[0]).error_message == text
