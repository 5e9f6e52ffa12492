"""Streams with a slow client, or a slow first request: the front end holds a bounded amount."""

from collections.abc import Callable
from functools import partial

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.errors import NotFound
from halimede.front.grpc.service import CANCELS_PER_TURN, GrpcService
from halimede.requests import InferResponse
from halimede.tensors import INT32, HostMemory, Tensor
from halimede.transport.grpc.calls import Bidirectional, StreamObserver
from tests.front.fakes import FakePort
from tests.front.grpc.test_service import PATH, Client, FakeCall, request

UNKNOWN_FIELD = b"\xfa\x7f" + b"\x80\x80\x80\x32" + bytes(100 << 20)
"""Makes a request of 100 MiB: a field of bytes that nobody knows."""


@pytest.fixture
def client() -> Client:
    return Client()


def hold_much(client: Client, stream: StreamObserver) -> None:
    """A request that is not answered, and after it one whose response is large."""
    stream.message(request("slow"))
    stream.message(request("big"))
    big = Tensor("OUT", INT32, (1 << 18,), HostMemory(bytes(1 << 20)))
    client.port.inferences[1].reply.send(InferResponse("big", "m", 7, [big]), True)


def test_stream_that_is_full_slows_its_model(client: Client) -> None:
    client.port.decoupled.add("d")
    stream, call = client.stream(room=2)
    stream.message(request("x", model="d"))
    assert client.answer(0, 1, final=False) is True
    assert client.answer(0, 2, final=False) is False
    resumed: list[bool] = []
    client.port.inferences[0].reply.on_writable(lambda: resumed.append(True))
    (resume,) = call.resumes
    resume()
    assert resumed == [True]


def test_stream_with_a_pool_of_responses_waits_until_each_is_sent() -> None:
    port = FakePort()
    port.decoupled.add("d")
    open_stream = GrpcService(port, 1).rpcs[PATH + "ModelStreamInfer"]
    assert isinstance(open_stream, Bidirectional)
    call = FakeCall()
    open_stream.open(call).message(request("a", model="d"))
    reply = port.inferences[0].reply
    sent: list[int] = []
    for n in range(2):
        assert reply.send(InferResponse("a", "d", 7, []), False) is False
        reply.on_writable(partial(sent.append, n))
    assert len(call.sent) == 2
    assert sent == []
    for done in call.unsent:
        done()
    assert sent == [0, 1]


@pytest.mark.parametrize(("size", "most"), [(2**31 - 1, 0), (3, 3)])
def test_stream_tells_the_model_how_many_responses_may_wait(size: int, most: int) -> None:
    port = FakePort()
    open_stream = GrpcService(port, size).rpcs[PATH + "ModelStreamInfer"]
    assert isinstance(open_stream, Bidirectional)
    open_stream.open(FakeCall()).message(request("a"))
    assert port.inferences[0].request.most_ahead == most


def ids(call: FakeCall) -> list[str]:
    return [pb.ModelStreamInferResponse.FromString(sent).infer_response.id for sent in call.sent]


def test_stream_takes_no_more_while_much_is_held_behind_a_slow_head(client: Client) -> None:
    stream, call = client.stream()
    hold_much(client, stream)
    stream.message(request("after"))  # what is held counts when it is known, after a message
    assert call.held_back
    client.answer(0, 1)
    assert not call.held_back
    assert ids(call) == ["slow", "big"]
    stream.half_closed()
    assert call.status is None
    client.answer(2, 1)
    assert ids(call) == ["slow", "big", "after"]
    assert call.status == (0, "")


def test_stream_takes_no_more_while_many_requests_are_under_way(client: Client) -> None:
    stream, call = client.stream()
    for n in range(3):
        assert not call.held_back
        stream.message(request(str(n)) + UNKNOWN_FIELD)
    assert call.held_back
    client.answer(1, 5)
    assert not call.held_back, "a request that is answered counts no more, though its answer waits for the first"
    stream.message(request("3") + UNKNOWN_FIELD)
    assert call.held_back
    for n in (0, 2, 3):
        client.answer(n, 5)
    assert not call.held_back
    assert ids(call) == ["0", "1", "2", "3"]


def test_stream_counts_small_requests_for_more_than_their_bytes(client: Client) -> None:
    client.port.decoupled.add("d")
    stream, call = client.stream()
    count = 0
    while not call.held_back:
        stream.message(request(model="d"))
        count += 1
    assert 60_000 < count <= 65_536
    client.answer(count // 2, None)
    assert not call.held_back


def test_stream_with_a_request_that_is_refused_goes_on(client: Client) -> None:
    client.port.unknown["m"] = NotFound("no such model")
    stream, call = client.stream()
    for n in range(4):
        stream.message(request(str(n)) + UNKNOWN_FIELD)
    assert not call.held_back
    assert len(call.sent) == 4


def test_stream_that_is_cancelled_while_it_is_held_back(client: Client) -> None:
    stream, call = client.stream()
    hold_much(client, stream)
    stream.message(request("a"))
    stream.cancelled()
    assert len(client.port.cancelled) == 3 - 1
    client.answer(0, 1)
    assert call.sent == []


def test_many_requests_of_a_stream_are_cancelled_in_several_turns() -> None:
    port, steps = FakePort(), list[Callable[[], None]]()
    port.decoupled.add("d")
    rpc = GrpcService(port, later=steps.append).rpcs[PATH + "ModelStreamInfer"]
    assert isinstance(rpc, Bidirectional)
    stream = rpc.open(FakeCall())
    for _ in range(3 * CANCELS_PER_TURN):
        stream.message(request(model="d"))
    stream.cancelled()
    for turn in (1, 2, 3):
        assert len(port.cancelled) == turn * CANCELS_PER_TURN
        if steps:
            steps.pop()()
    assert steps == []
