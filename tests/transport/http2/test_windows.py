"""Flow control both ways (RFC 9113, sections 5.2 and 6.9), and the order in which streams get their turn."""

from collections.abc import Iterable

import pytest

from tests.transport.http2_peer import Bench, Peer, request
from tests.transport.http2_wire import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    Code,
    Setting,
    Type,
    data,
    message,
    rst_stream,
    settings,
    window_update,
)

STREAM_WINDOW = 4 << 20
CONNECTION_WINDOW = 64 << 20
MAX_FRAME_SIZE = 1 << 20


def sizes(peer: Peer, stream: int | None = None) -> list[int]:
    """The sizes of the DATA frames that came since this was last asked."""
    return [len(frame.payload) for frame in peer.fresh_of(Type.DATA) if stream in (None, frame.stream)]


# What the server may send


def test_sending_stops_at_the_windows_that_every_client_begins_with() -> None:
    peer = Bench().peer()
    stream = peer.call("/t/Echo", bytes(100_000))
    assert sum(sizes(peer)) == DEFAULT_WINDOW
    peer.send(window_update(stream, 1_000_000))
    assert sizes(peer) == [], "the connection's window is used up too"
    peer.send(window_update(0, 1_000_000))
    assert peer.answers[stream].messages == [b"<" + bytes(100_000) + b">"]
    assert peer.answers[stream].status == 0


def test_sending_with_a_window_of_nothing() -> None:
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Echo", b"abc")
    assert sizes(peer) == []
    for size in (1, 2, 1, 3):
        peer.send(window_update(stream, size))
        assert sizes(peer) == [size]
        assert not peer.answers[stream].ended
    peer.send(window_update(stream, 1000))
    assert (peer.answers[stream].messages, peer.answers[stream].status) == ([b"<abc>"], 0)


def test_sending_with_tiny_windows() -> None:
    """A byte at a time: every frame is as small as the client asks for, and the answer is whole in the end."""
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 1))
    payload = bytes(range(256)) * 2
    stream = peer.call("/t/Echo", payload)
    while not peer.answers[stream].ended:
        peer.send(window_update(stream, 1))
        assert set(sizes(peer)) <= {1}
    assert peer.answers[stream].messages == [b"<" + payload + b">"]


def test_sending_trailers_needs_no_window() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Keep", b"x")
    bench.service.last.call.finish(5, "no")
    peer.look()
    assert peer.answers[stream].status == 5


def test_sending_trailers_waits_for_the_data_before_them() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 3))
    stream = peer.call("/t/Keep", b"x")
    bench.service.last.call.send([b"abc"])
    bench.service.last.call.finish()
    peer.look()
    assert not peer.answers[stream].ended
    peer.send(window_update(stream, 5))
    assert peer.answers[stream].status == 0


@pytest.mark.parametrize("size", [DEFAULT_FRAME_SIZE, 20_000, 2**24 - 1])
def test_sending_keeps_to_the_frame_size_of_the_client(size: int) -> None:
    peer = Bench().peer((Setting.MAX_FRAME_SIZE, size), (Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.send(window_update(0, 1 << 20))
    stream = peer.call("/t/Echo", bytes(200_000))
    assert max(sizes(peer)) <= size
    assert peer.answers[stream].messages == [b"<" + bytes(200_000) + b">"]


def test_sending_keeps_to_the_frame_size_from_the_settings_on() -> None:
    bench = Bench()
    peer = bench.peer((Setting.MAX_FRAME_SIZE, 100_000), (Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.send(window_update(0, 1 << 20))
    stream = peer.call("/t/Keep", b"x")
    bench.service.last.call.send([bytes(90_000)])
    assert sizes(peer) == [90_005]
    peer.send(settings((Setting.MAX_FRAME_SIZE, DEFAULT_FRAME_SIZE)))
    bench.service.last.call.send([bytes(90_000)])
    peer.look()
    assert len(peer.answers[stream].messages) == 2


def test_sending_after_the_window_became_negative() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1000))
    stream = peer.call("/t/Keep", b"x")
    bench.service.last.call.send([bytes(5000)])
    assert sizes(peer) == [1000]
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 100)))
    peer.send(window_update(stream, 900))
    assert sizes(peer) == [], "the window is 0 after it was -900"
    peer.send(window_update(stream, 1))
    assert sizes(peer) == [1]
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 10_000)))
    assert len(peer.answers[stream].messages) == 1


def test_sending_after_settings_made_the_window_larger() -> None:
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 10))
    streams = [peer.call("/t/Echo", bytes(100)) for _ in range(3)]
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 1000)))
    assert [peer.answers[stream].status for stream in streams] == [0, 0, 0]


def test_sending_settings_leave_the_connections_window_alone() -> None:
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    peer.call("/t/Echo", bytes(200_000))
    assert sum(sizes(peer)) == DEFAULT_WINDOW


def test_sending_gives_every_stream_its_turn() -> None:
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    first = peer.call("/t/Echo", bytes(500_000))
    small = [peer.call("/t/Echo", bytes(100)) for _ in range(20)]
    assert peer.conduct.connection_window == 0
    for _ in range(25):
        peer.send(window_update(0, DEFAULT_FRAME_SIZE))
    assert all(peer.answers[stream].ended for stream in small), "nobody waits for the large one to end"
    assert not peer.answers[first].ended
    peer.send(window_update(0, 1 << 20))
    assert len(peer.answers[first].messages[0]) == 500_002


def test_stream_without_window_does_not_block_others() -> None:
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 10))
    held = peer.call("/t/Echo", bytes(100))
    other = peer.call("/t/Echo", b"abc")
    assert (peer.answers[held].ended, peer.answers[other].ended) == (False, True)


def test_sending_stops_for_a_stream_that_was_reset() -> None:
    peer = Bench().peer((Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    first = peer.call("/t/Echo", bytes(300_000))
    second = peer.call("/t/Echo", bytes(30_000))
    peer.send(rst_stream(first))
    peer.fresh()
    peer.send(window_update(0, 40_000))
    assert peer.answers[second].status == 0
    assert sizes(peer, first) == []


@pytest.mark.parametrize("where", ["stream", "connection"])
def test_window_update_of_nothing(where: str) -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x")
    peer.send_raw(window_update(stream if where == "stream" else 0, 0))
    assert (peer.reset(stream) if where == "stream" else peer.closed_by) is Code.PROTOCOL_ERROR
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_window_update_over_the_largest_window_of_a_stream() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x")
    peer.send(window_update(stream, LARGEST_WINDOW - DEFAULT_WINDOW))
    assert peer.reset(stream) is None
    peer.send_raw(window_update(stream, 1))
    assert peer.reset(stream) is Code.FLOW_CONTROL_ERROR
    assert bench.service.last.cancels == 1
    peer.echo()


def test_window_update_over_the_largest_window_of_the_connection() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.call("/t/Keep", b"x")
    peer.send(window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW))
    assert not peer.transport.closing
    peer.send_raw(window_update(0, 1))
    assert peer.closed_by is Code.FLOW_CONTROL_ERROR
    assert bench.service.last.cancels == 1
    bench.others_work()


def test_window_update_of_the_largest_increment_at_once() -> None:
    bench = Bench()
    peer = bench.peer()
    peer.send_raw(window_update(0, LARGEST_WINDOW))
    assert peer.closed_by is Code.FLOW_CONTROL_ERROR
    bench.others_work()


def test_settings_that_lift_a_window_over_the_largest() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = peer.call("/t/Keep", b"x")
    peer.send(window_update(stream, LARGEST_WINDOW - DEFAULT_WINDOW))
    peer.send_raw(settings((Setting.INITIAL_WINDOW_SIZE, DEFAULT_WINDOW + 1)))
    assert peer.closed_by is Code.FLOW_CONTROL_ERROR
    bench.others_work()


def test_window_update_that_is_valid_only_after_settings_lowered_the_window() -> None:
    peer = Bench().peer()
    stream = peer.call("/t/Keep", b"x")
    peer.send(settings((Setting.INITIAL_WINDOW_SIZE, 0)), window_update(stream, LARGEST_WINDOW))
    assert peer.reset(stream) is None


# What the client may send


class Budget:
    """What the server lets its client send: the windows from its preface, and what it gave back since."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._sent: dict[int, int] = {0: 0}

    def left(self, stream: int) -> int:
        given = {0: DEFAULT_WINDOW, stream: STREAM_WINDOW}
        for frame in self._peer.frames:
            if frame.type == Type.WINDOW_UPDATE and frame.stream in given:
                given[frame.stream] += frame.number
        return min(given[0] - self._sent[0], given[stream] - self._sent.get(stream, 0))

    def send(self, stream: int, payload: bytes, padding: int | None = None) -> None:
        frame = data(stream, payload, padding=padding)
        assert self.left(stream) >= len(frame) - 9, "the server does not give back its window"
        self._peer.send_raw(frame)
        for window in (0, stream):
            self._sent[window] = self._sent.get(window, 0) + len(frame) - 9


def pieces(payload: bytes, size: int) -> Iterable[bytes]:
    return (payload[at : at + size] for at in range(0, len(payload), size))


@pytest.mark.parametrize("path", ["/t/Keep", "/t/Wait"])
def test_receiving_a_message_larger_than_the_window(path: str) -> None:
    bench = Bench()
    peer = bench.peer()
    budget = Budget(peer)
    stream = peer.open(request(path))
    payload = bytes(3 * STREAM_WINDOW + 17)
    for piece in pieces(message(payload), 500_000):
        budget.send(stream, piece)
    peer.send(data(stream, end=True))
    assert bench.service.last.messages == [payload]


def test_receiving_many_messages_for_as_long_as_the_client_likes() -> None:
    bench = Bench()
    peer = bench.peer()
    budget = Budget(peer)
    stream = peer.open(request("/t/Keep"))
    payload = bytes(MAX_FRAME_SIZE // 2)
    for _ in range(3 * CONNECTION_WINDOW // len(payload) // 2):
        budget.send(stream, message(payload))
        bench.service.last.messages.clear()
    assert peer.reset(stream) is None
    assert not peer.transport.closing


def test_receiving_padding_counts_and_is_given_back() -> None:
    bench = Bench()
    peer = bench.peer()
    budget = Budget(peer)
    stream = peer.open(request("/t/Keep"))
    for at in range(2 * STREAM_WINDOW // 256):
        budget.send(stream, b"\0" if at < 5 else b"", padding=255)
        peer.wait(0.02)
    assert bench.service.last.messages == [b""]


def test_data_of_closed_streams_give_the_connection_window_back() -> None:
    bench = Bench()
    peer = bench.peer()
    budget = Budget(peer)
    stream = ignored(bench, peer)
    for _ in range(CONNECTION_WINDOW // MAX_FRAME_SIZE + 2):
        assert budget.left(-1) > MAX_FRAME_SIZE, "the window of the connection leaks away"
        peer.send_raw(data(stream, bytes(MAX_FRAME_SIZE)))
        budget._sent[0] += MAX_FRAME_SIZE
    peer.echo()


def held(bench: Bench, peer: Peer) -> int:
    """A stream whose service cannot send any more, so that its messages are not delivered."""
    stream = peer.call("/t/Keep", end=False)
    while bench.service.last.call.send([bytes(MAX_FRAME_SIZE)]):
        pass
    return stream


def test_receiving_more_than_the_window_of_a_stream() -> None:
    bench = Bench()
    peer = bench.peer()
    stream = held(bench, peer)
    payload = message(bytes(MAX_FRAME_SIZE - 5))
    for _ in range(STREAM_WINDOW // len(payload)):
        peer.send(data(stream, payload))
    assert peer.reset(stream) is None
    peer.send_raw(data(stream, b"\0"))
    assert peer.reset(stream) is Code.FLOW_CONTROL_ERROR or peer.closed_by is Code.FLOW_CONTROL_ERROR
    assert bench.service.last.cancels == 1
    bench.others_work()


def choke(bench: Bench, peer: Peer) -> int:
    """A stream with so much to send that the server takes no more from this client; its id."""
    stream = peer.call("/t/Keep", end=False)
    bench.service.last.call.send([bytes(CONNECTION_WINDOW + MAX_FRAME_SIZE)])
    peer.look()
    return stream


def test_receiving_more_than_the_window_of_the_connection() -> None:
    """As long as the client leaves too much unread, its window is not given back."""
    bench = Bench()
    peer = bench.peer()
    choke(bench, peer)
    stream = ignored(bench, peer)
    peer.send_raw(data(stream, bytes(MAX_FRAME_SIZE)) * (CONNECTION_WINDOW // MAX_FRAME_SIZE))
    assert peer.fresh_of(Type.WINDOW_UPDATE) == []
    assert not peer.transport.closing
    peer.send_raw(data(stream, b"\0"))
    assert peer.closed_by is Code.FLOW_CONTROL_ERROR
    assert bench.service.opened[0].cancels == 1
    bench.others_work()


@pytest.mark.parametrize("how", ["reset", "deadline", "end of the connection"])
def test_receiving_goes_on_when_what_waited_has_gone(how: str) -> None:
    """What a call had queued counts no more once the call is over."""
    bench = Bench()
    peer = bench.peer((Setting.INITIAL_WINDOW_SIZE, 0))
    stream = peer.call("/t/Keep", end=False, more=[("grpc-timeout", "9S")])
    bench.service.last.call.send([bytes(CONNECTION_WINDOW + MAX_FRAME_SIZE)])
    waiting = peer.call("/t/Wait", b"x")
    assert [opened.path for opened in bench.service.opened] == ["/t/Keep"], "no new call is begun meanwhile"
    if how == "reset":
        peer.send(rst_stream(stream))
    elif how == "deadline":
        peer.wait(10)
    else:
        peer.lose()
    assert [opened.path for opened in bench.service.opened][1:] == ["/t/Wait"] * (how != "end of the connection")
    assert not peer.answers.get(waiting)
    bench.others_work()


def test_receiving_goes_on_when_the_client_has_taken_its_answers() -> None:
    bench = Bench()
    peer = bench.peer()
    held = choke(bench, peer)
    stream = ignored(bench, peer)
    peer.send_raw(data(stream, bytes(MAX_FRAME_SIZE)) * (CONNECTION_WINDOW // MAX_FRAME_SIZE - 1))
    waiting = peer.call("/t/Echo", b"later")
    assert not peer.answers.get(waiting), "no new call is begun meanwhile"
    peer.fresh()
    peer.send(window_update(0, 1 << 30), window_update(held, 1 << 30))
    assert [frame.number for frame in peer.fresh_of(Type.WINDOW_UPDATE)] == [CONNECTION_WINDOW - MAX_FRAME_SIZE + 10]
    assert peer.answers[waiting].messages == [b"<later>"]
    peer.echo()


def ignored(bench: Bench, peer: Peer) -> int:
    """A stream whose data the server drops."""
    stream = peer.call("/t/Keep", end=False)
    bench.service.last.call.finish(9, "enough")
    peer.look()
    return stream
