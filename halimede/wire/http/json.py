"""JSON as the protocol's other end reads and writes it: rapidjson's acceptance, words, offsets, escapes and numbers.

orjson does the work; where it refuses, python-rapidjson says whether the protocol's reader accepts the document all
the same (NaN, invalid UTF-8, a byte order mark) or with which words it refuses. Bytes that are not UTF-8 are kept in
`str` as Python's surrogate escapes. Knows nothing of requests. Pure; any thread.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import rapidjson

from halimede.errors import Internal, Invalid
from halimede.tensors import Buffer

NESTING_LIMIT = 100
NESTING_TEXT = f"JSON nesting depth exceeds maximum allowed limit ({NESTING_LIMIT})"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NUMBERS = rapidjson.NM_NATIVE | rapidjson.NM_NAN
# Its own numbers are quicker, but every fourth double is off by a bit or two.
_EXACT_NUMBERS = rapidjson.NM_NAN
_REFUSAL = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)
# What the newer rapidjson in python-rapidjson says where the protocol's says otherwise.
_OTHER_WORDS = {"Invalid encoding in string.": "Invalid escape character in string."}
# To rapidjson all bytes from 0x80 are alike: fine in a string and wrong elsewhere. As letters they keep every offset.
_AS_LETTERS = bytes(range(0x80)) + b"x" * 0x80
# python-rapidjson wants well-formed text, so bytes that are not UTF-8 pass through it as private characters.
_STAND_INS = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_FROM_STAND_INS = {stand_in: escape for escape, stand_in in _STAND_INS.items()}


def read(text: Buffer) -> Any:
    """The document as dicts, lists, str, int, float, bool and None; integers beyond 64 bits are floats (H19, H20).

    Of equal keys the last wins (the protocol's own server takes the first). Raises Internal with rapidjson's words and
    offset, Invalid for a document nested a thousand deep.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _read_as_rapidjson(bytes(text))


class _Restorer(rapidjson.Decoder):
    """A reader that turns the stand-ins in strings back into surrogate escapes, and wide integers into floats."""

    def string(self, text: str) -> str:
        return text.translate(_FROM_STAND_INS)

    def end_array(self, elements: list[Any]) -> list[Any]:
        return list(map(_narrow, elements))

    def end_object(self, members: dict[str, Any]) -> dict[str, Any]:
        return {key.translate(_FROM_STAND_INS): _narrow(value) for key, value in members.items()}


def _narrow(value: Any) -> Any:
    return value if type(value) is not int or -(2**63) <= value < 2**64 else float(value)


def _read_as_rapidjson(raw: bytes) -> Any:
    # rapidjson takes the mark byte by byte, and is content with the beginning of one.
    skipped = next((n for n in (3, 2, 1) if raw.startswith(_BYTE_ORDER_MARK[:n])), 0)
    raw = raw[skipped:]
    try:
        rapidjson.loads(raw.translate(_AS_LETTERS), number_mode=_NUMBERS)
        return _Restorer(number_mode=_EXACT_NUMBERS)(raw.decode("utf-8", "surrogateescape").translate(_STAND_INS))
    except RecursionError:
        raise Invalid(NESTING_TEXT) from None
    except ValueError as error:
        raise _refusal(str(error), skipped) from None


def _refusal(text: str, skipped: int) -> Internal:
    found = _REFUSAL.match(text)
    if found is None:
        return Internal(f"failed to parse the request JSON buffer: {text}")
    words = _OTHER_WORDS.get(found[2], found[2])
    return Internal(f"failed to parse the request JSON buffer: {words} at {int(found[1]) + skipped}")


# Writing.

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SPECIAL_BYTES = re.compile(rb'[\x00-\x1f"\\]')
_SPECIAL_BUT_QUOTES = re.compile(rb"[\x00-\x1f\\]")
_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | _SHORT
_BYTE_ESCAPES = {bytes([code]): text.encode() for code, text in _ESCAPES.items()}


def encode(text: str) -> bytes:
    """UTF-8, with surrogate escapes as the bytes they stand for; a surrogate that stands for none becomes `?`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("?" if "\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" else c for c in text).encode(
            "utf-8", "surrogateescape"
        )


def quote(text: str) -> str:
    """A JSON string: the short escapes, other control characters as \\u00XX in upper case, all else as it is."""
    if _ESCAPED.search(text) is None:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def write(value: Any) -> str:
    """The text of dicts with string keys, sequences, str, int, float, bool; without spaces."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return write_doubles([value])[1:-1].decode()
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(key)}:{write(item)}" for key, item in value.items()]) + "}"
    return "[" + ",".join(map(write, value)) + "]"


def write_strings(elements: Sequence[bytes]) -> bytes:
    """An array of strings; their bytes stay as they are but for the escapes, UTF-8 or not."""
    if not elements:
        return b"[]"
    joined = b'","'.join(elements)
    if joined.count(b'"') != 2 * (len(elements) - 1) or _SPECIAL_BUT_QUOTES.search(joined):
        joined = b'","'.join([_SPECIAL_BYTES.sub(_byte_escape, element) for element in elements])
    return b'["' + joined + b'"]'


def _byte_escape(found: re.Match[bytes]) -> bytes:
    return _BYTE_ESCAPES[found[0]]


def write_doubles(values: Any) -> bytes:
    """An array of numbers, from a list of floats or a flat float64 array: the shortest digits that read back the same,
    in rapidjson's notation.

    (rapidjson's own digits are not always the shortest: one in four ends otherwise and reads back the same.)
    """
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    # Where orjson writes neither an exponent nor null, rapidjson's notation is the same.
    if b"u" in text:
        text = _with_names(text, values)
    return _renotated(text) if b"e" in text else text


def _with_names(text: bytes, values: Iterable[float]) -> bytes:
    """Says which of the numbers that orjson knows no text for it is."""
    parts = zip(text[1:-1].split(b","), values, strict=True)
    return b"[%b]" % b",".join([part if part != b"null" else _name(value) for part, value in parts])


def _name(value: float) -> bytes:
    return b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"


# What orjson writes with an exponent and rapidjson without one: from 1e-6 until 1e-5, and from 1e16 until 1e21. Older
# versions of orjson write `e16`, newer ones `e+16`.
_DECIMAL_THERE = re.compile(rb"e(?:-6|\+?1[6-9]|\+?20)[,\]]")


def _renotated(text: bytes) -> bytes:
    """An array of numbers from orjson's notation to rapidjson's: `1e+30` becomes `1e30`, `1e+16` all its digits."""
    parts: list[bytes] = []
    done = 0
    for found in _DECIMAL_THERE.finditer(text):
        # Found by their ends: few numbers are such, and a search for whole numbers is fifteen times slower.
        at, end = found.span()
        end -= 1
        start = text.rfind(b",", 0, at) + 1 or 1
        parts += (text[done:start], _decimal(text[start:at], int(text[at + 1 : end])))
        done = end
    if done:
        text = b"".join((*parts, text[done:]))
    return text.replace(b"+", b"")  # one byte is taken out seven times as fast as two are replaced by one


def _decimal(mantissa: bytes, power: int) -> bytes:
    """A number written out: a `mantissa` of one digit and perhaps a fraction, times ten to the power."""
    whole, _, fraction = mantissa.partition(b".")
    if power > 0:
        return (whole + fraction).ljust(len(whole) + power, b"0") + b".0"
    return b"%b0.%b%b%b" % (whole[:-1], b"0" * (-power - 1), whole[-1:], fraction)
