import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

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
from halimede.front.grpc.service import GrpcService
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import INT32, HostMemory, Tensor
from halimede.transport.grpc.calls import Bidirectional, Message, Metadata, StreamObserver, Unary
from tests.front.fakes import FakePort

PATH = "/inference.GRPCInferenceService/"
PAIR = struct.pack("<2i", 1, 2)


class FakeCall:
    """A `GrpcStreamCall` that keeps what is sent. It is writable until `room` is used up. What was sent counts as on
    its way when the test calls `unsent`."""

    def __init__(self, metadata: Metadata = (), room: int = 1000, names: Sequence[str] = ()) -> None:
        self.metadata = metadata
        self.names = names
        self.room = room
        self.sent: list[bytes] = []
        self.status: tuple[int, str] | None = None
        self.resumes: list[Callable[[], None]] = []
        self.unsent: list[Callable[[], None]] = []
        self.held_back = False
        self.peer = ""

    def peer_names(self) -> Sequence[str]:
        return self.names

    def send(self, message: Message) -> bool:
        assert self.status is None, "sent after the end"
        self.sent.append(b"".join(message))
        return len(self.sent) < self.room

    def on_writable(self, resume: Callable[[], None]) -> None:
        self.resumes.append(resume)

    def on_sent(self, done: Callable[[], None]) -> None:
        self.unsent.append(done)

    def hold_back(self) -> None:
        assert not self.held_back
        self.held_back = True

    def go_on(self) -> None:
        assert self.held_back
        self.held_back = False

    def finish(self, code: int = 0, text: str = "") -> None:
        assert self.status is None, "finished twice"
        self.status = (code, text)


class Client:
    """A service over a fake port, and calls to it."""

    def __init__(self) -> None:
        self.port = FakePort()
        self.service = GrpcService(self.port)
        self.cancel: Callable[[], object] | None = None

    def unary(self, rpc: str, message: bytes) -> FakeCall:
        handler = self.service.rpcs[PATH + rpc]
        assert isinstance(handler, Unary)
        call = FakeCall()
        self.cancel = handler.handler(message, call)
        return call

    def stream(self, metadata: Metadata = (), room: int = 1000) -> tuple[StreamObserver, FakeCall]:
        handler = self.service.rpcs[PATH + "ModelStreamInfer"]
        assert isinstance(handler, Bidirectional)
        call = FakeCall(metadata, room)
        return handler.open(call), call

    def answer(self, n: int, value: int | Error | None, final: bool = True) -> bool:
        """Answers the n-th inference."""
        inference = self.port.inferences[n]
        answer = response(inference.request, value) if isinstance(value, int) else value
        return inference.reply.send(answer, final)


@pytest.fixture
def client() -> Client:
    return Client()


def request(
    id: str = "", model: str = "m", version: str = "", raw: bytes = PAIR, datatype: str = "INT32", **parameters: bool
) -> bytes:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=id, raw_input_contents=[raw])
    message.inputs.add(name="IN", datatype=datatype, shape=[2])
    for key, value in parameters.items():
        message.parameters[key].bool_param = value
    return bytes(message.SerializeToString())


def unreadable_contents(id: str = "", model: str = "m") -> bytes:
    """A request that fails when it is decoded, because its typed contents have the wrong kind."""
    message = pb.ModelInferRequest(model_name=model, id=id)
    message.inputs.add(name="IN", datatype="INT32", shape=[2]).contents.fp32_contents.append(1)
    return bytes(message.SerializeToString())


WRONG_KIND = (
    "unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'FP32', expected datatype 'INT32'"
)


def response(request: InferRequest, value: int) -> InferResponse:
    out = Tensor("OUT", INT32, (1,), HostMemory(struct.pack("<i", value)))
    return InferResponse(request.id, request.model_name, 7, [out])


def value_of(message: Any) -> int:
    (value,) = struct.unpack("<i", message.raw_output_contents[0])
    return int(value)


def seen(call: FakeCall) -> list[Any]:
    """What a stream has sent, in short: (id, value, final), (id, error text) or (id, final) for an empty response."""
    short: list[Any] = []
    for sent in call.sent:
        message = pb.ModelStreamInferResponse.FromString(sent)
        inner = message.infer_response
        if message.error_message:
            short.append((inner.id, message.error_message))
        elif inner.outputs:
            short.append((inner.id, value_of(inner), inner.parameters["triton_final_response"].bool_param))
        else:
            short.append((inner.id, inner.parameters["triton_final_response"].bool_param))
    return short


def answered(call: FakeCall, kind: Any) -> Any:
    assert call.status == (0, "")
    (sent,) = call.sent
    return kind.FromString(sent)


def test_rpcs_of_the_service(client: Client) -> None:
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(client.service.rpcs) == {*(PATH + name for name in methods), "/grpc.health.v1.Health/Check"}


def test_server_live_and_ready(client: Client) -> None:
    client.port.answers = {ServerLive(): True, ServerReady(): False}
    assert answered(client.unary("ServerLive", b""), pb.ServerLiveResponse).live is True
    assert answered(client.unary("ServerReady", b""), pb.ServerReadyResponse).ready is False


def test_server_live_while_exiting(client: Client) -> None:
    client.port.answers = {ServerLive(): Unavailable("Server exiting")}
    assert client.unary("ServerLive", b"").status == (14, "Server exiting")


def test_model_ready(client: Client) -> None:
    client.port.answers = {ModelReady("m", 3): True, ModelReady("n", -1): NotFound("no n")}
    message = pb.ModelReadyRequest(name="m", version="3").SerializeToString()
    assert answered(client.unary("ModelReady", message), pb.ModelReadyResponse).ready is True
    message = pb.ModelReadyRequest(name="n").SerializeToString()
    assert answered(client.unary("ModelReady", message), pb.ModelReadyResponse).ready is False


def test_server_metadata(client: Client) -> None:
    client.port.answers = {ServerMetadata(): ServerInfo("triton", "2.0", ("a", "b"))}
    got = answered(client.unary("ServerMetadata", b""), pb.ServerMetadataResponse)
    assert (got.name, got.version, list(got.extensions)) == ("triton", "2.0", ["a", "b"])


def test_model_metadata_bytes_are_those_of_the_real_server(client: Client) -> None:
    tensors = (TensorInfo("INPUT0", INT32, (-1, 2)),)
    facts = ModelInfo("pair", (1,), "identity", tensors, (TensorInfo("OUTPUT0", INT32, (-1, 2)),))
    client.port.answers = {ModelMetadata("pair", -1): facts}
    call = client.unary("ModelMetadata", pb.ModelMetadataRequest(name="pair").SerializeToString())
    assert call.sent == [
        b'\n\x04pair\x12\x011\x1a\x08identity"\x1c\n\x06INPUT0\x12\x05INT32\x1a\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff'
        b"\x01\x02*\x1d\n\x07OUTPUT0\x12\x05INT32\x1a\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"
    ]


def test_model_config(client: Client) -> None:
    config = pb.ModelConfigResponse().config
    config.name, config.max_batch_size = "m", 4
    config.parameters["long"].string_value = "x" * 300
    client.port.answers = {ModelConfiguration("m", -1): ConfigInfo("{}", config.SerializeToString())}
    call = client.unary("ModelConfig", pb.ModelConfigRequest(name="m").SerializeToString())
    assert answered(call, pb.ModelConfigResponse).config == config


def test_model_statistics(client: Client) -> None:
    kinds = "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"
    durations = {kind: Duration(n, 10 * n) for n, kind in enumerate(kinds)}
    batches = (BatchCounts(2, Duration(1, 2), Duration(3, 4), Duration(5, 6)),)
    counts = ModelCounts("m", 3, 1_700_000_000_000, 5, 4, durations, batches)
    client.port.answers = {ModelStatistics("", -1): [counts, ModelCounts("n", 1, 0, 0, 0, durations, ())]}
    got = answered(client.unary("ModelStatistics", b""), pb.ModelStatisticsResponse).model_stats
    assert [(m.name, m.version, m.last_inference, m.inference_count, m.execution_count) for m in got] == [
        ("m", "3", 1_700_000_000_000, 5, 4),
        ("n", "1", 0, 0, 0),
    ]
    stats = got[0].inference_stats
    assert [(getattr(stats, k).count, getattr(stats, k).ns) for k in kinds] == [(n, 10 * n) for n in range(8)]
    (batch,) = got[0].batch_stats
    assert (batch.batch_size, batch.compute_input.ns, batch.compute_infer.count, batch.compute_output.ns) == (
        2,
        2,
        3,
        6,
    )


@pytest.mark.parametrize("rpc", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer"])
def test_version_that_is_not_a_number(client: Client, rpc: str) -> None:
    message = request(version="abc") if rpc == "ModelInfer" else pb.ModelReadyRequest(name="m", version="abc")
    call = client.unary(rpc, message if isinstance(message, bytes) else message.SerializeToString())
    assert call.status == (
        3,
        "failed to get model version from specified version string 'abc' (details: stol), "
        "version should be an integral value > 0",
    )


@pytest.mark.parametrize("rpc", ["ServerLive", "ModelReady", "ModelConfig", "ModelInfer"])
def test_malformed_message(client: Client, rpc: str) -> None:
    assert client.unary(rpc, b"\xff\xff\xff").status == (13, "Unable to parse request")


def test_answer_that_cannot_be_written(client: Client) -> None:
    client.port.answers = {ServerMetadata(): ServerInfo("triton", "2.0", ("bad \udc80",))}
    assert client.unary("ServerMetadata", b"").status == (13, "internal error")


def test_handler_that_breaks(client: Client) -> None:
    assert client.unary("ServerReady", b"").status == (13, "internal error")  # the port has no answer and raises


def test_infer(client: Client) -> None:
    call = client.unary("ModelInfer", request("x", version="2"))
    (inference,) = client.port.inferences
    assert (inference.request.model_name, inference.request.version, inference.request.id) == ("m", 2, "x")
    assert not inference.request.decoupled_ok
    assert call.status is None
    client.answer(0, 5)
    got = answered(call, pb.ModelInferResponse)
    assert (got.model_name, got.model_version, got.id, value_of(got), len(got.parameters)) == ("m", "7", "x", 5, 0)


def test_infer_answered_at_once(client: Client) -> None:
    client.port.at_once = lambda request: response(request, 6)
    assert value_of(answered(client.unary("ModelInfer", request()), pb.ModelInferResponse)) == 6


class LaterKind(Invalid):
    """A kind that the table of codes does not know."""


@pytest.mark.rows("G3")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Cancelled("c"), 1),
        (Unknown("u"), 2),
        (Invalid("i"), 3),
        (LaterKind("i"), 3),
        (NotFound("n"), 5),
        (AlreadyExists("a"), 6),
        (Forbidden("a"), 7),
        (TooMany("a"), 8),
        (Unauthenticated("a"), 16),
        (Unsupported("s"), 12),
        (Internal("x"), 13),
        (Unavailable("v"), 14),
        (TimedOut("t"), 14),
        (Error("e"), 2),
    ],
)
def test_infer_error_code(client: Client, error: Error, code: int) -> None:
    call = client.unary("ModelInfer", request())
    client.answer(0, error)
    assert (call.status, call.sent) == ((code, error.message), [])


G24 = (12, "ModelInfer RPC doesn't support models with decoupled transaction policy")


@pytest.mark.rows("G24")
def test_infer_decoupled_model(client: Client) -> None:
    call = client.unary("ModelInfer", request())
    client.answer(0, DecoupledModel("words of the engine"))
    assert call.status == G24


def test_infer_error_of_the_model_comes_before_that_of_the_request(client: Client) -> None:
    client.port.unknown["m"] = NotFound("Request for unknown model: 'm' is not found")
    assert client.unary("ModelInfer", unreadable_contents()).status == (
        5,
        "Request for unknown model: 'm' is not found",
    )
    client.port.unknown.clear()
    client.port.decoupled.add("m")
    assert client.unary("ModelInfer", unreadable_contents()).status == G24
    client.port.decoupled.clear()
    assert client.unary("ModelInfer", unreadable_contents()).status == (3, WRONG_KIND)
    assert client.port.inferences == []


def test_infer_cancelled_by_the_client(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(VERBOSE)
    client.unary("ModelInfer", request())
    assert client.cancel is not None
    client.cancel()
    assert client.port.cancelled == [client.port.inferences[0].key]
    assert caplog.messages == ["gRPC: a request for model 'm' was cancelled by its client, request id '<id_unknown>'"]


def test_infer_response_that_cannot_be_written(client: Client) -> None:
    call = client.unary("ModelInfer", request())
    (inference,) = client.port.inferences
    inference.reply.send(InferResponse("", "m", 1, [], {"huge": 2**70}), True)
    assert call.status == (13, "internal error")


@pytest.mark.rows("G35")
def test_infer_while_draining(client: Client) -> None:
    before = client.unary("ModelInfer", request())
    stream, on_stream = client.stream()
    stream.message(request("begun"))
    client.service.drain()
    text = "GRPC server is shutting down and has stopped accepting new requests."
    assert client.unary("ModelInfer", request()).status == (14, text)
    client.answer(0, 5)
    assert before.status == (0, "")
    stream.message(request("s"))
    client.answer(1, 7)
    assert (seen(on_stream), on_stream.status) == ([("begun", 7, True), ("s", text)], (14, text))


def test_stream_with_nothing_under_way_ends_when_the_server_drains(client: Client) -> None:
    """Otherwise the stream would hold the server until its exit timeout."""
    _, idle = client.stream()
    client.service.drain()
    assert idle.status == (14, "GRPC server is shutting down and has stopped accepting new requests.")
    assert not client.service.streams


def test_stream_responses(client: Client) -> None:
    stream, call = client.stream()
    stream.message(request("a"))
    assert client.port.inferences[0].request.decoupled_ok
    client.answer(0, 1)
    stream.message(request("b"))
    stream.half_closed()
    assert [call.status] == [None]
    client.answer(1, 2)
    assert (seen(call), call.status) == ([("a", 1, True), ("b", 2, True)], (0, ""))


def test_stream_without_requests(client: Client) -> None:
    stream, call = client.stream()
    stream.half_closed()
    assert (call.sent, call.status) == ([], (0, ""))


@pytest.mark.rows("G26")
def test_stream_keeps_the_order_of_requests(client: Client) -> None:
    stream, call = client.stream()
    for name in "abcd":
        stream.message(request(name))
    client.answer(2, 3)
    client.answer(1, 2)
    assert seen(call) == []
    client.answer(0, 1)
    assert seen(call) == [("a", 1, True), ("b", 2, True), ("c", 3, True)]
    client.answer(3, 4)
    assert seen(call)[3:] == [("d", 4, True)]


def test_stream_keeps_the_order_of_errors_too(client: Client) -> None:
    client.port.unknown["nope"] = NotFound("no such model")
    stream, call = client.stream()
    stream.message(request("slow"))
    stream.message(unreadable_contents("bad"))
    stream.message(request("lost", model="nope"))
    stream.message(request("worse", version="-1"))
    assert call.sent == []
    client.answer(0, 1)
    assert seen(call) == [
        ("slow", 1, True),
        ("bad", WRONG_KIND),
        ("lost", "no such model"),
        ("worse", "invalid model version specified '-1' , version should be an integral value > 0"),
    ]


@pytest.mark.rows("G27")
def test_stream_decoupled_responses_as_they_come(client: Client) -> None:
    client.port.decoupled.add("d")
    stream, call = client.stream()
    stream.message(request("slow"))
    stream.message(request("x", model="d"))
    stream.message(request("y", model="d"))
    client.answer(2, 10, final=False)
    client.answer(1, 20, final=False)
    client.answer(2, 11, final=True)
    client.answer(1, None)
    client.answer(0, 1)
    assert seen(call) == [("y", 10, False), ("x", 20, False), ("y", 11, True), ("slow", 1, True)]
    stream.half_closed()
    assert call.status == (0, "")


def test_stream_decoupled_learnt_late_lets_the_next_pass(client: Client) -> None:
    client.port.decoupled.add("d")
    client.port.hold = True
    stream, call = client.stream()
    stream.message(request("x", model="d"))
    stream.message(request("a"))
    client.port.answer_held()
    client.port.answer_held()
    client.answer(1, 1)
    client.answer(0, 2)
    assert seen(call) == [("a", 1, True), ("x", 2, True)]


@pytest.mark.rows("G28")
def test_stream_errors_before_and_after_the_request_began(client: Client) -> None:
    stream, call = client.stream()
    client.port.at_once = lambda request: Invalid("refused")
    stream.message(request("a", version="1"))
    client.port.at_once = None
    stream.message(request("b", version="1"))
    client.answer(0, Internal("failed"))
    stream.message(request("c"))
    client.answer(1, 3)
    assert seen(call) == [("a", "refused"), ("b", "failed"), ("c", 3, True)]
    refused, failed = (pb.ModelStreamInferResponse.FromString(sent).infer_response for sent in call.sent[:2])
    assert refused == pb.ModelInferResponse(id="a")
    expected = pb.ModelInferResponse(id="b", model_name="m", model_version="1")
    expected.parameters["triton_final_response"].bool_param = True
    assert failed == expected


GRPC_ERROR = (("triton_grpc_error", "true"),)


@pytest.mark.rows("G29")
def test_stream_ends_with_the_status_of_the_first_error(client: Client) -> None:
    stream, call = client.stream(GRPC_ERROR)
    for name in "abc":
        stream.message(request(name))
    client.answer(1, NotFound("gone"))
    assert (call.sent, call.status) == ([], (5, "gone"))
    keys = [inference.key for inference in client.port.inferences]
    assert {keys[0], keys[2]} <= set(client.port.cancelled)
    client.answer(0, 1)
    client.answer(2, Cancelled("late"))
    stream.message(request("d"))
    assert len(client.port.inferences) == 3


def test_stream_refusals_do_not_end_it(client: Client) -> None:
    stream, call = client.stream(GRPC_ERROR)
    client.port.unknown["nope"] = NotFound("no such model")
    client.port.at_once = lambda request: Invalid("refused")
    stream.message(request("a", model="nope"))
    stream.message(unreadable_contents("b"))
    stream.message(request("c"))
    assert (seen(call), call.status) == ([("a", "no such model"), ("b", WRONG_KIND), ("c", "refused")], None)


@pytest.mark.parametrize("value", ["True", "1", "false"])
def test_stream_metadata_that_asks_for_nothing(client: Client, value: str) -> None:
    stream, call = client.stream((("triton_grpc_error", value),))
    stream.message(request("a"))
    client.answer(0, Internal("failed"))
    assert (seen(call), call.status) == ([("a", "failed")], None)


@pytest.mark.rows("G30", "G31")
@pytest.mark.parametrize("wanted", [True, False])
def test_stream_empty_final_response(client: Client, wanted: bool) -> None:
    client.port.decoupled.add("d")
    stream, call = client.stream()
    stream.message(request("x", model="d", triton_enable_empty_final_response=wanted))
    client.answer(0, 1, final=False)
    client.answer(0, None)
    assert seen(call) == [("x", 1, False)] + ([("x", True)] if wanted else [])
    stream.half_closed()
    assert call.status == (0, "")


def test_stream_error_that_is_not_final(client: Client) -> None:
    client.port.decoupled.add("d")
    stream, call = client.stream()
    stream.message(request("x", model="d"))
    client.answer(0, Internal("one"), final=False)
    client.answer(0, 2)
    assert seen(call) == [("x", "one"), ("x", 2, True)]


def test_stream_response_that_cannot_be_written(client: Client) -> None:
    stream, call = client.stream()
    stream.message(request("a"))
    client.port.inferences[0].reply.send(InferResponse("a", "m", 1, [], {"huge": 2**70}), True)
    assert seen(call) == [("a", "internal error")]


def test_malformed_message_ends_the_stream(client: Client) -> None:
    stream, call = client.stream()
    stream.message(request("a"))
    stream.message(b"\xff\xff\xff")
    stream.message(request("b"))
    client.answer(0, 1)
    assert (seen(call), call.status) == ([("a", 1, True)], (0, ""))


def test_stream_half_closed_waits_for_all(client: Client) -> None:
    stream, call = client.stream()
    stream.message(request("a"))
    stream.message(request("b"))
    stream.half_closed()
    client.answer(1, 2)
    assert [call.status] == [None]
    client.answer(0, 1)
    assert (seen(call), call.status) == ([("a", 1, True), ("b", 2, True)], (0, ""))


@pytest.mark.rows("G34")
def test_stream_cancelled_by_the_client(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(VERBOSE)
    stream, call = client.stream()
    for name in "abc":
        stream.message(request(name))
    client.answer(0, 1)
    stream.cancelled()
    keys = [inference.key for inference in client.port.inferences]
    assert sorted(client.port.cancelled) == keys[1:]
    assert sorted(caplog.messages) == [
        f"gRPC stream: a request for model 'm' was cancelled by its client, request id '{name}'" for name in "bc"
    ]
    client.answer(1, Cancelled("gone"))
    client.answer(2, 3)
    assert (seen(call), call.status) == ([("a", 1, True)], None)


def test_stream_cancelled_before_the_model_is_known(client: Client) -> None:
    client.port.hold = True
    stream, _ = client.stream()
    stream.message(request("a"))
    stream.cancelled()
    client.port.answer_held()
    assert client.port.inferences == []


def test_stream_port_that_breaks(client: Client) -> None:
    def broken(request: InferRequest) -> InferResponse:
        raise RuntimeError("a bug")

    client.port.at_once = broken
    stream, call = client.stream()
    stream.message(request("a"))
    client.port.at_once = None
    stream.message(request("b"))
    client.answer(0, 2)
    assert seen(call) == [("a", "internal error"), ("b", 2, True)]
