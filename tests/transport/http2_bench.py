"""What a test of the HTTP/2 transport stands on: a clock moved by hand, the transport of one connection whose client
may read slowly or not at all, and a service that keeps what it is told.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from halimede.tensors import Buffer
from halimede.transport.grpc.calls import Bidirectional, Cancel, GrpcCall, Unary

HIGH_WATER = 64 * 1024
"""Where a transport of asyncio asks to write less, unless it is told otherwise."""


def _nothing() -> None:
    """What a cancelled timer calls. Loops drop the callback, too."""


class Handle:
    """What the clock will call, unless it is cancelled."""

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self._callback = callback
        self._args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self._callback, self._args = _nothing, ()

    def run(self) -> None:
        if not self.cancelled:
            self._callback(*self._args)


class Clock:
    """An event loop whose time moves by hand."""

    TURNS = 100_000

    def __init__(self) -> None:
        self._now = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = count()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(callback, args)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(callback, args)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), handle))
        return handle

    def work(self, seconds: float) -> None:
        """A callback takes so long. Timers wait."""
        self._now += seconds

    def run(self) -> None:
        """All that is ready, and what becomes ready by it."""
        for _ in range(self.TURNS):
            if not self._ready:
                return
            self._ready.popleft().run()
        raise AssertionError("the loop never rests")

    def turn(self) -> None:
        """All that is ready now."""
        for _ in range(len(self._ready)):
            self._ready.popleft().run()

    @property
    def idle(self) -> bool:
        """Whether nothing is ready."""
        return not self._ready

    def advance(self, seconds: float) -> None:
        """Lets time pass; what falls due is called at its time."""
        end = self._now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= end:
            due, _, handle = heapq.heappop(self._timers)
            self._now = max(self._now, due)
            handle.run()
            self.run()
        self._now = max(self._now, end)

    @property
    def waiting(self) -> int:
        """The timers that are set."""
        return sum(not handle.cancelled for _, _, handle in self._timers)


class Transport(asyncio.Transport):
    """The server's end of a connection, by the rules of asyncio's.

    What is written arrives at once where the client is `reading`; else it waits here and counts against the high-water
    mark. What no protocol may do is kept in `misused`.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._protocol: Any = None
        self.arrived = bytearray()
        self.waiting = bytearray()
        self.most_waiting = 0
        self.client_reads = True
        self.reading = True
        self.closing = False
        self.lost = False
        self._gone = False
        self.misused: list[str] = []
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._full = False

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Buffer | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer | memoryview]) -> None:
        if self.closing:
            if not self._gone:
                self.misused.append("written after the end")
            return
        self.waiting += b"".join(list_of_data)
        self._flow(len(self.waiting) if self.client_reads else 0)
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def client_takes(self, size: int) -> None:
        """The client reads so much of what waits."""
        self._flow(size)
        self._clock.run()

    def _flow(self, size: int) -> None:
        self.arrived += self.waiting[:size]
        del self.waiting[:size]
        if not self._full and len(self.waiting) > self._high:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and len(self.waiting) <= self._low:
            self._full = False
            self._protocol.resume_writing()
        if self.closing and not self.waiting:
            self._lose()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def can_write_eof(self) -> bool:
        """As with TLS; the other way of closing has tests of its own."""
        return False

    def close(self) -> None:
        self.closing = True
        self._flow(0)

    def abort(self) -> None:
        self.closing = True
        self.waiting.clear()
        self._lose()

    def eof(self) -> None:
        """The client sends no more. What is written from now on goes nowhere, which the protocol need not know."""
        if not self.closing and not self._protocol.eof_received():
            self._gone = True
            self.close()

    def lose(self, error: Exception | None = None) -> None:
        """The connection breaks. The protocol learns of it a turn later."""
        self._gone = True
        self.closing = True
        self.waiting.clear()
        self._lose(error)
        self._clock.run()

    def _lose(self, error: Exception | None = None) -> None:
        if not self.lost:
            self.lost = True
            protocol, self._protocol = self._protocol, None
            self._clock.call_soon(protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        if not self.reading:
            self.misused.append("paused twice")
        self.reading = False

    def resume_reading(self) -> None:
        if self.reading:
            self.misused.append("resumed twice")
        self.reading = True


@dataclass
class Opened:
    """A call as the service saw it. What comes after its end is noted in `wrong`, since what a service raises is
    caught."""

    path: str
    call: GrpcCall
    wrong: list[str]
    messages: list[bytes] = field(default_factory=list)
    half_closes: int = 0
    cancels: int = 0
    holds: int = 0
    echoes: bool = False
    work: Callable[[], None] = lambda: None

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        return list(self.call.metadata)

    def message(self, message: Buffer) -> None:
        self._check("a message")
        self.work()
        self.messages.append(bytes(message))
        if self.echoes:
            self.call.send([b"<", message, b">"])

    def half_closed(self) -> None:
        self._check("a half close")
        self.half_closes += 1
        if self.echoes:
            self.call.finish()

    def held_bytes(self) -> int:
        return self.holds

    def cancelled(self) -> None:
        if self.cancels:
            self.wrong.append(f"{self.path}: cancelled twice")
        self.cancels += 1

    def _check(self, what: str) -> None:
        if self.cancels or self.half_closes:
            self.wrong.append(f"{self.path}: {what} after the end")


@dataclass
class Service:
    """Keeps every call. `/t/Echo`, `/t/Small` (unary) and `/t/Chat` (bidirectional) answer at once with the message
    between `<` and `>`; `/t/Wait` and `/t/Keep` leave that to the test."""

    opened: list[Opened] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What no transport may do to a service."""
    work: Callable[[], None] = lambda: None
    """What each message costs."""

    def rpcs(self) -> dict[str, Unary | Bidirectional]:
        return {
            "/t/Echo": Unary(self._echo),
            "/t/Wait": Unary(self._wait),
            "/t/Chat": Bidirectional(self._chat),
            "/t/Keep": Bidirectional(self._keep),
            "/t/Small": Unary(self._echo, small=True),
        }

    @property
    def last(self) -> Opened:
        return self.opened[-1]

    def _open(self, path: str, call: GrpcCall, message: Buffer | None = None, echoes: bool = False) -> Opened:
        opened = Opened(path, call, self.wrong, echoes=echoes, work=self.work)
        self.opened.append(opened)
        if message is not None:
            opened.message(message)
        return opened

    def _echo(self, message: Buffer, call: GrpcCall) -> Cancel:
        opened = self._open("/t/Echo", call, message, echoes=True)
        call.finish()
        return opened.cancelled

    def _wait(self, message: Buffer, call: GrpcCall) -> Cancel:
        return self._open("/t/Wait", call, message).cancelled

    def _chat(self, call: GrpcCall) -> Opened:
        return self._open("/t/Chat", call, echoes=True)

    def _keep(self, call: GrpcCall) -> Opened:
        return self._open("/t/Keep", call)
