"""Compressed HTTP bodies: which coding a header asks for, and compression and decompression (H140, H141).

Pure. Any thread; zlib lets other threads run meanwhile. A body is never decompressed beyond the given limit. Triton
2.51 was asked what it does with odd header values.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Final

from halimede.errors import Invalid, Unsupported
from halimede.tensors import Buffer

IDENTITY: Final = b"identity"

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
"""The codings by name, with zlib's number for each. `deflate` is the zlib format."""
_DETECT_WINDOW_BITS: Final = 47
"""Lets zlib detect which of the two formats it is. Clients mix them up, and Triton accepts both."""
_CODINGS: Final = frozenset({IDENTITY, *_WINDOW_BITS})
_SLICE_BYTES: Final = 1 << 16
"""Bytes that are given to zlib at once. It copies those that it does not get to."""
SUPPORTED: Final = ", ".join(name.decode() for name in _WINDOW_BITS)
"""The codings as the value of a header (H140)."""
_WEIGHT: Final = re.compile(rb"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


class UnsupportedCoding(Unsupported):
    """The body has a coding that the server does not know."""


# Headers.


def check_coding(name: bytes) -> None:
    """Raises UnsupportedCoding for an unknown Content-Encoding. Names are case-sensitive, as in Triton."""
    if name not in _CODINGS:
        raise UnsupportedCoding("Unsupported compression type")


def accepted_coding(value: bytes) -> bytes | None:
    """Returns the coding that a client prefers for its answer, by the value of Accept-Encoding, or None for none.

    Of the known codings the one with the highest weight counts, of equal ones the first. A weight is read as far as it
    is a number. A coding without a positive weight does not count (H141).
    """
    best, found = 0.0, IDENTITY
    for part in value.split(b","):
        name, given, text = part.lstrip(b" ").partition(b";q=")
        if name in _CODINGS:
            number = _WEIGHT.match(text) if given else None
            # No weight means 1. A weight that is no number means 0.
            weight = float(number[1]) if number else 0.0 if given else 1.0
            if weight > best:
                best, found = weight, name
    return None if found == IDENTITY else found


# Bodies.


def inflate(body: Buffer, at_most: int) -> bytes | None:
    """Returns the decompressed body, or None if it has more than `at_most` bytes. Bytes after the stream are ignored,
    as in Triton.

    Raises Invalid for an empty body, and for a malformed or truncated one. (Triton accepts what it got so far.)
    """
    if not len(body):
        raise Invalid("nothing to be decompressed")
    stream, view = zlib.decompressobj(_DETECT_WINDOW_BITS), memoryview(body)
    parts, room = [], at_most + 1
    for at in range(0, len(view), _SLICE_BYTES):
        try:
            parts.append(stream.decompress(view[at : at + _SLICE_BYTES], room))
        # A malformed stream is refused like a truncated one, below.
        except zlib.error:
            break
        # `room` is one byte more than the limit. If that is used up, the body is too large.
        room -= len(parts[-1])
        if not room:
            return None
        if stream.eof:
            return b"".join(parts)
    raise Invalid("encountered inconsistent stream state during decompression")


def decompress(body: Buffer, max_input_size: int) -> bytes:
    """Returns the decompressed body. Raises Invalid if it is empty or malformed, or has more than `max_input_size`
    bytes (H140)."""
    data = inflate(body, max_input_size)
    if data is None:
        raise Invalid(
            f"Decompressed data size exceeds the maximum allowed value of {max_input_size} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return data


def compress(parts: Sequence[Buffer], coding: bytes) -> bytes:
    """Returns the parts as one stream with this coding, at zlib's default level, which Triton uses too."""
    stream = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    return b"".join([*(stream.compress(part) for part in parts), stream.flush()])
