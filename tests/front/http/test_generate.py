"""The routes of the generate extension between a fake engine and a fake connection."""

import json
import re
import struct

import pytest

from halimede.engine_port import ModelInfo, ModelMetadata, TensorInfo
from halimede.errors import Error, Internal, Invalid, NotFound, Unavailable
from halimede.front.access import Access
from halimede.front.cancelling import VERBOSE
from halimede.front.http.generate import EVENTS
from halimede.front.http.handling import JSON, OFFLOAD_BYTES
from halimede.front.http.service import HttpService
from halimede.requests import Answer, InferResponse
from halimede.tensors import BYTES, FP16, INT32, HostMemory, Tensor
from halimede.transport.buffered_bytes import FULL, BufferedBytes
from halimede.transport.http1.listener import Http1Listener
from halimede.wire.http.generate import NOT_ONE
from tests.fakes import FakeMemory
from tests.front.fakes import Inference
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, FakeStream, Rig
from tests.transport.http1_fakes import Client
from tests.transport.http1_fakes import request as http_request

FACTS = ModelInfo("m", (1,), "python", (TensorInfo("I", INT32, (-1,)), TensorInfo("S", BYTES, (-1,))), ())
ONE, STREAM = "/v2/models/m/generate", "/v2/models/m/generate_stream"
BOTH = pytest.mark.parametrize("target", [ONE, STREAM])


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.port.answers = {ModelMetadata("m"): FACTS, ModelMetadata("m", 2): FACTS}
    return rig


def ask(rig: Rig, target: str, body: bytes = b'{"I":[1,2]}', room: int | None = None, **headers: str) -> FakeExchange:
    exchange = FakeExchange("POST", target, body, **headers)
    if room is not None:
        exchange.room = room
    rig.front.handle(exchange)
    return exchange


def response(*values: int, id: str = "") -> InferResponse:
    tensor = Tensor("O", INT32, (len(values),), HostMemory(struct.pack(f"<{len(values)}i", *values)))
    return InferResponse(id, "m", 1, [tensor])


def large(value: int) -> InferResponse:
    count = OFFLOAD_BYTES // 4 + 1
    return InferResponse("", "m", 1, [Tensor("O", INT32, (count,), HostMemory(struct.pack("<i", value) * count))])


def text(*values: int) -> bytes:
    value = json.dumps(values if len(values) != 1 else values[0]).replace(" ", "")
    return b'{"O":%b,"model_name":"m","model_version":"1"}' % value.encode()


def event(*values: int) -> bytes:
    return b"data: %b\n\n" % text(*values)


def send(inference: Inference, *answers: tuple[Answer, bool]) -> list[bool]:
    return [inference.reply.send(answer, final) for answer, final in answers]


def whole(exchange: FakeExchange) -> tuple[int, bytes, list[bytes]]:
    assert exchange.stream.ended
    assert exchange.answers == []
    return exchange.stream.status, exchange.stream.fields, exchange.stream.parts


# Requests.


@BOTH
@pytest.mark.parametrize(("version", "number"), [("", -1), ("/versions/2", 2)])
def test_request_reaches_the_model_with_what_its_keys_say(rig: Rig, target: str, version: str, number: int) -> None:
    ask(rig, target.replace("/gen", version + "/gen"), b'{"id":"7","S":"x","parameters":{"max":9}}')
    (inference,) = rig.port.inferences
    request = inference.request
    assert (request.model_name, request.version, request.id) == ("m", number, "7")
    assert request.decoupled_ok
    assert list(request.inputs) == ["S"]
    assert request.parameters == {"id": "7", "max": 9}


@BOTH
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"I":"x"}', b'{"id":1}', b'{"p":null}'])
def test_wrong_body_is_refused_and_nothing_is_begun(rig: Rig, target: str, body: bytes) -> None:
    status, fields, answer = ask(rig, target, body).answer
    assert (status, fields) == (400 if body.startswith(b'{"p"') else 500, JSON)
    assert set(json.loads(answer)) == {"error"}
    assert rig.port.inferences == []


@BOTH
def test_model_is_checked_before_the_encoding_and_that_before_the_body(rig: Rig, target: str) -> None:
    rig.port.answers[ModelMetadata("m", 9)] = NotFound("no such model")
    unknown = ask(rig, target.replace("/gen", "/versions/9/gen"), b"{", content_encoding="gzip")
    assert unknown.answer == (404, JSON, b'{"error":"no such model"}')
    encoded = ask(rig, target, b"{", content_encoding="gzip")
    message = b'{"error":"Unsupported content-encoding, only \'identity\' is supported."}'
    assert encoded.answer == (400, JSON, message)
    assert ask(rig, target, b"{", content_encoding="identity").status == 500


def test_version_beyond_64_bits_is_refused(rig: Rig) -> None:
    exchange = ask(rig, "/v2/models/m/versions/99999999999999999999/generate")
    assert exchange.status == 400
    assert b"failed to get model version" in exchange.body_sent


@BOTH
def test_only_post_is_taken(rig: Rig, target: str) -> None:
    for method in ("GET", "PUT", "HEAD", "DELETE"):
        exchange = FakeExchange(method, target)
        rig.front.handle(exchange)
        assert exchange.answer == (405, JSON, b'{"error":"Method Not Allowed"}')


@BOTH
def test_restricted_inference_wants_its_key(rig: Rig, target: str) -> None:
    access = Access({"inference": ("key", "v")})
    front = HttpService(rig.port, rig.offload, MAX_INPUT_SIZE, access)
    refused, taken = FakeExchange("GET", target), FakeExchange("POST", target, b"{}", key="v")
    front.handle(refused)
    front.handle(taken)
    assert refused.status == 403
    assert len(rig.port.inferences) == 1


@BOTH
def test_headers_are_not_forwarded(rig: Rig, target: str) -> None:
    front = HttpService(rig.port, rig.offload, MAX_INPUT_SIZE, Access(forward=re.compile(".*").search))
    front.handle(FakeExchange("POST", target, b'{"p":1}', x="forward me", priority="no error"))
    assert rig.port.inferences[0].request.parameters == {"p": 1}


@BOTH
def test_refusal_before_the_model_is_an_answer_of_its_own(rig: Rig, target: str) -> None:
    rig.port.at_once = lambda request: Invalid("not that")
    assert ask(rig, target).answer == (400, JSON, b'{"error":"not that"}')


@BOTH
def test_large_body_is_read_elsewhere(rig: Rig, target: str) -> None:
    body = b'{"S":"%b"}' % (b"x" * OFFLOAD_BYTES)
    ask(rig, target, body)
    left = ask(rig, target, body)
    bad = ask(rig, target, b'{"S":[%b]}' % (b"1," * OFFLOAD_BYTES))
    assert rig.port.inferences == []
    left.leave()
    for _ in range(3):
        rig.offload.run()
    assert len(rig.port.inferences) == 1
    assert left.answers == []
    assert bad.status == 500


@BOTH
def test_body_over_the_limit_is_refused(rig: Rig, target: str) -> None:
    exchange = ask(rig, target, b'{"S":"%b"}' % (b"x" * (1 << 23)))
    rig.offload.run()
    assert exchange.status == 400
    assert b"exceeds the maximum allowed input size" in exchange.body_sent


@BOTH
def test_client_that_leaves_while_its_model_is_checked_starts_nothing(rig: Rig, target: str) -> None:
    rig.port.hold = True
    ask(rig, target).leave()
    rig.port.answer_held()
    assert rig.port.inferences == []


# One response.


@pytest.mark.parametrize("flag_alone", [False, True])
def test_one_response_is_answered_with_the_last_flag(rig: Rig, flag_alone: bool) -> None:
    exchange = ask(rig, ONE)
    (inference,) = rig.port.inferences
    if flag_alone:
        assert send(inference, (response(1, 2), False)) == [True]
        assert exchange.streams == []
        send(inference, (None, True))
    else:
        send(inference, (response(1, 2), True))
    assert whole(exchange) == (200, JSON, [text(1, 2)])


def test_model_that_answers_at_once_is_not_cancelled_later(rig: Rig) -> None:
    rig.port.at_once = lambda request: response(5)
    exchange = ask(rig, ONE)
    assert whole(exchange) == (200, JSON, [text(5)])
    exchange.leave()
    assert rig.port.cancelled == []


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ([(None, True)], 200),
        ([(response(1), False), (response(2), True)], 200),
        ([(response(1), False), (response(2), False), (None, True)], 200),
        ([(response(1), False), (Internal("late"), True)], 200),
        ([(NotFound("first"), False), (response(2), True)], 404),
        ([(Unavailable("first"), False), (Internal("second"), False), (None, True)], 503),
    ],
)
def test_none_or_several_responses_are_an_error_with_the_status_of_the_first(
    rig: Rig, answers: list[tuple[Answer, bool]], status: int
) -> None:
    exchange = ask(rig, ONE)
    send(rig.port.inferences[0], *answers)
    assert whole(exchange) == (status, JSON, [NOT_ONE])


@pytest.mark.parametrize(
    ("error", "status"), [(Internal("bad"), 500), (NotFound("bad"), 404), (Unavailable("bad"), 503)]
)
def test_error_of_the_model_is_the_one_response(rig: Rig, error: Error, status: int) -> None:
    exchange = ask(rig, ONE)
    send(rig.port.inferences[0], (error, True))
    assert whole(exchange) == (status, JSON, [b'{"error":"bad"}'])


def test_response_without_a_json_form_is_an_error(rig: Rig) -> None:
    half = InferResponse("", "m", 1, [Tensor("h", FP16, (1,), HostMemory(b"ab"))])
    one, many = ask(rig, ONE), ask(rig, STREAM)
    for inference in rig.port.inferences:
        send(inference, (half, True))
    message = b'{"error":"sending FP16 data via JSON is not supported. Please use the binary data format for output"}'
    assert whole(one) == (400, JSON, [message])
    assert whole(many) == (400, EVENTS, [b"data: %b\n\n" % message])


def test_response_that_cannot_be_written_at_all_is_answered(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    memory = FakeMemory(b"abcd", error=RuntimeError("no such memory"))
    broken = InferResponse("", "m", 1, [Tensor("O", INT32, (1,), memory)], {"p": 2})
    exchange = ask(rig, ONE)
    send(rig.port.inferences[0], (broken, True))
    assert whole(exchange) == (500, JSON, [b'{"error":"the server failed to write the response"}'])
    assert "model 'm': failed to encode a response" in caplog.text


def test_of_endless_responses_nothing_is_kept(rig: Rig) -> None:
    exchange = ask(rig, ONE)
    (inference,) = rig.port.inferences
    for number in range(1000):
        assert inference.reply.send(large(number) if number % 100 else response(number), False) is True
    assert len(rig.offload) == 0
    assert exchange.streams == []
    inference.reply.send(None, True)
    assert whole(exchange) == (200, JSON, [NOT_ONE])


@pytest.mark.parametrize("target", [ONE, STREAM])
def test_large_answer_beyond_the_limit_is_refused(rig: Rig, target: str) -> None:
    exchange = ask(rig, target)
    exchange.buffered = BufferedBytes(1)
    exchange.buffered.take(1)
    rig.port.inferences[0].reply.send(large(1), True)
    rig.offload.run()
    assert exchange.stream.status == 503
    assert FULL.encode() in b"".join(exchange.stream.parts)


# Events.


def test_each_response_is_an_event_as_it_comes(rig: Rig) -> None:
    exchange = ask(rig, STREAM)
    (inference,) = rig.port.inferences
    assert exchange.streams == []
    send(inference, (response(1), False))
    assert exchange.stream.parts == [event(1)]
    send(inference, (Internal("bad"), False), (response(2, 3), False), (None, True))
    assert whole(exchange) == (200, EVENTS, [event(1), b'data: {"error":"bad"}\n\n', event(2, 3)])


def test_last_event_may_carry_the_flag(rig: Rig) -> None:
    exchange = ask(rig, STREAM)
    send(rig.port.inferences[0], (response(1), False), (response(2), True))
    assert whole(exchange) == (200, EVENTS, [event(1), event(2)])


def test_stream_without_responses_is_empty(rig: Rig) -> None:
    exchange = ask(rig, STREAM)
    send(rig.port.inferences[0], (None, True))
    assert whole(exchange) == (200, EVENTS, [])


def test_stream_has_the_status_of_its_first_event(rig: Rig) -> None:
    exchange = ask(rig, STREAM)
    send(rig.port.inferences[0], (NotFound("first"), False), (response(1), True))
    assert whole(exchange) == (404, EVENTS, [b'data: {"error":"first"}\n\n', event(1)])


def test_client_that_leaves_cancels_its_inference(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(VERBOSE)
    first, second = ask(rig, STREAM), ask(rig, ONE)
    send(rig.port.inferences[0], (response(1), False))
    first.leave()
    second.leave()
    assert rig.port.cancelled == [1, 2]
    assert [line.partition(":")[0] for line in caplog.messages] == ["HTTP"] * 2


def test_reader_that_is_full_slows_the_model(rig: Rig) -> None:
    exchange = ask(rig, STREAM, room=2)
    (inference,) = rig.port.inferences
    resumed: list[int] = []
    inference.reply.on_writable(lambda: resumed.append(0))
    assert send(inference, (response(1), False), (response(2), False)) == [True, False]
    inference.reply.on_writable(lambda: resumed.append(1))
    assert resumed == [0]
    exchange.stream.drain(10)
    assert resumed == [0, 1]


# Large responses.


def test_large_responses_keep_their_place(rig: Rig) -> None:
    exchange = ask(rig, STREAM)
    (inference,) = rig.port.inferences
    resumed: list[bool] = []
    assert send(inference, (response(1), False), (large(2), False)) == [True, False]
    inference.reply.on_writable(lambda: resumed.append(True))
    assert send(inference, (response(3), False), (large(4), False), (None, True)) == [False] * 3
    assert exchange.stream.parts == [event(1)]
    assert len(rig.offload) == 1
    rig.offload.run()
    assert resumed == []
    assert len(rig.offload) == 1
    rig.offload.run()
    assert resumed == [True]
    status, _, parts = whole(exchange)
    values = [json.loads(part[6:])["O"] for part in parts]
    assert status == 200
    assert [value if isinstance(value, int) else value[-1] for value in values] == [1, 2, 3, 4]


def test_error_while_writing_a_large_response_resumes_all_senders(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeExchange):
        def begin(self, status: int, fields: bytes) -> FakeStream:
            raise ValueError("a defect of ours")

    exchange = Broken("POST", STREAM, b'{"I":[1,2]}')
    rig.front.handle(exchange)
    (inference,) = rig.port.inferences
    resumed: list[bool] = []
    assert send(inference, (large(1), False)) == [False]
    inference.reply.on_writable(lambda: resumed.append(True))
    assert send(inference, (response(2), False)) == [False]
    rig.offload.run()
    assert resumed == [True]
    assert exchange.failed == 1
    assert send(inference, (response(3), True)) == [True]


@BOTH
def test_body_is_released_after_decoding(rig: Rig, target: str) -> None:
    exchange = ask(rig, target)
    assert len(rig.port.inferences) == 1
    assert not exchange.body


def test_large_response_is_the_only_one(rig: Rig) -> None:
    exchange = ask(rig, ONE)
    send(rig.port.inferences[0], (large(7), True))
    assert exchange.streams == []
    rig.offload.run()
    status, _, parts = whole(exchange)
    assert status == 200
    assert set(json.loads(parts[0])["O"]) == {7}


def test_reader_that_is_full_after_a_large_response_is_waited_for(rig: Rig) -> None:
    exchange = ask(rig, STREAM, room=1)
    (inference,) = rig.port.inferences
    resumed: list[bool] = []
    assert send(inference, (large(1), False)) == [False]
    inference.reply.on_writable(lambda: resumed.append(True))
    rig.offload.run()
    assert resumed == []
    exchange.stream.drain(10)
    assert resumed == [True]


# On a connection.


def test_answers_as_they_stand_on_the_wire(rig: Rig) -> None:
    client = Client(listener=Http1Listener(rig.front.handle))
    client.send(http_request("POST", STREAM, b'{"I":1}') + http_request("POST", ONE, b'{"I":2}'))
    send(rig.port.inferences[0], (response(1), False), (None, True))
    send(rig.port.inferences[1], (response(2), True))
    chunk = b"%x\r\n%b\r\n"
    assert client.transport.written == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk % (len(event(1)), event(1))
        + b"0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk % (len(text(2)), text(2))
        + b"0\r\n\r\n"
    )


def test_connection_that_is_lost_cancels_a_stream_under_way(rig: Rig) -> None:
    client = Client(listener=Http1Listener(rig.front.handle))
    client.send(http_request("POST", STREAM, b'{"I":1}'))
    (inference,) = rig.port.inferences
    send(inference, (response(1), False))
    client.connection.pause_writing()
    assert send(inference, (response(2), False)) == [False]
    client.lose()
    assert rig.port.cancelled == [1]
    assert send(inference, (response(3), False), (None, True)) == [True, True]
