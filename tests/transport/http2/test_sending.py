"""What the server sends while windows, settings and the client's reading change in any order: never more than allowed
(see `http2_peer.Conduct`), and in the end all of it.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.http2_bench import Opened
from tests.transport.http2_peer import Bench, Peer
from tests.transport.http2_wire import LARGEST_WINDOW, Setting, rst_stream, window_update
from tests.transport.http2_wire import settings as settings_frame

sizes = st.sampled_from([0, 1, 10, 1000, 16_384, 40_000, 200_000])
which = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("call")),
        st.tuples(st.just("send"), which, sizes),
        st.tuples(st.just("send"), which, sizes),
        st.tuples(st.just("finish"), which, st.sampled_from([0, 0, 9])),
        st.tuples(st.just("window"), which, st.sampled_from([1, 7, 1000, 100_000])),
        st.tuples(st.just("connection window"), st.sampled_from([1, 1000, 50_000, 500_000])),
        st.tuples(st.just("initial window"), st.sampled_from([0, 1, 100, 65_535, 300_000])),
        st.tuples(st.just("frame size"), st.sampled_from([16_384, 20_000, 300_000])),
        st.tuples(st.just("table size"), st.sampled_from([0, 100, 4096])),
        st.tuples(st.just("reset"), which),
        st.tuples(st.just("stop reading")),
        st.tuples(st.just("read"), st.sampled_from([1, 5000, 100_000])),
        st.tuples(st.just("read all")),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Sent:
    """What the service has sent on a stream, its status, and how often it waited and was resumed."""

    stream: int
    opened: Opened
    messages: list[bytes] = field(default_factory=list)
    status: int | None = None
    waited: int = 0
    resumed: int = 0

    def resume(self) -> None:
        self.resumed += 1


class Run:
    """One connection, and what became of it."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.peer: Peer = self.bench.peer()
        self.calls: list[Sent] = []

    def step(self, what: str, *args: int) -> None:
        peer = self.peer
        if what == "call":
            stream = peer.call("/t/Keep", b"x")
            self.calls.append(Sent(stream, self.bench.service.last))
        elif what in ("send", "finish", "window", "reset"):
            if self.calls:
                self._on_call(self.calls[args[0] % len(self.calls)], what, *args[1:])
        elif what == "connection window":
            peer.send(window_update(0, args[0]))
        elif what == "stop reading":
            peer.transport.client_reads = False
        elif what == "read":
            peer.read(args[0])
        else:
            self._read_all()  # what is still on its way was written by the rules of before
            if what != "read all":
                self._change(what, args[0])
        peer.clock.run()
        peer.look()

    def _change(self, what: str, value: int) -> None:
        number = {
            "initial window": Setting.INITIAL_WINDOW_SIZE,
            "frame size": Setting.MAX_FRAME_SIZE,
            "table size": Setting.HEADER_TABLE_SIZE,
        }[what]
        self.peer.send(settings_frame((number, value)))
        if what == "table size":
            self.peer.decoder.max_allowed_table_size = value

    def _on_call(self, sent: Sent, what: str, *args: int) -> None:
        if sent.opened.cancels or (sent.status is not None and what != "window"):
            return
        if what == "send":
            message = bytes([len(sent.messages) & 255]) * args[0]
            sent.messages.append(message)
            if not sent.opened.call.send([message[:10], message[10:]]):
                sent.waited += 1
                sent.opened.call.on_writable(sent.resume)
        elif what == "finish":
            sent.status = args[0]
            sent.opened.call.finish(args[0], "done")
        elif what == "window":
            self.peer.send(window_update(sent.stream, args[0]))
        elif self.peer.transport.client_reads:
            self.peer.send(rst_stream(sent.stream))

    def _read_all(self) -> None:
        self.peer.transport.client_reads = True
        self.peer.read()

    def end(self) -> None:
        """The client reads, and takes all that there is."""
        self._read_all()
        peer = self.peer
        room = LARGEST_WINDOW - peer.conduct.connection_window
        peer.send(settings_frame((Setting.INITIAL_WINDOW_SIZE, 1 << 26)), window_update(0, room))
        for sent in self.calls:
            if not sent.opened.cancels:
                self._check(sent)
        peer.echo()

    def _check(self, sent: Sent) -> None:
        if sent.status is None:
            assert sent.resumed == sent.waited
            assert sent.opened.call.send([b"last"]), "still full"
            sent.messages.append(b"last")
            sent.opened.call.finish()
            self.peer.look()
        answer = self.peer.answers[sent.stream]
        assert (answer.messages, answer.status) == (sent.messages, sent.status or 0)
        assert sent.resumed <= sent.waited


@settings(max_examples=150)
@given(steps)
def test_sending_keeps_all_rules_and_loses_nothing(plan: list[tuple[str, int] | tuple[str]]) -> None:
    run = Run()
    run.step("call")
    for each in plan:
        run.step(*each)
    run.end()
