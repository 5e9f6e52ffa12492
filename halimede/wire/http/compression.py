"""Compressed HTTP bodies: which coding a header asks for, and bytes in and out of it (contract H140, H141).

Pure; any thread, and zlib lets other threads run meanwhile. A body from outside is never inflated past the limit that
is given, however much it would become. What the real server does with odd header values was asked of 2.51.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Final

from halimede.errors import Invalid, Unsupported
from halimede.tensors import Buffer

IDENTITY: Final = b"identity"

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
"""The codings, by name; zlib's number for each. `deflate` is the zlib form."""
_DETECT_WINDOW_BITS: Final = 47
"""zlib finds out which of the two it is; clients mix them up, and the real server does not mind."""
_CODINGS: Final = frozenset({IDENTITY, *_WINDOW_BITS})
_SLICE_BYTES: Final = 1 << 16
"""Bytes of a stream that are looked at in one go; zlib copies those of them that it does not come to."""
SUPPORTED: Final = ", ".join(name.decode() for name in _WINDOW_BITS)
"""As in a header (contract H140)."""
_WEIGHT: Final = re.compile(rb"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")


class UnsupportedCoding(Unsupported):
    """A body came in a coding that is unknown here."""


# Headers.


def check_coding(name: bytes) -> None:
    """Raises UnsupportedCoding for a Content-Encoding that is unknown. Capital letters are not read over, as in the
    real server."""
    if name not in _CODINGS:
        raise UnsupportedCoding("Unsupported compression type")


def accepted_coding(value: bytes) -> bytes | None:
    """The coding that a client wants its answer in, by the value of Accept-Encoding; None for none.

    Of those that are known the one of highest weight, of equals the first; a weight is read as far as it is a number,
    and a coding without a positive one does not count (contract H141).
    """
    best, found = 0.0, IDENTITY
    for part in value.split(b","):
        name, given, text = part.lstrip(b" ").partition(b";q=")
        if name in _CODINGS:
            number = _WEIGHT.match(text) if given else None
            weight = float(number[1]) if number else 0.0 if given else 1.0
            if weight > best:
                best, found = weight, name
    return None if found == IDENTITY else found


# Bodies.


def inflate(body: Buffer, at_most: int) -> bytes | None:
    """What a gzip or zlib stream holds, None where that is more than `at_most` bytes. What follows the stream is not
    looked at, as in the real server.

    Raises Invalid for an empty body, and for one that is broken or cut off (the real server takes what it got so far).
    """
    if not len(body):
        raise Invalid("nothing to be decompressed")
    stream, view = zlib.decompressobj(_DETECT_WINDOW_BITS), memoryview(body)
    parts, room = [], at_most + 1
    for at in range(0, len(view), _SLICE_BYTES):
        try:
            parts.append(stream.decompress(view[at : at + _SLICE_BYTES], room))
        except zlib.error:
            break
        room -= len(parts[-1])
        if not room:
            return None
        if stream.eof:
            return b"".join(parts)
    raise Invalid("encountered inconsistent stream state during decompression")


def decompress(body: Buffer, max_input_size: int) -> bytes:
    """As `inflate`; raises Invalid also where there are more than `max_input_size` bytes (contract H140)."""
    data = inflate(body, max_input_size)
    if data is None:
        raise Invalid(
            f"Decompressed data size exceeds the maximum allowed value of {max_input_size} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return data


def compress(parts: Sequence[Buffer], coding: bytes) -> bytes:
    """The parts as one stream of that coding, at zlib's default level like the real server's."""
    stream = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    return b"".join([*(stream.compress(part) for part in parts), stream.flush()])
