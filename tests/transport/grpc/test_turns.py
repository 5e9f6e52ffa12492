"""Calls of many connections share the budget of a turn of the loop."""

import time

import pytest

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import GrpcCall, Unary
from halimede.transport.grpc.server import GrpcServer
from halimede.transport.message_budget import MAX_MESSAGES_PER_TURN, MEASURED_BYTES
from tests.transport.http2_bench import Clock
from tests.transport.http2_peer import Peer, request
from tests.transport.http2_wire import data, frames, headers, message


class Served:
    """Connections whose calls take `seconds` of the loop each. `handled` has the paths of those that were handled."""

    def __init__(self, seconds: float, connections: int) -> None:
        self.clock = Clock()
        self.handled: list[str] = []

        def handle(path: str, small: bool) -> Unary:
            def answer(content: Buffer, call: GrpcCall) -> None:
                self.handled.append(path)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    pass
                call.send((content,))
                call.finish()

            return Unary(answer, small=small)

        rpcs = {"/t/Infer": handle("/t/Infer", False), "/t/Live": handle("/t/Live", True)}
        server = GrpcServer(rpcs, loop=self.clock, clock=self.clock.time)
        self.peers = [Peer(server, self.clock).greet() for _ in range(connections)]

    def send(self, peer: Peer, path: str, size: int) -> None:
        """Sends a call, and does not go on to the next turn."""
        stream = peer.new_stream()
        written = [headers(stream, peer.block(request(path))), data(stream, message(bytes(size)), end=True)]
        for frame in frames(raw := b"".join(written)):
            peer.conduct.client_wrote(frame)
        peer.protocol.get_buffer(-1)[: len(raw)] = raw
        peer.protocol.buffer_updated(len(raw))


@pytest.mark.parametrize(("seconds", "size", "most"), [(0.001, MEASURED_BYTES, 5), (0, 1, MAX_MESSAGES_PER_TURN)])
def test_single_calls_of_many_connections_take_turns(seconds: float, size: int, most: int) -> None:
    served = Served(seconds, most * 5 // 2)
    for peer in served.peers:
        served.send(peer, "/t/Infer", size)
    assert 0 < len(served.handled) <= most
    served.send(served.peers[0], "/t/Live", 1)
    assert served.handled[-1] == "/t/Live"
    while len(served.handled) < len(served.peers) + 1:
        before = len(served.handled)
        served.clock.turn()
        assert len(served.handled) <= before + most
    for peer in served.peers:
        peer.look()
        assert peer.answers[1].status == 0
