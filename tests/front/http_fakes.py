"""What the HTTP front end needs: exchanges without a connection, and other threads that the test runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from halimede.errors import Error
from halimede.front.http.service import HttpService
from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.http1.headers import Headers
from tests.front.fakes import FakePort

MAX_INPUT_SIZE = 1 << 23


def no_timer(seconds: float, callback: Callable[[], None]) -> None:
    """The `call_later` of a test in which nothing must wait."""
    raise AssertionError("something waits")


class FakeStream:
    """An answer in parts. It is full once it has `room` parts, until the test says `drain`."""

    def __init__(self, status: int, fields: bytes, room: int) -> None:
        self.status = status
        self.fields = fields
        self.parts: list[bytes] = []
        self.ended = False
        self.room = room
        self._resumes: list[Callable[[], None]] = []

    def send(self, body: Sequence[Buffer], last: bool = False) -> bool:
        assert not self.ended, "something after the last part"
        if body:
            self.parts.append(b"".join(bytes(part) for part in body))
        self.ended = last
        return len(self.parts) < self.room

    def on_writable(self, resume: Callable[[], None]) -> None:
        if len(self.parts) < self.room:
            resume()
        else:
            self._resumes.append(resume)

    def drain(self, room: int) -> None:
        """The client reads: there is room for so many parts in all."""
        self.room = room
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()


class FakeExchange:
    """One request; `answers` are all that were given to it (a connection takes the first and ignores the others), and
    `streams` those that were begun, each with `room`."""

    room = 1 << 20

    peer = ""

    def __init__(self, method: str, target: str, body: Buffer = b"", **headers: str) -> None:
        self.method = method.encode()
        self.target = target.encode()
        self.headers = Headers()
        for name, value in headers.items():
            self.headers.add(name.replace("_", "-").encode(), value.encode())
        self.body = body
        self.began = 0
        self.gone = False
        self.on_gone: Callable[[], None] = lambda: None
        self.answers: list[tuple[int, bytes, bytes]] = []
        self.streams: list[FakeStream] = []
        self.failed = 0
        self.held = 0
        self.memory_is_short = False
        self.buffered = BufferedBytes()

    def hold(self, size: int) -> None:
        self.held = size

    def fail(self) -> None:
        self.failed += 1

    def begin(self, status: int, fields: bytes) -> FakeStream:
        assert not self.answers, "an answer was given before"
        self.streams.append(FakeStream(status, fields, self.room))
        return self.streams[-1]

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        self.answers.append((status, fields, b"".join(bytes(part) for part in body)))

    def leave(self) -> None:
        """The client goes away."""
        self.gone = True
        self.on_gone()

    @property
    def answer(self) -> tuple[int, bytes, bytes]:
        assert len(self.answers) == 1, f"{len(self.answers)} answers: {self.answers}"
        return self.answers[0]

    @property
    def stream(self) -> FakeStream:
        assert len(self.streams) == 1, f"{len(self.streams)} streams"
        return self.streams[0]

    @property
    def status(self) -> int:
        return self.answer[0]

    @property
    def body_sent(self) -> bytes:
        return self.answer[2]


class HeldOffload:
    """Keeps work until the test calls `run`. Then it is done, and its result is delivered. `lanes` says of each work
    whether it was said to be large."""

    def __init__(self) -> None:
        self._work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.lanes: list[bool] = []

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], large: bool = False) -> None:
        self._work.append((work, done))
        self.lanes.append(large)

    def __len__(self) -> int:
        return len(self._work)

    def run(self) -> None:
        work, done = self._work.pop(0)
        try:
            result = work()
        except Error as error:
            result = error
        done(result)


@dataclass
class Rig:
    """A front end between a fake engine and fake threads."""

    port: FakePort = field(default_factory=FakePort)
    offload: HeldOffload = field(default_factory=HeldOffload)

    def __post_init__(self) -> None:
        self.front = HttpService(self.port, self.offload, MAX_INPUT_SIZE)

    def ask(self, method: str, target: str, body: Buffer = b"", **headers: str) -> FakeExchange:
        exchange = FakeExchange(method, target, body, **headers)
        self.front.handle(exchange)
        return exchange
