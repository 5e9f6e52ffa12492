"""Compressed bodies of inferences: small ones on the event loop, large ones on another thread (contract H140, H141).

What is compressed and how is `wire.compression`'s. Event-loop thread only, but for the work given to `Offload`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from halimede.errors import Error
from halimede.front.http_handling import JSON, Offload, status_of
from halimede.tensors import Buffer
from halimede.wire.compression import (
    IDENTITY,
    SUPPORTED,
    UnsupportedCoding,
    accepted_coding,
    check_coding,
    compress,
    decompress,
    inflate,
)
from halimede.wire.http import encode_error

INFLATED_BYTES = 1 << 16
"""More than comes out of a body in 0.2 ms is inflated on another thread."""
DEFLATED_BYTES = 1 << 13
"""More than is deflated in 0.15 ms is deflated on another thread."""

_ACCEPTS = f"Accept-Encoding: {SUPPORTED}\r\n".encode()


class Answerable(Protocol):
    """Of an exchange, what is needed to answer it."""

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None: ...


def with_body(
    coding: bytes, body: Buffer, max_input_size: int, offload: Offload, done: Callable[[Buffer | Error], None]
) -> None:
    """Calls `done` with what the body is without its coding, at once or later; with Unsupported where the coding is
    unknown, with Invalid where the body is none of that coding or becomes larger than `max_input_size` bytes."""
    try:
        check_coding(coding)
        small = body if coding == IDENTITY else inflate(body, min(INFLATED_BYTES, max_input_size))
    except Error as error:
        done(error)
        return
    if small is not None:
        done(small)
    else:
        offload(lambda: decompress(body, max_input_size), done)


def error_fields(error: Error) -> bytes:
    """The header lines of an answer to a request that could not be read."""
    return JSON + _ACCEPTS if isinstance(error, UnsupportedCoding) else JSON


def answering(exchange: Answerable, accepts: bytes, offload: Offload) -> Answerable:
    """Where the response of an inference goes, by the value of Accept-Encoding."""
    coding = accepted_coding(accepts)
    return exchange if coding is None else _Compressing(exchange, coding, offload)


class _Compressing:
    """Compresses the one answer of an exchange, unless it is an error."""

    __slots__ = ("_coding", "_exchange", "_offload")

    def __init__(self, exchange: Answerable, coding: bytes, offload: Offload) -> None:
        self._exchange = exchange
        self._coding = coding
        self._offload = offload

    def respond(self, status: int, fields: bytes, body: Sequence[Buffer]) -> None:
        if status != 200:
            self._exchange.respond(status, fields, body)
            return
        fields += b"Content-Encoding: %b\r\n" % self._coding

        def done(compressed: bytes | Error) -> None:
            if isinstance(compressed, Error):
                self._exchange.respond(status_of(compressed), JSON, (encode_error(compressed),))
            else:
                self._exchange.respond(status, fields, (compressed,))

        if sum(map(len, body)) <= DEFLATED_BYTES:
            done(compress(body, self._coding))
        else:
            self._offload(lambda: compress(body, self._coding), done)
