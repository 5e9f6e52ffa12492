"""Streams whose client, or whose first request in line, is slow: what waits in the front end is bounded."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from halimede.front.grpc import GrpcService
from halimede.requests import InferResponse
from halimede.tensors import INT32, HostMemory, Tensor
from halimede.transport.grpc_calls import Bidirectional, Stream
from tests.front.fakes import FakePort
from tests.front.test_grpc import PATH, Client, FakeCall, request, response


@pytest.fixture
def client() -> Client:
    return Client()


def hold_much(client: Client, stream: Stream) -> None:
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


@pytest.mark.parametrize(("size", "most"), [(2**31 - 1, 0), (3, 3)])
def test_stream_tells_the_model_how_many_responses_may_wait(size: int, most: int) -> None:
    port = FakePort()
    open_stream = GrpcService(port, size).rpcs[PATH + "ModelStreamInfer"]
    assert isinstance(open_stream, Bidirectional)
    open_stream.open(FakeCall()).message(request("a"))
    assert port.inferences[0].request.most_ahead == most


def test_stream_begins_no_more_while_much_is_held_behind_a_slow_head(client: Client) -> None:
    stream, call = client.stream()
    hold_much(client, stream)
    for name in "abc":
        stream.message(request(name))
    stream.half_closed()
    assert len(client.port.inferences) == 2
    client.port.at_once = lambda request: response(request, 5)
    client.answer(0, 1)
    assert [pb.ModelStreamInferResponse.FromString(sent).infer_response.id for sent in call.sent] == [
        "slow", "big", "a", "b", "c",
    ]  # fmt: skip
    assert call.status == (0, "")


def test_stream_that_is_cancelled_forgets_what_waits(client: Client) -> None:
    stream, _ = client.stream()
    hold_much(client, stream)
    stream.message(request("a"))
    stream.cancelled()
    client.answer(0, 1)
    assert len(client.port.inferences) == 2
