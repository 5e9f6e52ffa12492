"""Large messages over gRPC, which another thread parses: the order of a stream, cancellation, and limits."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.engine_port import ModelCounts, ModelStatistics
from halimede.errors import NotFound
from halimede.front.grpc.admin import MAX_MESSAGE_BYTES, MAX_WRITTEN_ON_LOOP
from halimede.front.grpc.service import UNLIMITED_POOL, GrpcService
from halimede.front.grpc.status import MAX_TEXT_CHARACTERS
from halimede.wire.grpc.scan import MAX_FIELDS
from tests.front.grpc.test_service import PAIR, WRONG_KIND, Client, request, seen, unreadable_contents
from tests.front.http_fakes import HeldOffload

LARGE = b"\xfa\x7f\x80\x80\x04" + bytes(1 << 16)
"""An unknown field that makes a message large."""
TOO_MANY = b"\x0a\x01m" + b"\x3a\x00" * MAX_FIELDS
TOO_MANY_TEXT = f"the request has more than {MAX_FIELDS} inputs, outputs, parameters and raw contents"


class HeldClient(Client):
    """A client whose large messages are parsed when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.offload = HeldOffload()
        self.service = GrpcService(self.port, UNLIMITED_POOL, offload=self.offload)


@pytest.fixture
def client() -> HeldClient:
    return HeldClient()


def test_large_message_is_parsed_off_the_loop(client: HeldClient) -> None:
    call = client.unary("ModelInfer", request("7") + LARGE)
    assert not client.port.inferences
    client.offload.run()
    (inference,) = client.port.inferences
    assert inference.request.id == "7"
    assert bytes(inference.request.inputs["IN"].memory.host()) == PAIR
    client.answer(0, 5)
    assert call.status == (0, "")


def test_large_message_with_too_many_fields_is_refused(client: HeldClient) -> None:
    call = client.unary("ModelInfer", TOO_MANY)
    client.offload.run()
    assert call.status == (3, TOO_MANY_TEXT)


def test_missing_model_has_precedence_over_a_fault_of_a_large_message(client: HeldClient) -> None:
    for unknown in ({}, {"m": NotFound("no such model")}):
        client.port.unknown = dict(unknown)
        call = client.unary("ModelInfer", unreadable_contents() + LARGE)
        client.offload.run()
        assert call.status == ((5, "no such model") if unknown else (3, WRONG_KIND))


def test_call_that_ends_before_its_message_is_parsed_starts_nothing(client: HeldClient) -> None:
    call = client.unary("ModelInfer", request() + LARGE)
    assert client.cancel is not None
    client.cancel()
    client.offload.run()
    assert not client.port.inferences
    assert call.status is None


def test_call_that_ends_after_its_message_was_parsed_cancels_the_inference(client: HeldClient) -> None:
    client.unary("ModelInfer", request() + LARGE)
    client.offload.run()
    assert client.cancel is not None
    client.cancel()
    assert client.port.cancelled == [client.port.inferences[0].key]


def test_stream_delivers_nothing_while_a_message_is_parsed(client: HeldClient) -> None:
    stream, call = client.stream()
    stream.message(request("1") + LARGE)
    assert call.held_back
    client.offload.run()
    assert not call.held_back
    stream.message(request("2"))
    stream.half_closed()
    client.answer(1, 22)
    client.answer(0, 11)
    assert seen(call) == [("1", 11, True), ("2", 22, True)]
    assert call.status == (0, "")


def test_stream_ends_with_the_status_of_a_message_beyond_a_limit(client: HeldClient) -> None:
    stream, call = client.stream()
    stream.message(request("1"))
    stream.message(TOO_MANY)
    client.offload.run()
    assert call.status == (3, TOO_MANY_TEXT)
    assert client.port.cancelled == [client.port.inferences[0].key]


def test_stream_that_is_cancelled_starts_no_large_message(client: HeldClient) -> None:
    stream, call = client.stream()
    stream.message(request("1") + LARGE)
    stream.cancelled()
    client.offload.run()
    assert not client.port.inferences
    assert call.status is None


def test_drained_stream_waits_for_a_large_message(client: HeldClient) -> None:
    stream, call = client.stream()
    stream.message(request("1") + LARGE)
    client.service.drain()
    assert call.status is None
    client.offload.run()
    assert call.status is not None


def test_administrative_message_is_limited(client: HeldClient) -> None:
    padding = b"\xfa\x7f"
    size = MAX_MESSAGE_BYTES - 5
    most = padding + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + bytes(size)
    assert len(most) == MAX_MESSAGE_BYTES
    call = client.unary("ServerLive", most)
    assert call.status != (3, f"the request has {len(most)} bytes; the largest has {MAX_MESSAGE_BYTES}")
    call = client.unary("ServerLive", most + b"\x08\x01")
    assert call.status == (3, f"the request has {len(most) + 2} bytes; the largest has {MAX_MESSAGE_BYTES}")


def test_large_load_is_read_off_the_loop(client: HeldClient) -> None:
    message = pb.RepositoryModelLoadRequest(model_name="m")
    message.parameters["wrong"].bytes_param = bytes(MAX_MESSAGE_BYTES)
    call = client.unary("RepositoryModelLoad", message.SerializeToString())
    assert call.status is None
    client.offload.run()
    assert call.status == (3, "unrecognized load parameter 'wrong'.")


def test_text_of_a_status_is_cut(client: HeldClient) -> None:
    for size in (MAX_TEXT_CHARACTERS, MAX_TEXT_CHARACTERS + 1):
        text = "x" * size
        client.port.unknown["m"] = NotFound(text)
        call = client.unary("ModelInfer", unreadable_contents())
        assert call.status == (5, text if size == MAX_TEXT_CHARACTERS else text[:-1] + "...")


def test_statistics_of_many_models_are_written_off_the_loop(client: HeldClient) -> None:
    for count in (MAX_WRITTEN_ON_LOOP, MAX_WRITTEN_ON_LOOP + 1):
        counts = [ModelCounts(f"m{n}", 1, 0, 0, 0, {}, ()) for n in range(count)]
        client.port.answers = {ModelStatistics("", -1): counts}
        call = client.unary("ModelStatistics", b"")
        if count > MAX_WRITTEN_ON_LOOP:
            assert not call.sent
            client.offload.run()
        assert len(pb.ModelStatisticsResponse.FromString(call.sent[0]).model_stats) == count
