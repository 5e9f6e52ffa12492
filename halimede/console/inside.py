"""The server of this process as the target of the console. Event-loop thread only.

Questions and calls go to the handlers of the HTTP front end, without a connection between. They pass its routes and
its checks, so the console does what any client can do.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from halimede.console.files import with_guard
from halimede.console.target import About, Readings
from halimede.errors import Error, Internal, Unavailable
from halimede.tensors import Buffer
from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.http1.exchange import Http1AnswerStream, Http1Exchange
from halimede.transport.http1.headers import Headers

CHECK_SECONDS: Final = 60.0

Handle = Callable[[Any], None]
"""Handles an exchange, as the handler of a listener does."""


class InsideTarget:
    """`handle` answers the calls of the page, and checks who sends them if the server has keys. `read` answers the
    console's own questions, `scrape` those for metrics; None if there are none. `about` is asked again each time,
    because ports open one after the other. `repositories` are for `check`."""

    def __init__(
        self,
        handle: Handle,
        read: Handle,
        scrape: Handle | None,
        about: Callable[[], About],
        repositories: Sequence[str],
    ) -> None:
        self._handle = handle
        self._read = read
        self._scrape = scrape
        self._about = about
        self._repositories = repositories
        self._checking = asyncio.Lock()

    @property
    def about(self) -> About:
        return self._about()

    async def read(self) -> Readings:
        statistics, index = await asyncio.gather(
            self._ask(self._read, b"GET", b"/v2/models/stats"),
            self._ask(self._read, b"POST", b"/v2/repository/index"),
        )
        metrics = await self._ask(self._scrape, b"GET", b"/metrics") if self._scrape is not None else b""
        return Readings(statistics, index, metrics)

    async def check(self, model: str) -> Any:
        """In a process of its own: it reads every file of the repositories, and only that process imports what it
        needs."""
        command = (sys.executable, "-m", "halimede", "check", "--json", *self._repositories)
        async with self._checking:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            try:
                said, errors = await asyncio.wait_for(process.communicate(), CHECK_SECONDS)
            except TimeoutError:
                process.kill()
                raise Unavailable(f"the check took longer than {CHECK_SECONDS:g} s") from None
        try:
            document = json.loads(said)
        except ValueError:
            raise Internal(errors.decode(errors="replace").strip() or "the check failed") from None
        return of_model(document, model)

    def relay(self, exchange: Http1Exchange, path: bytes) -> None:
        self._handle(RelayedExchange(exchange, path))

    def close(self) -> None:
        """Nothing is open."""

    async def _ask(self, handle: Handle, method: bytes, path: bytes) -> bytes:
        question = Question(method, path)
        handle(question)
        return await question.answered


def of_model(document: Any, model: str) -> Any:
    """The part of the document of `halimede check --json` that is about a model, None if it has none."""
    models = document.get("models", []) if isinstance(document, dict) else []
    return next((entry for entry in models if entry.get("name") == model), None)


class RelayedExchange:
    """An exchange of the console's port with another path. The guard of the console is added to its answers."""

    def __init__(self, exchange: Http1Exchange, path: bytes) -> None:
        self._exchange = exchange
        self.method = exchange.method
        self.target = path
        self.headers = exchange.headers
        self.body = exchange.body
        self.began = exchange.began

    @property
    def peer(self) -> str:
        return self._exchange.peer

    @property
    def gone(self) -> bool:
        return self._exchange.gone

    @property
    def on_gone(self) -> Callable[[], None]:
        return self._exchange.on_gone

    @on_gone.setter
    def on_gone(self, call: Callable[[], None]) -> None:
        self._exchange.on_gone = call

    @property
    def memory_is_short(self) -> bool:
        return self._exchange.memory_is_short

    @property
    def buffered(self) -> BufferedBytes:
        return self._exchange.buffered

    def hold(self, size: int) -> None:
        self._exchange.hold(size)

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        self._exchange.respond(status, with_guard(fields), body)

    def begin(self, status: int, fields: bytes) -> Http1AnswerStream:
        return self._exchange.begin(status, with_guard(fields))

    def fail(self) -> None:
        self._exchange.fail()


class Question:
    """An exchange without a connection. `answered` is the body of the answer; Unavailable for an error."""

    gone = False
    began = 0
    peer = ""
    memory_is_short = False

    def __init__(self, method: bytes, path: bytes) -> None:
        self.method = method
        self.target = path
        self.headers = Headers()
        self.body: Buffer = b""
        self.buffered = BufferedBytes()
        self.on_gone: Callable[[], None] = lambda: None
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def hold(self, size: int) -> None:
        """A question has no body."""

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        if self.answered.done():
            return
        content = b"".join(body)
        if status == 200:
            self.answered.set_result(content)
        else:
            self.answered.set_exception(_error_of(status, content))

    def begin(self, status: int, fields: bytes) -> Http1AnswerStream:
        raise Internal("an answer in parts has no question of the console")

    def fail(self) -> None:
        self.respond(500, b"", (b"",))


def _error_of(status: int, content: bytes) -> Error:
    return Unavailable(content.decode(errors="replace") or f"status {status}")
