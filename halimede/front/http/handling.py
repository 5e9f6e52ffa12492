"""The common parts of all HTTP handlers: exchanges, the rows of the route table, errors, and work for other threads.

Knows the engine's port and no path. Event-loop thread only, except for the work that an `Offload` gets.

Three Protocols describe an exchange. Each one extends the one above it:

| Protocol | a handler can |
| --- | --- |
| `Answerable` | answer it whole |
| `Streamable` | answer it whole or in parts |
| `HttpExchange` | also read the request |

`transport.http1.exchange.Http1Exchange` implements them. `ExchangeWrapper` is the base class of objects that change an
answer before it is sent.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from halimede.engine_port import EnginePort, Query
from halimede.errors import (
    AlreadyExists,
    Cancelled,
    Error,
    Forbidden,
    Internal,
    Invalid,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unsupported,
)
from halimede.front.access import CATEGORY_RIGHTS, Access, Category
from halimede.front.caller_port import CHANGES, ask_of, note_refusal
from halimede.front.offload import Offload
from halimede.identities.guard import Caller
from halimede.identities.roles import Right
from halimede.requests import InferRequest, InferResponse
from halimede.tensors import Buffer, HostMemory
from halimede.transport.buffered_bytes import BufferedBytes
from halimede.transport.http1.headers import Headers
from halimede.wire.http import infer as wire
from halimede.wire.http.json import encode, quote

log = logging.getLogger(__name__)

JSON = b"Content-Type: application/json\r\n"
"""Header fields of an answer with a JSON body."""
PLAIN = b""
"""No header fields. The transport then says text/plain."""
OFFLOAD_BYTES = 1 << 15
"""Larger JSON is neither parsed nor written on the event loop: it may have ten thousand elements, which take up to four
milliseconds."""

LARGE_BYTES = 1 << 20
"""Larger JSON or compressed data take more than ten milliseconds of a thread, and perhaps seconds."""
MAX_WRITTEN_ON_LOOP = 100
"""Models, or regions of shared memory, of an answer that the event loop writes, which takes 3 ms."""
UNKNOWN_SIZE = 1 << 40
"""The size of what is not known before it is decompressed."""

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
    Unauthenticated: 401,
    Forbidden: 403,
    TooMany: 429,
}
"""The HTTP status of each kind of error (H6). A derived kind has the status of its base."""

CHALLENGE = (
    b'WWW-Authenticate: Bearer realm="halimede"\r\nWWW-Authenticate: Basic realm="halimede", charset="UTF-8"\r\n'
)
"""Header fields of an answer with status 401. A browser asks its user for a name and a password, which is the key."""

A = TypeVar("A")


def status_of(error: Error) -> int:
    """Returns the HTTP status of an error."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return 500


def log_fields(answer: InferResponse) -> dict[str, object]:
    """Returns the fields of a log record about a response."""
    return {"model": answer.model_name, "version": answer.model_version, "request_id": answer.id}


class AnswerStream(Protocol):
    """An answer in parts. No method raises, also after the client has gone."""

    def send(self, body: Sequence[Buffer], last: bool = False) -> bool:
        """Writes a part. Returns False if the sender should wait for `on_writable`."""
        ...

    def on_writable(self, resume: Callable[[], None]) -> None:
        """Calls `resume` once, when the client takes more."""
        ...


class Answerable(Protocol):
    """What is needed to answer an exchange whole."""

    @property
    def gone(self) -> bool:
        """Whether the client has gone."""
        ...

    @property
    def buffered(self) -> BufferedBytes:
        """The bytes that the server holds for all clients."""
        ...

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...

    def fail(self) -> None:
        """Answers with an internal error, or cuts off an answer that has begun."""
        ...


class Streamable(Answerable, Protocol):
    """What is needed to answer an exchange whole or in parts."""

    def begin(self, status: int, fields: bytes) -> AnswerStream: ...


Inner = TypeVar("Inner", bound=Answerable)


class ExchangeWrapper(ABC, Generic[Inner]):
    """Wraps an exchange to change its answer. An answer with status 200 goes through `succeed`; errors pass
    unchanged."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Inner) -> None:
        self._exchange = exchange

    @property
    def gone(self) -> bool:
        return self._exchange.gone

    @property
    def buffered(self) -> BufferedBytes:
        return self._exchange.buffered

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
    """One HTTP request, and its answer, as handlers see it."""

    method: bytes
    target: bytes
    headers: Headers
    body: Buffer
    began: int
    on_gone: Callable[[], None]

    @property
    def peer(self) -> str:
        """The address of the client, without its port; empty for a Unix socket."""
        ...

    @property
    def memory_is_short(self) -> bool:
        """Whether the server held as many bytes as it may when it last looked. Any thread."""
        ...

    def hold(self, size: int) -> None:
        """Counts bytes that were made from the body, until the exchange is answered or its client has gone."""
        ...


def hold_inputs(exchange: HttpExchange, request: InferRequest) -> None:
    """Counts what the inputs of a request take besides its body: they may have been compressed, or text."""
    made = sum(tensor.memory.byte_size for tensor in request.inputs.values() if isinstance(tensor.memory, HostMemory))
    made += 0 if request.raw is None else request.raw.byte_size
    if made > len(exchange.body):
        exchange.hold(made - len(exchange.body))


def run_offloaded(
    offload: Offload,
    exchange: Answerable,
    work: Callable[[], A],
    done: Callable[[A | Error], None],
    even_if_gone: bool = False,
    size: int = 0,
) -> None:
    """Runs `work`, which reads or writes about `size` bytes, for an exchange on another thread, then `done` with its
    result. If `done` fails, the client gets an internal error.

    If the client has gone before the work begins, the work is skipped and `done` gets Cancelled, unless `even_if_gone`.
    """

    def unless_gone() -> A:
        # Checked on the other thread, when the work begins, because it may have waited for a thread.
        if exchange.gone and not even_if_gone:
            raise Cancelled("the client has gone")
        try:
            return work()
        except Error as error:
            raise error.bare()  # noqa: B904  # `from` would set a context again

    def finish(result: A | Error) -> None:
        try:
            done(result)
        except Exception:
            log.exception("offload callback failed")
            exchange.fail()

    offload(unless_gone, finish, size > LARGE_BYTES)


def with_body_read(
    offload: Offload, exchange: HttpExchange, read: Callable[[], A], done: Callable[[A | Error], None]
) -> None:
    """Calls `done` with the result of `read`, which decodes the body, or with the Error that it raised. A large body is
    decoded on another thread, even if its client has gone, because it may ask for a change."""
    # Only large JSON occupies the loop for long.
    if len(exchange.body) > OFFLOAD_BYTES:
        run_offloaded(offload, exchange, read, done, even_if_gone=True, size=len(exchange.body))
        return
    result: A | Error
    try:
        result = read()
    except Error as error:
        result = error
    done(result)


RouteHandler = Callable[[HttpExchange, str, str], None]
"""Handles an exchange. The other arguments are the two names in its path, empty if the path has none."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the route table (H1). `pattern` matches a whole path and has two groups. `fields` are the header
    fields of an answer without a body of its own, and of errors (H5, H15). `right` is what a caller must have
    (`--auth`); None: a right of the category, and the question says which."""

    pattern: str
    methods: Container[bytes]
    category: Category
    handle: RouteHandler
    fields: bytes = JSON
    right: Right | None = None


def refuse(exchange: Answerable, error: Error, fields: bytes = JSON) -> None:
    """Answers with an error."""
    if isinstance(error, Unauthenticated):
        fields = JSON + CHALLENGE
    elif isinstance(error, TooMany):
        fields = JSON + b"Retry-After: %d\r\n" % math.ceil(error.retry_secs)
    exchange.respond(status_of(error), fields, (wire.encode_error(error),))


def ask(
    port: EnginePort, exchange: HttpExchange, query: Query[A], answer: Callable[[A], None], error_fields: bytes = JSON
) -> None:
    """Asks the engine. `answer` handles the answer; an error is written here."""

    def done(result: A | Error) -> None:
        if isinstance(result, Error):
            refuse(exchange, result, error_fields)
        else:
            answer(result)

    ask_of(port, exchange, query, done)


class RestrictedHandler:
    """The handler of a restricted row. It checks the key before everything else, also before the method (H24)."""

    def __init__(self, route: Route, key: tuple[str, str]) -> None:
        name, value = key
        self._route = route
        self._name, self._value = name.lower().encode(), value.encode()
        self._refusal = b'{"error":%b}' % encode(quote(f"This API is restricted, expecting header '{name}'"))

    def __call__(self, exchange: HttpExchange, first: str, second: str) -> None:
        # Before the method, so that a client without the key learns nothing about the row.
        if _given(exchange.headers, self._name) != self._value:
            exchange.respond(403, PLAIN, (self._refusal,))
        elif exchange.method not in self._route.methods:
            refuse_method(exchange, self._route.fields)
        else:
            self._route.handle(exchange, first, second)


class RefusingHandler:
    """The handler of a row that a caller may not use. An attempt to change something is audited."""

    def __init__(self, route: Route, caller: Caller, error: Error) -> None:
        rights = CATEGORY_RIGHTS[route.category] if route.right is None else (route.right,)
        self._changes = not CHANGES.isdisjoint(rights)
        self._caller = caller
        self._error = error

    def __call__(self, exchange: HttpExchange, first: str, second: str) -> None:
        if self._changes and exchange.method == b"POST":
            action = f"POST {exchange.target.decode('utf-8', 'replace')}"
            note_refusal(self._caller, exchange.peer, action, self._error)
        refuse(exchange, self._error)


def _given(headers: Headers, wanted: bytes) -> bytes | None:
    """Returns the value of the key header. Of equal headers the first counts, as in Triton."""
    return next((value for name, value in headers.sent if name.lower() == wanted), None)


def permits(keys: Mapping[str, tuple[str, str]], category: Category, headers: Headers) -> bool:
    """Returns whether a request with these headers may use a category."""
    key = keys.get(category.value)
    return key is None or _given(headers, key[0].lower().encode()) == key[1].encode()


class _AllMethods(frozenset[bytes]):
    """A set that contains every method."""

    def __contains__(self, item: object) -> bool:
        return True


ANY_METHOD: Final = _AllMethods()


def guarded(route: Route, access: Access) -> Route:
    """Returns the row, with a check of its key if its category is restricted, and with a refusal if the caller may not
    use it. Such a row takes every method."""
    error = access.refusal(route.category, route.right)
    if error is not None and access.caller is not None:
        return replace(route, methods=ANY_METHOD, handle=RefusingHandler(route, access.caller, error))
    key = access.keys.get(route.category.value)
    return route if key is None else replace(route, methods=ANY_METHOD, handle=RestrictedHandler(route, key))


def not_found(exchange: Answerable) -> None:
    """Answers as for every path that no row matches (H3)."""
    exchange.respond(404, PLAIN, (b'{"error":"Not Found"}',))


def refuse_method(exchange: HttpExchange, fields: bytes) -> None:
    exchange.respond(405, fields, (b'{"error":"Method Not Allowed"}',))
