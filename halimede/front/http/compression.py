"""Compressed bodies of inferences: small ones on the event loop, large ones on another thread (H140, H141).

`wire.http.compression` knows which codings there are and what they do. Event-loop thread only, except for the work
given to `Offload`.
"""

from collections.abc import Sequence

from halimede.errors import Error
from halimede.front.http.handling import JSON, Answerable, ExchangeWrapper, status_of
from halimede.front.http.made_bytes import make_offloaded
from halimede.front.offload import Offload
from halimede.tensors import Buffer
from halimede.wire.http.compression import (
    IDENTITY,
    SUPPORTED,
    UnsupportedCoding,
    accepted_coding,
    check_coding,
    compress,
    inflate,
)
from halimede.wire.http.infer import encode_error

MAX_INFLATED_ON_LOOP_BYTES = 1 << 16
"""Bytes that decompression on the loop may yield, which takes 0.2 ms."""
MAX_COMPRESSED_ON_LOOP_BYTES = 1 << 14
"""Bytes of a body that is decompressed on the loop. A body of empty blocks yields nothing and takes long all
the same."""
MAX_DEFLATED_ON_LOOP_BYTES = 1 << 13
"""Bytes that are compressed on the loop, which takes 0.15 ms."""

_ACCEPTS = f"Accept-Encoding: {SUPPORTED}\r\n".encode()


def inflated_at_once(coding: bytes, body: Buffer, max_input_size: int) -> Buffer | None:
    """Returns the decompressed body, or None if that is work for another thread. Raises Unsupported for an unknown
    coding, and Invalid for a body that does not have its coding."""
    check_coding(coding)
    if coding == IDENTITY:
        return body
    # How much it yields is known only after decompression.
    if len(body) > MAX_COMPRESSED_ON_LOOP_BYTES:
        return None
    return inflate(body, min(MAX_INFLATED_ON_LOOP_BYTES, max_input_size))


def error_fields(error: Error) -> bytes:
    """Returns the header lines of an answer to a request that could not be read."""
    return JSON + _ACCEPTS if isinstance(error, UnsupportedCoding) else JSON


def answering(exchange: Answerable, accepts: bytes, offload: Offload) -> Answerable:
    """Returns the exchange to answer on, with compression if Accept-Encoding asks for it."""
    coding = accepted_coding(accepts)
    return exchange if coding is None else _CompressingExchange(exchange, coding, offload)


class _CompressingExchange(ExchangeWrapper[Answerable]):
    """Compresses the one answer of an exchange, unless it is an error."""

    __slots__ = ("_coding", "_offload")

    def __init__(self, exchange: Answerable, coding: bytes, offload: Offload) -> None:
        super().__init__(exchange)
        self._coding = coding
        self._offload = offload

    def succeed(self, fields: bytes, body: Sequence[Buffer]) -> None:
        fields += b"Content-Encoding: %b\r\n" % self._coding

        def done(compressed: bytes | Error) -> None:
            if isinstance(compressed, Error):
                self._exchange.respond(status_of(compressed), JSON, (encode_error(compressed),))
            else:
                self._exchange.respond(200, fields, (compressed,))

        # A hand-over to another thread takes longer than to compress a small answer.
        size = sum(map(len, body))
        if size <= MAX_DEFLATED_ON_LOOP_BYTES:
            done(compress(body, self._coding))
        else:
            make_offloaded(
                self._offload, self._exchange, lambda _: compress(body, self._coding), done, size=size, expected=size
            )
