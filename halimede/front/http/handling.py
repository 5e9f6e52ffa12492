"""What every HTTP handler works with: an exchange, the rows of the route table, and how an error is answered.

Knows the engine's port and no path. Event-loop thread only, but for the work that is given to `Offloader`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from halimede.engine_port import EnginePort, Query
from halimede.errors import (
    AlreadyExists,
    Cancelled,
    Error,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
    Unknown,
    Unsupported,
)
from halimede.front.access import Category
from halimede.requests import InferResponse
from halimede.tensors import Buffer
from halimede.transport.http1.headers import Headers
from halimede.wire.http import infer as wire
from halimede.wire.http.json import encode, quote

log = logging.getLogger(__name__)

JSON = b"Content-Type: application/json\r\n"
PLAIN = b""
OFFLOAD_BYTES = 1 << 20
"""JSON larger than this is not read or written on the event loop."""

GET = frozenset({b"GET"})
POST = frozenset({b"POST"})

_STATUS: dict[type[Error], int] = {
    Internal: 500,
    NotFound: 404,
    Unavailable: 503,
    Unsupported: 501,
    Unknown: 400,
    Invalid: 400,
    AlreadyExists: 400,
    Cancelled: 400,
}
"""Kind to status (contract H6). A subclass has the status of the kind that it refines."""

A = TypeVar("A")


def status_of(error: Error) -> int:
    """The HTTP status of an error's kind."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return 500


def log_fields(answer: InferResponse) -> dict[str, object]:
    """What a line of the log about a response is about."""
    return {"model": answer.model_name, "version": answer.model_version, "request_id": answer.id}


class AnswerStream(Protocol):
    """An answer in parts, as they come. Nothing here raises, also after the client has gone."""

    def send(self, body: Sequence[Buffer], last: bool = False) -> bool:
        """Takes a part to be written; False asks the sender to wait for `on_writable`."""
        ...

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once when the client takes more."""
        ...


class Answerable(Protocol):
    """Of an exchange, what is needed to answer it."""

    @property
    def gone(self) -> bool:
        """Whether its client has gone."""
        ...

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...

    def fail(self) -> None:
        """Answers that the server broke over it, or cuts the answer off where it has begun."""
        ...


class Streamable(Answerable, Protocol):
    """The same where the answer may come in parts."""

    def begin(self, status: int, fields: bytes) -> AnswerStream: ...


Inner = TypeVar("Inner", bound=Answerable)


class ExchangeWrapper(ABC, Generic[Inner]):
    """An exchange around another one: an answer that is no error goes through `succeed`."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Inner) -> None:
        self._exchange = exchange

    @property
    def gone(self) -> bool:
        return self._exchange.gone

    def fail(self) -> None:
        self._exchange.fail()

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        if status == 200:
            self.succeed(fields, body)
        else:
            self._exchange.respond(status, fields, body)

    @abstractmethod
    def succeed(self, fields: bytes, body: Sequence[Buffer]) -> None:
        """Answers with status 200, at once or later."""


class HttpExchange(Streamable, Protocol):
    """What a front end needs of one HTTP request and its answer, which is given whole or in parts."""

    method: bytes
    target: bytes
    headers: Headers
    body: Buffer
    began: int
    on_gone: Callable[[], None]


class Offloader(Protocol):
    """Runs `work` on another thread, then `done` with its result or the Error it raised, on the event loop."""

    def __call__(self, work: Callable[[], A], done: Callable[[A | Error], None]) -> None: ...


def run_offloaded(
    offload: Offloader,
    exchange: Answerable,
    work: Callable[[], A],
    done: Callable[[A | Error], None],
    even_if_gone: bool = False,
) -> None:
    """Has `work` for an exchange done on another thread, and `done` called with what came of it; where `done` breaks,
    the client is told. Work whose client has gone meanwhile is not begun (`done` gets Cancelled), unless it is to be
    done for its own sake."""

    def unless_gone() -> A:
        if exchange.gone and not even_if_gone:
            raise Cancelled("the client has gone")
        try:
            return work()
        except Error as error:
            error.__context__ = None  # both know the frames, and these hold the bodies that they looked at
            raise error.with_traceback(None)  # noqa: B904  # which would add a context again

    def told(result: A | Error) -> None:
        try:
            done(result)
        except Exception:
            log.exception("offload callback failed")
            exchange.fail()

    offload(unless_gone, told)


def with_body_read(
    offload: Offloader, exchange: HttpExchange, read: Callable[[], A], done: Callable[[A | Error], None]
) -> None:
    """Calls `done` with what `read` makes of the body, or with the Error that it raised: later where the body is large,
    also of a client that has gone meanwhile, which may have asked for something to be done."""
    if len(exchange.body) > OFFLOAD_BYTES:
        run_offloaded(offload, exchange, read, done, even_if_gone=True)
        return
    result: A | Error
    try:
        result = read()
    except Error as error:
        result = error
    done(result)


RouteHandler = Callable[[HttpExchange, str, str], None]
"""Takes an exchange and the two names within its path, empty where the path has none."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the route table (contract H1). `pattern` matches a whole path and has two groups; `fields` belong to
    an answer that has no body of its own, and to errors of the row (contract H5, H15)."""

    pattern: str
    methods: Container[bytes]
    category: Category
    handle: RouteHandler
    fields: bytes = JSON


def refuse(exchange: Answerable, error: Error, fields: bytes = JSON) -> None:
    """Answers with the error."""
    exchange.respond(status_of(error), fields, (wire.encode_error(error),))


def ask(
    port: EnginePort, exchange: HttpExchange, query: Query[A], answer: Callable[[A], None], error_fields: bytes = JSON
) -> None:
    """Asks the engine; `answer` writes what comes back, an error is written here."""

    def done(result: A | Error) -> None:
        if isinstance(result, Error):
            refuse(exchange, result, error_fields)
        else:
            answer(result)

    port.ask(query, done)


class RestrictedHandler:
    """The handler of a restricted row: the key comes before everything else, also the method (contract H24)."""

    def __init__(self, route: Route, key: tuple[str, str]) -> None:
        name, value = key
        self._route = route
        self._name, self._value = name.lower().encode(), value.encode()
        self._refusal = b'{"error":%b}' % encode(quote(f"This API is restricted, expecting header '{name}'"))

    def __call__(self, exchange: HttpExchange, first: str, second: str) -> None:
        if self._given(exchange.headers) != self._value:
            exchange.respond(403, PLAIN, (self._refusal,))
        elif exchange.method not in self._route.methods:
            refuse_method(exchange, self._route.fields)
        else:
            self._route.handle(exchange, first, second)

    def _given(self, headers: Headers) -> bytes | None:
        """The first of equal headers counts here, as in the real server."""
        return next((value for name, value in headers.sent if name.lower() == self._name), None)


class _AllMethods(frozenset[bytes]):
    """Holds everything."""

    def __contains__(self, item: object) -> bool:
        return True


def with_key_check(route: Route, keys: Mapping[str, tuple[str, str]]) -> Route:
    """The row as it is, or behind a gate that takes every method where its category is restricted."""
    key = keys.get(route.category.value)
    return route if key is None else replace(route, methods=_AllMethods(), handle=RestrictedHandler(route, key))


def refuse_method(exchange: HttpExchange, fields: bytes) -> None:
    exchange.respond(405, fields, (b'{"error":"Method Not Allowed"}',))
