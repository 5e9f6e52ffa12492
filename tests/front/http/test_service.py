"""The HTTP front end between a fake engine and fake connections: routes, methods, status codes, cancellation."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halimede.engine_port import (
    BatchCounts,
    ConfigInfo,
    Duration,
    ModelConfiguration,
    ModelCounts,
    ModelInfo,
    ModelMetadata,
    ModelReady,
    ModelStatistics,
    ModelTransaction,
    Query,
    ServerInfo,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorInfo,
)
from halimede.errors import (
    AlreadyExists,
    Cancelled,
    DecoupledModel,
    Error,
    Forbidden,
    Internal,
    Invalid,
    NotFound,
    TimedOut,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unsupported,
)
from halimede.front.cancelling import VERBOSE
from halimede.front.http.handling import JSON, MAX_WRITTEN_ON_LOOP, OFFLOAD_BYTES, PLAIN, status_of
from halimede.front.http.service import MAX_KNOWN_TARGETS
from halimede.requests import InferResponse
from halimede.tensors import (
    FP16,
    FP32,
    INT32,
    STRINGS_PER_TURN,
    Buffer,
    FramedMemory,
    HostMemory,
    Tensor,
    array_of,
    tensor_of,
)
from halimede.transport.buffered_bytes import FULL, BufferedBytes
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, Rig

BODY = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","data":[1,2]}]}'
BINARY_HEAD = b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32","parameters":{"binary_data_size":8}}]}'
UNKNOWN = NotFound("Request for unknown model: 'm' is not found")
DECOUPLED = b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}'

SERVER = ServerInfo("triton", "1.2.3", ("classification", "statistics"))
MODEL = ModelInfo("m", (2, 3), "identity", (TensorInfo("A", FP32, (-1, 4)),), (TensorInfo("B", INT32, (1,)),))
CONFIG = ConfigInfo('{"name":"m","dims":[-1]}', b"")
COUNTS = ModelCounts("m", 3, 77, 5, 4, {"success": Duration(5, 50)}, ())


def response(*values: int, id: str = "") -> InferResponse:
    return InferResponse(id, "m", 1, [tensor_of("OUTPUT0", INT32, np.array(values, np.int32))])


def large_response() -> InferResponse:
    return InferResponse("", "m", 1, [tensor_of("OUTPUT0", INT32, np.zeros(OFFLOAD_BYTES // 4 + 1, np.int32))])


def answering(answers: dict[Query[Any], Any]) -> Rig:
    rig = Rig()
    rig.port.answers = answers
    return rig


def infer(rig: Rig, body: Buffer = BODY, target: str = "/v2/models/m/infer", **headers: str) -> FakeExchange:
    return rig.ask("POST", target, body, **headers)


# Routes.

ADMIN: list[tuple[str, Query[Any], Any, int, bytes]] = [
    ("/v2/health/live", ServerLive(), True, 200, PLAIN),
    ("/v2/health/live", ServerLive(), False, 400, PLAIN),
    ("/v2/health/ready", ServerReady(), True, 200, PLAIN),
    ("/v2/health/ready", ServerReady(), False, 400, PLAIN),
    ("/v2", ServerMetadata(), SERVER, 200, JSON),
    ("/v2/models/m", ModelMetadata("m"), MODEL, 200, JSON),
    ("/v2/models/m/versions/3", ModelMetadata("m", 3), MODEL, 200, JSON),
    ("/v2/models/m/versions/003", ModelMetadata("m", 3), MODEL, 200, JSON),
    ("/v2/models/m/ready", ModelReady("m"), True, 200, PLAIN),
    ("/v2/models/m/versions/2/ready", ModelReady("m", 2), False, 400, PLAIN),
    ("/v2/models/m/config", ModelConfiguration("m"), CONFIG, 200, JSON),
    ("/v2/models/m/versions/2/config", ModelConfiguration("m", 2), CONFIG, 200, JSON),
    ("/v2/models/m/stats", ModelStatistics("m"), [COUNTS], 200, JSON),
    ("/v2/models/m/versions/3/stats", ModelStatistics("m", 3), [COUNTS], 200, JSON),
    ("/v2/models/stats", ModelStatistics(), [COUNTS], 200, JSON),
    ("/v2/models/a.b-c%20d", ModelMetadata("a.b-c%20d"), MODEL, 200, JSON),
]


@pytest.mark.parametrize(("target", "query", "answer", "status", "fields"), ADMIN)
def test_path_asks_the_engine_its_question(
    target: str, query: Query[Any], answer: object, status: int, fields: bytes
) -> None:
    exchange = answering({query: answer}).ask("GET", target)
    assert exchange.answer[:2] == (status, fields)


def test_health_is_answered_without_a_body() -> None:
    rig = answering({ServerLive(): True, ServerReady(): False})
    assert rig.ask("GET", "/v2/health/live").body_sent == b""
    assert rig.ask("GET", "/v2/health/ready").body_sent == b""


def test_model_not_ready_says_so() -> None:
    exchange = answering({ModelReady("m"): False}).ask("GET", "/v2/models/m/ready")
    assert exchange.body_sent == b'{"error":"Model version not ready"}'


def test_model_named_stats_is_shadowed() -> None:
    exchange = answering({ModelStatistics(): [COUNTS], ModelMetadata("stats"): MODEL}).ask("GET", "/v2/models/stats")
    assert list(json.loads(exchange.body_sent)) == ["model_stats"]


def test_metadata_is_written_in_tritons_order() -> None:
    rig = answering({ServerMetadata(): SERVER, ModelMetadata("m"): MODEL, ModelConfiguration("m"): CONFIG})
    assert rig.ask("GET", "/v2").body_sent == (
        b'{"name":"triton","version":"1.2.3","extensions":["classification","statistics"]}'
    )
    assert rig.ask("GET", "/v2/models/m").body_sent == (
        b'{"name":"m","versions":["2","3"],"platform":"identity",'
        b'"inputs":[{"name":"A","datatype":"FP32","shape":[-1,4]}],'
        b'"outputs":[{"name":"B","datatype":"INT32","shape":[1]}]}'
    )
    assert rig.ask("GET", "/v2/models/m/config").body_sent == CONFIG.json.encode()


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "",
        "*",
        "/v2/",
        "/v2/foo",
        "/v1",
        "/v2x",
        "/V2",
        "//v2",
        "/v2/health",
        "/v2/health/",
        "/v2/health/live/",
        "/v2/health/lively",
        "/v2/models",
        "/v2/models/",
        "/v2/models/m/",
        "/v2/models/m/nope",
        "/v2/models/m/infer/",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/-1",
        "/v2/models/m/versions/1/",
        "/v2/models/m/versions/1/infer/x",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models//infer",
        "/v2/models/a/b/infer",
        "/v2/models/stats/",
        "/v2/models/m/infer\n",
        "http://",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_path_is_not_found(target: str, method: str) -> None:
    assert Rig().ask(method, target).answer == (404, PLAIN, b'{"error":"Not Found"}')


@pytest.mark.parametrize(
    "target",
    ["/v2/health/live?x=1", "/v2/health/live?", "http://host:8000/v2/health/live", "http://host/v2/health/live?a"],
)
def test_query_and_host_are_no_part_of_the_path(target: str) -> None:
    assert answering({ServerLive(): True}).ask("GET", target).status == 200


GET_ONLY = ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m", "/v2/models/m/ready", "/v2/models/m/config"]
GET_ONLY += ["/v2/models/m/stats", "/v2/models/stats", "/v2/models/m/versions/1"]
WRONG = [(method, target) for target in GET_ONLY for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS")]
WRONG += [(method, "/v2/models/m/infer") for method in ("GET", "PUT", "DELETE", "HEAD", "PATCH")]


@pytest.mark.parametrize(("method", "target"), WRONG)
def test_wrong_method_is_not_allowed(method: str, target: str) -> None:
    """The error comes before the engine is asked: the fake one knows no answer."""
    exchange = Rig().ask(method, target)
    assert exchange.status == 405
    assert exchange.body_sent == b'{"error":"Method Not Allowed"}'


def test_wrong_method_of_an_unknown_path_is_not_found() -> None:
    assert Rig().ask("DELETE", "/v2/foo").status == 404


def test_targets_without_end_are_still_answered() -> None:
    rig = answering({ServerLive(): True})
    for number in range(MAX_KNOWN_TARGETS + 10):
        assert rig.ask("GET", f"/v2/health/live?{number}").status == 200
    assert rig.ask("GET", "/v2/health/live?0").status == 200


# Errors.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Internal("x"), 500),
        (NotFound("x"), 404),
        (Unavailable("x"), 503),
        (TimedOut("x"), 503),
        (Unsupported("x"), 501),
        (DecoupledModel("x"), 501),
        (Unknown("x"), 400),
        (Invalid("x"), 400),
        (AlreadyExists("x"), 400),
        (Unauthenticated("x"), 401),
        (Forbidden("x"), 403),
        (TooMany("x"), 429),
        (Cancelled("x"), 400),
        (Error("x"), 500),
    ],
)
def test_kind_of_error_has_its_status(error: Error, status: int) -> None:
    assert status_of(error) == status


ASKED: list[tuple[str, Query[Any]]] = [
    ("/v2/models/m", ModelMetadata("m")),
    ("/v2/models/m/config", ModelConfiguration("m")),
    ("/v2/models/m/stats", ModelStatistics("m")),
]


@pytest.mark.parametrize(("target", "query"), ASKED)
def test_error_of_the_engine_is_answered_as_json(target: str, query: Query[Any]) -> None:
    exchange = answering({query: UNKNOWN}).ask("GET", target)
    assert exchange.answer == (404, JSON, b'{"error":"Request for unknown model: \'m\' is not found"}')


@pytest.mark.parametrize("what", ["", "/ready", "/config", "/stats"])
def test_version_past_64_bits_is_refused_without_asking(what: str) -> None:
    exchange = Rig().ask("GET", f"/v2/models/m/versions/99999999999999999999{what}")
    assert exchange.status == 400
    assert b"(details: stol), version should be an integral value > 0" in exchange.body_sent


def test_exiting_server_answers_a_health_check() -> None:
    exchange = answering({ServerLive(): Unavailable("Server exiting")}).ask("GET", "/v2/health/live")
    assert exchange.status == 503
    assert exchange.body_sent == b'{"error":"Server exiting"}'


# Inference.


def test_inference_reaches_the_engine_and_its_answer_the_client() -> None:
    rig = Rig()
    exchange = infer(rig, target="/v2/models/m/versions/4/infer")
    ((_, request, reply),) = [(one.key, one.request, one.reply) for one in rig.port.inferences]
    assert (request.model_name, request.version, request.decoupled_ok) == ("m", 4, False)
    assert array_of(request.inputs["INPUT0"]).tolist() == [1, 2]
    assert not exchange.answers
    assert reply.send(response(1, 2, id="x"), True)
    assert exchange.answer == (
        200,
        JSON,
        b'{"id":"x","model_name":"m","model_version":"1",'
        b'"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}',
    )


def test_inference_answered_at_once_is_answered() -> None:
    rig = Rig()
    rig.port.at_once = lambda request: response(7)
    exchange = infer(rig)
    assert exchange.status == 200
    exchange.leave()
    assert rig.port.cancelled == [], "it is over: there is nothing to cancel"


def test_binary_inference_is_answered_with_the_length_of_its_json() -> None:
    rig = Rig()
    head = BINARY_HEAD[:-1] + b',"parameters":{"binary_data_output":true}}'
    exchange = infer(rig, head + b"\1\0\0\0\2\0\0\0", inference_header_content_length=str(len(head)))
    assert array_of(rig.port.inferences[0].request.inputs["INPUT0"]).tolist() == [1, 2]
    rig.port.inferences[0].reply.send(response(1, 2), True)
    status, fields, body = exchange.answer
    text, data = body[:-8], body[-8:]
    assert status == 200
    assert fields == (b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(text))
    assert json.loads(text)["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert data == b"\1\0\0\0\2\0\0\0"


def test_binary_input_is_a_view_of_the_body() -> None:
    rig, body = Rig(), bytearray(BINARY_HEAD + b"\1\0\0\0\2\0\0\0")
    infer(rig, memoryview(body), inference_header_content_length=str(len(BINARY_HEAD)))
    body[-8:] = b"\5\0\0\0\6\0\0\0"
    assert array_of(rig.port.inferences[0].request.inputs["INPUT0"]).tolist() == [5, 6]


def test_model_error_has_its_status_and_text() -> None:
    rig = Rig()
    exchange = infer(rig)
    rig.port.inferences[0].reply.send(Internal('it "broke"\n'), True)
    assert exchange.answer == (500, JSON, b'{"error":"it \\"broke\\"\\n"}')


def test_model_without_a_response_is_an_error() -> None:
    rig = Rig()
    exchange = infer(rig)
    rig.port.inferences[0].reply.send(None, True)
    assert exchange.answer == (500, JSON, b'{"error":"expected a single response, got 0"}')


def test_output_that_json_cannot_carry_is_an_error() -> None:
    rig = Rig()
    exchange = infer(rig)
    fp16 = tensor_of("OUTPUT0", FP16, np.zeros(1, np.float16))
    rig.port.inferences[0].reply.send(InferResponse("", "m", 1, [fp16]), True)
    assert exchange.status == 400
    assert b"sending FP16 data via JSON is not supported" in exchange.body_sent


def test_decoupled_model_is_not_served_over_infer() -> None:
    rig = Rig()
    rig.port.at_once = lambda request: DecoupledModel("some words of the engine")
    assert infer(rig).answer == (501, JSON, DECOUPLED)


# What is checked first (H30).

WRONG_BODIES: list[tuple[bytes, dict[str, str]]] = [
    (b"{", {}),
    (b"{}", {}),
    (BODY, {"inference_header_content_length": "x"}),
    (BODY, {"inference_header_content_length": "100000"}),
    (BODY, {"content_encoding": "br"}),
    (BODY.replace(b"INT32", b"FP16"), {}),
]


@pytest.mark.parametrize(("body", "headers"), WRONG_BODIES)
def test_unknown_model_comes_before_what_is_wrong_with_the_request(body: bytes, headers: dict[str, str]) -> None:
    rig = Rig()
    rig.port.unknown["m"] = UNKNOWN
    exchange = infer(rig, body, **headers)
    assert exchange.answer == (404, JSON, b'{"error":"Request for unknown model: \'m\' is not found"}')
    assert not rig.port.inferences


@pytest.mark.parametrize(("body", "headers"), WRONG_BODIES)
def test_decoupled_model_comes_before_what_is_wrong_with_the_request(body: bytes, headers: dict[str, str]) -> None:
    rig = Rig()
    rig.port.decoupled.add("m")
    assert infer(rig, body, **headers).answer == (501, JSON, DECOUPLED)


@pytest.mark.parametrize(("body", "headers"), WRONG_BODIES)
def test_wrong_request_to_a_good_model_is_refused_once(body: bytes, headers: dict[str, str]) -> None:
    rig = Rig()
    exchange = infer(rig, body, **headers)
    assert exchange.status in (400, 500, 501)
    assert not rig.port.inferences


def test_version_comes_before_the_model() -> None:
    rig = Rig()
    rig.port.unknown["m"] = UNKNOWN
    exchange = infer(rig, b"{", target="/v2/models/m/versions/99999999999999999999/infer")
    assert exchange.status == 400
    assert b"(details: stol)" in exchange.body_sent


def test_encoding_comes_before_the_header_length_and_that_before_the_body() -> None:
    first = infer(Rig(), b"{", content_encoding="br", inference_header_content_length="x")
    fields = JSON + b"Accept-Encoding: gzip, deflate\r\n"
    assert first.answer == (501, fields, b'{"error":"Unsupported compression type"}')
    second = infer(Rig(), b"{", inference_header_content_length="x")
    assert second.status == 400
    assert b"Inference-Header-Content-Length" in second.body_sent


def test_encoding_identity_is_none() -> None:
    rig = Rig()
    infer(rig, content_encoding="identity")
    assert len(rig.port.inferences) == 1


def test_refusal_waits_for_an_engine_that_answers_later() -> None:
    rig = Rig()
    rig.port.hold = True
    exchange = infer(rig, b"{")
    assert not exchange.answers
    rig.port.answer_held()
    assert exchange.status == 500


# The client goes.


def test_client_gone_cancels_its_inference(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(VERBOSE)
    rig = Rig()
    first, second = infer(rig), infer(rig)
    second.leave()
    assert rig.port.cancelled == [rig.port.inferences[1].key]
    rig.port.inferences[1].reply.send(Cancelled("it was cancelled"), True)  # to nobody, and without harm
    rig.port.inferences[0].reply.send(response(1), True)
    assert first.status == 200
    (line,) = caplog.messages
    assert line == "HTTP: a request for model 'm' was cancelled by its client, request id '<id_unknown>'"


def test_client_gone_while_its_json_is_read_starts_nothing() -> None:
    """The inference is not started, or is cancelled at once: no model works for a client that has gone."""
    rig = Rig()
    exchange = infer(rig, large_json())
    exchange.leave()
    rig.offload.run()
    assert [one.key for one in rig.port.inferences] == rig.port.cancelled


# Large JSON.


def large_json() -> bytes:
    return b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}],"x":"%b"}' % (b"y" * OFFLOAD_BYTES)


def test_large_json_is_read_on_another_thread() -> None:
    rig = Rig()
    exchange = infer(rig, large_json())
    assert not rig.port.inferences
    rig.offload.run()
    rig.port.inferences[0].reply.send(response(1), True)
    assert exchange.status == 200


def test_json_past_the_limit_is_refused_after_the_model_is_known() -> None:
    """An unknown model has precedence over a body that is too large (H17, H30)."""
    rig = Rig()
    exchange = infer(rig, b" " * (MAX_INPUT_SIZE + 1))
    rig.offload.run()
    assert exchange.status == 400
    assert b"JSON size of 8388609 bytes exceeds the maximum allowed input size of 8388608 bytes." in exchange.body_sent
    rig = answering({ModelTransaction("m"): UNKNOWN})
    exchange = infer(rig, b" " * (MAX_INPUT_SIZE + 1))
    rig.offload.run()
    assert exchange.status == 404


def test_large_json_that_is_wrong_is_refused() -> None:
    rig = Rig()
    exchange = infer(rig, large_json()[:-1])
    rig.offload.run()
    assert exchange.status == 500
    assert exchange.body_sent.startswith(b'{"error":"failed to parse the request JSON buffer: ')


def test_large_json_that_is_wrong_to_an_unknown_model_is_not_found() -> None:
    rig = Rig()
    rig.port.unknown["m"] = UNKNOWN
    exchange = infer(rig, large_json()[:-1])
    rig.offload.run()
    assert exchange.status == 404


def test_statistics_of_many_models_are_written_off_the_loop() -> None:
    for count in (MAX_WRITTEN_ON_LOOP, MAX_WRITTEN_ON_LOOP + 1):
        rig = answering({ModelStatistics("", -1): [COUNTS] * count})
        exchange = rig.ask("GET", "/v2/models/stats")
        if count > MAX_WRITTEN_ON_LOOP:
            assert not exchange.answers
            rig.offload.run()
        assert len(json.loads(exchange.body_sent)["model_stats"]) == count


def test_statistics_of_many_batch_sizes_are_written_off_the_loop() -> None:
    times = Duration(1, 10)
    sizes = tuple(BatchCounts(size, times, times, times) for size in range(1, 4 * MAX_WRITTEN_ON_LOOP + 1))
    rig = answering({ModelStatistics("m", -1): [replace(COUNTS, batches=sizes)]})
    exchange = rig.ask("GET", "/v2/models/m/stats")
    assert not exchange.answers
    rig.offload.run()
    assert len(json.loads(exchange.body_sent)["model_stats"][0]["batch_stats"]) == len(sizes)


@pytest.mark.parametrize("count", [STRINGS_PER_TURN, STRINGS_PER_TURN + 1])
def test_lengths_of_many_strings_are_checked_off_the_loop(count: int) -> None:
    rig = Rig()
    head = (
        b'{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"BYTES","parameters":{"binary_data_size":%d}}],"x":%d}'
        % (count, 4 * count, count)
    )
    exchange = infer(rig, head + bytes(4 * count), inference_header_content_length=str(len(head)))
    if count > STRINGS_PER_TURN:
        assert not rig.port.inferences
        rig.offload.run()
    (inference,) = rig.port.inferences
    assert isinstance(inference.request.inputs["INPUT0"].memory, FramedMemory) == (count > STRINGS_PER_TURN)
    assert not exchange.answers


def test_large_binary_body_with_a_short_head_is_read_at_once() -> None:
    rig, count = Rig(), OFFLOAD_BYTES
    head = BINARY_HEAD.replace(b"[2]", b"[%d]" % count).replace(b":8}", b":%d}" % (4 * count))
    infer(rig, head + bytes(4 * count), inference_header_content_length=str(len(head)))
    assert len(rig.offload) == 0
    assert rig.port.inferences[0].request.inputs["INPUT0"].shape == (count,)


def test_large_raw_body_is_read_at_once() -> None:
    rig = Rig()
    infer(rig, bytes(2 * OFFLOAD_BYTES), inference_header_content_length="0")
    assert len(rig.offload) == 0
    raw = rig.port.inferences[0].request.raw
    assert raw is not None
    assert raw.byte_size == 2 * OFFLOAD_BYTES


def test_large_json_answer_is_written_on_another_thread() -> None:
    rig = Rig()
    exchange = infer(rig)
    rig.port.inferences[0].reply.send(large_response(), True)
    assert not exchange.answers
    rig.offload.run()
    assert exchange.status == 200
    assert len(json.loads(exchange.body_sent)["outputs"][0]["data"]) == OFFLOAD_BYTES // 4 + 1


def test_large_json_answers_beyond_the_limit_are_refused() -> None:
    rig, buffered = Rig(), BufferedBytes(3 * OFFLOAD_BYTES)
    exchanges = [infer(rig) for _ in range(3)]
    for exchange, inference in zip(exchanges, rig.port.inferences, strict=True):
        exchange.buffered = buffered
        inference.reply.send(large_response(), True)
    for _ in exchanges:
        rig.offload.run()
    assert [exchange.status for exchange in exchanges] == [200, 503, 503]
    assert json.loads(exchanges[1].body_sent) == {"error": FULL}
    assert buffered.held == 0


def test_large_answer_followed_by_the_end_is_the_answer() -> None:
    """A model may send its one response, and say later that it was the last."""
    rig = Rig()
    exchange = infer(rig)
    reply = rig.port.inferences[0].reply
    reply.send(large_response(), False)
    reply.send(None, True)
    rig.offload.run()
    assert exchange.answers[0][0] == 200


def test_small_answer_followed_by_the_end_is_the_answer() -> None:
    rig = Rig()
    exchange = infer(rig)
    reply = rig.port.inferences[0].reply
    reply.send(response(1), False)
    reply.send(None, True)
    assert exchange.status == 200


def test_large_binary_answer_is_written_at_once() -> None:
    """There is no JSON of that size to write, so another thread would only cost time."""
    rig = Rig()
    head = BINARY_HEAD[:-1] + b',"parameters":{"binary_data_output":true}}'
    exchange = infer(rig, head + bytes(8), inference_header_content_length=str(len(head)))
    rig.port.inferences[0].reply.send(large_response(), True)
    assert len(rig.offload) == 0
    assert exchange.status == 200


def test_binary_answer_is_the_tensors_own_memory() -> None:
    memory = memoryview(bytearray(b"\1\0\0\0"))
    rig = Rig()
    exchange = KeepingExchange("POST", "/v2/models/m/infer", b"", inference_header_content_length="0")
    rig.front.handle(exchange)
    tensor = Tensor("OUTPUT0", INT32, (1,), HostMemory(memory))
    rig.port.inferences[0].reply.send(InferResponse("", "m", 1, [tensor]), True)
    last = exchange.parts[-1]
    assert isinstance(last, memoryview)
    assert last.obj is memory.obj


class KeepingExchange(FakeExchange):
    """Keeps the very buffers of its answer."""

    def respond(self, status: int, fields: bytes, body: Any) -> None:
        self.parts = list(body)
